"""Statistics against closed forms, enumeration and brute force."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eosin.auditing.termination import (
    Ratio,
    across_initialisations,
    compare,
    contexts_for_width,
    contexts_needed,
    lengths,
    survival_curve,
    survivors,
)
from eosin.errors import BadInput

HISTOGRAMS = st.dictionaries(st.integers(1, 60), st.integers(1, 9), max_size=8)


@given(ended=HISTOGRAMS, unended=st.integers(0, 9), limit=st.integers(0, 70))
def test_survivors_are_counted_from_any_limit(ended: dict[int, int], unended: int, limit: int):
    steps = [step for step, count in ended.items() for _ in range(count)] + [math.inf] * unended
    assert survivors(ended, len(steps), limit) == sum(step > limit for step in steps)


@given(ended=HISTOGRAMS, unended=st.integers(1, 9))
def test_the_survival_curve_is_survivors_at_every_step(ended: dict[int, int], unended: int):
    n = sum(ended.values()) + unended
    curve = survival_curve(ended, n)
    assert curve[0] == (0, 1.0)
    for step, share in curve:
        assert share == pytest.approx(survivors(ended, n, step) / n)


@given(n=st.integers(1, 400), share=st.floats(0, 1), confidence=st.sampled_from([0.8, 0.95, 0.999]))
def test_wilson_s_interval_holds_what_the_score_test_does_not_reject(n: int, share: float, confidence: float):
    """At both ends the distance from the observed share is z standard errors of the end itself."""
    from statistics import NormalDist

    ratio = Ratio(round(share * n), n)
    low, high = ratio.interval(confidence)
    assert 0 <= low <= ratio.value <= high <= 1
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(ratio.value - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-6, abs=1e-12)


def test_the_interval_covers_about_as_often_as_it_says():
    n, truth = 60, 0.07
    covered = 0.0
    for count in range(n + 1):
        low, high = Ratio(count, n).interval(0.95)
        covered += math.comb(n, count) * truth**count * (1 - truth) ** (n - count) * (low <= truth <= high)
    assert 0.92 < covered < 0.98


@given(ended=HISTOGRAMS.filter(bool))
def test_lengths(ended: dict[int, int]):
    steps = sorted(step for step, count in ended.items() for _ in range(count))
    found = lengths(ended)
    assert found.mean == pytest.approx(sum(steps) / len(steps))
    assert found.deviation == pytest.approx(math.sqrt(sum((s - found.mean) ** 2 for s in steps) / len(steps)))
    for share, value in zip((0.05, 0.25, 0.5, 0.75, 0.95), found.quantiles, strict=True):
        assert value == steps[math.ceil(share * len(steps)) - 1]
    assert lengths({}) is None


@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=14))
def test_mcnemar_is_the_exact_test(pairs: list[tuple[bool, bool]]):
    found = compare([a for a, _ in pairs], [b for _, b in pairs])
    counts = Counter(pairs)
    assert (found.only_first, found.only_second) == (counts[True, False], counts[False, True])
    assert (found.both, found.neither) == (counts[True, True], counts[False, False])
    discordant = found.only_first + found.only_second
    extreme = abs(found.only_first - found.only_second)
    ways = sum(abs(2 * sum(flips) - discordant) >= extreme for flips in itertools.product((0, 1), repeat=discordant))
    assert found.p_value == pytest.approx(ways / 2**discordant)
    assert found.difference == pytest.approx((sum(a for a, _ in pairs) - sum(b for _, b in pairs)) / len(pairs))


def test_only_the_same_contexts_can_be_paired():
    with pytest.raises(BadInput, match="have 1 and 2 contexts"):
        compare([True], [True, False])


@pytest.mark.parametrize("ratio", [0.5, 0.01, 0.001, 1e-5])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_contexts_needed_is_the_smallest_number(ratio: float, confidence: float):
    n = contexts_needed(ratio, confidence)
    assert (1 - ratio) ** n <= 1 - confidence + 1e-12
    assert (1 - ratio) ** (n - 1) > 1 - confidence


def test_the_rule_of_three():
    assert contexts_needed(0.01) == 299


@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("half", [0.1, 0.01, 0.002])
def test_contexts_for_a_width(ratio: float, half: float):
    n = contexts_for_width(ratio, half)
    assert half_of_wilson(ratio, n) <= half < half_of_wilson(ratio, n - 1)


def half_of_wilson(ratio: float, n: int) -> float:
    """From the roots of the quadratic that the ends of the interval solve."""
    z2 = 1.959963984540054**2
    a, b, c = n + z2, -(2 * n * ratio + z2), n * ratio**2
    return math.sqrt(b * b - 4 * a * c) / (2 * a)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0])
def test_bad_targets(bad: float):
    with pytest.raises(BadInput, match="strictly between 0 and 1"):
        contexts_needed(bad)


def test_one_model_has_no_deviation():
    assert across_initialisations([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert math.isnan(across_initialisations([2.0])[1])
