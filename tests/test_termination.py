"""Statistics against closed forms, enumeration and brute force."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eosin.errors import BadInput
from eosin.records.statistics import (
    Estimate,
    Ratio,
    compare,
    compute_mean_and_deviation,
    count_contexts_for_bound,
    count_contexts_for_width,
    count_survivors,
    invert_score_test,
    summarize_lengths,
)

HISTOGRAMS = st.dictionaries(st.integers(1, 60), st.integers(1, 9), max_size=8)


@given(ended=HISTOGRAMS, unended=st.integers(0, 9), limit=st.integers(0, 70))
def test_survivors_are_counted_from_any_limit(ended: dict[int, int], unended: int, limit: int):
    steps = [step for step, count in ended.items() for _ in range(count)] + [math.inf] * unended
    assert count_survivors(ended, len(steps), limit) == sum(step > limit for step in steps)


@given(n=st.integers(1, 400), share=st.floats(0, 1), confidence=st.sampled_from([0.8, 0.95, 0.999]))
def test_wilson_s_interval_holds_what_the_score_test_does_not_reject(n: int, share: float, confidence: float):
    """At both ends the distance from the observed share is z standard errors of the end itself."""
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


# the interval around an estimate, from n, the sum and the sum of squares


def estimate(weights: list[float]) -> Estimate:
    return Estimate(sum(weights), sum(weight**2 for weight in weights), len(weights))


WEIGHT = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 1e-4, 1 - 2**-53])


@given(weights=st.lists(WEIGHT, min_size=1, max_size=60))
def test_an_estimate_s_interval_holds_its_mean_and_is_no_point(weights: list[float]):
    found = estimate(weights)
    low, high = found.interval()
    assert 0 <= low <= found.value <= high <= 1
    assert high - low >= Ratio(0, found.n).interval()[1] - 1e-9


@given(weights=st.lists(WEIGHT, min_size=1, max_size=60))
def test_endings_have_the_mirrored_interval_of_survivals(weights: list[float]):
    low, high = estimate(weights).interval()
    ends = estimate([1 - weight for weight in weights]).interval()
    assert ends == pytest.approx((1 - high, 1 - low), abs=1e-7)


@given(weights=st.lists(WEIGHT, min_size=1, max_size=60), times=st.integers(2, 50))
def test_more_paths_of_the_same_weights_say_more(weights: list[float], times: int):
    few, found = estimate(weights), estimate(weights).interval()
    low, high = Estimate(times * few.total, times * few.squares, times * few.n).interval()
    assert found[0] <= low + 1e-12
    assert high <= found[1] + 1e-12
    assert high - low < found[1] - found[0]


@given(weights=st.lists(WEIGHT, min_size=1, max_size=60), confidence=st.floats(0.5, 0.99))
def test_more_confidence_takes_more_room(weights: list[float], confidence: float):
    (low, high), (lowest, highest) = (estimate(weights).interval(c) for c in (confidence, confidence + 0.005))
    assert lowest <= low
    assert high <= highest


@given(n=st.integers(1, 2000), share=st.floats(0, 1))
def test_weights_of_zero_and_one_have_wilson_s_interval_but_for_one_context(n: int, share: float):
    count = round(share * n)
    low, high = Estimate(count, count, n).interval()
    wilson = Ratio(count, n).interval()
    fewer, more = (invert_score_test(near / n, n, 0.95) for near in (max(count - 1, 0), min(count + 1, n)))
    assert fewer[0] - 1e-12 <= low <= wilson[0] + 1e-12
    assert wilson[1] - 1e-12 <= high <= more[1] + 1e-12


@pytest.mark.parametrize("n", [1, 30, 500])
def test_equal_weights_at_an_end_have_wilson_s_interval(n: int):
    assert Estimate(0, 0, n).interval() == Ratio(0, n).interval()
    assert Estimate(n, n, n).interval() == pytest.approx(Ratio(n, n).interval())


@pytest.mark.parametrize("weight", [0.0, 1e-4, 0.3, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("n", [20, 500, 5000])
def test_equal_weights_leave_room_for_those_that_none_has(n: int, weight: float):
    """Were 3 of n paths of another weight, none of n would show it in e^-3 = 5% of all audits."""
    low, high = estimate([weight] * n).interval()
    assert low <= weight * (1 - 3 / n)
    assert high >= weight + (1 - weight) * 3 / n


def test_weights_that_vary_little_have_a_narrow_interval():
    """At a deviation of 0.01 and n = 1,000, with any mean that allows it."""
    for mean in np.linspace(2e-4, 1 - 2e-4, 999):
        low, high = Estimate(1000 * mean, 1000 * (mean**2 + 1e-4), 1000).interval()
        assert high - low < 0.0065


def test_many_paths_have_the_normal_interval():
    rng = np.random.default_rng(0)
    found = estimate(rng.beta(2, 5, 100_000).tolist())
    low, high = found.interval()
    assert (found.value - low, high - found.value) == pytest.approx([1.96 * found.error] * 2, rel=0.02)


def clipped_lognormal_mean(mu: float, sigma: float) -> float:
    """Of min(exp(mu + sigma * normal), 1)."""
    below, above = NormalDist().cdf((-mu - sigma**2) / sigma), NormalDist().cdf(mu / sigma)
    return math.exp(mu + sigma**2 / 2) * below + above


Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
"""Weights, a row for each repetition."""


def coverage(total: np.ndarray, squares: np.ndarray, n: int, truth: float) -> float:
    """The share of the repetitions, given by their sums, whose interval holds the true mean."""
    sums, often = np.unique(np.stack([total, squares]), axis=1, return_counts=True)
    ends = [Estimate(*pair, n).interval() for pair in sums.T.tolist()]
    held = [low - 1e-12 <= truth <= high + 1e-12 for low, high in ends]
    return float(often @ np.array(held) / often.sum())


def coverage_of_atoms(values: list[float], expected: list[float], n: int, repetitions: int) -> float:
    """Of weights with few values. All but the first have an expected number among n; the first has the rest."""
    atoms, chances = np.array(values), np.array([n - sum(expected), *expected]) / n
    counts = np.random.default_rng(n).multinomial(n, chances, size=repetitions).astype(float)
    return coverage(counts @ atoms, counts @ atoms**2, n, float(chances @ atoms))


def coverage_of_draws(draw: Draw, truth: float, n: int, repetitions: int) -> float:
    rng, sums = np.random.default_rng(n), []
    for _ in range(math.ceil(repetitions * n / 1_000_000)):
        weights = draw(rng, (min(repetitions, math.ceil(1_000_000 / n)), n))
        sums.append((weights.sum(1), (weights**2).sum(1)))
    total, squares = map(np.concatenate, zip(*sums, strict=True))
    return coverage(total, squares, n, truth)


def exact_coverage_of_flips(n: int) -> float:
    """The least over all chances of a weight of one: coverage is least just outside an end of an interval."""
    ends = np.array([Estimate(count, count, n).interval() for count in range(n + 1)])
    log_choose = np.array([math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)])
    places = np.concatenate([ends - 1e-9, ends + 1e-9]).flatten()
    places = places[(places > 1e-8) & (places < 0.5)]
    least, count = 1.0, np.arange(n + 1)
    for chances in np.array_split(places[:, None], math.ceil(places.size * n / 1_000_000)):
        masses = np.exp(log_choose + count * np.log(chances) + (n - count) * np.log1p(-chances))
        held = (ends[:, 0] <= chances) & (chances <= ends[:, 1])
        least = min(least, float((masses * held).sum(1).min()))
    return least


ATOMS: dict[str, tuple[list[float], list[float]]] = {
    "nearly equal, rarely 1": ([0.499, 0.501, 1.0], [9.0, 3.0]),
    "equal, rarely 0": ([0.999, 0.0], [2.5]),
    "equal, rarely 1": ([0.5, 1.0], [3.0]),
    "small, rarely 1": ([1e-4, 1.0], [2.0]),
    "mostly 0, rarely 1": ([0.0, 1.0], [0.15]),
    "mostly 0, rarely large": ([0.0, 0.01, 1.0], [4.0, 0.5]),
    "mostly 1, rarely small": ([1.0, 0.99, 0.0], [4.0, 0.5]),
}


@pytest.mark.parametrize("kind", ATOMS)
@pytest.mark.parametrize("n", [20, 500])
def test_an_estimate_s_interval_covers(kind: str, n: int):
    assert coverage_of_atoms(*ATOMS[kind], n=n, repetitions=20_000) >= 0.94


@pytest.mark.parametrize("n", [20, 23, 50, 100, 200])
def test_an_estimate_s_interval_covers_coin_flips(n: int):
    assert exact_coverage_of_flips(n) >= 0.94


PATHS = [20, 50, 100, 200, 500, 1000, 2000, 5000]
RARE = [0.05, 0.2, 0.5, 1, 2, 3, 3.8, 5, 8]
GRID = {
    **ATOMS,
    **{
        f"{usual:g}, of n {often} {rare:g}": ([usual, rare], [often])
        for often in RARE
        for usual in (0.0, 1e-4, 0.1, 0.5, 0.9)
        for rare in (0.0, 0.3, 1.0)
        if usual != rare
    },
    **{
        f"0, of n {often} 1 and {more} {small:g}": ([0.0, 1.0, small], [often, more])
        for often in (0.1, 0.5, 2, 5)
        for more in (0.5, 5, 10)
        for small in (0.01, 0.3, 0.7)
    },
}
DRAWS: dict[str, tuple[Draw, float]] = {
    **{
        f"beta({a}, {b})": (lambda rng, size, a=a, b=b: rng.beta(a, b, size), a / (a + b))
        for a, b in [(0.02, 0.02), (0.02, 1), (1, 0.02), (0.02, 5), (0.2, 2), (20, 20)]
    },
    **{f"U^{k}": (lambda rng, size, k=k: rng.random(size) ** k, 1 / (k + 1)) for k in (1, 10, 100, 1000)},
    **{f"1 - U^{k}": (lambda rng, size, k=k: 1 - rng.random(size) ** k, k / (k + 1)) for k in (10, 100, 1000)},
    **{
        f"lognormal({mu}, {sigma}), at most 1": (
            lambda rng, size, mu=mu, sigma=sigma: np.minimum(rng.lognormal(mu, sigma, size), 1),
            clipped_lognormal_mean(mu, sigma),
        )
        for mu, sigma in [(-1, 0.5), (-4, 3), (-8, 3), (-12, 5), (-20, 5)]
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("n", PATHS)
def test_an_estimate_s_interval_covers_weights_of_every_kind(n: int):
    found = {kind: coverage_of_atoms(*atoms, n=n, repetitions=20_000) for kind, atoms in GRID.items()}
    found |= {kind: coverage_of_draws(*drawn, n=n, repetitions=2_000) for kind, drawn in DRAWS.items()}
    found["coin flips"] = exact_coverage_of_flips(n)
    assert {kind: share for kind, share in found.items() if share < 0.94} == {}


@given(ended=HISTOGRAMS.filter(bool))
def test_lengths(ended: dict[int, int]):
    steps = sorted(step for step, count in ended.items() for _ in range(count))
    found = summarize_lengths(ended)
    assert found.mean == pytest.approx(sum(steps) / len(steps))
    assert found.deviation == pytest.approx(math.sqrt(sum((s - found.mean) ** 2 for s in steps) / len(steps)))
    for share, value in zip((0.05, 0.25, 0.5, 0.75, 0.95), found.quantiles, strict=True):
        assert value == steps[math.ceil(share * len(steps)) - 1]
    assert summarize_lengths({}) is None


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
    n = count_contexts_for_bound(ratio, confidence)
    assert (1 - ratio) ** n <= 1 - confidence + 1e-12
    assert (1 - ratio) ** (n - 1) > 1 - confidence


def test_the_rule_of_three():
    assert count_contexts_for_bound(0.01) == 299


@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("half", [0.1, 0.01, 0.002])
def test_contexts_for_a_width(ratio: float, half: float):
    n = count_contexts_for_width(ratio, half)
    assert half_of_wilson(ratio, n) <= half < half_of_wilson(ratio, n - 1)


def half_of_wilson(ratio: float, n: int) -> float:
    """From the roots of the quadratic that the ends of the interval solve."""
    z2 = 1.959963984540054**2
    a, b, c = n + z2, -(2 * n * ratio + z2), n * ratio**2
    return math.sqrt(b * b - 4 * a * c) / (2 * a)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0])
def test_bad_targets(bad: float):
    with pytest.raises(BadInput, match="strictly between 0 and 1"):
        count_contexts_for_bound(bad)


def test_one_model_has_no_deviation():
    assert compute_mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert math.isnan(compute_mean_and_deviation([2.0])[1])
