"""Lower bounds on the log-odds of eos, known before decoding.

Log-odds, log(p / (1 - p)), represent a bound of 10^-500 that follows from the weights as well as a probability that
tends to one. A model promises a bound for a temperature. A decoder passes on the part of it that its choices leave. A
model or a decoder without the method promises nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from eosin.contracts import Decoder, Passing, Promising, Truncation
from eosin.logits import log_odds_of_eos

Steps = Float64[Tensor, " steps"]
LogOdds = Float64[Tensor, " steps"]
LAST_POWER = 900
"""Steps are searched up to 2^LAST_POWER, which covers every epsilon that makes sense."""
ROUNDING = 1e-12
"""A smaller lead counts as a tie, and a tie guarantees nothing."""


@dataclass(frozen=True)
class Promise:
    """A lower bound on the log-odds of eos at each step, all eos tokens together. It never falls from step to step."""

    bound: Callable[[Steps], LogOdds]
    """From steps, counted from 1, to the bound."""
    grounds: str
    """The bound and its reason in words."""

    def __call__(self, steps: Steps) -> LogOdds:
        return self.bound(steps)


NO_PROMISE = Promise(lambda steps: torch.full_like(steps, -math.inf), "nothing about p(eos)")


def get_promise(model: object, temperature: float = 1.0) -> Promise:
    """The promise of a model at a temperature."""
    return model.promise(temperature) if isinstance(model, Promising) else NO_PROMISE


def promise_from_survival(
    bound: Callable[[Steps], Steps], grounds: str, temperature: float, vocab_size: int, eos_count: int
) -> Promise:
    """The promise that follows from an upper bound on log(1 - p(eos)) at each step, at temperature 1.

    A bound of -inf may be one that float64 cannot hold, or that was rounded to it. So it counts as the last finite one.
    """
    last = cache(lambda: find_last_finite(bound))

    def log_odds(steps: Steps) -> LogOdds:
        log_survival = bound(steps)
        if bool((log_survival == -math.inf).any()):
            log_survival = log_survival.clamp(min=last())
        tempered = apply_temperature(log_odds_of_eos(log_survival), temperature, vocab_size, eos_count)
        return tempered.clamp(max=sys.float_info.max)

    return Promise(log_odds, grounds)


def find_last_finite(bound: Callable[[Steps], Steps]) -> float:
    """The last finite value of a bound that becomes -inf; 0, which promises nothing, if it is never finite."""
    low, high, value = 0, 2**LAST_POWER, 0.0
    while high - low > max(1, high >> 50):
        middle = (low + high) // 2
        found = float(bound(torch.tensor([float(middle)], dtype=torch.float64)))
        low, high, value = (low, middle, value) if found == -math.inf else (middle, high, found)
    return value


def pass_on(decoder: Decoder | Truncation, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
    """The least log-odds that a decoder ends, or that a truncation draws eos, given those of eos under the model."""
    if isinstance(decoder, Passing):
        return decoder.passes_on(log_odds, vocab_size, eos_count)
    return log_odds if decoder.keeps_eos else torch.full_like(log_odds, -math.inf)


def apply_temperature(log_odds: LogOdds, temperature: float, vocab_size: int, eos_count: int) -> LogOdds:
    """A lower bound on the log-odds at a temperature, given one at temperature 1.

    With s = 1 / temperature, compare p^s with the sum of r^s over the other tokens, whose r sum to 1 - p. That sum is
    at most (1 - p)^s if s >= 1, and at most n^(1 - s) (1 - p)^s for n tokens if s < 1, where all are equal. The tokens
    that end are summed too; for them the inequality is the other way round.
    """
    power = 1 / temperature
    tokens = eos_count if power > 1 else max(1, vocab_size - eos_count)
    return power * log_odds - abs(power - 1) * math.log(tokens)


def is_most_probable(log_odds: LogOdds, eos_count: int) -> Bool[Tensor, " steps"]:
    """Where some eos token is certainly the most probable token: of m eos tokens, one has at least p(eos) / m."""
    return log_odds > math.log(eos_count) + ROUNDING
