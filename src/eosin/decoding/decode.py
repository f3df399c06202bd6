"""`eosin.decode`: prefixes in, completions out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor

from eosin.contracts import Decoder, Generative
from eosin.decoding.loop import Context, unroll, usual_pool
from eosin.decoding.spec import parse_decoder
from eosin.decoding.stopping import Stop
from eosin.errors import BadInput
from eosin.outcome import Completion, Completions


def decode(
    model: Generative,
    prefixes: Tensor | Sequence[Sequence[int]],
    decoder: str | Decoder = "greedy",
    *,
    max_steps: int,
    seed: int = 0,
    pool: int | None = None,
    indices: Sequence[int] | None = None,
    stop: Stop | None = None,
) -> Completions:
    """Continue every prefix with a decoder until eos, or for `max_steps` tokens.

    model      anything with `vocab_size`, `eos_ids`, `prefill` and `step`, and a state with `select`
    prefixes   a (contexts, length) tensor, or lists of token ids, which may differ in length
    decoder    a specification such as "greedy", "beam:4" or "consistent-nucleus:0.2", or a Decoder
    max_steps  the longest completion, eos included: the paper's L
    seed       with the index of a context and the step, it decides every draw; order, company and pool do not
    pool       how many rows are decoded at a time: contexts, each times the width of its beam; what suits the model
               if not given
    indices    the numbers of the contexts, where these are some of many; 0, 1, 2, ... if not given
    stop       whether the tokens produced so far are to end there, as `StopStrings` says; asked after every step
    """
    completions = completed(
        model, prefixes, decoder, max_steps=max_steps, seed=seed, pool=pool, indices=indices, stop=stop
    )
    by_index = {completion.index: completion for completion in completions}
    order = range(len(prefixes)) if indices is None else map(index, indices)
    return Completions.pack([by_index[number] for number in order])


def completed(
    model: Generative,
    prefixes: Tensor | Sequence[Sequence[int]],
    decoder: str | Decoder,
    *,
    max_steps: int,
    seed: int = 0,
    pool: int | None = None,
    indices: Sequence[int] | None = None,
    stop: Stop | None = None,
) -> Iterator[Completion]:
    """What `decode` makes, one completion after the other as they end."""
    parsed = as_decoder(decoder)
    check_model(model)
    parsed.check(model.vocab_size)
    check_stop(stop, parsed)
    max_steps = whole("max_steps", max_steps, 1, 2**31)
    pool = chosen_pool(pool, model)
    seed = whole("seed", seed, 0, 2**64)
    contexts = checked_contexts(prefixes, indices, model)
    check_room(model, prefixes, max_steps)
    with evaluating(model):
        yield from unroll(model, contexts, parsed, max_steps=max_steps, seed=seed, pool=pool, stop=stop)


def chosen_pool(pool: int | None, model: Generative) -> int:
    return usual_pool(model) if pool is None else whole("pool", pool, 1, 2**31)


def check_stop(stop: Stop | None, decoder: Decoder) -> None:
    if stop is not None and decoder.rows_per_context > 1:
        raise BadInput(f"stop strings end greedy decoding and sampling; hypotheses of {decoder} end with eos only")


def as_decoder(decoder: Any) -> Decoder:
    if isinstance(decoder, str):
        return parse_decoder(decoder)
    if isinstance(decoder, type) or not hasattr(decoder, "begin"):
        raise BadInput(f"decoder must be a specification, as 'nucleus:0.2', or a Decoder, got {decoder!r}")
    return decoder


def check_model(model: Generative) -> None:
    missing = [name for name in ("vocab_size", "eos_ids", "prefill", "step") if not hasattr(model, name)]
    if missing:
        raise BadInput(f"model must have {', '.join(missing)}; {type(model).__name__} has not")
    vocab_size = whole("vocab_size", model.vocab_size, 1, 2**31)
    ids = list(model.eos_ids) if hasattr(model.eos_ids, "__iter__") else []
    if not ids or len(set(ids)) < len(ids):
        raise BadInput(f"eos_ids must be one or more different token ids, got {model.eos_ids!r}")
    for token in ids:
        whole("each of eos_ids", token, 0, vocab_size)


def whole(name: str, value: Any, least: int, end: int) -> int:
    """The value as a Python int, if it is a whole number in range."""
    try:
        number = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = -1
    if number not in range(least, end):
        raise BadInput(f"{name} must be a whole number from {least} to {end - 1}, got {value!r}")
    return number


@dataclass(frozen=True)
class Contexts:
    """Prefixes that have been checked, each with its number; they become tensors when their turn comes."""

    prefixes: Tensor | Sequence[Sequence[int]]
    numbers: Sequence[int]
    device: torch.device | None

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Context]:
        return map(self.at, range(len(self)))

    def at(self, place: int) -> Context:
        return Context(self.numbers[place], torch.tensor(as_list(self.prefixes[place]), device=self.device))


def check_room(model: Generative, prefixes: Any, max_steps: int) -> None:
    """A model that has only so many positions must have them for every prefix and all that may follow it."""
    window = getattr(model, "window", None)
    longest = max(map(len, prefixes), default=0)
    if window is not None and longest + max_steps - 1 > window:
        raise BadInput(
            f"a prefix of {longest:,} tokens and {max_steps:,} steps need more than the {window:,} positions that the "
            f"model has; take at most {max(window - longest + 1, 0):,} steps (--max-steps), or shorter prefixes"
        )


def checked_contexts(
    prefixes: Tensor | Sequence[Sequence[int]], indices: Sequence[int] | None, model: Generative
) -> Contexts:
    if not hasattr(prefixes, "__len__") or getattr(prefixes, "ndim", 2) == 0:
        raise BadInput(f"prefixes must be a tensor or a list of lists of token ids, got {prefixes!r}")
    if len(prefixes) == 0:
        raise BadInput("prefixes must hold at least one prefix, got none")
    for place, prefix in enumerate(prefixes):
        check_prefix(prefix, place, model.vocab_size)
    device = device_of(model) or getattr(prefixes, "device", None)
    return Contexts(prefixes, checked_numbers(indices, len(prefixes)), device)


def checked_numbers(indices: Sequence[int] | None, count: int) -> Sequence[int]:
    if indices is None:
        return range(count)
    numbers = [whole("each of indices", number, 0, 2**63) for number in indices]
    if len(numbers) != count or len(set(numbers)) != count:
        raise BadInput(f"indices must be {count} different numbers, one for each prefix, got {indices!r}")
    return numbers


def check_prefix(prefix: Tensor | Sequence[int], place: int, vocab_size: int) -> None:
    tokens = as_list(prefix)
    if not isinstance(tokens, list | tuple) or not tokens:
        raise BadInput(f"prefix {place} must be a list of at least one token id, got {prefix!r}")
    for token in tokens:
        whole(f"each token id of prefix {place}", token, 0, vocab_size)


def as_list(prefix: Any) -> Any:
    """A prefix may be a row of a tensor or of an array."""
    return prefix.tolist() if hasattr(prefix, "tolist") else prefix


def device_of(model: Generative) -> torch.device | None:
    """Where the model's parameters are, if it has any."""
    parameter = next(getattr(model, "parameters", lambda: iter(()))(), None)
    return None if parameter is None else parameter.device


@contextmanager
def evaluating(model: Generative) -> Iterator[None]:
    """Dropout off, where the model has any; afterwards everything is as it was."""
    modules = [module for module in getattr(model, "modules", list)() if module.training]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module in modules:
            module.training = True
