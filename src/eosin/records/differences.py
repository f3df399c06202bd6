"""Differences with 95% intervals: of one initialisation from its contexts, of several from their spread."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, fmean, stdev

from eosin.records.record import Counts
from eosin.records.statistics import Comparison, LateLoops, Ratio, compare

Z = NormalDist().inv_cdf(0.975)
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% quantiles of Student's t with 1, 2, ... degrees of freedom. More degrees use the last one, which
is larger."""
Histogram = Mapping[int, int]
"""How many there are of each length."""


@dataclass(frozen=True)
class Difference:
    """A difference and its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half: float) -> Difference:
        return cls(value, value - half, value + half)

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def average_differences(differences: Sequence[Difference]) -> Difference:
    """The mean over initialisations.

    The interval is Student's t over initialisations. All of them saw the same contexts, so it is never narrower than
    the mean interval of a single one.
    """
    values = [each.value for each in differences]
    within = fmean(each.half for each in differences)
    if len(values) == 1:
        return differences[0]
    t = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    return Difference.around(fmean(values), max(within, t * stdev(values) / math.sqrt(len(values))))


def compare_paired(counts: Comparison) -> Difference:
    """The difference of two ratios on the same contexts (Agresti and Min, 2005: each cell gets half a context more)."""
    first, second = counts.only_first + 0.5, counts.only_second + 0.5
    n = counts.n + 2
    centre = (first - second) / n
    half = Z * math.sqrt((first + second) / n - centre**2) / math.sqrt(n)
    return Difference(counts.difference, centre - half, centre + half)


def compare_sampled(first: Counts, second: Counts, contexts: Collection[int]) -> Difference:
    """The difference of two ratios on the same contexts, where some loops were left.

    The predictions that no loop ends are paired. The followed loops that ended correct them, each audit with its own
    interval; the three parts are squared and added (Newcombe 1998).
    """
    one, other = (predict_unended(counts, contexts) for counts in (first, second))
    paired = compare_paired(compare(one, other))
    late, other_late = (count_late(counts, contexts) for counts in (first, second))
    (low, high), (other_low, other_high) = late.interval(), other_late.interval()
    value = paired.value - late.value + other_late.value
    below = math.hypot(paired.value - paired.low, high - late.value, other_late.value - other_low)
    above = math.hypot(paired.high - paired.value, late.value - low, other_high - other_late.value)
    return Difference(value, max(-1.0, value - below), min(1.0, value + above))


def predict_unended(counts: Counts, contexts: Collection[int]) -> list[bool]:
    """For each context, whether it is predicted not to end: it was not seen to, or not before its loop was seen."""
    unended = counts.unended
    return [unended[context] or context in counts.sampled.ended for context in contexts]


def count_late(counts: Counts, contexts: Collection[int]) -> LateLoops:
    return LateLoops(len(counts.sampled.ended.keys() & set(contexts)), counts.sampled.share, len(contexts))


def compare_unpaired(first: Ratio, second: Ratio) -> Difference:
    """The difference of two ratios on different contexts (Newcombe, 1998: from the two Wilson intervals)."""
    (low, high), (other_low, other_high) = first.interval(), second.interval()
    value = first.value - second.value
    below = math.hypot(first.value - low, other_high - second.value)
    above = math.hypot(high - first.value, second.value - other_low)
    return Difference(value, value - below, value + above)


def wasserstein_distance(lengths: Histogram, reference: Histogram) -> tuple[float, float]:
    """The first Wasserstein distance of two distributions of lengths, and its standard error.

    It is the area between the two distribution functions. Where these do not cross it is a difference of means; the
    error takes the places where they cross as known.
    """
    longest = max([*lengths, *reference])
    first, second = _cumulate(lengths, longest), _cumulate(reference, longest)
    signs = [math.copysign(1.0, a - b) if a != b else 0.0 for a, b in zip(first, second, strict=True)]
    area = sum(abs(a - b) for a, b in zip(first, second, strict=True))
    # what one completion of each length adds to the area
    weights = list(accumulate(reversed(signs)))[::-1]
    return area, math.hypot(_standard_error(lengths, weights), _standard_error(reference, weights))


def _cumulate(lengths: Histogram, longest: int) -> list[float]:
    """The share of lengths up to 0, 1, 2, ..."""
    n = sum(lengths.values())
    return [count / n for count in accumulate(lengths.get(length, 0) for length in range(longest + 1))]


def _standard_error(lengths: Histogram, weights: Sequence[float]) -> float:
    """Of the mean weight."""
    n = sum(lengths.values())
    mean = sum(count * weights[length] for length, count in lengths.items()) / n
    square = sum(count * (weights[length] - mean) ** 2 for length, count in lengths.items())
    return math.sqrt(square / n / n)
