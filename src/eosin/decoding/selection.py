"""Where an order of preference reaches a weight, found without sorting the vocabulary.

A pass adds up the weights of the tokens in bins of like preference; the line must fall into the first bin at whose end
enough is reached. Where that bin is crowded, another pass divides it into bins of its own; then its members are put in
order. It is a radix selection: the bins are the leading digits of the preference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eosin.decoding.distribution import NextToken, in_order

BINS = 1024
SPAN = 24.0
"""Preferences are never positive; those below -SPAN share the last bin."""
CROWD = 512
"""More tokens than this in a bin are divided once more."""
MOST_DIGITS = 3

Order = Callable[[Float[Tensor, "batch n"]], Float[Tensor, "batch n"]]
"""From log-probabilities to preferences, none of them positive; the greater, the earlier in the order."""
Weight = Callable[[Float[Tensor, "batch n"]], Float[Tensor, "batch n"]]
Enough = Callable[[Float[Tensor, "batch n"]], Bool[Tensor, "batch n"]]


def by_probability(log_probs: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
    return log_probs


@dataclass(frozen=True)
class Line:
    """A line through an order: kept is a token that is preferred to the last one, or is it; the lower id goes first."""

    order: Order
    preference: Float[Tensor, " batch"]
    last_id: Int[Tensor, " batch"]

    def keeps(self, ids: Int[Tensor, "*batch n"], log_probs: Float[Tensor, "batch n"]) -> Bool[Tensor, "batch n"]:
        preference, last = self.order(log_probs), self.preference[:, None]
        return (preference > last) | ((preference == last) & (ids <= self.last_id[:, None]))


def line_where(next_token: NextToken, order: Order, weight: Weight, enough: Enough) -> Line:
    """The line behind the shortest front of the order whose weight is enough; behind everything if nothing is."""
    digits: list[Tensor] = []
    before = torch.zeros(next_token.rows, 1, dtype=torch.float64, device=next_token.device)
    some = torch.ones(next_token.rows, dtype=torch.bool, device=next_token.device)
    while len(digits) < MOST_DIGITS:
        by_bin, sizes = bins(next_token, order, weight, digits)
        running = before + by_bin.cumsum(1)
        reached = enough(running)
        some = some & reached.any(1) if not digits else some
        # in a later pass rounding may leave the last bin just short: it is the one all the same
        digit = torch.where(reached.any(1), reached.int().argmax(1), last_filled(sizes))[:, None]
        before = (running - by_bin).gather(1, digit)
        digits.append(digit)
        if sizes.gather(1, digit).max() <= CROWD:
            break
    ids, preference, weights = members(next_token, order, weight, digits)
    last = (~enough(before + weights.double().cumsum(1))).sum(1, keepdim=True)
    last = last.minimum((ids < next_token.vocab_size).sum(1, keepdim=True) - 1)
    return Line(
        order,
        torch.where(some, preference.gather(1, last)[:, 0], -math.inf),
        torch.where(some, ids.gather(1, last)[:, 0], next_token.vocab_size),
    )


def bins(
    next_token: NextToken, order: Order, weight: Weight, digits: list[Tensor]
) -> tuple[Float[Tensor, "batch bins"], Int[Tensor, "batch bins"]]:
    """The weight and the number of the tokens in each bin, among those that have the given leading digits."""
    by_bin = torch.zeros(next_token.rows, BINS, dtype=torch.float64, device=next_token.device)
    sizes = torch.zeros_like(by_bin, dtype=next_token.dtype)
    for _, log_probs in next_token.parts():
        matching, bin_ = next_digit(order(log_probs), digits)
        by_bin.scatter_add_(1, bin_, (weight(log_probs) * matching).double())
        sizes.scatter_add_(1, bin_, matching)
    return by_bin, sizes.long()


def next_digit(
    preference: Float[Tensor, "batch n"], digits: list[Tensor]
) -> tuple[Float[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """One where the leading digits are the given ones, else zero; and the digit that follows them."""
    rest = (preference * (-BINS / SPAN)).clamp_(0, BINS - 1e-3)
    matching = torch.ones_like(rest)
    for digit in digits:
        matching *= rest.floor() == digit
        rest = rest.frac_().mul_(BINS)
    return matching, rest.long()


def last_filled(sizes: Int[Tensor, "batch bins"]) -> Int[Tensor, " batch"]:
    return BINS - 1 - (sizes > 0).flip(1).int().argmax(1)


def members(
    next_token: NextToken, order: Order, weight: Weight, digits: list[Tensor]
) -> tuple[Int[Tensor, "batch m"], Float[Tensor, "batch m"], Float[Tensor, "batch m"]]:
    """Ids, preferences and weights of the tokens in one bin of each row, in order; filled up with id = vocab_size."""
    found = []
    for ids, log_probs in next_token.parts():
        preference = order(log_probs)
        matching, bin_ = next_digit(preference, digits[:-1])
        row, column = ((bin_ == digits[-1]) & (matching > 0)).nonzero(as_tuple=True)
        found.append((row, ids[column], preference[row, column], weight(log_probs[row, column][:, None])[:, 0]))
    row, *columns = (torch.cat(parts) for parts in zip(*found, strict=True))
    by_row = row.argsort(stable=True)
    sizes = row.bincount(minlength=next_token.rows)
    row, place = row[by_row], torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row[by_row]]
    ids, preference, weights = (
        column.new_full((next_token.rows, int(sizes.max())), filling).index_put((row, place), column[by_row])
        for column, filling in zip(columns, (next_token.vocab_size, -math.inf, 0.0), strict=True)
    )
    sequence = in_order(preference, ids)
    return ids.gather(1, sequence), preference.gather(1, sequence), weights.gather(1, sequence)
