"""Drift in a loop without a proof: numbers of the state that count its turns.

Tokens can repeat while the state does not: a cell of an LSTM may add the same amount at every turn. Such a row may be
long without being infinite: the count may end it, and often does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eosin.contracts import Generative
from eosin.decoding.loop import pad_rows
from eosin.devices import own_precision
from eosin.proofs.dynamics import Dynamics

MOVES = 1e-3
"""A number of the state that changes by more than this with every turn is counting."""
FOLLOWED = 64
"""The number of last steps over which the change is measured; at least one turn."""

Drift = tuple[int, int, float]
"""The number of numbers that count, the one that counts most, and its change in a turn."""


@dataclass(frozen=True)
class Looping:
    """A completion that ends in a loop."""

    prefix: Int[Tensor, " prefix"]
    tokens: Int[Tensor, " time"]
    period: int

    @property
    def turns(self) -> int:
        """The number of last turns over which the change is measured."""
        return max(1, min(FOLLOWED, len(self.tokens) - 1) // self.period)


@own_precision()
@torch.inference_mode()
def measure_drifts(model: Generative, dynamics: Dynamics, loops: Sequence[Looping]) -> list[Drift]:
    """Measure the drift at the end of each completion. All of them are read at once."""
    rows = pad_rows(torch.arange(len(loops), device="cpu"))
    shared = min(len(loop.prefix) for loop in loops)
    _, state = model.prefill(torch.stack([loops[row].prefix[:shared] for row in rows.tolist()]))
    texts = [torch.cat([loop.prefix[shared:], loop.tokens]) for loop in loops]
    steps = pad_sequence([texts[row] for row in rows.tolist()])
    ends = [len(text) for text in texts]
    starts = [end - loop.turns * loop.period for end, loop in zip(ends, loops, strict=True)]
    seen: dict[tuple[int, int], Float64[Tensor, " state"]] = {}
    for step in range(max(ends) + 1):
        for row in (row for row, marks in enumerate(zip(starts, ends, strict=True)) if step in marks):
            seen[row, step] = dynamics.numbers(state)[row]
        if step < len(steps):
            _, state = model.step(steps[step], state)
    changes = [seen[row, ends[row]] - seen[row, starts[row]] for row in range(len(loops))]
    return [summarize_change(change / loop.turns) for change, loop in zip(changes, loops, strict=True)]


def summarize_change(by: Float64[Tensor, " state"]) -> Drift:
    most = int(by.abs().argmax())
    return int((by.abs() > MOVES).sum()), most, float(by[most])
