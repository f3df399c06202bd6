"""`eosin.decode`: prefixes in, completions out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from eosin.decoding.spec import parse_decoder
from eosin.decoding.unroll import Context, unroll
from eosin.interfaces import Completions, Decoder, Generative


def decode(
    model: Generative,
    prefixes: Tensor | Sequence[Sequence[int]],
    decoder: str | Decoder = "greedy",
    *,
    max_steps: int,
    seed: int = 0,
    pool: int = 1024,
    indices: Sequence[int] | None = None,
) -> Completions:
    """Continue every prefix with a decoder until eos, or for `max_steps` tokens.

    model      anything with `vocab_size`, `eos_ids`, `prefill` and `step`, and a state with `select`
    prefixes   a (contexts, length) tensor, or lists of token ids, which may differ in length
    decoder    a specification such as "greedy", "beam:4" or "consistent-nucleus:0.2", or a Decoder
    max_steps  the longest completion, eos included: the paper's L
    seed       with the index of a context and the step, it decides every draw; order, company and pool do not
    pool       how many rows are decoded at a time, at most
    indices    the numbers of the contexts, where these are some of many; 0, 1, 2, ... if not given
    """
    parsed = as_decoder(decoder)
    check_model(model)
    parsed.check(model.vocab_size)
    check_at_least("max_steps", max_steps, 1)
    check_at_least("pool", pool, 1)
    if not is_whole(seed) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be a whole number in [0, 2^64), got {seed!r}")
    contexts = checked_contexts(prefixes, indices, model)
    with torch.inference_mode(), evaluating(model):
        completions = list(unroll(model, contexts, parsed, max_steps=max_steps, seed=seed, pool=pool))
    place = {context.index: number for number, context in enumerate(contexts)}
    return Completions.pack(sorted(completions, key=lambda completion: place[completion.index]))


def check_model(model: Generative) -> None:
    missing = [name for name in ("vocab_size", "eos_ids", "prefill", "step") if not hasattr(model, name)]
    if missing:
        raise ValueError(f"model must have {', '.join(missing)}; {type(model).__name__} has not")
    outside = [i for i in model.eos_ids if not 0 <= i < model.vocab_size]
    if outside or not model.eos_ids:
        raise ValueError(f"eos_ids must be one or more ids in [0, {model.vocab_size}), got {model.eos_ids}")


def as_decoder(decoder: str | Decoder) -> Decoder:
    if isinstance(decoder, str):
        return parse_decoder(decoder)
    if not hasattr(decoder, "begin"):
        raise ValueError(f"decoder must be a specification, as 'nucleus:0.2', or a Decoder, got {decoder!r}")
    return decoder


def check_at_least(name: str, value: int, least: int) -> None:
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def is_whole(value: object) -> bool:
    return hasattr(value, "__index__")


def checked_contexts(
    prefixes: Tensor | Sequence[Sequence[int]], indices: Sequence[int] | None, model: Generative
) -> list[Context]:
    if not hasattr(prefixes, "__len__"):
        raise ValueError(f"prefixes must be a tensor or a list of lists of token ids, got {prefixes!r}")
    if len(prefixes) == 0:
        raise ValueError("prefixes must hold at least one prefix, got none")
    numbers = range(len(prefixes)) if indices is None else [int(index) for index in indices]
    if len(numbers) != len(prefixes) or len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise ValueError(f"indices must be {len(prefixes)} different numbers, one for each prefix, none negative")
    return [Context(n, checked_prefix(p, i, model)) for i, (n, p) in enumerate(zip(numbers, prefixes, strict=True))]


def checked_prefix(prefix: Tensor | Sequence[int], place: int, model: Generative) -> Tensor:
    try:
        tokens = torch.as_tensor(prefix)
    except (TypeError, ValueError):
        raise ValueError(f"prefix {place} must be a list of token ids, got {prefix!r}") from None
    if tokens.dim() != 1 or tokens.numel() == 0:
        raise ValueError(f"prefix {place} must be a list of at least one token id, got {prefix}")
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"prefix {place} must hold token ids, which are whole numbers, got {prefix}")
    outside = tokens[(tokens < 0) | (tokens >= model.vocab_size)]
    if len(outside):
        raise ValueError(f"prefix {place} holds token id {int(outside[0])}; ids must lie in [0, {model.vocab_size})")
    return tokens.long().to(device_of(model))


def device_of(model: Generative) -> torch.device:
    """Where the model's parameters are, if it has any."""
    parameter = next(getattr(model, "parameters", lambda: iter(()))(), None)
    return torch.device("cpu") if parameter is None else parameter.device


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
