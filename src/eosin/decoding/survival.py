"""The survival estimator: how probable it is that a sampler has not ended, without waiting for it to end.

A sampler draws eos with probability q_t, or another token. Follow instead the path that never draws eos: the product of
1 - q_t along it is an unbiased estimate of the probability of not having ended by step t, and the flips of a coin,
which are most of the variance of plain counting, are gone. It is the very path that the sampler takes until it ends:
the same second random number picks the same token.

A path whose weight has become negligible is not worth its steps. Russian roulette ends it with a probability that
leaves the expectation as it is: a weight w below the least weight becomes that with probability w / least, else zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from eosin.contracts import EosIds, Rows, Token, Uniforms
from eosin.decoding.distribution import NextToken
from eosin.decoding.loop import Paths, PathTable
from eosin.decoding.samplers import Sampler
from eosin.decoding.search_state import written
from eosin.errors import BadInput

LEAST_WEIGHT = 1e-4
"""Below this a path is put to the roulette: about the ratios that this is for. Paths without eos are long, so where
more than some percent survive, plain counting gets further with the same number of tokens (docs/log.md).
"""


@dataclass(frozen=True)
class Survival:
    """A sampler, followed along paths that exclude eos; completions carry the weight after each step."""

    sampler: Sampler
    least: float = LEAST_WEIGHT
    rows_per_context = 1

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise BadInput(f"the least weight must lie in (0, 1], got {self.least}")

    @property
    def keeps_eos(self) -> bool:
        return self.sampler.keeps_eos

    def check(self, vocab_size: int) -> None:
        self.sampler.check(vocab_size)

    def begin(self, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int) -> WeightedPaths:
        return WeightedPaths(self, indices, eos_ids, max_steps, seed)

    def __str__(self) -> str:
        return str(self.sampler)


def survival_of(decoder: Any) -> Survival:
    """The estimator for a decoder that draws eos by chance."""
    if not hasattr(decoder, "draw"):
        raise BadInput(f"{decoder} draws nothing, so there is no chance of survival to estimate: count it instead")
    return Survival(decoder)


@dataclass
class WeightTable(PathTable):
    weight: Float64[Tensor, " contexts"]
    weights: Float64[Tensor, "contexts time"]


class WeightedPaths(Paths):
    """Paths without eos under way. One whose weight is zero has ended."""

    def __init__(self, estimator: Survival, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int):
        super().__init__(estimator.sampler, indices, eos_ids, max_steps, seed)
        self.estimator = estimator
        ones = torch.ones_like(self.table.log_prob)
        self.table = WeightTable(**vars(self.table), weight=ones, weights=ones[:, None].expand(-1, 1).clone())

    def choose(self, next_token: NextToken, numbers: Uniforms) -> Token:
        table, drawn = self.table, self.estimator.sampler.draw(next_token, numbers)
        table.weight = roulette(table.weight * drawn.survival, numbers[:, 0], self.estimator.least)
        table.weights = written(table.weights, table.steps, table.weight, self.max_steps)
        return torch.where(table.weight == 0, self.eos_ids[0], drawn.other)

    def known_of(self, table: PathTable, row: int) -> dict[str, Any]:
        return {"survival": table.weights[row, : int(table.steps[row])].cpu()}  # type: ignore[attr-defined]


def roulette(
    weight: Float64[Tensor, " batch"], number: Float64[Tensor, " batch"], least: float
) -> Float64[Tensor, " batch"]:
    """The weights, those below the least raised to it or set to zero, so that nothing changes on average."""
    kept = torch.where(number * least < weight, least, 0.0)
    return torch.where(weight < least, kept, weight)
