"""Batches of sentences.

If the loss of a batch is a mean over its tokens, batches must not be sorted by length. In a batch of short sentences
every token would weigh more, above all <eos>, which each sentence has once. On WikiText-2, with sorted batches of 32
sentences, <eos> weighs three times too much, and models end their texts far too early.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from eosin.contracts import Prefix, Rows, Tokens
from eosin.data.corpus import Split
from eosin.data.tokenizer import EOS_ID

BatchPlan = list[Tensor]
"""The numbers of the sentences in each batch."""
SORTED_TOGETHER = 100
"""Batches whose sentences are sorted by length together: enough for similar lengths, few enough to stay random."""


@dataclass(frozen=True)
class Batch:
    """One sentence a row. Rows are padded with <eos>; `wanted` marks the tokens that count."""

    prefix: Prefix
    continuation: Tokens
    wanted: Bool[Tensor, "batch time"]

    @property
    def tokens(self) -> int:
        return int(self.wanted.sum())

    def to(self, device: torch.device) -> Batch:
        return Batch(self.prefix.to(device), self.continuation.to(device), self.wanted.to(device))


def plan_shuffled(lengths: Int[Tensor, " sentences"], size: int, seed: int, tokens: int | None = None) -> BatchPlan:
    """Random batches for an epoch, at most `size` sentences each.

    A limit of tokens, padding included, makes batches of similar lengths. Divide the loss by the limit then.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator)
    if tokens is None:
        return list(order.split(size))  # type: ignore[no-untyped-call]
    pools = (pool[lengths[pool].argsort(stable=True)] for pool in order.split(size * SORTED_TOGETHER))  # type: ignore[no-untyped-call]
    batches = [batch for pool in pools for batch in split_into_batches(pool, lengths, size, tokens)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def plan_by_length(lengths: Int[Tensor, " sentences"], size: int, tokens: int | None = None) -> BatchPlan:
    """Batches of all sentences sorted by length, for evaluation."""
    return split_into_batches(lengths.argsort(stable=True), lengths, size, tokens)


def split_into_batches(rows: Rows, lengths: Int[Tensor, " sentences"], size: int, tokens: int | None) -> BatchPlan:
    """Batches of sorted sentences. A sentence with too many tokens is a batch of its own."""
    if tokens is None:
        return list(rows.split(size))  # type: ignore[no-untyped-call]
    plan, start = [], 0
    for end, length in enumerate(lengths[rows].tolist()):
        if end > start and (end - start == size or (end - start + 1) * length > tokens):
            plan.append(rows[start:end])
            start = end
    return [*plan, rows[start:]]


def gather(split: Split, rows: Rows, most: int | None = None) -> Batch:
    """The batch of these sentences, with at most `most` tokens of each continuation."""
    starts, lengths = split.offsets[rows, None], split.lengths[rows, None]
    lengths = lengths if most is None else lengths.clamp(max=most)
    steps = torch.arange(int(lengths.max()))
    wanted = steps < lengths
    places = torch.where(wanted, starts + split.unpredicted + steps, starts)
    continuation = torch.where(wanted, split.tokens[places], EOS_ID).long()
    prefix = split.tokens[starts + torch.arange(split.unpredicted)].long()
    return Batch(prefix, continuation, wanted)
