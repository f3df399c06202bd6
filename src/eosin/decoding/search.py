"""A search: contexts under way with one decoder, in a table, and the completions that are finished.

What the host decides by (the index of a context, how many steps it has taken) is on the CPU. What is computed with, and
what was produced, is where the logits are, and is brought over once a context is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from eosin.causes import Cause
from eosin.contracts import EosIds, Rows, Token
from eosin.decoding.distribution import NextToken
from eosin.errors import BadInput
from eosin.outcome import Completion, Proof

T = TypeVar("T", bound="Table")
S = TypeVar("S", bound="Search")  # type: ignore[type-arg]


@dataclass(frozen=True)
class History:
    """What each context has produced at its steps, the last of them in the last column.

    A context that entered later has unused columns in front.
    """

    columns: Tensor
    used: int = 0
    """Columns behind these are room to grow."""

    def append(self, values: Tensor, longest: int) -> History:
        """One more column; `longest` is the number of columns that the longest history has."""
        columns, used = self.columns, self.used
        if used == columns.shape[1]:
            more = columns.new_empty(len(columns), max(32, longest), *columns.shape[2:])
            columns, used = torch.cat([columns[:, used - longest :], more], dim=1), longest
        columns[:, used] = values
        return History(columns, used + 1)

    def select(self, rows: Rows) -> History:
        return History(self.columns.index_select(0, rows), self.used)

    def join(self, other: History) -> History:
        longer = max(self.used, other.used)
        return History(torch.cat([self._pad_to(longer), other._pad_to(longer)]), longer)

    def _pad_to(self, length: int) -> Tensor:
        front = (0, 0) * (self.columns.dim() - 2) + (length - self.used, 0)
        return functional.pad(self.columns[:, : self.used], front)

    def fetch(self, rows: Sequence[int], steps: Sequence[int]) -> list[Tensor]:
        """What these rows have produced in their last so many steps, on the CPU."""
        if not rows:
            return []
        longest = max(steps)
        there = torch.tensor(rows, device="cpu").to(self.columns.device)
        columns = self.columns[there, self.used - longest : self.used].cpu()
        return [row[longest - count :] for row, count in zip(columns, steps, strict=True)]


@dataclass
class Table:
    """Tensors and histories with one entry per context.

    A subclass adds columns as fields. They are selected and joined with the others.
    """

    index: Int[Tensor, " contexts"]
    """On the CPU, as the steps."""
    steps: Int[Tensor, " contexts"]
    """How many tokens each context has produced."""

    def select(self: T, rows: Rows) -> T:
        return replace(self, **{name: select_entries(column, rows) for name, column in vars(self).items()})

    def join(self: T, other: T) -> T:
        pairs = ((name, column, vars(other)[name]) for name, column in vars(self).items())
        return replace(self, **{name: join_entries(mine, theirs) for name, mine, theirs in pairs})


def select_entries(column: Any, rows: Rows) -> Any:
    if isinstance(column, History):
        return column.select(rows.to(column.columns.device))
    return column.index_select(0, rows.to(column.device))


def join_entries(mine: Any, theirs: Any) -> Any:
    return mine.join(theirs) if isinstance(mine, History) else torch.cat([mine, theirs])


class Search(Generic[T]):
    """Contexts under way with one decoder: the bookkeeping between two steps of the model.

    A subclass for a kind of decoder says how they advance, and what is abstract here.
    """

    def __init__(self, table: T, eos_ids: EosIds, max_steps: int):
        self.table = table
        self.eos_ids = eos_ids
        self.ends: list[int] = eos_ids.tolist()
        self.max_steps = max_steps
        self.ended: list[Completion] = []

    @property
    def contexts(self) -> int:
        """How many contexts are still under way."""
        return self.table.index.shape[0]

    @property
    def rows(self) -> int:
        """How many rows of the model's batch they take."""
        return len(self.owners)

    @property
    def steps(self) -> Rows:
        """How many tokens each row has produced; on the CPU."""
        return self.table.steps[self.owners]

    @property
    def owners(self) -> Rows:
        """For each row of the batch, which entry of the table it belongs to; on the CPU."""
        raise NotImplementedError

    def advance(self, next_token: NextToken) -> tuple[Token, Rows | None]:
        """Take one step on every row: the next tokens, and the rows of the present batch that they follow.

        The rows are None where every token follows the row in its own place.
        """
        raise NotImplementedError

    def tokens_of(self, rows: Sequence[int]) -> list[list[int]]:
        """The tokens that each of these rows has produced so far."""
        raise NotImplementedError

    def log_probs_of(self, rows: Sequence[int]) -> list[float]:
        """The log-probability of each of these rows under the model."""
        raise NotImplementedError

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

    def retire(self, proofs: Mapping[int, Proof | None]) -> Rows:
        """End the contexts of these rows, and return the rows that are left. Loops without a proof are sampled."""
        owners, rows = self.owners, sorted(proofs)
        for row, tokens, log_prob in zip(rows, self.tokens_of(rows), self.log_probs_of(rows), strict=True):
            index, made = int(self.table.index[owners[row]]), torch.tensor(tokens, device="cpu")
            proof = proofs[row]
            cause = Cause.PROVED if proof else Cause.SAMPLED
            self.ended.append(Completion(index, made, cause, len(tokens), log_prob, proof))
        left = torch.ones_like(self.table.index, dtype=torch.bool)
        left[owners[rows]] = False
        self._keep(left.nonzero()[:, 0])
        return left[owners].nonzero()[:, 0]

    def _keep(self, contexts: Rows) -> None:
        """Drop all other contexts from the table."""
        self.table = self.table.select(contexts)

    def _fetch(self, next_token: NextToken, *flags: Bool[Tensor, "*places"]) -> list[Tensor]:
        """Bring flags to the CPU, all in one transfer; raise if the logits of a row are not a distribution."""
        finite = next_token.is_finite
        rows = finite.shape[0]
        on_host = torch.cat([finite, *(flag.flatten() for flag in flags)]).cpu()
        finite, places = on_host[:rows], on_host[rows:].view(len(flags), -1)
        fetched = [places[number].view(flag.shape) for number, flag in enumerate(flags)]
        if not finite.all():
            row = int(finite.int().argmin())
            context = self.owners[row]
            raise BadInput(
                f"logits of context {self.table.index[context]} at step {self.table.steps[context] + 1} are not a "
                "distribution: they contain NaN or +inf, or are all -inf; the model must return finite logits or "
                "-inf, at least one of them finite"
            )
        return fetched
