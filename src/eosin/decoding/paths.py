"""Greedy decoding and sampling under way: each context is one row, and grows by one token per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from eosin.causes import Cause
from eosin.contracts import Chooser, EosIds, Rows, Stop, Token, Uniforms
from eosin.decoding.distribution import NextToken, is_one_of
from eosin.decoding.randomness import Numbers
from eosin.decoding.search import History, Search, Table
from eosin.outcome import Completion

S = TypeVar("S", bound="Paths")


@dataclass
class PathTable(Table):
    log_prob: Float64[Tensor, " contexts"]
    history: History


class Paths(Search[PathTable]):
    """Contexts of a decoder that chooses one token per row.

    A decoder that remembers something of each row has a subclass of this, with a column for it in the table.
    """

    def __init__(
        self, chooser: Chooser, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int, stop: Stop | None = None
    ):
        table = PathTable(
            index=indices,
            steps=torch.zeros_like(indices),
            log_prob=torch.zeros(len(indices), dtype=torch.float64, device=eos_ids.device),
            history=History(eos_ids.new_empty(len(indices), min(32, max_steps), dtype=torch.int32)),
        )
        super().__init__(table, eos_ids, max_steps)
        self.chooser = chooser
        self.seed = seed
        self.stop = stop
        self._numbers: Numbers | None = None
        self._no_numbers = table.log_prob.new_zeros(1, 2)
        self.most_steps = 0
        """No context has taken more."""

    @property
    def rows(self) -> int:
        return self.contexts

    @property
    def owners(self) -> Rows:
        return torch.arange(self.contexts, device="cpu")

    def join(self: S, other: S) -> S:
        both = super().join(other)
        both._numbers = None
        both.most_steps = max(self.most_steps, other.most_steps)
        return both

    def advance(self, next_token: NextToken) -> tuple[Token, Rows | None]:
        table = self.table
        token = self.choose(next_token, self._draw())
        table.history = table.history.append(token, self.most_steps)
        table.log_prob += next_token.log_probs_of(token)
        ends = is_one_of(token, self.ends)
        self.most_steps += 1
        is_plain = self.stop is None and self.most_steps < self.max_steps
        if is_plain and not (ends | ~next_token.is_finite).any():  # nothing happens at most steps
            table.steps += 1
            return token, None
        (terminated,) = self._fetch(next_token, ends)
        table.steps += 1
        over = terminated | (table.steps == self.max_steps)
        stopped = None if self.stop is None else self._find_stops(self.stop)
        if stopped is not None:
            over |= stopped
        if not over.any():
            return token, None
        rows = (~over).nonzero()[:, 0]
        self._finish(over.nonzero()[:, 0], terminated, torch.zeros_like(over) if stopped is None else stopped)
        self._keep(rows)
        return token[rows.to(token.device)], rows

    def choose(self, next_token: NextToken, numbers: Uniforms) -> Token:
        return self.chooser.choose(next_token, numbers)

    def _draw(self) -> Uniforms:
        """Two numbers per row; zeros where the decoder does not use them."""
        table = self.table
        if not self.chooser.draws:
            if len(self._no_numbers) != self.rows:
                self._no_numbers = table.log_prob.new_zeros(self.rows, 2)
            return self._no_numbers
        if self._numbers is None or not self._numbers.left:
            self._numbers = Numbers(self.seed, table.index, table.steps, self.eos_ids.device)
        return self._numbers.take()

    def _keep(self, contexts: Rows) -> None:
        super()._keep(contexts)
        if self._numbers is not None:
            self._numbers.select(contexts)

    def _find_stops(self, stop: Stop) -> Bool[Tensor, " contexts"]:
        """Which contexts have produced a stop string."""
        return torch.tensor([stop(tokens) for tokens in self.tokens_of(range(self.rows))], device="cpu")

    def _finish(self, rows: Rows, terminated: Bool[Tensor, " contexts"], stopped: Bool[Tensor, " contexts"]) -> None:
        table, places = self.table, rows.tolist()
        columns = [column[rows].tolist() for column in (table.index, table.steps, terminated, stopped)]
        steps = columns[1]
        log_probs, made = self.log_probs_of(places), table.history.fetch(places, steps)
        weights = self.weights_of(places, steps)
        for index, count, ended, stop, log_prob, tokens, weight in zip(*columns, log_probs, made, weights, strict=True):
            cause = Cause.EOS if ended else Cause.STOP if stop else Cause.LIMIT
            self.ended.append(Completion(index, tokens.long(), cause, count, log_prob, survival=weight))

    def weights_of(self, rows: Sequence[int], steps: Sequence[int]) -> Sequence[Float64[Tensor, " length"] | None]:
        """The weight of each path after each step, for the survival estimator."""
        return [None] * len(rows)

    def tokens_of(self, rows: Sequence[int]) -> list[list[int]]:
        steps = self.table.steps[list(rows)].tolist()
        return [tokens.tolist() for tokens in self.table.history.fetch(rows, steps)]

    def log_probs_of(self, rows: Sequence[int]) -> list[float]:
        log_probs: list[float] = self.table.log_prob.cpu()[list(rows)].tolist()
        return log_probs
