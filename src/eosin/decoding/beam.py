"""Beam search (Definition A.2 of the paper), under either of its two stopping rules.

Each step expands every unfinished hypothesis of a context by every token, and keeps the `width` best expansions. Those
that end with eos are finished. The others are the next hypotheses. The score of a hypothesis is its log-probability
under the model. The search ends when `width` hypotheses are finished, as in the definition, or with the first one, as
in the paper's experiments. It returns the best finished hypothesis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from eosin.causes import Cause
from eosin.contracts import EosIds, Rows, Stop, Token
from eosin.decoding.distribution import NextToken, top_places
from eosin.decoding.search import Search, Table, append_step
from eosin.errors import BadInput
from eosin.log_odds import LogOdds, is_most_probable
from eosin.outcome import Completion

WIDEST = 1_000_000


@dataclass(frozen=True)
class Beam:
    """Beam search of a width, ending when `width` hypotheses are finished, or with the first."""

    width: int
    stop: str = "full"
    """"full": `width` hypotheses have to be finished; "first": one."""

    keeps_eos = False

    def __post_init__(self) -> None:
        if self.width not in range(1, WIDEST + 1):
            raise BadInput(f"beam: width must be a whole number from 1 to {WIDEST}, got {self.width}")
        if self.stop not in ("full", "first"):
            raise BadInput(f"beam: stop must be 'full' (width finished) or 'first' (one finished), got {self.stop!r}")

    @property
    def rows_per_context(self) -> int:
        return self.width

    @property
    def needed(self) -> int:
        """How many hypotheses have to be finished for the search to end."""
        return 1 if self.stop == "first" else self.width

    def check(self, vocab_size: int) -> None:
        """Any vocabulary will do: a beam may be wider than it."""

    def passes_on(self, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
        """Log-odds of ending one hypothesis: if eos is the most probable token after each, the best expansion ends."""
        return torch.where(is_most_probable(log_odds, eos_count), math.inf, -math.inf).to(log_odds)

    def begin(self, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int, stop: Stop | None = None) -> Hypotheses:
        return Hypotheses(self, indices, eos_ids, max_steps)

    def kept(self, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
        """The `width` most probable tokens of each hypothesis: any other has `width` better expansions before it."""
        return next_token.top(self.width).mask(next_token.vocab_size)

    @property
    def rule(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"beam:{self.width}" + (",stop=first" if self.stop == "first" else "")


@dataclass
class HypothesisTable(Table):
    score: Float64[Tensor, "contexts width"]
    """Of the unfinished hypotheses, best first; -inf where there is none."""
    tokens: Int[Tensor, "contexts time width"]
    parents: Int[Tensor, "contexts time width"]
    """The place, one step earlier, of the hypothesis that each extends."""
    finished: Int[Tensor, " contexts"]
    """How many hypotheses have ended with eos."""
    best_score: Float64[Tensor, " contexts"]
    best_step: Int[Tensor, " contexts"]
    best_place: Int[Tensor, " contexts"]


class Hypotheses(Search[HypothesisTable]):
    """Contexts of beam search. Rows of the batch are their unfinished hypotheses, context by context."""

    def __init__(self, beam: Beam, indices: Rows, eos_ids: EosIds, max_steps: int):
        score = indices.new_full((len(indices), beam.width), -math.inf, dtype=torch.float64)
        score[:, 0] = 0.0  # one hypothesis, without tokens
        past = indices.new_empty(len(indices), min(32, max_steps), beam.width, dtype=torch.int32)
        table = HypothesisTable(
            index=indices,
            steps=torch.zeros_like(indices),
            score=score,
            tokens=past,
            parents=past.clone(),
            finished=torch.zeros_like(indices),
            best_score=torch.full_like(indices, -math.inf, dtype=torch.float64),
            best_step=torch.zeros_like(indices),
            best_place=torch.zeros_like(indices),
        )
        super().__init__(table, eos_ids, max_steps)
        self.beam = beam

    @property
    def unfinished(self) -> Bool[Tensor, "contexts width"]:
        return self.table.score > -math.inf

    @property
    def owners(self) -> Rows:
        return self.unfinished.nonzero()[:, 0]

    def advance(self, next_token: NextToken) -> tuple[Token, Rows]:
        row_of = self.unfinished.flatten().cumsum(0).view_as(self.table.score) - 1
        score, token, parent = self._best_expansions(next_token)
        ends = torch.isin(token, self.eos_ids) & (score > -math.inf)
        self._record(score, token, parent, ends)
        terminated = (self.table.finished >= self.beam.needed) | ~self.unfinished.any(1)
        over = terminated | (self.table.steps == self.max_steps)
        left = self.unfinished & ~over[:, None]
        if over.any():
            self._finish(over.nonzero()[:, 0], terminated)
            self.table = self.table.select((~over).nonzero()[:, 0])
        return token[left], row_of.gather(1, parent)[left]

    def _best_expansions(self, next_token: NextToken) -> tuple[Tensor, Tensor, Tensor]:
        """Score, token and parent of the `width` best expansions of each context; the earlier of equal ones first."""
        width, unfinished = self.beam.width, self.unfinished
        ranked = next_token.top(min(width, next_token.vocab_size))
        shape = (*unfinished.shape, ranked.ids.shape[1])
        score = torch.full(shape, -math.inf, dtype=torch.float64, device=unfinished.device)
        score[unfinished] = self.table.score[unfinished][:, None] + ranked.log_probs
        token = torch.zeros(shape, dtype=torch.int64, device=unfinished.device)
        token[unfinished] = ranked.ids
        score, token = score.flatten(1), token.flatten(1)
        place = top_places(score, torch.arange(score.shape[1], device=score.device).expand_as(score), width)
        return score.gather(1, place), token.gather(1, place), place // shape[2]

    def _record(self, score: Tensor, token: Tensor, parent: Tensor, ends: Bool[Tensor, "contexts width"]) -> None:
        table = self.table
        table.tokens = append_step(table.tokens, table.steps, token, self.max_steps)
        table.parents = append_step(table.parents, table.steps, parent, self.max_steps)
        table.steps += 1
        table.score = score.masked_fill(ends, -math.inf)
        table.finished += ends.sum(1)
        newest = score.masked_fill(~ends, -math.inf)
        better = newest.amax(1) > table.best_score
        table.best_score = torch.where(better, newest.amax(1), table.best_score)
        table.best_step = torch.where(better, table.steps, table.best_step)
        table.best_place = torch.where(better, newest.argmax(1), table.best_place)

    def _finish(self, contexts: Rows, terminated: Bool[Tensor, " contexts"]) -> None:
        """Complete with the best finished hypothesis, or the best unfinished one if none ended before the limit."""
        table = self.table.select(contexts)
        none = table.finished == 0
        step = torch.where(none, table.steps, table.best_step)
        place = torch.where(none, table.score.argmax(1), table.best_place)
        score = torch.where(none, table.score.amax(1), table.best_score)
        columns = (table.index, step, place, terminated[contexts], table.steps, score)
        for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            index, length, last, ended, steps, log_prob = values
            tokens = trace_back(table.tokens[row, :length], table.parents[row, :length], last)
            self.ended.append(Completion(index, tokens, Cause.EOS if ended else Cause.LIMIT, steps, log_prob))

    def tokens_of(self, row: int) -> list[int]:
        context, place = self.unfinished.nonzero()[row].tolist()
        length = int(self.table.steps[context])
        return trace_back(self.table.tokens[context, :length], self.table.parents[context, :length], place).tolist()

    def log_prob_of(self, row: int) -> float:
        return float(self.table.score[self.unfinished][row])


def trace_back(
    tokens: Int[Tensor, "time width"], parents: Int[Tensor, "time width"], place: int
) -> Int[Tensor, " time"]:
    """The tokens of the hypothesis that is in `place` at the last step."""
    path = []
    for token, parent in zip(reversed(tokens.tolist()), reversed(parents.tolist()), strict=True):
        path.append(token[place])
        place = parent[place]
    return torch.tensor(path[::-1], dtype=torch.int64, device="cpu")
