"""The statistics of termination: ratios with intervals, comparisons, and how many contexts an audit needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, fmean, stdev

from eosin.errors import BadInput

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A share of contexts, and the Wilson interval around it."""

    count: int
    n: int

    @property
    def value(self) -> float:
        return self.count / self.n

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        return invert_score_test(self.value, self.n, confidence)


def invert_score_test(share: float, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval (1927): the shares that a score test at this confidence does not reject."""
    z = _quantile(confidence)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = _half_width(share, n, confidence)
    # at 0 and 1 the bound is exact but for rounding
    low = 0.0 if share <= 0 else centre - half
    high = 1.0 if share >= 1 else centre + half
    return low, high


@dataclass(frozen=True)
class Estimate:
    """The mean weight of the survival estimator, and an interval around it. Weights lie in [0, 1].

    The interval allows for weights that no path showed: a kind of path that is taken less often than 3.8 times in n
    lies within it. More paths narrow it, as more contexts narrow the interval of a count.
    """

    total: float
    squares: float
    """The sum of the squared weights."""
    n: int

    @property
    def value(self) -> float:
        return self.total / self.n

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        if self.n < 2:
            return math.inf
        return math.sqrt(max(0.0, self.squares / self.n - self.value**2) / (self.n - 1))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Each end is Wilson's, for the least informative sample with these sums.

        Known are n, the sum S and the sum of squares Q. Of all samples in [0, 1] with these, the one with the smallest
        third moment is the least informative about how low the mean can be: zeros and copies of Q / S. The one with the
        largest third moment is the least informative about how high it can be: copies of (S - Q) / (n - S) and ones.
        (Both are principal representations, Karlin and Studden 1966. They minimise the likelihood ratio of Owen 1988,
        which is the best bet of Waudby-Smith and Ramdas 2024.) A sample of two values is a scaled coin:

            low  = top * wilson_low(p - (1 - p) / n)               top = Q / S, p = mean / top
            high = bottom + (1 - bottom) * wilson_high(p + p / n)  bottom = (S - Q) / (n - S), p the share of ones

        The shift, of one context at most, is a continuity correction. Without it the interval covers as little as 84%
        where almost all weights are zero, or one; with it, at least 94% from n = 20 on (at 95%).
        """
        n, mean = self.n, self.value
        # Q / S lies in [mean, 1] and (S - Q) / (n - S) in [0, mean], but for rounding
        top = min(1.0, max(mean, self.squares / self.total)) if self.total > 0 else 1.0
        bottom = max(0.0, min(mean, (self.total - self.squares) / (n - self.total))) if self.total < n else 0.0
        hits, ones = mean / top, (mean - bottom) / (1 - bottom)
        low = top * invert_score_test(hits - (1 - hits) / n, n, confidence)[0]
        high = bottom + (1 - bottom) * invert_score_test(ones + ones / n, n, confidence)[1]
        return min(low, mean), max(high, mean)


SURE = 0.99
"""Confidence of a bound that is rarely the tighter one of two: higher, so that both together keep theirs."""


@dataclass(frozen=True)
class SampledRatio:
    """A share of contexts where some loops were left, and counted as not ended, but for a random share of all loops.

    This is a difference estimator. It predicts that no loop ends. Each followed loop that ended counts against the
    prediction for 1 / share loops. So the ratio is unbiased whatever loops do.
    """

    count: int
    """Contexts that were not seen to end, with the loops that were left."""
    left: int
    ended: int
    """Followed loops that ended; they are not in `count`."""
    share: float
    """The probability with which a loop is followed."""
    n: int

    @property
    def value(self) -> float:
        """Never below what was seen not to end; the estimate can be, where nearly all loops end."""
        return max(self.predicted.value - self.late.value, (self.count - self.left) / self.n)

    @property
    def predicted(self) -> Ratio:
        """The ratio if no loop ended."""
        return Ratio(self.count + self.ended, self.n)

    @property
    def late(self) -> LateLoops:
        return LateLoops(self.ended, self.share, self.n)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The intervals of the prediction and of its error, squared and added (Newcombe 1998).

        Contexts that were seen not to end bound the ratio, too. It covers at least 94% (at 95%) from n = 50
        and 15 followed loops on, by simulation (tests/test_loop_sampling.py).
        """
        (low, high), (fewest, most) = self.predicted.interval(confidence), self.late.interval(confidence)
        estimate = self.predicted.value - self.late.value
        below = math.hypot(self.predicted.value - low, most - self.late.value)
        above = math.hypot(high - self.predicted.value, self.late.value - fewest)
        seen = Ratio(self.count - self.left, self.n).interval(SURE)
        return max(seen[0], estimate - below), max(seen[1], min(1.0, estimate + above))


@dataclass(frozen=True)
class LateLoops:
    """The share of contexts that loop and end nevertheless, from a random share of the loops."""

    ended: int
    share: float
    n: int

    @property
    def value(self) -> float:
        return self.ended / self.share / self.n

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """A context is followed and ends with the share times what is sought. It has a width even if none did."""
        if self.share == 1:
            return self.value, self.value
        low, high = Estimate(self.ended, self.ended, self.n).interval(confidence)
        return low / self.share, high / self.share


Share = Ratio | Estimate | SampledRatio


def estimate_by_group(outcomes: Sequence[bool], size: int) -> Estimate:
    """The share of outcomes, in groups of `size` that follow each other, of which only the groups are independent.

    Prefixes of one sequence tend to end alike. So the share within a group is one observation: a weight in [0, 1].
    """
    if not outcomes or len(outcomes) % size:
        raise ValueError(f"{len(outcomes)} outcomes are not groups of {size}")
    shares = [fmean(outcomes[start : start + size]) for start in range(0, len(outcomes), size)]
    return Estimate(math.fsum(shares), math.fsum(share**2 for share in shares), len(shares))


def count_survivors(ended: Mapping[int, int], n: int, limit: int) -> int:
    """How many of n contexts have no eos among their first `limit` tokens, given how many ended at each step."""
    return n - sum(count for step, count in ended.items() if step <= limit)


@dataclass(frozen=True)
class LengthSummary:
    """Mean, standard deviation and quantiles of the lengths of completions that ended."""

    mean: float
    deviation: float
    quantiles: tuple[int, ...]
    """At 5, 25, 50, 75 and 95 percent."""


def summarize_lengths(ended: Mapping[int, float]) -> LengthSummary | None:
    """From how many ended at each length; None if none ended."""
    n = sum(ended.values())
    if not n:
        return None
    mean = sum(length * count for length, count in ended.items()) / n
    square = sum(count * (length - mean) ** 2 for length, count in ended.items())
    lengths = sorted(ended)
    cumulated = list(accumulate(ended[length] for length in lengths))
    quantiles = tuple(lengths[bisect_left(cumulated, share * n)] for share in (0.05, 0.25, 0.5, 0.75, 0.95))
    return LengthSummary(mean, math.sqrt(square / n), quantiles)


def compute_mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Over initialisations, as the paper prints them; the deviation of a single one is NaN."""
    return fmean(values), stdev(values) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Comparison:
    """How many contexts two audits of the same contexts left without an end."""

    only_first: int
    only_second: int
    both: int
    neither: int

    @property
    def n(self) -> int:
        return self.only_first + self.only_second + self.both + self.neither

    @property
    def p_value(self) -> float:
        """McNemar's exact test: is a context on which the two differ equally likely to differ either way?"""
        n, fewer = self.only_first + self.only_second, min(self.only_first, self.only_second)
        if n == 0:
            return 1.0
        tail = sum(math.exp(_log_choose(n, k) - n * math.log(2)) for k in range(fewer + 1))
        return min(1.0, 2 * tail)

    @property
    def difference(self) -> float:
        """Ratio of the first less that of the second."""
        return (self.only_first - self.only_second) / self.n


def compare(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """Pair two audits, given for each context whether its decoding did not end."""
    if len(first) != len(second):
        raise BadInput(
            f"the two audits have {len(first)} and {len(second)} contexts; only the same contexts can be paired"
        )
    pairs = Counter(zip(first, second, strict=True))
    return Comparison(pairs[True, False], pairs[False, True], pairs[True, True], pairs[False, False])


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def count_contexts_for_bound(ratio: float, confidence: float = CONFIDENCE) -> int:
    """How many contexts, if all of them end, show that the non-termination ratio is below `ratio`.

    The smallest n for which the upper end of the one-sided exact interval, 1 - (1 - confidence)^(1/n), is at most that.
    """
    if not 0 < ratio < 1:
        raise BadInput(f"a target ratio must lie strictly between 0 and 1, got {ratio}")
    return math.ceil(math.log1p(-confidence) / math.log1p(-ratio) - 1e-12)


def count_contexts_for_width(ratio: float, half_width: float, confidence: float = CONFIDENCE) -> int:
    """How many contexts give a Wilson interval of about this half-width around a ratio."""
    if not 0 <= ratio <= 1 or not 0 < half_width < 0.5:
        raise BadInput(f"a ratio must lie in [0, 1] and a half-width in (0, 0.5), got {ratio} and {half_width}")
    # the half-width is at most z / (2 sqrt(n)), and falls with n
    enough = range(1, math.ceil((_quantile(confidence) / half_width / 2) ** 2) + 2)
    return enough[bisect_left(enough, True, key=lambda n: _half_width(ratio, n, confidence) <= half_width)]


def _half_width(ratio: float, n: int, confidence: float) -> float:
    z = _quantile(confidence)
    variance = max(0.0, ratio * (1 - ratio))  # rounding can push a ratio just outside [0, 1]
    return z / (1 + z * z / n) * math.sqrt(variance / n + z * z / (4 * n * n))


def _quantile(confidence: float) -> float:
    """Of the normal distribution, two-sided."""
    return NormalDist().inv_cdf((1 + confidence) / 2)
