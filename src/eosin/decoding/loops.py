"""Loops at the end of a completion: its tail repeats, or its phrases do. That does not prove that it always will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from eosin.causes import Cause
from eosin.outcome import Completion, Proof

PERIODS = 3
"""How often a tail must repeat to be called a loop."""
LONG = 128
"""How many tokens of a third turn are enough."""
SHORTEST = 24
"""How many tokens a loop must have. Three equal words are no loop, and samplers repeat short phrases by chance."""
AGAIN = 16
"""How many tokens at the end of every loop have come before: the least of what remains of it without its first turn."""
NGRAM, WINDOW = 8, 1000
LEAST_NEW = 0.02
"""A text is a templated loop if fewer of the n-grams of its last WINDOW tokens are new."""
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
    """The tail with the shortest period that repeats often enough, as far back as it goes. No period is too long."""
    if len(tokens) < SHORTEST:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(tokens, AGAIN)
    for period in (1 + np.flatnonzero((windows[-2::-1] == windows[-1]).all(1))).tolist():
        onset = find_onset(tokens, period)
        if len(tokens) - onset + 1 >= max(min(PERIODS * period, 2 * period + LONG), SHORTEST):
            return Tail(onset, period)
    return None


def measure_novelty(tokens: TokenArray) -> float | None:
    """The share of n-grams of the last tokens that occur nowhere before; None of fewer than WINDOW tokens."""
    if len(tokens) < WINDOW:
        return None
    grams = np.lib.stride_tricks.sliding_window_view(tokens, NGRAM)
    firsts = np.unique(grams, axis=0, return_index=True)[1]
    start = max(0, len(grams) - WINDOW)
    return float((firsts >= start).sum() / (len(grams) - start))


def name_loop(tokens: TokenArray) -> Cause | None:
    """What kind of loop the tokens end in, if any: their tail repeats, or phrases that came before do in any order."""
    if find_tail(tokens) is not None:
        return Cause.LOOPING
    novelty = measure_novelty(tokens)
    return Cause.TEMPLATED if novelty is not None and novelty < LEAST_NEW else None


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
