"""Every truncation rule and every head as its paper writes it, one row at a time, in Python floats.

A new rule needs a line in DEFINITIONS, a new head one in SURVIVALS.
"""

from __future__ import annotations

import math

Probs = list[float]


def by_probability(probs: Probs) -> list[int]:
    return sorted(range(len(probs)), key=lambda token: (-probs[token], token))


def entropy(probs: Probs) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def front(order: list[int], probs: Probs, enough) -> set[int]:
    kept, mass = set(), 0.0
    for token in order:
        kept.add(token)
        mass += probs[token]
        if enough(mass):
            break
    return kept


def above(probs: Probs, cut: float) -> set[int]:
    return {token for token, p in enumerate(probs) if p >= cut} or {by_probability(probs)[0]}


def top_k(probs: Probs, k: float) -> set[int]:
    return set(by_probability(probs)[: int(k)])


def nucleus(probs: Probs, mu: float) -> set[int]:
    return front(by_probability(probs), probs, lambda mass: mass > mu)


def typical(probs: Probs, least_mass: float) -> set[int]:
    h = entropy(probs)
    surprise = [-math.log(p) if p > 0 else math.inf for p in probs]
    order = sorted(range(len(probs)), key=lambda token: (abs(surprise[token] - h), token))
    return front(order, probs, lambda mass: mass >= least_mass)


def min_p(probs: Probs, ratio: float) -> set[int]:
    return above(probs, ratio * max(probs))


def epsilon(probs: Probs, cut: float) -> set[int]:
    return above(probs, cut)


def eta(probs: Probs, cut: float) -> set[int]:
    return above(probs, min(cut, math.sqrt(cut) * math.exp(-entropy(probs))))


def top_n_sigma(probs: Probs, n: float) -> set[int]:
    logits = [math.log(p) for p in probs if p > 0]  # logits up to a constant, which no deviation sees
    mean = sum(logits) / len(logits)
    deviation = math.sqrt(sum((logit - mean) ** 2 for logit in logits) / len(logits))
    return {token for token, p in enumerate(probs) if p > 0 and math.log(p) >= max(logits) - n * deviation}


def top_h(probs: Probs, share: float) -> set[int]:
    order, most = [token for token in by_probability(probs) if probs[token] > 0], share * entropy(probs)
    kept = {order[0]}
    for size in range(2, len(order) + 1):
        mass = sum(probs[token] for token in order[:size])
        if entropy([probs[token] / mass for token in order[:size]]) > most * (1 + 1e-12):
            break
        kept = set(order[:size])
    return kept


def capped_nucleus(probs: Probs, share: float, k: float = 5) -> set[int]:
    order = by_probability(probs)
    return front(order, probs, lambda mass: mass > share + 1e-12) & set(order[: int(k)])


DEFINITIONS = {
    "top-k": top_k,
    "nucleus": nucleus,
    "typical": typical,
    "min-p": min_p,
    "epsilon": epsilon,
    "eta": eta,
    "top-n-sigma": top_n_sigma,
    "top-h": top_h,
    "capped-nucleus": capped_nucleus,
}


def kept_by(rule: str, probs: Probs, *values: float) -> set[int]:
    """What a rule with these values keeps."""
    assert rule in DEFINITIONS, f"say what {rule!r} keeps, in plain Python: a line in DEFINITIONS of {__file__}"
    return DEFINITIONS[rule](probs, *values)


def kept_by_spec(spec: str, probs: Probs) -> set[int]:
    """What the rule of a specification such as "nucleus:0.9" keeps."""
    rule, *values = spec.split(":")
    return kept_by(rule, probs, *map(float, values))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def softmax(logits: list[list[float]], eos: int) -> list[float]:
    masses = [[math.exp(z) for z in row] for row in logits]
    return [1 - row[eos] / sum(row) for row in masses]


def self_terminating(logits: list[list[float]], eos: int, epsilon: float) -> list[float]:
    survivals, survival = [], 1.0
    for row in logits:
        survival *= (1 - epsilon) * sigmoid(row[eos])
        survivals.append(survival)
    return survivals


def non_monotonic(logits: list[list[float]], eos: int, epsilon: float) -> list[float]:
    return [(1 - sigmoid(row[eos])) * (1 - epsilon) ** t for t, row in enumerate(logits, start=1)]


def survivals_by(head: str, logits: list[list[float]], eos: int, **settings: float) -> list[float]:
    """1 - p_t(eos) at t = 1, 2, ..., as the definition of a head has it."""
    assert head in SURVIVALS, (
        f"say what 1 - p(eos) is with {head!r}, in plain Python: a line in SURVIVALS of {__file__}"
    )
    return SURVIVALS[head](logits, eos, **settings)


SURVIVALS = {"softmax": softmax, "self-terminating": self_terminating, "non-monotonic": non_monotonic}
"""1 - p_t(eos) at t = 1, 2, ..., from the logits of each step, the token eos and the settings of the head."""
