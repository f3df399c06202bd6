"""Beam search (Definition A.2 of the paper), under either of its two stopping rules.

Each step expands every unfinished hypothesis of a context by every token, and keeps the `width` best expansions. Those
that end with eos are finished. The others are the next hypotheses. The score of a hypothesis is its log-probability
under the model. The search ends when `width` hypotheses are finished, as in the definition, or with the first one, as
in the paper's experiments. It returns the best finished hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from eosin.causes import Cause
from eosin.contracts import EosIds, Rows, Stop, Token
from eosin.decoding.distribution import NextToken, is_one_of
from eosin.decoding.search import History, Search, Table
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
    unfinished: Bool[Tensor, "contexts width"]
    """Where there is a hypothesis to continue; on the CPU."""
    finished: Int[Tensor, " contexts"]
    """How many hypotheses have ended with eos; on the CPU."""
    score: Float64[Tensor, "contexts width"]
    """Of the unfinished hypotheses, best first; -inf where there is none."""
    tokens: History
    parents: History
    """The place, one step earlier, of the hypothesis that each extends."""
    best_score: Float64[Tensor, " contexts"]
    """Of the best finished hypothesis; its last token is in `best_place` at step `best_step`."""
    best_step: Int[Tensor, " contexts"]
    best_place: Int[Tensor, " contexts"]


class Hypotheses(Search[HypothesisTable]):
    """Contexts of beam search. Rows of the batch are their unfinished hypotheses, context by context."""

    def __init__(self, beam: Beam, indices: Rows, eos_ids: EosIds, max_steps: int):
        unfinished = torch.zeros(len(indices), beam.width, dtype=torch.bool, device="cpu")
        unfinished[:, 0] = True  # one hypothesis, without tokens
        score = torch.where(unfinished, 0.0, -math.inf).double().to(eos_ids.device)
        past = eos_ids.new_empty(len(indices), min(32, max_steps), beam.width, dtype=torch.int32)
        none = eos_ids.new_zeros(len(indices))
        table = HypothesisTable(
            index=indices,
            steps=torch.zeros_like(indices),
            unfinished=unfinished,
            finished=torch.zeros_like(indices),
            score=score,
            tokens=History(past),
            parents=History(past.clone()),
            best_score=torch.full_like(score[:, 0], -math.inf),
            best_step=none,
            best_place=none,
        )
        super().__init__(table, eos_ids, max_steps)
        self.beam = beam

    @property
    def owners(self) -> Rows:
        return self.table.unfinished.nonzero()[:, 0]

    @property
    def _places(self) -> Rows:
        """The place of each row among all places of all contexts."""
        return self.table.unfinished.flatten().nonzero()[:, 0]

    def advance(self, next_token: NextToken) -> tuple[Token, Rows]:
        table = self.table
        row_of_place = (table.unfinished.flatten().cumsum(0).view_as(table.unfinished) - 1).to(table.score.device)
        score, token, parent = self._find_best_expansions(next_token)
        ends = is_one_of(token, self.ends) & (score > -math.inf)
        self._record(score, token, parent, ends)
        ended, table.unfinished = self._fetch(next_token, ends, table.score > -math.inf)
        table.steps += 1
        table.finished += ended.sum(1)
        terminated = (table.finished >= self.beam.needed) | ~table.unfinished.any(1)
        over = terminated | (table.steps == self.max_steps)
        left = (table.unfinished & ~over[:, None]).flatten().nonzero()[:, 0].to(token.device)
        if over.any():
            self._finish(over.nonzero()[:, 0], terminated)
            self._keep((~over).nonzero()[:, 0])
        return token.flatten()[left], row_of_place.gather(1, parent).flatten()[left]

    def _find_best_expansions(self, next_token: NextToken) -> tuple[Tensor, Tensor, Tensor]:
        """Score, token and parent of the `width` best expansions of each context; the earlier of equal ones first."""
        ranked = next_token.top(self.beam.width)
        scores, places = self.table.score, self._places.to(next_token.device)
        expansions = ranked.ids.shape[1]
        extended = scores.flatten()[places][:, None] + ranked.log_probs
        score = extended.new_full((scores.numel(), expansions), -math.inf).index_copy(0, places, extended)
        token = ranked.ids.new_zeros(score.shape).index_copy(0, places, ranked.ids)
        score, token = score.view(len(scores), -1), token.view(len(scores), -1)
        best = score.sort(dim=1, descending=True, stable=True).indices[:, : self.beam.width]
        return score.gather(1, best), token.gather(1, best), best // expansions

    def _record(self, score: Tensor, token: Tensor, parent: Tensor, ends: Bool[Tensor, "contexts width"]) -> None:
        table, longest = self.table, int(self.table.steps.max())
        table.tokens = table.tokens.append(token, longest)
        table.parents = table.parents.append(parent, longest)
        table.score = score.masked_fill(ends, -math.inf)
        newest = score.masked_fill(~ends, -math.inf)
        best = newest.amax(1)
        better = best > table.best_score
        step = (table.steps + 1).to(better.device)
        table.best_score = torch.where(better, best, table.best_score)
        table.best_step = torch.where(better, step, table.best_step)
        table.best_place = torch.where(better, newest.argmax(1), table.best_place)

    def _finish(self, contexts: Rows, terminated: Bool[Tensor, " contexts"]) -> None:
        """Complete with the best finished hypothesis, or the best unfinished one if none ended before the limit."""
        table = self.table.select(contexts)
        none = (table.finished == 0).tolist()
        steps, ended = table.steps.tolist(), terminated[contexts].tolist()
        finished = zip(*(c.tolist() for c in (table.best_score, table.best_step, table.best_place)), strict=True)
        unfinished = zip(*(c.tolist() for c in (table.score.amax(1), table.score.argmax(1))), strict=True)
        for row, (index, best, other) in enumerate(zip(table.index.tolist(), finished, unfinished, strict=True)):
            log_prob, length, place = (other[0], steps[row], other[1]) if none[row] else best
            tokens = self._trace_back(int(contexts[row]), length, place)
            cause = Cause.EOS if ended[row] else Cause.LIMIT
            self.ended.append(Completion(index, tokens, cause, steps[row], log_prob))

    def _trace_back(self, context: int, length: int, place: int) -> Int[Tensor, " time"]:
        """The tokens of the hypothesis that was in a place of a context after so many steps."""
        steps = [int(self.table.steps[context])]
        (tokens,), (parents,) = (past.fetch([context], steps) for past in (self.table.tokens, self.table.parents))
        return trace_back(tokens[:length], parents[:length], place)

    def tokens_of(self, rows: Sequence[int]) -> list[list[int]]:
        width, places = self.beam.width, self._places
        found = (divmod(int(places[row]), width) for row in rows)
        return [self._trace_back(c, int(self.table.steps[c]), place).tolist() for c, place in found]

    def log_probs_of(self, rows: Sequence[int]) -> list[float]:
        log_probs: list[float] = self.table.score.flatten().cpu()[self._places[list(rows)]].tolist()
        return log_probs


def trace_back(
    tokens: Int[Tensor, "time width"], parents: Int[Tensor, "time width"], place: int
) -> Int[Tensor, " time"]:
    """The tokens of the hypothesis that is in `place` at the last step."""
    path = []
    for token, parent in zip(reversed(tokens.tolist()), reversed(parents.tolist()), strict=True):
        path.append(token[place])
        place = parent[place]
    return torch.tensor(path[::-1], dtype=torch.int64, device="cpu")
