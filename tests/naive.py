"""Decoding as one would write it on a blackboard: one context, no batches, Python numbers. The fast code must agree."""

from __future__ import annotations

import itertools
from weakref import WeakKeyDictionary

import torch
from definitions import by_probability, kept_by_spec

from eosin.decoding.randomness import uniforms
from eosin.logits import as_logits

seen = WeakKeyDictionary()


def distributions(model, prefix: list[int]):
    """A function from a list of tokens to the distribution of the next, by steps that are remembered."""
    memory = seen.setdefault(model, {})

    def read(tokens: tuple[int, ...]):
        key = (tuple(prefix), tokens)
        if key not in memory:
            # as many equal rows as the library's smallest batch, so that the last bits agree
            last = torch.tensor([tokens[-1:]] * 16).flatten()
            logits, state = (
                model.step(last, read(tokens[:-1])[1]) if tokens else model.prefill(torch.tensor([prefix] * 16))
            )
            memory[key] = as_logits(logits).dense()[0].double().log_softmax(-1).detach().tolist(), state
        return memory[key]

    return lambda tokens: read(tuple(tokens))[0]


def pick(weights: list[tuple[int, float]], fraction: float) -> int:
    target = fraction * sum(weight for _, weight in weights)
    running = itertools.accumulate(weight for _, weight in weights)
    return next((token for (token, _), total in zip(weights, running, strict=True) if total > target), weights[-1][0])


def at_temperature(log_probs: list[float], temperature: float) -> list[float]:
    return (torch.tensor(log_probs, dtype=torch.float64) / temperature).softmax(-1).tolist()


def kept_set(probs: list[float], eos_ids: tuple[int, ...], spec: str) -> set[int]:
    """What greedy decoding, a beam or a truncation may go on with; tokens that cannot occur may be among it."""
    inner = spec.removeprefix("consistent-")
    rule, _, value = inner.partition(":")
    if rule in ("greedy", "beam"):
        kept = set(by_probability(probs)[: int(value or 1)])
    elif inner in ("ancestral", "nucleus:1"):
        kept = set(range(len(probs)))
    else:
        kept = kept_by_spec(inner, probs)
    return kept | set(eos_ids) if spec.startswith("consistent-") else kept


def sample(log_probs: list[float], eos_ids: tuple[int, ...], spec: str, temperature: float, numbers) -> int:
    probs = at_temperature(log_probs, temperature)
    kept = kept_set(probs, eos_ids, spec)
    eos = [(token, probs[token]) for token in eos_ids if token in kept]
    others = [(token, probs[token]) for token in sorted(kept) if token not in eos_ids and probs[token] > 0]
    eos_mass, mass = (sum(p for _, p in part) for part in (eos, others))
    first, second = numbers
    return pick(eos, second) if first * (eos_mass + mass) < eos_mass else pick(others, second)


def decode_one(model, prefix: list[int], spec: str, max_steps: int, seed: int, index: int):
    """Tokens, whether eos came, and the log-probability under the model."""
    rule, _, option = spec.partition(",")
    temperature = float(option.partition("=")[2] or 1)
    after, tokens, total = distributions(model, prefix), [], 0.0
    for step in range(max_steps):
        log_probs = after(tokens)
        if rule == "greedy":
            token = by_probability(log_probs)[0]
        else:
            numbers = uniforms(seed, torch.tensor([index]), torch.tensor([step]))[0].tolist()
            token = sample(log_probs, model.eos_ids, rule, temperature, numbers)
        tokens.append(token)
        total += log_probs[token]
        if token in model.eos_ids:
            return tokens, True, total
    return tokens, False, total


def beam_one(model, prefix: list[int], width: int, needed: int, max_steps: int):
    """Definition A.2 of the paper, with lists."""
    after = distributions(model, prefix)
    hypotheses, finished = [([], 0.0)], []
    for _ in range(max_steps):
        expansions = [
            ([*tokens, token], score + log_prob)
            for tokens, score in hypotheses
            for token, log_prob in sorted(enumerate(after(tokens)), key=lambda pair: (-pair[1], pair[0]))
            if log_prob > -float("inf")
        ]
        best = sorted(expansions, key=lambda pair: -pair[1])[:width]
        finished += [pair for pair in best if pair[0][-1] in model.eos_ids]
        hypotheses = [pair for pair in best if pair[0][-1] not in model.eos_ids]
        if len(finished) >= needed or not hypotheses:
            tokens, score = max(finished, key=lambda pair: pair[1])
            return tokens, True, score
    tokens, score = max(finished or hypotheses, key=lambda pair: pair[1])
    return tokens, False, score
