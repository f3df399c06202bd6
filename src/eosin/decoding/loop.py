"""The one loop that generates: contexts enter a pool of rows, go on step by step, and leave it when they end.

    logits, state = model.step(token, state)
    token, parents = search.advance(survey(logits))
    state = state.select(parents)

A search (`Paths` here, `Hypotheses` in `eosin.decoding.beam`) turns logits into the next tokens and says which rows
they follow, so dropping finished rows and reordering a beam are one and the same `select`. Nothing is computed for a
row that has ended, and no step is taken that nobody needs. An observer may look at the rows after every step and take
out those of which it can prove that they go on for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from eosin.causes import Cause
from eosin.contracts import Decoder, EosIds, Generative, Rows, Search, Token, Uniforms
from eosin.decoding.distribution import NextToken, Workspace, survey
from eosin.decoding.randomness import uniforms
from eosin.decoding.search_state import Table, UnderWay, cause_of, written
from eosin.decoding.stopping import Stop
from eosin.devices import own_precision
from eosin.logits import Logits, as_logits
from eosin.outcome import Completion, Proof
from eosin.states import can_join

SMALLEST_BATCH, BATCH_MULTIPLE = 16, 8
"""Matrix products of few rows, or of an odd number of them, can round differently (docs/log.md), so a batch is filled
up with repeated rows.
"""
ROOM_TO_OPEN = 8
"""New contexts enter when one part in so many of the pool is free: reading a prefix has a price of its own."""

POOL = 1024
"""Rows that are decoded at a time, unless a model or a user says otherwise."""


@dataclass(frozen=True)
class Context:
    """What is to be continued, and the number that its randomness comes from."""

    index: int
    prefix: Int[Tensor, " length"]


def usual_pool(model: Generative) -> int:
    return getattr(model, "pool", POOL)


def unroll(
    model: Generative,
    contexts: Iterable[Context],
    decoder: Decoder,
    *,
    max_steps: int,
    seed: int,
    pool: int,
    observer: Observer | None = None,
    stop: Stop | None = None,
) -> Iterator[Completion]:
    """Decode all contexts with at most `pool` rows at a time; completions come in the order in which they end."""
    loop = Loop(model, decoder, max_steps, seed, observer, stop)
    capacity = max(1, pool // decoder.rows_per_context)
    waiting = Waiting(contexts, capacity)
    cohort: Cohort | None = None
    while cohort or waiting:
        if cohort is None:
            cohort = loop.enter(waiting.take(capacity))
        elif waiting and (room := cohort.room(capacity)):
            cohort = cohort.join(loop.enter(waiting.take(room)))
        else:
            cohort = loop.step(cohort)
        yield from cohort.search.finished()
        if not cohort.search.contexts:
            cohort = None


class Waiting:
    """Contexts that have not entered yet, by length: rows that enter together have prefixes of one length."""

    def __init__(self, contexts: Iterable[Context], look_ahead: int):
        self._source = iter(contexts)
        self._look_ahead = look_ahead
        self._by_length: dict[int, list[Context]] = defaultdict(list)
        self._refill()

    def _refill(self) -> None:
        seen = sum(map(len, self._by_length.values()))
        for context in islice(self._source, self._look_ahead - seen):
            self._by_length[len(context.prefix)].append(context)

    def take(self, most: int) -> list[Context]:
        """Up to so many contexts of one length: the length that most are waiting with."""
        length = max(self._by_length, key=lambda length: len(self._by_length[length]))
        group = self._by_length.pop(length)
        if group[most:]:
            self._by_length[length] = group[most:]
        self._refill()
        return group[:most]

    def __bool__(self) -> bool:
        return bool(self._by_length)


@dataclass(frozen=True)
class Cohort:
    """Contexts under way and what the model is to read next. Rows beyond those of the search repeat them."""

    search: Any
    """A Search."""
    token: Token
    state: Any
    memory: Any = None
    """What an observer remembers of each row: a state as the model's is."""

    def room(self, capacity: int) -> int:
        """How many contexts may enter now; none where the model's state cannot be joined, or for too few to matter."""
        free = capacity - self.search.contexts
        return free if free * ROOM_TO_OPEN >= capacity and can_join(self.state) else 0

    @torch.inference_mode()
    def join(self, other: Cohort) -> Cohort:
        search = self.search.join(other.search)
        if not other.search.contexts:  # all of them ended at their first step
            return replace(self, search=search)
        device, mine = self.token.device, len(self.token)
        theirs = mine + torch.arange(other.search.rows, device=device)
        rows = torch.cat([torch.arange(self.search.rows, device=device), theirs])
        return self._with(other).select(search, filled_up(rows))

    def _with(self, other: Cohort) -> Cohort:
        memory = None if self.memory is None else self.memory.join(other.memory)
        return Cohort(self.search, torch.cat([self.token, other.token]), self.state.join(other.state), memory)

    def select(self, search: Search, rows: Rows) -> Cohort:
        memory = None if self.memory is None else self.memory.select(rows)
        return Cohort(search, self.token[rows], self.state.select(rows), memory)

    def without(self, proofs: Mapping[int, Proof]) -> Cohort:
        """The rows that nothing was proved of; the others are handed out as proved infinite."""
        left = self.search.retire(proofs)
        return self.select(self.search, filled_up(left)) if len(left) else self


Observer = Callable[[Cohort], Cohort]
"""Looks at what is under way after every step and returns what to go on with; for searches of a row a context."""


class Loop:
    """One model and one decoder, and the memory that a step needs."""

    def __init__(
        self,
        model: Generative,
        decoder: Decoder,
        max_steps: int,
        seed: int,
        observer: Observer | None = None,
        stop: Stop | None = None,
    ):
        self.model = model
        self.observer = observer
        self.stop = stop
        self.decoder = decoder
        self.max_steps = max_steps
        self.seed = seed
        self.workspace = Workspace()

    @own_precision()
    @torch.inference_mode()
    def enter(self, contexts: list[Context]) -> Cohort:
        prefixes = torch.stack([context.prefix for context in contexts])
        indices = torch.tensor([context.index for context in contexts], device=prefixes.device)
        eos_ids = torch.tensor(self.model.eos_ids, device=prefixes.device)
        search: Any = self.decoder.begin(indices, eos_ids, self.max_steps, self.seed)
        if self.stop is not None:
            search.stop = self.stop
        rows = filled_up(torch.arange(len(contexts), device=prefixes.device))
        return self._advance(search, *self._checked(self.model.prefill(prefixes[rows]), len(rows)))

    @own_precision()
    @torch.inference_mode()
    def step(self, cohort: Cohort) -> Cohort:
        answer = self.model.step(cohort.token, cohort.state)
        return self._advance(cohort.search, *self._checked(answer, len(cohort.token)), cohort.memory)

    def _checked(self, answer: Any, rows: int) -> tuple[Logits, Any]:
        """What the model said, if it is logits of the right shape and a state."""
        logits, state = answer if type(answer) is tuple and len(answer) == 2 else (answer, None)
        expected, shape = (rows, self.model.vocab_size), tuple(getattr(logits, "shape", ()))
        if shape != expected or not hasattr(state, "select"):
            raise ValueError(
                f"prefill and step must return logits of shape {expected} (rows, vocab_size) and a state with select; "
                f"got {type(logits).__name__} of shape {shape} and {type(state).__name__}"
            )
        return as_logits(logits), state

    def _advance(self, search: Search, logits: Logits, state: Any, memory: Any = None) -> Cohort:
        rows_before = search.rows
        next_token = survey(logits, search.eos_ids, rows_before, self.workspace)
        check_finite(next_token, search)
        token, parents = search.advance(next_token)
        if not len(parents):
            return Cohort(search, token, state)
        rows = filled_up(torch.arange(len(parents), device=parents.device))
        if len(parents) < rows_before or not torch.equal(parents, rows[:rows_before]):
            state = state.select(parents[rows])
            memory = memory if memory is None else memory.select(parents[rows])
        cohort = Cohort(search, token[rows], state, memory)
        return self.observer(cohort) if self.observer else cohort


def filled_up(rows: Rows) -> Int[Tensor, " batch"]:
    """A batch of a size that rounds as all others do, repeating rows where there are too few."""
    return rows[torch.arange(filled_size(len(rows)), device=rows.device) % len(rows)]


def filled_size(rows: int) -> int:
    return max(SMALLEST_BATCH, -(-rows // BATCH_MULTIPLE) * BATCH_MULTIPLE)


def check_finite(next_token: NextToken, search: Search) -> None:
    broken = ~next_token.log_total.isfinite()
    if broken.any():
        context, step = search.whereabouts(int(broken.nonzero()[0, 0]))
        raise ValueError(
            f"logits of context {context} at step {step} are not a distribution: they contain NaN or +inf, or are all "
            "-inf; the model must return finite logits or -inf, at least one of them finite"
        )


@runtime_checkable
class Chooser(Protocol):
    """A decoder that goes from left to right, one token a row."""

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token: ...


@runtime_checkable
class Predictable(Chooser, Protocol):
    """One that can say what it may choose, so that something can be proved of it."""

    def kept(self, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
        """Every token that could be chosen."""

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        """How safely a token is the only one that may be chosen, in nats, where its logit leads each other one by at
        least so much: not at all where this is not positive. Its own lead is infinite.
        """


@dataclass
class PathTable(Table):
    index: Int[Tensor, " contexts"]
    steps: Int[Tensor, " contexts"]
    log_prob: Float64[Tensor, " contexts"]
    history: Int[Tensor, "contexts time"]


class Paths(UnderWay):
    """Contexts of greedy decoding or sampling under way, a row each."""

    def __init__(self, chooser: Chooser, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int):
        table = PathTable(
            index=indices,
            steps=torch.zeros_like(indices),
            log_prob=torch.zeros_like(indices, dtype=torch.float64),
            history=indices.new_empty(len(indices), min(32, max_steps), dtype=torch.int32),
        )
        super().__init__(table, eos_ids, max_steps)
        self.chooser = chooser
        self.seed = seed

    @property
    def rows(self) -> int:
        return self.contexts

    def advance(self, next_token: NextToken) -> tuple[Token, Rows]:
        table = self.table
        token = self.choose(next_token, uniforms(self.seed, table.index, table.steps))
        table.history = written(table.history, table.steps, token, self.max_steps)
        table.log_prob += next_token.log_probs_of(token)
        table.steps += 1
        terminated, stopped = torch.isin(token, self.eos_ids), self._stopped()
        over = terminated | stopped | (table.steps == self.max_steps)
        rows = (~over).nonzero()[:, 0]
        if len(rows) < len(token):
            self._retire(over.nonzero()[:, 0], terminated, stopped)
            self.table = table.select(rows)
        return token[rows], rows

    def _stopped(self) -> Bool[Tensor, " contexts"]:
        """Which contexts have come to a stop string."""
        stopped = torch.zeros_like(self.table.index, dtype=torch.bool)
        if self.stop is not None:
            for row in range(self.rows):
                stopped[row] = self.stop(self.produced(row))
        return stopped

    def choose(self, next_token: NextToken, numbers: Uniforms) -> Token:
        return self.chooser.choose(next_token, numbers)

    def _retire(self, rows: Rows, terminated: Bool[Tensor, " contexts"], stopped: Bool[Tensor, " contexts"]) -> None:
        table = self.table.select(rows)
        tokens = table.history[:, : int(table.steps.max())].cpu().long()
        columns = (table.index, table.steps, terminated[rows], stopped[rows], table.log_prob)
        for row, (index, steps, ended, stop, log_prob) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            known = self.known_of(table, row)
            self.ended.append(Completion(index, tokens[row, :steps], cause_of(ended, stop), steps, log_prob, **known))

    def known_of(self, table: PathTable, row: int) -> dict[str, Any]:
        """What else is to be said of a completion."""
        return {}

    def produced(self, row: int) -> list[int]:
        """The tokens of one context so far."""
        return self.table.history[row, : int(self.table.steps[row])].tolist()

    def retire(self, proofs: Mapping[int, Proof]) -> Rows:
        """Hand out the contexts that are proved to go on for ever; the rows that are left."""
        for row, proof in sorted(proofs.items()):
            index, steps = int(self.table.index[row]), int(self.table.steps[row])
            tokens, log_prob = torch.tensor(self.produced(row), device="cpu"), float(self.table.log_prob[row])
            self.ended.append(Completion(index, tokens, Cause.PROVED, steps, log_prob, proof))
        rows = [row for row in range(self.rows) if row not in proofs]
        left = torch.tensor(rows, dtype=torch.int64, device=self.table.index.device)
        self.table = self.table.select(left)
        return left
