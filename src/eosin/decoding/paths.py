"""Greedy decoding and sampling under way: each context is one row, and grows by one token per step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from eosin.causes import Cause
from eosin.contracts import Chooser, EosIds, Rows, Stop, Token, Uniforms
from eosin.decoding.distribution import NextToken
from eosin.decoding.randomness import uniforms
from eosin.decoding.search import Search, Table, append_step
from eosin.outcome import Completion


@dataclass
class PathTable(Table):
    log_prob: Float64[Tensor, " contexts"]
    history: Int[Tensor, "contexts time"]


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
            log_prob=torch.zeros_like(indices, dtype=torch.float64),
            history=indices.new_empty(len(indices), min(32, max_steps), dtype=torch.int32),
        )
        super().__init__(table, eos_ids, max_steps)
        self.chooser = chooser
        self.seed = seed
        self.stop = stop

    @property
    def rows(self) -> int:
        return self.contexts

    @property
    def owners(self) -> Rows:
        return torch.arange(self.contexts, device=self.table.index.device)

    def advance(self, next_token: NextToken) -> tuple[Token, Rows]:
        table = self.table
        token = self.choose(next_token, uniforms(self.seed, table.index, table.steps))
        table.history = append_step(table.history, table.steps, token, self.max_steps)
        table.log_prob += next_token.log_probs_of(token)
        table.steps += 1
        terminated, stopped = torch.isin(token, self.eos_ids), self._stopped()
        over = terminated | stopped | (table.steps == self.max_steps)
        rows = (~over).nonzero()[:, 0]
        if len(rows) < len(token):
            self._finish(over.nonzero()[:, 0], terminated, stopped)
            self.table = table.select(rows)
        return token[rows], rows

    def choose(self, next_token: NextToken, numbers: Uniforms) -> Token:
        return self.chooser.choose(next_token, numbers)

    def _stopped(self) -> Bool[Tensor, " contexts"]:
        """Which contexts have produced a stop string."""
        stopped = torch.zeros_like(self.table.index, dtype=torch.bool)
        if self.stop is not None:
            for row in range(self.rows):
                stopped[row] = self.stop(self.tokens_of(row))
        return stopped

    def _finish(self, rows: Rows, terminated: Bool[Tensor, " contexts"], stopped: Bool[Tensor, " contexts"]) -> None:
        table = self.table.select(rows)
        tokens = table.history[:, : int(table.steps.max())].cpu().long()
        columns = (rows, table.index, table.steps, terminated[rows], stopped[rows], table.log_prob)
        for place, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            row, index, steps, ended, stop, log_prob = values
            cause = Cause.EOS if ended else Cause.STOP if stop else Cause.LIMIT
            made, weights = tokens[place, :steps], self.weights_of(row)
            self.ended.append(Completion(index, made, cause, steps, log_prob, survival=weights))

    def weights_of(self, row: int) -> Float64[Tensor, " length"] | None:
        """The weight of the path after each step, for the survival estimator."""
        return None

    def tokens_of(self, row: int) -> list[int]:
        return self.table.history[row, : int(self.table.steps[row])].tolist()

    def log_prob_of(self, row: int) -> float:
        return float(self.table.log_prob[row])
