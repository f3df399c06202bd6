"""A job: what decides a decoding, apart from the decoder. Everything in it is checked once, when it is created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import index
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from eosin.contracts import Decoder, Generative, Pooled, Stop, Windowed
from eosin.decoding.spec import parse_decoder
from eosin.devices import device_of
from eosin.errors import BadInput

POOL = 1024
"""Rows that are decoded at a time, unless the model or the caller says otherwise."""

Prefixes = Tensor | Sequence[Sequence[int] | Tensor]


@dataclass(frozen=True)
class Context:
    """A prefix to continue, and the number that its randomness comes from."""

    index: int
    prefix: Int[Tensor, " length"]


@dataclass(frozen=True)
class Contexts:
    """Checked prefixes, packed, each with its number: prefix i is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: Int[Tensor, " tokens"]
    offsets: Sequence[int]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Context:
        return Context(self.numbers[place], self.tokens[self.offsets[place] : self.offsets[place + 1]])

    def __iter__(self) -> Iterator[Context]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True)
class Job:
    """A model, the contexts to continue, and the limits. `decode`, `trace` and `audit` all run jobs."""

    model: Generative
    contexts: Contexts
    max_steps: int
    seed: int
    pool: int
    """Rows that are decoded at a time."""
    stop: Stop | None

    @classmethod
    def create(
        cls,
        model: Generative,
        prefixes: Prefixes,
        *,
        max_steps: int,
        seed: int = 0,
        pool: int | None = None,
        indices: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> Job:
        """Check everything; the arguments are those of `eosin.decode`."""
        check_model(model)
        tokens, offsets = pack_prefixes(prefixes, model)
        job = cls(
            model=model,
            contexts=Contexts(tokens, offsets, check_indices(indices, len(offsets) - 1)),
            max_steps=check_whole("max_steps", max_steps, 1, 2**31),
            seed=check_whole("seed", seed, 0, 2**64),
            pool=pool_of(model) if pool is None else check_whole("pool", pool, 1, 2**31),
            stop=stop,
        )
        check_window(job)
        return job

    def check_decoder(self, decoder: str | Decoder) -> Decoder:
        """The decoder, parsed, if it can do this job."""
        parsed = to_decoder(decoder, self.model.vocab_size)
        if self.stop is not None and parsed.rows_per_context > 1:
            raise BadInput(f"stop strings end greedy decoding and sampling; hypotheses of {parsed} end with eos only")
        return parsed


def pool_of(model: Generative) -> int:
    return model.pool if isinstance(model, Pooled) else POOL


def window_of(model: Generative) -> int | None:
    return model.window if isinstance(model, Windowed) else None


def to_decoder(decoder: object, vocab_size: int | None = None) -> Decoder:
    """The decoder that is given, or that a specification names. It must fit the vocabulary, if there is one."""
    parsed = parse_decoder(decoder) if isinstance(decoder, str) else decoder
    if isinstance(parsed, type) or not isinstance(parsed, Decoder):
        raise BadInput(f"decoder must be a specification, as 'nucleus:0.2', or a Decoder, got {parsed!r}")
    try:
        if vocab_size is not None:
            parsed.check(vocab_size)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"decoder {str(parsed)!r}: {error}") from error
    return parsed


def check_model(model: Generative) -> None:
    missing = [name for name in ("vocab_size", "eos_ids", "prefill", "step") if not hasattr(model, name)]
    if missing:
        raise BadInput(f"model must have {', '.join(missing)}; {type(model).__name__} has not")
    vocab_size = check_whole("vocab_size", model.vocab_size, 1, 2**31)
    ids = to_list(model.eos_ids)
    if not isinstance(ids, Sequence) or not ids or len(set(ids)) < len(ids):
        raise BadInput(f"eos_ids must be one or more different token ids, got {model.eos_ids!r}")
    for token in ids:
        check_whole("each of eos_ids", token, 0, vocab_size)


def check_window(job: Job) -> None:
    """A model that has only so many positions must have them for every prefix and all that may follow it."""
    window, offsets = window_of(job.model), job.contexts.offsets
    longest = max(end - start for start, end in pairwise(offsets))
    if window is not None and longest + job.max_steps - 1 > window:
        raise BadInput(
            f"a prefix of {longest:,} tokens and {job.max_steps:,} steps need more than the {window:,} positions that "
            f"the model has; take at most {max(window - longest + 1, 0):,} steps (--max-steps), or shorter prefixes"
        )


def check_whole(name: str, value: Any, least: int, end: int) -> int:
    """The value as a Python int, if it is a whole number from `least` to `end - 1`."""
    try:
        number = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = -1
    if number not in range(least, end):
        raise BadInput(f"{name} must be a whole number from {least} to {end - 1}, got {value!r}")
    return number


def check_indices(indices: Sequence[int] | None, count: int) -> Sequence[int]:
    if indices is None:
        return range(count)
    numbers = [check_whole("each of indices", number, 0, 2**63) for number in indices]
    if len(numbers) != count or len(set(numbers)) != count:
        raise BadInput(f"indices must be {count} different numbers, one for each prefix, got {indices!r}")
    return numbers


def pack_prefixes(prefixes: Prefixes, model: Generative) -> tuple[Int[Tensor, " tokens"], list[int]]:
    """All tokens on the model's device, and where each prefix begins; the last offset is the end."""
    rows = to_list(prefixes)
    if not isinstance(rows, Iterable):
        raise BadInput(f"prefixes must be a tensor or a list of lists of token ids, got {prefixes!r}")
    rows = [to_list(row) for row in rows]
    if not rows:
        raise BadInput("prefixes must hold at least one prefix, got none")
    for place, row in enumerate(rows):
        if not isinstance(row, list | tuple) or not row:
            raise BadInput(f"prefix {place} must be a list of at least one token id, got {row!r}")
    device = device_of(model) or (prefixes.device if torch.is_tensor(prefixes) else None)
    tokens = list(chain.from_iterable(rows))
    if set(map(type, tokens)) != {int} or min(tokens) < 0 or max(tokens) >= model.vocab_size:
        # something is wrong, or written in an unusual way
        tokens = [
            check_whole(f"each token id of prefix {place}", token, 0, model.vocab_size)
            for place, row in enumerate(rows)
            for token in row
        ]
    return torch.tensor(tokens, device=device), [0, *accumulate(map(len, rows))]


@runtime_checkable
class Listable(Protocol):
    """Tensors and arrays, and rows of them."""

    def tolist(self) -> Any: ...


def to_list(values: Any) -> Any:
    """Tensors and arrays as lists; anything else as it is."""
    return values.tolist() if isinstance(values, Listable) else values
