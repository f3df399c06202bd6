"""Loops that can be seen: a completion whose tail repeats. Seen is not proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

LONGEST_PERIOD = 256
PERIODS = 3
"""How often a tail must repeat to be called a loop."""
SHORTEST = 24
"""How many tokens long a loop must be: neither three equal words are one, nor what a sampler repeats by chance."""


@dataclass(frozen=True)
class Tail:
    """The end of a completion that repeats itself."""

    onset: int
    """The step, counted from 1, of its first token."""
    period: int


def primitive(turn: Sequence[int]) -> list[int]:
    """The shortest list of which this is a repetition."""
    tokens = list(turn)
    periods = (p for p in range(1, len(tokens) + 1) if len(tokens) % p == 0)
    return next(tokens[:p] for p in periods if tokens[:p] * (len(tokens) // p) == tokens)


def rotated(cycle: Sequence[int]) -> tuple[int, ...]:
    """The cycle from where its tokens come first in order: one name for all places at which it can be entered."""
    tokens = tuple(cycle)
    return min(tokens[i:] + tokens[:i] for i in range(len(tokens)))


def repeating_tail(tokens: Int[np.ndarray, " length"]) -> Tail | None:
    """The tail with the shortest period that repeats at least PERIODS times, as far back as it goes."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // PERIODS) + 1):
        if tokens[-1] != tokens[-1 - period]:
            continue
        onset = onset_of(tokens, period)
        if len(tokens) - onset + 1 >= max(PERIODS * period, SHORTEST):
            return Tail(onset, period)
    return None


def onset_of(tokens: Int[np.ndarray, " length"], period: int) -> int:
    """The step, counted from 1, from which on the tokens repeat with this period."""
    differs = np.flatnonzero(tokens[period:] != tokens[:-period])
    return int(differs[-1]) + 2 if len(differs) else 1
