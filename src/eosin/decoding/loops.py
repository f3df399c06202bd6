"""Loops at the end of a completion: its tail repeats. That a tail repeats does not prove that it always will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from eosin.outcome import Completion, Proof

LONGEST_PERIOD = 256
PERIODS = 3
"""How often a tail must repeat to be called a loop."""
SHORTEST = 24
"""How many tokens a loop must have. Three equal words are no loop, and samplers repeat short phrases by chance."""
FOLLOWED = 8
"""How many tokens a proved loop is followed for, beyond two turns."""

TokenArray = Int[np.ndarray, " length"]


@dataclass(frozen=True)
class Tail:
    """The end of a completion that repeats itself."""

    onset: int
    """The step, counted from 1, of its first token."""
    period: int


def find_tail(tokens: TokenArray) -> Tail | None:
    """The tail with the shortest period that repeats at least PERIODS times, as far back as it goes."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // PERIODS) + 1):
        if tokens[-1] != tokens[-1 - period]:
            continue
        onset = find_onset(tokens, period)
        if len(tokens) - onset + 1 >= max(PERIODS * period, SHORTEST):
            return Tail(onset, period)
    return None


def find_onset(tokens: TokenArray, period: int) -> int:
    """The step, counted from 1, from which on the tokens repeat with this period."""
    differs = np.flatnonzero(tokens[period:] != tokens[:-period])
    return int(differs[-1]) + 2 if len(differs) else 1


def tail_of(completion: Completion) -> Tail | None:
    """How a completion that did not end repeats itself: the loop that was proved, or else the one that is seen."""
    return None if completion.cause.ends else find_loop(completion.tokens.numpy(), completion.proof)


def find_loop(tokens: TokenArray, proof: Proof | None) -> Tail | None:
    """The loop at the end of tokens: the one that was proved, or else the one that is seen."""
    if proof is None:
        return find_tail(tokens)
    period = len(proof.cycle)
    return Tail(find_onset(extend(tokens, proof), period), period)


def extend(tokens: TokenArray, proof: Proof | None) -> Int[np.ndarray, " extended"]:
    """The tokens; if it was proved how they go on, two more turns of the cycle and a little more."""
    if proof is None:
        return tokens
    cycle = np.array(proof.cycle)
    return np.concatenate([tokens, np.resize(np.roll(cycle, -1), 2 * len(cycle) + FOLLOWED)])


def reduce_cycle(turn: Sequence[int]) -> list[int]:
    """The shortest list that these tokens repeat."""
    tokens = list(turn)
    periods = (p for p in range(1, len(tokens) + 1) if len(tokens) % p == 0)
    return next(tokens[:p] for p in periods if tokens[:p] * (len(tokens) // p) == tokens)


def rotate_cycle(cycle: Sequence[int]) -> tuple[int, ...]:
    """The least rotation of a cycle, in the order of lists: one name wherever the cycle is entered."""
    tokens = tuple(cycle)
    return min(tokens[i:] + tokens[:i] for i in range(len(tokens)))
