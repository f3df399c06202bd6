"""What `eosin fix` tries: the model as it is, and remedies that need no training, each added to the ones before.

First the endings that are missing (eos ids, stop strings), then the eos-keeping form of the truncation, then a floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from eosin.contracts import Decoder, Generative, Prefix, Token
from eosin.decoding.floor import Floor
from eosin.decoding.samplers import Sampler
from eosin.decoding.stopping import StopStrings
from eosin.decoding.truncation import Consistent
from eosin.errors import BadInput
from eosin.guarantees.certificate import find_floor
from eosin.records.statistics import summarize_lengths

AS_IT_IS = "as it is"
MOST_GRACE = 0.75
"""Of the budget. The rest is where the floor rises."""


@dataclass(frozen=True)
class Candidate:
    """One way to decode."""

    name: str
    plain: Generative
    """The model without a floor."""
    decoder: Decoder
    stop: StopStrings | None = None
    floor: Floor | None = None

    @property
    def model(self) -> Generative:
        return self.floor or self.plain

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.stop.strings if self.stop else ()


class NeverEnding(nn.Module):
    """A model that no token ends, as `generate` runs it where no eos is set: eos is one more token of probability 0."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.vocab_size: int = model.vocab_size + 1
        self.eos_ids = (model.vocab_size,)
        self.pool, self.window = model.pool, model.window

    def prefill(self, prefix: Prefix) -> tuple[Tensor, Any]:
        return self._add_eos(*self.model.prefill(prefix))

    def step(self, token: Token, state: Any) -> tuple[Tensor, Any]:
        return self._add_eos(*self.model.step(token, state))

    def _add_eos(self, logits: Tensor, state: Any) -> tuple[Tensor, Any]:
        return functional.pad(logits, (0, 1), value=-math.inf), state


def list_unfloored(baseline: Candidate, model: Generative, stop: StopStrings | None) -> Iterator[Candidate]:
    """The remedies but the floor; `model` and `stop` have all the endings that are known."""
    last = baseline
    if set(model.eos_ids) != set(baseline.plain.eos_ids):
        last = replace(last, name="all eos ids", plain=model)
        yield last
    if stop and stop.strings != baseline.stop_strings:
        last = replace(last, name="stop strings", stop=stop)
        yield last
    decoder = baseline.decoder
    if isinstance(decoder, Sampler) and decoder.truncation and not decoder.keeps_eos:
        keeping = Sampler(Consistent(decoder.truncation), decoder.temperature)
        yield replace(last, name="eos kept", decoder=keeping)


def add_floor(candidate: Candidate, budget: int, natural: Mapping[int, int]) -> Candidate | None:
    """The same on a floor that ends it within the budget; None if no floor does.

    The floor leaves alone as many steps as 95% of what ends by itself within the budget has: `natural` says how many
    end at each step.
    """
    lengths = summarize_lengths({step: count for step, count in natural.items() if step <= budget})
    half = budget // 2
    grace = half if lengths is None else min(lengths.quantiles[-1], int(MOST_GRACE * budget))
    for steps in (grace, None):
        try:
            floor = find_floor(candidate.plain, candidate.decoder, budget, steps)
            return replace(candidate, name="floor", floor=floor)
        except BadInput:  # so long a grace is too much
            continue
    return None
