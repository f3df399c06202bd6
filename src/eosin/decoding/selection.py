"""Where an order of preference reaches a weight, found without sorting the vocabulary.

One pass adds up the weights of the tokens in bins of like preference; the line must fall into the first bin at whose
end enough is reached, and only the members of that bin are put in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eosin.decoding.next_token import NextToken, in_order

BINS = 1024
SPAN = 24.0
"""Preferences are never positive; those below -SPAN share the last bin."""

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
    preference: Float[Tensor, "batch"]
    last_id: Int[Tensor, "batch"]

    def keeps(self, ids: Int[Tensor, "*batch n"], log_probs: Float[Tensor, "batch n"]) -> Bool[Tensor, "batch n"]:
        preference, last = self.order(log_probs), self.preference[:, None]
        return (preference > last) | ((preference == last) & (ids <= self.last_id[:, None]))


def line_where(next_token: NextToken, order: Order, weight: Weight, enough: Enough) -> Line:
    """The line behind the shortest front of the order whose weight is enough; behind everything if nothing is."""
    by_bin = next_token.store.new_zeros(next_token.rows, BINS)
    for _, log_probs in next_token.parts():
        by_bin.scatter_add_(1, bin_of(order(log_probs)), weight(log_probs))
    by_bin = by_bin.double()
    running = by_bin.cumsum(1)
    reached = enough(running)
    line_bin = reached.int().argmax(1, keepdim=True)
    before = (running - by_bin).gather(1, line_bin)
    ids, preference, weights = members(next_token, order, weight, line_bin)
    last = (~enough(before + weights.double().cumsum(1))).sum(1, keepdim=True)
    # the same sum in another order may fall short of enough by a rounding error: then the bin's last member it is
    last = last.minimum((ids < next_token.vocab_size).sum(1, keepdim=True) - 1)
    some = reached.any(1)
    return Line(
        order,
        torch.where(some, preference.gather(1, last)[:, 0], -math.inf),
        torch.where(some, ids.gather(1, last)[:, 0], next_token.vocab_size),
    )


def bin_of(preference: Float[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
    return (preference * (-BINS / SPAN)).clamp_(0, BINS - 1).long()


def members(
    next_token: NextToken, order: Order, weight: Weight, line_bin: Int[Tensor, "batch 1"]
) -> tuple[Int[Tensor, "batch m"], Float[Tensor, "batch m"], Float[Tensor, "batch m"]]:
    """Ids, preferences and weights of the tokens in one bin of each row, in order; filled up with id = vocab_size."""
    found = []
    for ids, log_probs in next_token.parts():
        preference = order(log_probs)
        row, column = (bin_of(preference) == line_bin).nonzero(as_tuple=True)
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
