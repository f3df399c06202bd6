"""Following only a random share of the loops that nothing can be proved about.

A row whose tail has repeated for long enough is left, and counts as not ended. A random share of these rows goes on to
the limit. What becomes of them corrects the count (`records.statistics.SampledRatio`), so the ratio stays unbiased
whatever loops do. Seed and context decide which rows go on. Results do not depend on the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from eosin.decoding.loop import Cohort
from eosin.decoding.loops import TokenArray, find_tail
from eosin.decoding.randomness import uniforms

REPEATING = 128
"""How many tokens must repeat, beyond what makes a tail a loop, before it may be left."""
LOOK_EVERY = 16
"""Rows are looked at after so many steps of their own."""
BEYOND = 2**32
"""A step that no decoding reaches: its number decides whether a loop is followed."""


@dataclass
class LoopSampler:
    """Leaves the loops of one decoder, but for a random share; it is a `Prove` of `decoding.loop`."""

    share: float
    seed: int
    followed: dict[int, int] = field(default_factory=dict)
    """For each context whose loop is followed, the step at which the loop was seen."""

    def __call__(self, cohort: Cohort) -> Cohort:
        search = cohort.search
        due = (search.steps % LOOK_EVERY == 0).nonzero()[:, 0].tolist()
        indices = search.table.index[search.owners].tolist()
        unseen = [row for row in due if indices[row] not in self.followed]
        tokens = search.tokens_of(unseen)
        looping = [row for row, made in zip(unseen, tokens, strict=True) if is_long_loop(np.array(made))]
        chosen = choose_followed(self.seed, [indices[row] for row in looping], self.share)
        steps = search.steps[looping].tolist()
        pairs = zip(looping, steps, chosen, strict=True)
        self.followed |= {indices[row]: step for row, step, follows in pairs if follows}
        left = [row for row in looping if indices[row] not in self.followed]
        return cohort.retire(dict.fromkeys(left)) if left else cohort


def is_long_loop(tokens: TokenArray, least: int = REPEATING) -> bool:
    """Whether the tokens end in a loop that has repeated for long enough to be left."""
    tail = find_tail(tokens) if len(tokens) >= least else None
    return tail is not None and len(tokens) - tail.onset + 1 - tail.period >= least


def choose_followed(seed: int, contexts: list[int], share: float) -> list[bool]:
    """Whether each context goes on when it loops. A larger share follows the same contexts, and more."""
    numbers = uniforms(
        seed,
        torch.tensor(contexts, dtype=torch.int64, device="cpu"),
        torch.full((len(contexts),), BEYOND, device="cpu"),
    )
    return (numbers[:, 0] < share).tolist()
