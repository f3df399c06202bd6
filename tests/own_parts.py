"""Parts as somebody writes them who has read docs/adding.md: the laws are tested on them as on those of the package."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from eosin.decoding.truncation import Interval, SmallestSet, Whole
from eosin.states import TensorState


@dataclass(frozen=True)
class CappedNucleus(SmallestSet):
    """Two numbers, one of them whole, with a default; two running sums; a bound that is safe and not exact."""

    name = "capped-nucleus"
    aliases = ("top-p-k",)
    examples = ("0.5", "0.9:3", "1:70")
    allowed = (Interval(0, 1, "(]"), Whole(1))
    share: float
    k: float = 5

    @property
    def sole(self) -> float:
        return (1 + max(0.5, self.share)) / 2

    def certain(self, vocab_size: int) -> float:
        return 0.6

    def weight(self, log_probs):
        return torch.stack([log_probs.exp(), torch.ones_like(log_probs)])

    def enough(self, running, next_token):
        mass, count = running
        return (mass > self.share + next_token.tie) | (count >= self.k)


class Leaky(nn.Module):
    """A running average: a width and nothing else, a parameter of its own, a formula, no `reach`."""

    depth, tensors_per_layer = 1, 1

    def __init__(self, width: int = 16):
        super().__init__()
        self.width = width
        self.keep = nn.Parameter(torch.linspace(-1, 1, width))

    def initial(self, batch):
        return TensorState((self.keep.new_zeros(batch, self.width),))

    def forward(self, inputs, state):
        (hidden,) = state.tensors
        keep, rows = self.keep.sigmoid(), []
        for column in inputs.unbind(1):
            hidden = keep * hidden + (1 - keep) * column.tanh()
            rows.append(hidden)
        return torch.stack(rows, 1), TensorState((hidden,))

    def next_memory(self, inputs, memory):
        (hidden,) = memory
        keep = self.keep.detach().double().sigmoid()
        return (keep * hidden + inputs.tanh() * (1 - keep),)
