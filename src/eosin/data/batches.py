"""Batches of sentences side by side.

Where the loss of a batch is a mean over its tokens, batches must not be made by length: in one of short sentences every
token would count more than elsewhere, and <eos>, which each of them has, most of all. With batches of 32 sentences of
like lengths it counts three times as much as it should on WikiText-2, and models end their texts far too early.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from eosin.contracts import Prefix, Rows, Tokens
from eosin.data.corpus import Split
from eosin.data.tokenizer import EOS_ID

Plan = list[Tensor]
"""The sentences of each batch."""
POOL = 100
"""Batches of limited tokens that are sorted by length together: enough for like lengths, few enough to be random."""


@dataclass(frozen=True)
class Batch:
    """Sentences side by side; where one has ended its row is filled up with <eos>, which is not `wanted`."""

    prefix: Prefix
    continuation: Tokens
    wanted: Bool[Tensor, "batch time"]

    @property
    def tokens(self) -> int:
        return int(self.wanted.sum())

    def to(self, device: torch.device) -> Batch:
        return Batch(self.prefix.to(device), self.continuation.to(device), self.wanted.to(device))


def shuffled(lengths: Int[Tensor, " sentences"], size: int, seed: int, tokens: int | None = None) -> Plan:
    """Which sentences make each batch of an epoch: at most `size`, at random.

    With a limit of tokens, padding included, they are of like lengths, and the loss must be divided by the limit.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator)
    if tokens is None:
        return list(order.split(size))  # type: ignore[no-untyped-call]
    pools = (pool[lengths[pool].argsort(stable=True)] for pool in order.split(size * POOL))  # type: ignore[no-untyped-call]
    batches = [batch for pool in pools for batch in cut(pool, lengths, size, tokens)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def in_order(lengths: Int[Tensor, " sentences"], size: int, tokens: int | None = None) -> Plan:
    """All sentences by length, for evaluation."""
    return cut(lengths.argsort(stable=True), lengths, size, tokens)


def cut(rows: Rows, lengths: Int[Tensor, " sentences"], size: int, tokens: int | None) -> Plan:
    """Sentences from short to long in batches; one that has too many tokens alone is a batch of its own."""
    if tokens is None:
        return list(rows.split(size))  # type: ignore[no-untyped-call]
    plan, start = [], 0
    for end, length in enumerate(lengths[rows].tolist()):
        if end > start and (end - start == size or (end - start + 1) * length > tokens):
            plan.append(rows[start:end])
            start = end
    return [*plan, rows[start:]]


def gather(split: Split, rows: Rows, most: int | None = None) -> Batch:
    """The batch of the given sentences, each cut off after so many tokens of its continuation."""
    starts, lengths = split.offsets[rows, None], split.lengths[rows, None]
    lengths = lengths if most is None else lengths.clamp(max=most)
    steps = torch.arange(int(lengths.max()))
    wanted = steps < lengths
    places = torch.where(wanted, starts + split.prefix_length + steps, starts)
    continuation = torch.where(wanted, split.tokens[places], EOS_ID).long()
    prefix = split.tokens[starts + torch.arange(split.prefix_length)].long()
    return Batch(prefix, continuation, wanted)


def batches(split: Split, plan: Plan, most: int | None = None) -> Iterator[Batch]:
    return (gather(split, rows, most) for rows in plan)
