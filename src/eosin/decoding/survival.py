"""The survival estimator: how probable it is that a sampler has not ended, without waiting for it to end.

A sampler draws eos with probability q_t, or another token. The estimator follows the path that never draws eos. The
product of 1 - q_t along it is an unbiased estimate of the probability of not having ended by step t. The coin flips,
which are most of the variance of plain counting, are gone. Until the sampler ends it takes the same path, because the
same second random number picks the same token.

A path of negligible weight is not worth its steps. Russian roulette ends it without changing the expectation: a weight
w below the least weight becomes the least weight with probability w / least, else zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from eosin.contracts import Decoder, Drawing, EosIds, Rows, Stop, Token, Uniforms
from eosin.decoding.distribution import NextToken
from eosin.decoding.paths import Paths, PathTable
from eosin.decoding.samplers import LeftToRight
from eosin.decoding.search import History
from eosin.errors import BadInput

LEAST_WEIGHT = 1e-4
"""Paths of less weight are put to the roulette. The estimator is for ratios of about this size. Paths without eos are
long, so where more than a few percent survive, plain counting is better for the same number of tokens (docs/log.md).
"""


@dataclass(frozen=True)
class Survival(LeftToRight):
    """A sampler on paths without eos; completions carry the weight after each step."""

    sampler: Drawing
    least: float = LEAST_WEIGHT

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise BadInput(f"the least weight must lie in (0, 1], got {self.least}")

    @property
    def keeps_eos(self) -> bool:  # type: ignore[override]
        return self.sampler.keeps_eos

    def check(self, vocab_size: int) -> None:
        self.sampler.check(vocab_size)

    def begin(
        self, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int, stop: Stop | None = None
    ) -> WeightedPaths:
        return WeightedPaths(self, indices, eos_ids, max_steps, seed, stop)

    def __str__(self) -> str:
        return str(self.sampler)


def survival_of(decoder: Decoder) -> Survival:
    """The estimator for a decoder that draws eos by chance."""
    if not isinstance(decoder, Drawing):
        raise BadInput(f"{decoder} is deterministic; survival needs a sampler, as 'ancestral'")
    return Survival(decoder)


@dataclass
class WeightTable(PathTable):
    weight: Float64[Tensor, " contexts"]
    weights: History


class WeightedPaths(Paths):
    """Paths without eos under way. One whose weight is zero has ended."""

    table: WeightTable

    def __init__(
        self, estimator: Survival, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int, stop: Stop | None
    ):
        super().__init__(estimator, indices, eos_ids, max_steps, seed, stop)
        self.estimator = estimator
        ones = torch.ones_like(self.table.log_prob)
        self.table = WeightTable(**vars(self.table), weight=ones, weights=History(ones.new_empty(len(ones), 32)))

    def choose(self, next_token: NextToken, numbers: Uniforms) -> Token:
        table, drawn = self.table, self.estimator.sampler.draw(next_token, numbers)
        table.weight = roulette(table.weight * drawn.survival, numbers[:, 0], self.estimator.least)
        table.weights = table.weights.append(table.weight, int(table.steps.max()))
        return torch.where(table.weight == 0, self.eos_ids[0], drawn.other)

    def weights_of(self, rows: Sequence[int], steps: Sequence[int]) -> Sequence[Float64[Tensor, " length"] | None]:
        return self.table.weights.fetch(rows, steps)


def roulette(
    weight: Float64[Tensor, " batch"], number: Float64[Tensor, " batch"], least: float
) -> Float64[Tensor, " batch"]:
    """The weights; those below the least become the least or zero, so that the mean stays the same."""
    kept = torch.where(number * least < weight, least, 0.0)
    return torch.where(weight < least, kept, weight)
