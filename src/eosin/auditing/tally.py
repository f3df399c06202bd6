"""Counting completions: each is counted as it ends, and need not be kept."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np
from jaxtyping import Int
from msgspec import structs

from eosin.causes import Cause
from eosin.decoding.loops import Tail, extend, find_tail, name_loop, rotate_cycle, tail_of
from eosin.outcome import Completion
from eosin.records.record import (
    NGRAMS,
    SMALLEST_HASHES,
    Counts,
    LoopCount,
    SampledLoops,
    StepSummary,
    Unended,
    Weights,
    add_weights,
)

TokenArray = Int[np.ndarray, " length"]
MOST_EXAMPLES = 16
"""Loops of which a completion is kept, to measure how its state drifts."""


class Tally:
    """The counts of a range of contexts, while its completions come in.

    A completion that was proved infinite counts as if it had been decoded to the limit: its tokens are known. So does
    one that was left in a loop: the prediction is that it goes on. `share` of the loops are followed.
    """

    def __init__(self, start: int, size: int, max_steps: int, share: float = 1.0):
        self.start = start
        self.max_steps = max_steps
        self.unended: list[bool | None] = [None] * size
        self.tokens = 0
        self.ended: Counter[int] = Counter()
        self.causes: Counter[str] = Counter()
        self.loops: dict[tuple[int, ...], LoopCount] = {}
        self.examples: dict[tuple[int, ...], Completion] = {}
        """A completion in each loop without a proof."""
        self.ngrams: Counter[int] = Counter()
        self.repeated: Counter[int] = Counter()
        self.hashes: set[int] = set()
        self.weights: Weights = {}
        self.cut = 0
        self.sampled = SampledLoops(share)

    def add(self, completion: Completion, followed: int | None = None) -> Cause:
        """Count one completion. Returns the cause under which it is counted.

        `followed` is the step at which its loop was seen, if the loop was followed.
        """
        self.tokens += len(completion.tokens)
        if completion.survival is not None:
            self.weights = add_weights(self.weights, list_weights(completion.survival.numpy(), self.max_steps))
            self.unended[completion.index - self.start] = False
            return completion.cause
        tokens = extend(completion.tokens.numpy(), completion.proof)
        cause = completion.cause
        if cause is Cause.LIMIT:
            cause = name_loop(tokens) or cause
        tail = tail_of(completion)
        if tail is not None:
            self._add_loop(completion, tail, tokens)
        self.unended[completion.index - self.start] = not cause.ends
        self.causes[cause] += 1
        if cause.ends:
            self.ended[completion.steps] += 1
            self.cut += is_cut_loop(completion)
        if followed is not None or cause is Cause.SAMPLED:
            self._add_sampled(completion, followed)
        goes_on = cause in (Cause.PROVED, Cause.SAMPLED)
        self._add_ngrams(tokens, self.max_steps if goes_on else len(completion.tokens))
        # a loop is identified by its beginning and one turn of it, however far it was followed
        distinct = tokens if tail is None else tokens[: tail.onset - 1 + tail.period]
        self.hashes.add(int.from_bytes(blake2b(distinct.tobytes(), digest_size=8).digest(), "big"))
        if len(self.hashes) > 2 * SMALLEST_HASHES:
            self.hashes = set(sorted(self.hashes)[:SMALLEST_HASHES])
        return cause

    def _add_sampled(self, completion: Completion, followed: int | None) -> None:
        seen, once = completion.steps if followed is None else followed, {} if followed is None else {followed: 1}
        ended = {completion.index: completion.steps} if completion.cause.ends else {}
        self.sampled += SampledLoops(self.sampled.share, {seen: 1}, once, ended)

    def _add_loop(self, completion: Completion, tail: Tail, tokens: TokenArray) -> None:
        cycle = rotate_cycle(tokens[len(tokens) - tail.period :].tolist())
        loop = LoopCount(onset=StepSummary.of(tail.onset), example=completion.index)
        if completion.proof is not None:
            proofs = frozenset([completion.proof.by])
            loop = structs.replace(loop, proved=StepSummary.of(completion.steps), proofs=proofs)
        else:
            self._keep_example(cycle, completion)
        self.loops[cycle] = self.loops[cycle] + loop if cycle in self.loops else loop

    def _keep_example(self, cycle: tuple[int, ...], completion: Completion) -> None:
        """Keep the first context in each of the loops that come first: the order in which they end does not matter."""
        known = self.examples.get(cycle)
        if known is None or completion.index < known.index:
            self.examples[cycle] = completion
        if len(self.examples) > MOST_EXAMPLES:
            del self.examples[max(self.examples, key=lambda each: self.examples[each].index)]

    def _add_ngrams(self, tokens: TokenArray, length: int) -> None:
        """Count those of the first `length` tokens. If fewer tokens are given, the missing ones repeat them."""
        for n in NGRAMS:
            total, different = count_ngrams(tokens[:length], n)
            total = max(total, length - n + 1)
            self.ngrams[n] += total
            self.repeated[n] += total - different

    @property
    def is_full(self) -> bool:
        return None not in self.unended

    def to_counts(self) -> Counts:
        return Counts(
            contexts=len(self.unended),
            tokens=self.tokens,
            ended=self.ended,
            causes=self.causes,
            loops=self.loops,
            ngrams=self.ngrams,
            repeated=self.repeated,
            hashes=tuple(sorted(self.hashes)[:SMALLEST_HASHES]),
            outcomes=() if self.weights else (Unended.pack(self.start, list(map(bool, self.unended))),),
            weights=self.weights,
            cut=self.cut,
            sampled=self.sampled,
        )


def is_cut_loop(completion: Completion) -> bool:
    """Whether eos came in the middle of a loop: the tokens before it repeat to the end."""
    return completion.cause is Cause.EOS and find_tail(completion.tokens.numpy()[:-1]) is not None


def list_weights(survival: np.ndarray, max_steps: int) -> Weights:
    """One path's weight, and its square, after each step that is reported: zero once it has ended."""
    weights = {
        step: float(survival[step - 1]) if step <= len(survival) else 0.0 for step in list_reported_steps(max_steps)
    }
    return {step: (weight, weight**2) for step, weight in weights.items()}


def list_reported_steps(max_steps: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... and the limit."""
    steps = [m * 10**power for power in range(len(str(max_steps))) for m in (1, 2, 5)]
    return [*(step for step in steps if step < max_steps), max_steps]


def count_ngrams(tokens: TokenArray, n: int) -> tuple[int, int]:
    """How many n-grams there are, and how many different ones."""
    if len(tokens) < n:
        return 0, 0
    rows = np.lib.stride_tricks.sliding_window_view(tokens, n)
    return len(rows), len(set(map(bytes, np.ascontiguousarray(rows)))) if n > 1 else len(np.unique(tokens))
