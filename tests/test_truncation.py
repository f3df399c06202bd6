"""Kept sets against their definitions, and the laws that every rule obeys."""

import math

import pytest
import torch
from definitions import DEFINITIONS
from distributions import lined, listed, masked, surveyed
from hypothesis import assume, given
from hypothesis import strategies as st
from members import RULES, fits

from eosin.decoding.samplers import draw
from eosin.decoding.truncation import (
    FEW,
    TRUNCATIONS,
    Consistent,
    Epsilon,
    MinP,
    Nucleus,
    TopK,
    Typical,
    keep_mask,
)


def possible(probs: list[float], tokens: set[int]) -> set[int]:
    return {token for token in tokens if probs[token] > 0}


# probabilities that are sums of powers of two: ties are ties, and sums reach a bound exactly or not at all
weights = st.lists(st.sampled_from([0, 1, 1, 1, 2, 3, 8, 30]), min_size=2, max_size=90).filter(lambda w: sum(w) > 0)


def exact_logits(row: list[int]) -> tuple[list[float], torch.Tensor]:
    padded = [*row, 2 ** math.ceil(math.log2(sum(row) + 1)) - sum(row)]
    probs = [weight / sum(padded) for weight in padded]
    return probs, torch.tensor([probs], dtype=torch.float64).log()


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(row=weights)
def test_kept_set_is_the_definition(rule, row):
    """By list and by line, on rows full of ties; rows that a rounding error could tip either way are left out."""
    while not fits(str(rule), len(row)):
        row = row + row
    probs, logits = exact_logits(row)
    define = DEFINITIONS[rule.name]
    expected = possible(probs, define(probs, *rule.values))
    wiggled = [[value * (1 + wiggle) for value in rule.values] for wiggle in (-1e-9, 1e-9)]
    tipping = [possible(probs, define(probs, *values)) for values in wiggled] if rule.name != "top-k" else []
    assume(all(other == expected for other in tipping))
    asked = surveyed(logits, (0,))
    (from_list,) = listed(rule, asked)
    assert from_list in (None, expected)
    if rule.name != "typical":  # two tokens equally far from the entropy are a tie only in exact arithmetic
        assert lined(rule, asked) == [expected]
    if from_list is None and rule.name != "typical":
        kept = define(probs, *rule.values)
        contested = min(probs[token] for token in kept) in (p for token, p in enumerate(probs) if token not in kept)
        assert contested or len(kept) >= min(FEW, len(probs)), "a short list was not listed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, 5, 7, 10, 49, 100, 1000, 3000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sums_that_reach_a_bound_exactly_are_ties(size: int, dtype: torch.dtype, temperature: float):
    """Uniform over some tokens: k of n have the mass k / n, which typical must reach and a nucleus must exceed."""
    logits = torch.full((1, 2 * size), -math.inf, dtype=dtype)
    logits[:, size // 2 : size // 2 + size] = 0.3  # others cannot occur
    asked = surveyed(logits, (0,), temperature)
    for k in sorted({1, 2, size // 3, size // 2, size - 2, size - 1} - {0}):
        for rule, kept in ((Typical(k / size), k), (Nucleus(k / size), k + 1)):
            (by_line,), (by_list,) = lined(rule, asked), listed(rule, asked)
            assert len(by_line) == kept, (rule, by_line)
            assert by_list in (None, by_line)
            assert masked(rule, asked) == [by_line]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(row=weights, number=st.integers(0, 89))
def test_fronts_that_reach_a_bound_exactly_are_ties(row: list[int], number: int, dtype: torch.dtype):
    """As a nucleus of exactly the mass of the k most probable tokens, whatever they are; by list and by line."""
    probs, logits = exact_logits(row)
    ranked = sorted((p for p in probs if p > 0), reverse=True)
    assume(len(ranked) > 1)
    k = 1 + number % (len(ranked) - 1)
    mu = sum(ranked[:k])
    asked = surveyed(logits.to(dtype), (0,))
    (by_line,), (by_list,) = lined(Nucleus(mu), asked), listed(Nucleus(mu), asked)
    assert len(by_line) == k + 1
    assert by_list in (None, by_line)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("others", [3, 40, 500])
@pytest.mark.parametrize("best", [1, 10, 100])
@pytest.mark.parametrize("ratio", [1 / 2, 1 / 3, 1 / 7, 0.1])
def test_a_token_that_meets_a_bound_exactly_is_kept(ratio: float, best: int, others: int, dtype: torch.dtype):
    """By list and by line: `others` tokens are exactly as probable as min-p and epsilon ask for."""
    weights = torch.tensor([0.001, *[1.0] * best, *[ratio] * others], dtype=torch.float64)
    asked = surveyed(weights.log().to(dtype)[None], (0,))
    for rule in (MinP(ratio), Epsilon(ratio / float(weights.sum()))):
        (by_line,), (by_list,) = lined(rule, asked), listed(rule, asked)
        assert by_line == set(range(1, 1 + best + others)), rule
        assert by_list in (None, by_line)


@pytest.mark.parametrize("vocab", [120, 700, 2500])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_kept_set_on_real_valued_logits(rule, vocab: int, temperature: float):
    generator = torch.Generator().manual_seed(vocab)
    sharpness = torch.tensor([[0.01], [0.5], [1], [2], [4], [8], [20], [60]])
    logits = torch.randn(8, vocab, generator=generator, dtype=torch.float64) * sharpness
    asked = surveyed(logits, (5, 0), temperature)
    expected = [DEFINITIONS[rule.name](row, *rule.values) for row in (logits / temperature).softmax(-1).tolist()]
    expected = [
        possible(row, kept) for row, kept in zip((logits / temperature).softmax(-1).tolist(), expected, strict=True)
    ]
    assert lined(rule, asked) == expected
    for from_list, from_definition in zip(listed(rule, asked), expected, strict=True):
        assert from_list in (None, from_definition)
    assert masked(rule, asked) == expected
    assert masked(Consistent(rule), asked) == [kept | {5, 0} for kept in expected]


@pytest.mark.parametrize("vocab", [120, 2500])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_kept_set_in_float32(rule, vocab: int):
    """The dtype of real models: the definition's set, up to tokens that a rounding error can move across the line."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(24, vocab, generator=generator) * torch.logspace(-2, 1.5, 24)[:, None]
    asked = surveyed(logits, (5, 0))
    by_line, by_list, exact = lined(rule, asked), listed(rule, asked), 0
    for row, probs in enumerate(logits.double().softmax(-1).tolist()):
        expected = possible(probs, DEFINITIONS[rule.name](probs, *rule.values))
        for mine in (by_line[row], expected if by_list[row] is None else by_list[row]):
            moved = mine ^ expected
            assert len(moved) <= 2
            exact += not moved
    assert exact >= 44


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_kept_set_of_equal_tokens_in_float32(rule):
    """Ties at any height: a rounding error must neither empty the set nor let a token in that does not exist."""
    heights = 4 * torch.randn(300, generator=torch.Generator().manual_seed(6))
    asked = surveyed(heights[:, None].repeat(1, 1500), (3,))
    kept = lined(rule, asked)
    assert all(kept)
    if rule.name in ("top-k", "min-p", "top-n-sigma"):
        assert kept == [DEFINITIONS[rule.name]([1 / 1500] * 1500, *rule.values)] * 300
    numbers = torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    for truncation in (rule, Consistent(rule)):
        assert (draw(truncation, asked, numbers).token(asked.eos_ids, numbers) < 1500).all()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("spread", [1e-7, 1e-4, 0.05])
def test_nearly_flat_rows_are_divided_again(rule, spread: float):
    """Thousands of tokens in one bin: the line is still where a sort would put it."""
    logits = spread * torch.randn(3, 4000, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    asked = surveyed(logits, (3,))
    for mine, probs in zip(lined(rule, asked), logits.softmax(-1).tolist(), strict=True):
        assert len(mine ^ DEFINITIONS[rule.name](probs, *rule.values)) <= 1


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_consistent_is_the_kept_set_and_eos(rule):
    logits = 3 * torch.randn(16, 120, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits[:, 7] = -30
    asked = surveyed(logits, (7, 2))
    plain, consistent = lined(rule, asked), lined(Consistent(rule), asked)
    assert consistent == [kept | {7, 2} for kept in plain]
    assert any(7 not in kept for kept in plain), "the example does not show the difference"
    for row, kept in enumerate(listed(Consistent(rule), asked)):
        assert kept in (None, consistent[row])
    assert Consistent(rule).keeps_eos
    assert not rule.keeps_eos


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_kept_set_is_never_empty(rule):
    logits = torch.zeros(3, 200, dtype=torch.float64)
    logits[1, 1:] = -math.inf
    logits[2] = torch.linspace(0, -1e3, 200)
    asked = surveyed(logits, (3,))
    assert all(lined(rule, asked))
    assert all(kept is None or kept for kept in listed(rule, asked))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.name in ("nucleus", "typical")], ids=str)
def test_no_smaller_set_will_do(rule):
    """Without its last token the kept mass is not enough; with it, it is."""
    logits = 2 * torch.randn(8, 300, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    asked = surveyed(logits)
    log_probs = asked.log_probs()
    order = rule.order(asked)(log_probs)
    for row, kept in enumerate(lined(rule, asked)):
        tokens = sorted(kept, key=lambda token, row=row: -float(order[row, token]))
        enough = rule.enough(log_probs[row, tokens].exp().cumsum(0)[None, None], asked)[0]
        assert enough.tolist() == [False] * (len(tokens) - 1) + [True]


def test_top_k_keeps_k_of_equal_tokens():
    asked = surveyed(torch.zeros(2, 300, dtype=torch.float64), (299,))
    for k in (1, 5, 63, 64, 65, 200):
        assert lined(TopK(k), asked) == [set(range(k))] * 2
    assert [row.nonzero()[:, 0].tolist() for row in keep_mask(TopK(5), asked)] == [list(range(5))] * 2


def test_nucleus_must_exceed():
    """Exactly mu is not enough: the paper's definition says greater."""
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    asked = surveyed(logits, (3,))
    assert listed(Nucleus(0.5), asked) == lined(Nucleus(0.5), asked) == [{0, 1}]
    assert listed(Nucleus(0.4999), asked) == lined(Nucleus(0.4999), asked) == [{0}]
    assert listed(Nucleus(0.75), asked) == lined(Nucleus(0.75), asked) == [{0, 1, 2}]


def test_typical_can_drop_the_most_probable():
    logits = torch.tensor([[0.4, *[0.05] * 12]], dtype=torch.float64).log()
    (kept,) = lined(Typical(0.5), surveyed(logits, (3,)))
    assert 0 not in kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mass", [1e-300, 1e-13, 1e-9, 1e-6])
def test_typical_of_a_mass_below_a_tie_keeps_one_token(mass: float, dtype: torch.dtype):
    asked = surveyed(torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.75, 0.25]]).log().to(dtype), (0,))
    for rule in (Typical(mass), Consistent(Typical(mass))):
        assert masked(rule, asked)[1] - {0} in ({1}, {2})
        assert len(masked(rule, asked)[0] - {0}) == 1


def test_epsilon_keeps_the_best_where_nothing_qualifies():
    asked = surveyed(torch.zeros(1, 100, dtype=torch.float64), (3,))
    assert lined(Epsilon(0.5), asked) == [{0}]
    assert keep_mask(Epsilon(0.5), asked).nonzero().tolist() == [[0, 0]]


def test_every_rule_has_a_definition_and_examples():
    assert TRUNCATIONS.keys() == DEFINITIONS.keys()
    assert all(rule.examples for rule in TRUNCATIONS.values())


BAD = [
    *(("top-k", value) for value in (0, -1, 1.5)),
    *(("nucleus", value) for value in (0, -0.1, 1.01, math.nan)),
    *(("min-p", value) for value in (0, 1.5)),
    *(("epsilon", value) for value in (0, 1)),
    *(("eta", value) for value in (0, 1)),
    *(("typical", value) for value in (0, 1)),
    *(("top-n-sigma", value) for value in (0, -1, math.inf)),
    *(("top-h", value) for value in (0, 1.5)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_name_the_rule_and_the_value(name: str, value: float):
    with pytest.raises(ValueError, match=rf"^{name}: .* got {value}$"):
        TRUNCATIONS[name](value)


def test_top_k_above_the_vocabulary():
    with pytest.raises(ValueError, match="k must be at most 7, the size of the vocabulary, got 8"):
        Consistent(TopK(8)).check(7)


def test_consistent_twice_is_refused():
    with pytest.raises(ValueError, match="must be one that can drop eos, got consistent-top-k:2"):
        Consistent(Consistent(TopK(2)))


@pytest.mark.parametrize("vocab_size", [40, 1030, 5000])
@pytest.mark.parametrize("mu", [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999])
def test_a_nucleus_that_is_surely_one_token_is(mu: float, vocab_size: int):
    """Equal others, whose small probabilities are all rounded in one direction when they are added to the leader's."""
    rule = Nucleus(mu)
    least = math.log((vocab_size - 1) * mu / (1 - mu))
    logits = torch.zeros(500, vocab_size)
    logits[:, 1] = least + torch.linspace(0, 6e-6, 500) / (mu * (1 - mu))
    leads = (logits[:, 1:2].double() - logits.double()).index_fill(1, torch.tensor([1]), math.inf)
    sure = rule.margin(leads.T) > 0
    assert sure.any()
    assert (keep_mask(rule, surveyed(logits, [0]))[sure].sum(1) == 1).all()
