"""Choosing the next token of each row: the most probable one, or one drawn from the kept set.

A draw takes two uniform numbers. The first decides whether the sequence ends. The second picks among the other kept
tokens, by inverse cumulative distribution in the order of their ids. So two decoders that differ only in keeping eos
take the same path until one of them ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from eosin.contracts import EosIds, Rows, Stop, Token, Truncation, Uniforms
from eosin.decoding.distribution import NextToken
from eosin.decoding.paths import Paths
from eosin.decoding.truncation import Kept, keep_mask, shorten
from eosin.errors import BadInput
from eosin.log_odds import LogOdds, is_most_probable, pass_on


class LeftToRight:
    """A decoder that chooses one token per row. A subclass says which."""

    rows_per_context = 1
    keeps_eos = False
    draws = True

    def check(self, vocab_size: int) -> None:
        """Any vocabulary will do."""

    def begin(self, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int, stop: Stop | None = None) -> Paths:
        return Paths(self, indices, eos_ids, max_steps, seed, stop)

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token:
        raise NotImplementedError


@dataclass(frozen=True)
class Greedy(LeftToRight):
    """The most probable token; of equally probable ones the one with the lowest id."""

    draws = False

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token:
        return next_token.best()

    def kept(self, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
        """The one token that can be chosen."""
        return next_token.top(1).mask(next_token.vocab_size)

    @property
    def rule(self) -> str:
        return str(self)

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        return leads.amin(0)

    def passes_on(self, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
        return torch.where(is_most_probable(log_odds, eos_count), math.inf, -math.inf).to(log_odds)

    def __str__(self) -> str:
        return "greedy"


@dataclass(frozen=True)
class Sampler(LeftToRight):
    """A draw from the kept set at a temperature, which is applied first; without a truncation, ancestral sampling."""

    truncation: Truncation | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 1e-30 <= self.temperature <= 1e30:  # so that 1 / temperature is a number in float32 as well
            raise BadInput(f"temperature must lie between 1e-30 and 1e30, got {self.temperature}")

    @property
    def keeps_eos(self) -> bool:  # type: ignore[override]
        return self.truncation is None or self.truncation.complete or self.truncation.keeps_eos

    def check(self, vocab_size: int) -> None:
        if self.truncation is not None:
            self.truncation.check(vocab_size)

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token:
        return self.draw(next_token, uniforms).token(next_token.eos_ids, uniforms)

    def draw(self, next_token: NextToken, uniforms: Uniforms) -> Draw:
        tempered = next_token.at(self.temperature)
        if self.truncation is None or self.truncation.complete:
            return draw_from_all(tempered, uniforms)
        return draw(self.truncation, tempered, uniforms)

    def kept(self, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
        """Every token that can be drawn."""
        if self.truncation is None or self.truncation.complete:
            return next_token.support()
        return keep_mask(self.truncation, next_token.at(self.temperature))

    @property
    def rule(self) -> str:
        """What removes tokens: the truncation, without the temperature."""
        return "ancestral" if self.truncation is None else str(self.truncation)

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        if self.truncation is None:
            return torch.full_like(leads[0], -math.inf)
        return self.truncation.margin(leads / self.temperature)

    def passes_on(self, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
        if self.truncation is None or self.truncation.complete:
            return log_odds
        return pass_on(self.truncation, log_odds, vocab_size, eos_count)

    def __str__(self) -> str:
        return self.rule if self.temperature == 1 else f"{self.rule},temperature={shorten(self.temperature)}"


@dataclass(frozen=True)
class Draw:
    """For each row, the token to continue with, and how much kept probability lies on continuing and on ending."""

    other: Token
    """The token that is drawn if the sequence does not end."""
    other_mass: Float64[Tensor, " batch"]
    eos_probs: Float64[Tensor, "batch eos"]

    def token(self, eos_ids: EosIds, uniforms: Uniforms) -> Token:
        """eos with its share of the kept mass, else the other token."""
        eos_mass = self.eos_probs.sum(1)
        ends = uniforms[:, 0] * (eos_mass + self.other_mass) < eos_mass
        eos = eos_ids if len(eos_ids) == 1 else eos_ids[quantile(self.eos_probs, uniforms[:, 1])]
        return torch.where(ends, eos, self.other)

    @property
    def survival(self) -> Float64[Tensor, " batch"]:
        """1 - q(eos): the probability that the sequence does not end here."""
        return self.other_mass / (self.eos_probs.sum(1) + self.other_mass)

    def replace_rows(self, rows: Rows, by: Draw) -> Draw:
        return Draw(
            other=self.other.index_copy(0, rows, by.other),
            other_mass=self.other_mass.index_copy(0, rows, by.other_mass),
            eos_probs=self.eos_probs.index_copy(0, rows, by.eos_probs),
        )


def draw(truncation: Truncation, next_token: NextToken, uniforms: Uniforms) -> Draw:
    """From what the rule keeps: from a list or, where that would be long, from the front of its order."""
    kept = truncation.keep(next_token)
    if kept is None:
        return draw_from_front(truncation, next_token, uniforms)
    drawn = draw_from_list(kept, uniforms)
    rows = (~kept.complete).nonzero()[:, 0]
    if not len(rows):
        return drawn
    return drawn.replace_rows(rows, draw_from_front(truncation, next_token.select(rows), uniforms[rows]))


def draw_from_list(kept: Kept, uniforms: Uniforms) -> Draw:
    by_id = kept.ids.argsort(1)
    probs = kept.log_probs.gather(1, by_id).exp()
    other = kept.ids.gather(1, by_id.gather(1, quantile(probs, uniforms[:, 1])[:, None]))[:, 0]
    return Draw(other, probs.sum(1), kept.eos_log_probs.exp())


def draw_from_front(truncation: Truncation, next_token: NextToken, uniforms: Uniforms) -> Draw:
    line = truncation.line(next_token)

    def kept_probs(ids: Tensor, log_probs: Tensor) -> Tensor:
        return torch.where(line.keeps(ids, log_probs), log_probs.exp(), 0.0).double()

    masses = torch.stack([kept_probs(*block).sum(1) for block in next_token.others()], dim=1)
    eos_probs = next_token.eos_log_probs.exp()
    if not truncation.keeps_eos:
        eos_kept = line.keeps(next_token.eos_ids, next_token.rounded_eos_log_probs)
        eos_probs = torch.where(eos_kept, eos_probs, 0.0)
    return draw_by_blocks(next_token, masses, kept_probs, eos_probs, uniforms)


def draw_from_all(next_token: NextToken, uniforms: Uniforms) -> Draw:
    """Ancestral sampling."""
    return draw_by_blocks(
        next_token,
        next_token.block_masses,
        lambda _, log_probs: log_probs.double().exp(),
        next_token.eos_log_probs.exp(),
        uniforms,
    )


def draw_by_blocks(
    next_token: NextToken,
    masses: Float64[Tensor, "batch blocks"],
    probs_of: Callable[[Tensor, Tensor], Tensor],
    eos_probs: Float64[Tensor, "batch eos"],
    uniforms: Uniforms,
) -> Draw:
    """First the block, by its kept mass, then the token within it: only one block per row is looked at closely."""
    block = quantile(masses, uniforms[:, 1])
    row = torch.arange(next_token.rows, device=block.device)
    before = masses.cumsum(1)[row, block] - masses[row, block]
    fraction = ((uniforms[:, 1] * masses.sum(1) - before) / masses[row, block]).clamp(min=0)
    ids, log_probs = next_token.block(block)
    other = ids.gather(1, quantile(probs_of(ids, log_probs), fraction)[:, None])[:, 0]
    return Draw(other, masses.sum(1), eos_probs)


def quantile(weights: Float64[Tensor, "batch n"], fraction: Float64[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The first place at which the running sum exceeds a fraction of the total; never one of weight zero."""
    running = weights.cumsum(1)
    total = running[:, -1]
    # a fraction of almost one may be rounded up to the total, which nothing exceeds
    target = (fraction * total).minimum(torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(running, target[:, None], right=True)[:, 0]
    return place.clamp(max=weights.shape[1] - 1)
