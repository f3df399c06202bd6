"""A search: contexts under way with one decoder, in a table, and the completions that are finished."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from eosin.causes import Cause
from eosin.contracts import EosIds, Rows, Token
from eosin.decoding.distribution import NextToken
from eosin.outcome import Completion, Proof

T = TypeVar("T", bound="Table")
S = TypeVar("S", bound="Search")  # type: ignore[type-arg]


@dataclass
class Table:
    """Tensors with one entry per context. Where there is a second dimension, it is time.

    A subclass adds columns as fields. They are selected and joined with the others.
    """

    index: Int[Tensor, " contexts"]
    steps: Int[Tensor, " contexts"]
    """How many tokens each context has produced."""

    def select(self: T, rows: Rows) -> T:
        return replace(self, **{name: column[rows] for name, column in vars(self).items()})

    def join(self: T, other: T) -> T:
        pairs = {name: pad_time(column, vars(other)[name]) for name, column in vars(self).items()}
        return replace(self, **{name: torch.cat(pair) for name, pair in pairs.items()})


class Search(Generic[T]):
    """Contexts under way with one decoder: the bookkeeping between two steps of the model.

    A subclass for a kind of decoder says how they advance, and what is abstract here.
    """

    def __init__(self, table: T, eos_ids: EosIds, max_steps: int):
        self.table = table
        self.eos_ids = eos_ids
        self.max_steps = max_steps
        self.ended: list[Completion] = []

    @property
    def contexts(self) -> int:
        """How many contexts are still under way."""
        return len(self.table.index)

    @property
    def rows(self) -> int:
        """How many rows of the model's batch they take."""
        return len(self.owners)

    @property
    def steps(self) -> Rows:
        """How many tokens each row has produced."""
        return self.table.steps[self.owners]

    @property
    def owners(self) -> Rows:
        """For each row of the batch, which entry of the table it belongs to."""
        raise NotImplementedError

    def advance(self, next_token: NextToken) -> tuple[Token, Rows]:
        """Take one step on every row: the next tokens, and the rows of the present batch that they follow."""
        raise NotImplementedError

    def tokens_of(self, row: int) -> list[int]:
        """The tokens that a row has produced so far."""
        raise NotImplementedError

    def log_prob_of(self, row: int) -> float:
        raise NotImplementedError

    def index_of(self, row: int) -> int:
        """The index of the context in a row."""
        return int(self.table.index[self.owners[row]])

    def join(self: S, other: S) -> S:
        """Both sets of contexts, the rows of `other` last."""
        both = copy(self)
        both.table = self.table.join(other.table)
        both.ended = self.ended + other.ended
        return both

    def take_finished(self) -> list[Completion]:
        """The contexts that have ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def retire(self, proofs: Mapping[int, Proof]) -> Rows:
        """End the contexts of these rows as proved infinite, and return the rows that are left."""
        owners = self.owners
        left = torch.ones_like(self.table.index, dtype=torch.bool)
        for row, proof in sorted(proofs.items()):
            tokens = torch.tensor(self.tokens_of(row), device="cpu")
            index, log_prob = self.index_of(row), self.log_prob_of(row)
            self.ended.append(Completion(index, tokens, Cause.PROVED, len(tokens), log_prob, proof))
            left[owners[row]] = False
        self.table = self.table.select(left.nonzero()[:, 0])
        return left[owners].nonzero()[:, 0]


def pad_time(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors with room for as many steps as the longer one."""
    if mine.dim() == 1:
        return mine, theirs
    longer = max(mine.shape[1], theirs.shape[1])
    mine, theirs = (functional.pad(t, (0, 0) * (t.dim() - 2) + (0, longer - t.shape[1])) for t in (mine, theirs))
    return mine, theirs


def append_step(history: Tensor, steps: Int[Tensor, " contexts"], values: Tensor, limit: int) -> Tensor:
    """The history with one more value per context, at its step. A full history doubles its capacity."""
    capacity = history.shape[1]
    if int(steps.max()) == capacity:
        more = history.new_empty(len(history), min(capacity, limit - capacity), *history.shape[2:])
        history = torch.cat([history, more], dim=1)
    history[torch.arange(len(history), device=steps.device), steps] = values.to(history.dtype)
    return history
