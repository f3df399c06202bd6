"""The statistics of termination: ratios with intervals, comparisons, and how many contexts a question needs.

Plain numbers in, plain numbers out; nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from eosin.errors import BadInput

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A share of contexts, and the Wilson interval around it."""

    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / self.of

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        return invert_score_test(self.value, self.of, confidence)


def invert_score_test(share: float, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval (1927): the shares that a test at this confidence does not reject."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    variance = max(0.0, share * (1 - share))  # rounding can leave a share just outside [0, 1]
    half = z / (1 + z * z / n) * math.sqrt(variance / n + z * z / (4 * n * n))
    # at the ends of the scale the bound is exact, and only rounding would say otherwise
    low = 0.0 if share <= 0 else centre - half
    high = 1.0 if share >= 1 else centre + half
    return low, high


@dataclass(frozen=True)
class Estimate:
    """The mean weight of the survival estimator, and an interval around it. Weights lie in [0, 1].

    The interval allows for weights that no path showed: a kind of path that fewer than 3.8 in n take is within it. To
    exclude such a kind takes more paths, just as it takes more contexts where they are counted.
    """

    total: float
    squares: float
    of: int

    @property
    def value(self) -> float:
        return self.total / self.of

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        if self.of < 2:
            return math.inf
        return math.sqrt(max(0.0, self.squares / self.of - self.value**2) / (self.of - 1))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Each end is Wilson's for the sample that says least about it, of all samples with these sums.

        Known are n, the sum S and the sum of squares Q. Of all samples in [0, 1] that have them, the one with the
        smallest third moment says least about how low the mean can be. It consists of zeros and of Q / S. The one with
        the largest third moment says least about how high the mean can be. It consists of (S - Q) / (n - S) and ones.
        (Both are principal representations, Karlin and Studden 1966. At them the likelihood ratio of Owen 1988, which
        is the best bet of Waudby-Smith and Ramdas 2024, is smallest.) A sample of two values is a coin on a scale:

            low  = top * wilson_low(p - (1 - p) / n)               top = Q / S, p = mean / top
            high = bottom + (1 - bottom) * wilson_high(p + p / n)  bottom = (S - Q) / (n - S), p the share of ones

        The shift, of one context at most, is a continuity correction. Without it the interval covers as little as 84%
        where almost all weights are zero, or one; with it, at least 94% from n = 20 on (at 95%).
        """
        n, mean = self.of, self.value
        # Q / S lies in [mean, 1] and (S - Q) / (n - S) in [0, mean], but for rounding
        top = min(1.0, max(mean, self.squares / self.total)) if self.total > 0 else 1.0
        bottom = max(0.0, min(mean, (self.total - self.squares) / (n - self.total))) if self.total < n else 0.0
        hits, ones = mean / top, (mean - bottom) / (1 - bottom)
        low = top * invert_score_test(hits - (1 - hits) / n, n, confidence)[0]
        high = bottom + (1 - bottom) * invert_score_test(ones + ones / n, n, confidence)[1]
        return min(low, mean), max(high, mean)


def survivors(ended: Mapping[int, int], n: int, limit: int) -> int:
    """How many of n contexts have no eos among their first `limit` tokens, given how many ended at each step."""
    return n - sum(count for step, count in ended.items() if step <= limit)


def survival_curve(ended: Mapping[int, int], n: int) -> list[tuple[int, float]]:
    """The share that has not ended after each step at which some did."""
    left, curve = n, [(0, 1.0)]
    for step in sorted(ended):
        left -= ended[step]
        curve.append((step, left / n))
    return curve


@dataclass(frozen=True)
class Lengths:
    """The lengths of what has ended."""

    mean: float
    deviation: float
    quantiles: tuple[int, ...]
    """At 5, 25, 50, 75 and 95 percent."""


def lengths(ended: Mapping[int, int]) -> Lengths | None:
    """None where nothing has ended."""
    n = sum(ended.values())
    if not n:
        return None
    mean = sum(step * count for step, count in ended.items()) / n
    square = sum(count * (step - mean) ** 2 for step, count in ended.items())
    return Lengths(
        mean, math.sqrt(square / n), tuple(_quantile(ended, n, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95))
    )


def _quantile(ended: Mapping[int, int], n: int, share: float) -> int:
    seen = 0
    for step in sorted(ended):
        seen += ended[step]
        if seen >= share * n:
            return step
    raise AssertionError("unreachable: all have been seen")


def across_initialisations(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over models, as the paper prints them; one model has no deviation."""
    return fmean(values), stdev(values) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Comparison:
    """Two decoders or models on the same contexts."""

    only_first: int
    """Contexts on which the first alone did not end."""
    only_second: int
    both: int
    neither: int

    @property
    def p_value(self) -> float:
        """McNemar's exact test: were the contexts that differ as likely to differ the other way?"""
        n, fewer = self.only_first + self.only_second, min(self.only_first, self.only_second)
        if n == 0:
            return 1.0
        tail = sum(math.exp(_log_choose(n, k) - n * math.log(2)) for k in range(fewer + 1))
        return min(1.0, 2 * tail)

    @property
    def difference(self) -> float:
        """Share of the first that did not end, less that of the second."""
        n = self.only_first + self.only_second + self.both + self.neither
        return (self.only_first - self.only_second) / n


def compare(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """Pair two audits: whether each context was left without an end."""
    if len(first) != len(second):
        raise BadInput(
            f"the two audits have {len(first)} and {len(second)} contexts; only the same contexts can be paired"
        )
    pairs = list(zip(first, second, strict=True))
    return Comparison(
        only_first=sum(a and not b for a, b in pairs),
        only_second=sum(b and not a for a, b in pairs),
        both=sum(a and b for a, b in pairs),
        neither=sum(not a and not b for a, b in pairs),
    )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def contexts_needed(ratio: float, confidence: float = CONFIDENCE) -> int:
    """How many contexts without a single failure show that the non-termination ratio is below `ratio`.

    The smallest n for which the upper end of the one-sided exact interval, 1 - (1 - confidence)^(1/n), is at most that.
    """
    if not 0 < ratio < 1:
        raise BadInput(f"a target ratio must lie strictly between 0 and 1, got {ratio}")
    return math.ceil(math.log1p(-confidence) / math.log1p(-ratio) - 1e-12)


def contexts_for_width(ratio: float, half_width: float, confidence: float = CONFIDENCE) -> int:
    """How many contexts give a Wilson interval of about this half-width around a ratio."""
    if not 0 <= ratio <= 1 or not 0 < half_width < 0.5:
        raise BadInput(f"a ratio must lie in [0, 1] and a half-width in (0, 0.5), got {ratio} and {half_width}")
    n = 1
    while _half_width(ratio, n, confidence) > half_width:
        n *= 2
    low = n // 2
    while n - low > 1:
        middle = (low + n) // 2
        low, n = (low, middle) if _half_width(ratio, middle, confidence) <= half_width else (middle, n)
    return n


def _half_width(ratio: float, n: int, confidence: float) -> float:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return z / (1 + z * z / n) * math.sqrt(ratio * (1 - ratio) / n + z * z / (4 * n * n))
