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

from eosin.contracts import Decoder, Prefix, Rows, State, Token
from eosin.decoding.distribution import Workspace, survey
from eosin.decoding.job import Context, Job
from eosin.decoding.search import Search
from eosin.devices import choose_exact_device, own_precision
from eosin.errors import BadInput
from eosin.events import Event, Watch, ignore
from eosin.logits import Logits, as_logits
from eosin.outcome import Completion, Proof
from eosin.states import can_join, grows

SMALLEST_BATCH, BATCH_MULTIPLE = 16, 8
"""A matrix product of few rows, or of an odd number, can round differently (docs/log.md). So batches are padded, unless
the state grows with every token: then the bits of a row depend on the lengths of the others anyway."""
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
    pads: bool = True
    """Whether the batch is padded."""

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
        token, state = torch.cat([self.token, other.token]), self.state.join(other.state)
        return Cohort(search, token, state, memory, self.pads)._select(rows)

    def _select(self, rows: Rows) -> Cohort:
        rows = pad_rows(rows) if self.pads else rows
        memory = None if self.memory is None else self.memory.select(rows)
        return replace(self, token=self.token[rows], state=self.state.select(rows), memory=memory)

    def retire(self, proofs: Mapping[int, Proof | None]) -> Cohort:
        """The cohort without these rows: they were proved infinite, or their loops are not followed."""
        left = self.search.retire(proofs)
        return self._select(left.to(self.token.device)) if len(left) else self


Prove = Callable[[Cohort], Cohort]
"""Looks at a cohort after every step, and returns it without the rows that need not go on."""


class Loop:
    """One job and one decoder, and the memory that a step needs."""

    def __init__(self, job: Job, decoder: Decoder, prove: Prove | None = None):
        self.job = job
        self.model = job.model
        self.decoder = decoder
        self.prove = prove
        self.workspace = Workspace(job.model.eos_ids)
        self.pads: bool | None = None
        """Whether batches are padded; that is known once there is a state."""
        self._known_kinds: tuple[type, ...] = ()
        """Types of logits and state that were checked: that takes long for one step of a small model."""

    @own_precision()
    @torch.inference_mode()
    def enter(self, contexts: list[Context]) -> Cohort:
        """Read the prefixes, which have one length, and choose the first token after each."""
        prefixes = torch.stack([context.prefix for context in contexts])
        indices = torch.tensor([context.index for context in contexts], device="cpu")
        eos_ids = torch.tensor(self.model.eos_ids, device=choose_exact_device(prefixes.device))
        search = self.decoder.begin(indices, eos_ids, self.job.max_steps, self.job.seed, self.job.stop)
        return self._advance(search, *self._prefill(prefixes))

    def _prefill(self, prefixes: Prefix) -> tuple[Logits, State]:
        """Read the prefixes. Whether to pad is known from the first state; then they may be read again."""
        padded = self._pad(torch.arange(len(prefixes), device=prefixes.device))
        logits, state = self._check(self.model.prefill(prefixes[padded]), len(padded))
        if self.pads is None:
            self.pads = not grows(state)
            if self.pads and padded_size(len(prefixes)) > len(prefixes):
                return self._prefill(prefixes)
        return logits, state

    @own_precision()
    @torch.inference_mode()
    def step(self, cohort: Cohort) -> Cohort:
        """Read the tokens that were chosen, and choose the next ones."""
        answer = self.model.step(cohort.token, cohort.state)
        return self._advance(cohort.search, *self._check(answer, len(cohort.token)), cohort.memory)

    def _check(self, answer: object, rows: int) -> tuple[Logits, State]:
        """The model's answer, if it is logits of the right shape and a state."""
        logits: Any
        state: Any
        logits, state = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        expected: tuple[int, ...] = (rows, self.model.vocab_size)
        shape: tuple[int, ...] = tuple(getattr(logits, "shape", ()))
        kinds = type(logits), type(state)
        is_known = kinds == self._known_kinds
        if shape == expected and (is_known or (isinstance(logits, Tensor | Logits) and selects_rows(state))):
            self._known_kinds = kinds
            return as_logits(logits), state
        raise BadInput(
            f"prefill and step must return logits of shape {expected} (rows, vocab_size) and a state with select, such "
            f"as eosin.states.TensorState; got {type(logits).__name__} of shape {shape} and {type(state).__name__}"
        )

    def _advance(self, search: Search[Any], logits: Logits, state: State, memory: Any = None) -> Cohort:
        token, parents = search.advance(survey(logits, search.rows, self.workspace))
        if not len(token):
            return Cohort(search, token, state, pads=bool(self.pads))
        token = self._pad(token).to(logits.device)
        if parents is not None:
            rows = self._pad(parents).to(logits.device)
            state = state.select(rows)
            memory = None if memory is None else memory.select(rows)
        cohort = Cohort(search, token, state, memory, bool(self.pads))
        return self.prove(cohort) if self.prove else cohort

    def _pad(self, rows: Tensor) -> Tensor:
        return pad_rows(rows) if self.pads else rows


def selects_rows(state: object) -> bool:
    """Whether it is a state. The `select` of a tensor is another."""
    return isinstance(state, State) and not isinstance(state, Tensor)


def pad_rows(rows: Rows) -> Int[Tensor, " batch"]:
    """The rows, repeated up to a batch size at which every row rounds the same."""
    count = rows.shape[0]
    size = padded_size(count)
    return rows if size == count else rows[torch.arange(size, device=rows.device) % count]


def padded_size(rows: int) -> int:
    return max(SMALLEST_BATCH, -(-rows // BATCH_MULTIPLE) * BATCH_MULTIPLE)
