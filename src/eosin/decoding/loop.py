"""The one loop that generates. Contexts enter a pool of rows, advance step by step, and leave when they end.

    logits, state = model.step(token, state)
    token, parents = search.advance(survey(logits))
    state = state.select(parents)

A search (`Paths`, or `Hypotheses` for beams) turns logits into the next tokens and says which rows they follow. So one
`select` drops finished rows and reorders a beam. The model takes no step for a row that has ended. A prover may look at
the rows after every step, and takes out those that it proves infinite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eosin.contracts import Decoder, Rows, State, Token
from eosin.decoding.distribution import NextToken, Workspace, survey
from eosin.decoding.job import Context, Job
from eosin.decoding.search import Search
from eosin.devices import own_precision
from eosin.events import Event, Watch, ignore
from eosin.logits import Logits, as_logits
from eosin.outcome import Completion, Proof
from eosin.states import can_join

SMALLEST_BATCH, BATCH_MULTIPLE = 16, 8
"""A matrix product of few rows, or of an odd number, can round differently (docs/log.md). So batches are padded."""
ROOM_TO_OPEN = 8
"""New contexts enter when one part in so many of the pool is free: reading a prefix has a price of its own."""


def unroll(
    job: Job,
    decoder: Decoder,
    *,
    contexts: Iterable[Context] | None = None,
    watch: Watch = ignore,
    prove: Prove | None = None,
) -> Iterator[Completion]:
    """Decode the contexts of a job, or some of them. Completions come in the order in which they end.

    The watch gets the event "step" (contexts, rows) after each step of the model; `rows` includes padding.
    """
    loop = Loop(job, decoder, prove)
    capacity = max(1, job.pool // decoder.rows_per_context)
    waiting = Waiting(job.contexts if contexts is None else contexts, capacity)
    cohort: Cohort | None = None
    while cohort or waiting:
        if cohort is None:
            cohort = loop.enter(waiting.take(capacity))
        elif waiting and (room := cohort.room(capacity)):
            cohort = cohort.join(loop.enter(waiting.take(room)))
        else:
            cohort = loop.step(cohort)
        yield from cohort.search.take_finished()
        watch(Event("step", {"contexts": cohort.search.contexts, "rows": len(cohort.token)}))
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
        """At most so many contexts, all of the length that most are waiting with."""
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
    """Contexts under way, and what the model reads next. Rows beyond those of the search are padding."""

    search: Search[Any]
    token: Token
    state: Any
    """The model's state."""
    memory: Any = None
    """What the prover remembers of each row: a state too, so that its rows are selected and joined alike."""

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
        memory = None if self.memory is None else self.memory.join(other.memory)
        both = Cohort(search, torch.cat([self.token, other.token]), self.state.join(other.state), memory)
        return both.select(pad_rows(rows))

    def select(self, rows: Rows) -> Cohort:
        memory = None if self.memory is None else self.memory.select(rows)
        return Cohort(self.search, self.token[rows], self.state.select(rows), memory)

    def retire(self, proofs: Mapping[int, Proof]) -> Cohort:
        """The cohort without the rows that were proved infinite."""
        left = self.search.retire(proofs)
        return self.select(pad_rows(left)) if len(left) else self


Prove = Callable[[Cohort], Cohort]
"""Looks at a cohort after every step, and returns it without the rows that it has proved infinite."""


class Loop:
    """One job and one decoder, and the memory that a step needs."""

    def __init__(self, job: Job, decoder: Decoder, prove: Prove | None = None):
        self.job = job
        self.model = job.model
        self.decoder = decoder
        self.prove = prove
        self.workspace = Workspace()

    @own_precision()
    @torch.inference_mode()
    def enter(self, contexts: list[Context]) -> Cohort:
        """Read the prefixes, which have one length, and choose the first token after each."""
        prefixes = torch.stack([context.prefix for context in contexts])
        indices = torch.tensor([context.index for context in contexts], device=prefixes.device)
        eos_ids = torch.tensor(self.model.eos_ids, device=prefixes.device)
        search = self.decoder.begin(indices, eos_ids, self.job.max_steps, self.job.seed, self.job.stop)
        rows = pad_rows(torch.arange(len(contexts), device=prefixes.device))
        return self._advance(search, *self._check(self.model.prefill(prefixes[rows]), len(rows)))

    @own_precision()
    @torch.inference_mode()
    def step(self, cohort: Cohort) -> Cohort:
        """Read the tokens that were chosen, and choose the next ones."""
        answer = self.model.step(cohort.token, cohort.state)
        return self._advance(cohort.search, *self._check(answer, len(cohort.token)), cohort.memory)

    def _check(self, answer: object, rows: int) -> tuple[Logits, State]:
        """The model's answer, if it is logits of the right shape and a state."""
        logits, state = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        expected: tuple[int, ...] = (rows, self.model.vocab_size)
        shape: tuple[int, ...] = ()
        if isinstance(logits, Tensor | Logits) and isinstance(state, State):
            shape = tuple(logits.shape)
            if shape == expected:
                return as_logits(logits), state
        raise ValueError(
            f"prefill and step must return logits of shape {expected} (rows, vocab_size) and a state with select; "
            f"got {type(logits).__name__} of shape {shape} and {type(state).__name__}"
        )

    def _advance(self, search: Search[Any], logits: Logits, state: State, memory: Any = None) -> Cohort:
        rows_before = search.rows
        next_token = survey(logits, search.eos_ids, rows_before, self.workspace)
        check_finite(next_token, search)
        token, parents = search.advance(next_token)
        if not len(parents):
            return Cohort(search, token, state)
        rows = pad_rows(torch.arange(len(parents), device=parents.device))
        if len(parents) < rows_before or not torch.equal(parents, rows[:rows_before]):
            state = state.select(parents[rows])
            memory = memory if memory is None else memory.select(parents[rows])
        cohort = Cohort(search, token[rows], state, memory)
        return self.prove(cohort) if self.prove else cohort


def pad_rows(rows: Rows) -> Int[Tensor, " batch"]:
    """The rows, repeated up to a batch size at which every row rounds the same."""
    return rows[torch.arange(padded_size(len(rows)), device=rows.device) % len(rows)]


def padded_size(rows: int) -> int:
    return max(SMALLEST_BATCH, -(-rows // BATCH_MULTIPLE) * BATCH_MULTIPLE)


def check_finite(next_token: NextToken, search: Search[Any]) -> None:
    broken = ~next_token.log_total.isfinite()
    if broken.any():
        row = int(broken.nonzero()[0, 0])
        raise ValueError(
            f"logits of context {search.index_of(row)} at step {int(search.steps[row]) + 1} are not a distribution: "
            "they contain NaN or +inf, or are all -inf; the model must return finite logits or -inf, at least one of "
            "them finite"
        )
