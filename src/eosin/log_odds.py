"""What is promised about eos before anything is decoded: numbers below which its log-odds are never.

Log-odds, log(p / (1 - p)), hold both ends: a bound of 10^-500 that follows from the weights, and a probability that
tends to one. A model makes a promise, for a temperature; a decoder passes on what its choices leave of it. Whoever
has no method for that promises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from eosin.contracts import Decoder, Generative, Grounded, Passing, Promising, Truncation

LogOdds = Float64[Tensor, " steps"]
Promise = Callable[[Float64[Tensor, " steps"]], LogOdds]
"""From steps, counted from 1, to the least log-odds of eos at them, all eos tokens together; it never falls."""
ROUNDING = 1e-12
"""A lead by less is a tie, which guarantees nothing."""


def nothing(steps: Float64[Tensor, " steps"]) -> LogOdds:
    """The promise of a model of which nothing is known."""
    return torch.full_like(steps, -math.inf)


def promise_of(model: Generative, temperature: float = 1.0) -> Promise:
    """What a model promises about eos at a temperature."""
    return model.promise(temperature) if isinstance(model, Promising) else nothing


def grounds_of(model: Generative) -> str:
    """The promise of a model in words."""
    return model.grounds if isinstance(model, Grounded) else "as it says itself"


def passed_on(by: Decoder | Truncation, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
    """The least log-odds that a decoder ends, or that a truncation draws eos, given those of eos under the model."""
    if isinstance(by, Passing):
        return by.passes_on(log_odds, vocab_size, eos_count)
    return log_odds if by.keeps_eos else nothing(log_odds)


def tempered(log_odds: LogOdds, temperature: float, vocab_size: int, eos_count: int) -> LogOdds:
    """What is left at a temperature of log-odds promised at temperature 1.

    With s = 1 / temperature, p^s is to be compared with the sum of r^s over the other tokens, whose r sum to 1 - p.
    That sum is at most (1 - p)^s if s >= 1, and n^(1 - s) (1 - p)^s for n tokens if s < 1, where all are equal. The
    tokens that end are summed as well: of them it is the other way round.
    """
    power = 1 / temperature
    crowd = eos_count if power > 1 else max(1, vocab_size - eos_count)
    return power * log_odds - abs(power - 1) * math.log(crowd)


def leads(log_odds: LogOdds, eos_count: int) -> Bool[Tensor, " steps"]:
    """Where eos is certainly the most probable token: the largest of so many shares, against one token for the rest."""
    return log_odds > math.log(eos_count) + ROUNDING
