"""Where the front of an order of preference weighs enough, found without sorting a large vocabulary.

A vocabulary of one block is sorted whole. In a larger one the line is found by bins:

A pass adds up the weights of the tokens in bins of similar preference. The line falls into the first bin at whose end
the front weighs enough. If that bin is crowded, another pass divides it into bins of its own. Then only the members of
one bin are sorted. This is a radix selection: the bins are the leading digits of the preference.

A weight can be several numbers, such as a probability and a term of the entropy. Each is summed; a rule decides from
all sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eosin.decoding.distribution import BLOCK, NextToken, sort_first

BINS = 1024
SPAN = 24.0
"""Preferences are never positive; those below -SPAN share the last bin."""
CROWD = 512
"""A bin with more tokens than this is divided once more."""
MOST_DIGITS = 3

Order = Callable[[Float[Tensor, "batch n"]], Float[Tensor, "batch n"]]
"""From log-probabilities to preferences, none of them positive; the greater, the earlier in the order."""
Weight = Callable[[Float[Tensor, "batch n"]], Float[Tensor, "sums batch n"]]
"""From log-probabilities to what each token adds to the running sums."""
Enough = Callable[[Float[Tensor, "sums batch n"]], Bool[Tensor, "batch n"]]
"""Whether a front with these sums weighs enough."""


def by_probability(log_probs: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
    return log_probs


@dataclass(frozen=True)
class Line:
    """A line through an order: kept are the last token and all before it; of equal ones the lower id goes first."""

    order: Order
    preference: Float[Tensor, " batch"]
    last_id: Int[Tensor, " batch"]

    def keeps(self, ids: Int[Tensor, "*batch n"], log_probs: Float[Tensor, "batch n"]) -> Bool[Tensor, "batch n"]:
        preference, last = self.order(log_probs), self.preference[:, None]
        return (preference > last) | ((preference == last) & (ids <= self.last_id[:, None]))


def find_line(next_token: NextToken, order: Order, weight: Weight, enough: Enough, keeps_last: bool = True) -> Line:
    """The line behind the shortest front that weighs enough, or before its last token; behind everything if none does.

    A front never becomes too light by growing.
    """
    find = find_bin if next_token.vocab_size > BLOCK else take_all
    ids, log_probs, before, some = find(next_token, order, weight, enough)
    places = sort_first(order(log_probs), log_probs.shape[1])
    ids, log_probs = ids.gather(1, places), log_probs.gather(1, places)
    weights = weight(log_probs).double() * (ids < next_token.vocab_size)
    last = (~enough(before + weights.cumsum(2))).sum(1, keepdim=True)
    last = last.minimum((ids < next_token.vocab_size).sum(1, keepdim=True) - 1).clamp(min=0)
    last_id = ids.gather(1, last)[:, 0]
    return Line(
        order,
        torch.where(some, order(log_probs).gather(1, last)[:, 0], -math.inf),
        torch.where(some, last_id if keeps_last else last_id - 1, next_token.vocab_size),
    )


Crowd = tuple[Tensor, Tensor, Tensor, Tensor]
"""The tokens among which the line falls, padded with id = vocab_size, and their log-probabilities; the weight of all
before them; and whether there is a line, because all tokens together weigh enough."""


def take_all(next_token: NextToken, order: Order, weight: Weight, enough: Enough) -> Crowd:
    """A small vocabulary is sorted whole."""
    log_probs = next_token.rounded_log_probs()
    ids = torch.arange(next_token.vocab_size, device=log_probs.device).expand(next_token.rows, -1)
    total = weight(log_probs).double().sum(2, keepdim=True)
    return ids, log_probs, torch.zeros_like(total), enough(total)[:, 0]


def find_bin(next_token: NextToken, order: Order, weight: Weight, enough: Enough) -> Crowd:
    """In a large vocabulary, the tokens of one bin of each row."""
    digits: list[Tensor] = []
    before: Tensor | float = 0.0
    some: Tensor | None = None
    while True:
        by_bin, sizes = sum_bins(next_token, order, weight, digits)
        running = before + by_bin.cumsum(2)
        reached = enough(running)
        some = reached.any(1) if some is None else some
        # in a later pass rounding may leave the last bin just short: it is the one all the same
        last_filled = BINS - 1 - (sizes > 0).flip(1).int().argmax(1)
        digit = torch.where(reached.any(1), reached.int().argmax(1), last_filled)[:, None]
        before = (running - by_bin).gather(2, digit.expand(len(running), -1, -1))
        digits.append(digit)
        crowd = int(sizes.gather(1, digit).max())
        if crowd <= CROWD or len(digits) == MOST_DIGITS:
            ids = list_bin(next_token, order, digits, crowd)
            return ids, next_token.rounded_log_probs_of(ids), before, some


def sum_bins(
    next_token: NextToken, order: Order, weight: Weight, digits: list[Tensor]
) -> tuple[Float[Tensor, "sums batch bins"], Int[Tensor, "batch bins"]]:
    """The weight and the number of the tokens in each bin, among those that have the given leading digits."""
    count = len(weight(next_token.rounded_eos_log_probs))
    sizes = torch.zeros(next_token.rows, BINS, dtype=next_token.dtype, device=next_token.device)
    sums = torch.zeros(count, *sizes.shape, dtype=torch.float64, device=next_token.device)
    for _, log_probs in next_token.parts():
        matching, bin_ = next_digit(order(log_probs), digits)
        sums.scatter_add_(2, bin_.expand(count, -1, -1), (weight(log_probs) * matching).double())
        sizes.scatter_add_(1, bin_, matching)
    return sums, sizes.long()


def next_digit(
    preference: Float[Tensor, "batch n"], digits: list[Tensor]
) -> tuple[Float[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """One where the leading digits are the given ones, else zero; and the digit that follows them."""
    # NaN has no digit; it is found out at the end of the step
    rest = (preference * (-BINS / SPAN)).nan_to_num_(0.0).clamp_(0, BINS - 1e-3)
    matching = torch.ones_like(rest)
    for digit in digits:
        matching *= rest.floor() == digit
        rest = rest.frac_().mul_(BINS)
    return matching, rest.long()


def list_bin(next_token: NextToken, order: Order, digits: list[Tensor], crowd: int) -> Int[Tensor, "batch crowd"]:
    """The tokens in one bin of each row that can occur, in the order of their ids, padded with id = vocab_size."""
    ids, members = [], []
    for some_ids, log_probs in next_token.parts():
        matching, bin_ = next_digit(order(log_probs), digits[:-1])
        ids.append(some_ids)
        members.append((bin_ == digits[-1]) & (matching > 0) & (log_probs > -math.inf))
    is_member = torch.cat(members, dim=1)
    row, column = is_member.nonzero(as_tuple=True)
    counts = row.new_zeros(next_token.rows).index_add(0, row, torch.ones_like(row))
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    padded = torch.full((next_token.rows, crowd), next_token.vocab_size, device=row.device)
    return padded.index_put((row, place), torch.cat(ids)[column]).sort(1).values
