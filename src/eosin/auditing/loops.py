"""Loops that can be seen: a completion whose tail repeats. Seen is not proved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

LONGEST_PERIOD = 256
PERIODS = 3
"""How often a tail must repeat to be called a loop."""
SHORTEST = 12
"""How many tokens long a loop must be, so that three equal words are none."""


@dataclass(frozen=True)
class Tail:
    """The end of a completion that repeats itself."""

    onset: int
    """The step, counted from 1, of its first token."""
    period: int


def repeating_tail(tokens: Int[np.ndarray, " length"]) -> Tail | None:
    """The tail with the shortest period that repeats at least PERIODS times, as far back as it goes."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // PERIODS) + 1):
        if tokens[-1] != tokens[-1 - period]:
            continue
        differs = np.flatnonzero(tokens[period:] != tokens[:-period])
        onset = int(differs[-1]) + 1 if len(differs) else 0
        length = len(tokens) - onset
        if length >= max(PERIODS * period, SHORTEST):
            return Tail(onset + 1, period)
    return None
