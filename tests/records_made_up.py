"""Counts and records of made-up outcomes: a length and a cause for each context."""

from __future__ import annotations

from collections import Counter
from functools import reduce

from eosin.causes import Cause
from eosin.records.record import Counts, LoopCount, Record, StepSummary, Unended, add_loops, add_weights
from eosin.records.signature import Signature

L = 30


def counts_of(outcomes: list[tuple[int, str]], start: int = 0, weighted: bool = False) -> Counts:
    """Counts of contexts of which each has a length and a cause."""
    weights = [{5: (length, length**2), 9: (0.0, 0.0)} for length, _ in outcomes] if weighted else []
    return Counts(
        contexts=len(outcomes),
        tokens=sum(length for length, _ in outcomes),
        ended=Counter(length for length, cause in outcomes if cause == "eos"),
        causes=Counter(cause for _, cause in outcomes),
        loops=loops_of(outcomes, start),
        ngrams=Counter({1: sum(length for length, _ in outcomes)}),
        repeated=Counter({1: len(outcomes)}),
        hashes=tuple(sorted({hash((length, cause)) % 2**64 for length, cause in outcomes})),
        outcomes=(Unended.pack(start, [cause != "eos" for _, cause in outcomes]),),
        weights=reduce(add_weights, weights, {}),
        cut=sum(cause == "eos" and length % 4 == 0 for length, cause in outcomes),
    )


def loops_of(outcomes: list[tuple[int, str]], start: int) -> dict[tuple[int, ...], LoopCount]:
    loops: dict[tuple[int, ...], LoopCount] = {}
    for place, (length, cause) in enumerate(outcomes):
        if cause in (Cause.LOOPING, Cause.PROVED):
            proved = cause is Cause.PROVED
            one = LoopCount(
                onset=StepSummary.of(length),
                proved=StepSummary.of(length + 20) if proved else StepSummary(),
                proofs=frozenset(["exact recurrence"] if proved else []),
                example=start + place,
                drift=None if proved else (start + place, 1, 7, 0.5),
            )
            loops = add_loops(loops, {(length % 3, 5): one})
    return loops


def record(outcomes: list[tuple[int, str]], start: int = 0, **signature: object) -> Record:
    usual = {
        "decoder": "greedy",
        "run": "lstm",
        "model": {"kind": "NeuralLM", "vocab_size": 7, "weights": "w"},
        "contexts": {"count": len(outcomes), "digest": "d"},
        "max_steps": L,
        "seed": 0,
        "shard": f"{start}-{start + len(outcomes) - 1}",
    }
    return Record(Signature.from_table({**usual, **signature}), counts_of(outcomes, start))
