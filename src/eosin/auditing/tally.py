"""Counting completions: each is looked at once, as it ends, and need not be kept."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np
from jaxtyping import Int

from eosin.auditing.loops import repeating_tail
from eosin.auditing.record import NGRAMS, SMALLEST_HASHES, Counts, Outcomes
from eosin.causes import Cause
from eosin.interfaces import Completion


class Tally:
    """What has been counted of a range of contexts."""

    def __init__(self, start: int, size: int):
        self.start = start
        self.unended: list[bool | None] = [None] * size
        self.tokens = 0
        self.ended: Counter[int] = Counter()
        self.causes: Counter[str] = Counter()
        self.periods: Counter[int] = Counter()
        self.ngrams: Counter[int] = Counter()
        self.repeated: Counter[int] = Counter()
        self.hashes: set[int] = set()

    def add(self, completion: Completion) -> Cause:
        """Count one completion; the cause that it is counted under."""
        tokens = completion.tokens.numpy()
        cause = completion.cause
        tail = repeating_tail(tokens) if cause is Cause.LIMIT else None
        if tail is not None:
            cause = Cause.LOOPING
            self.periods[tail.period] += 1
        self.unended[completion.index - self.start] = not cause.ends
        self.tokens += len(tokens)
        self.causes[cause] += 1
        if cause.ends:
            self.ended[completion.steps] += 1
        for n in NGRAMS:
            whole, different = ngrams(tokens, n)
            self.ngrams[n] += whole
            self.repeated[n] += whole - different
        self.hashes.add(int.from_bytes(blake2b(tokens.tobytes(), digest_size=8).digest(), "big"))
        if len(self.hashes) > 2 * SMALLEST_HASHES:
            self.hashes = set(sorted(self.hashes)[:SMALLEST_HASHES])
        return cause

    @property
    def full(self) -> bool:
        return None not in self.unended

    def counts(self) -> Counts:
        return Counts(
            contexts=len(self.unended),
            tokens=self.tokens,
            ended=self.ended,
            causes=self.causes,
            periods=self.periods,
            ngrams=self.ngrams,
            repeated=self.repeated,
            hashes=tuple(sorted(self.hashes)[:SMALLEST_HASHES]),
            outcomes=(Outcomes(self.start, tuple(map(bool, self.unended))),),
        )


def ngrams(tokens: Int[np.ndarray, " length"], n: int) -> tuple[int, int]:
    """How many n-grams there are, and how many different ones."""
    if len(tokens) < n:
        return 0, 0
    rows = np.lib.stride_tricks.sliding_window_view(tokens, n)
    return len(rows), len(set(map(bytes, np.ascontiguousarray(rows)))) if n > 1 else len(np.unique(tokens))
