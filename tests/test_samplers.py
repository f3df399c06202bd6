"""The distribution that a sampler induces is the one that defines it: by enumeration, and by many draws."""

import math

import pytest
import torch
from distributions import surveyed
from members import RULES, SAMPLERS, TRUNCATION_SPECS, crossed, fits
from naive import kept_set
from torch.testing import assert_close

from eosin.decoding.distribution import BLOCK
from eosin.decoding.randomness import uniforms
from eosin.decoding.samplers import Sampler, draw, draw_from_all, draw_from_front, quantile
from eosin.decoding.spec import parse_decoder
from eosin.decoding.truncation import Consistent, Nucleus

EOS = 4
TEMPERATURES = [1.0, 0.5, 2.0]


def example(vocab: int = 12) -> torch.Tensor:
    logits = 1.5 * torch.randn(5, vocab, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    logits[1, 7] = -math.inf
    logits[2] = (2 * logits[2]).round() / 2
    logits[3, EOS] = 3.0
    logits[4, EOS] = -8.0
    return logits


def definition(spec: str, logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """The induced distribution as the papers define it: p renormalised over the kept set."""
    probs = (logits / temperature).softmax(-1)
    sets = [kept_set(row, (EOS,), spec) for row in probs.tolist()]
    keeps = torch.tensor([[token in kept for token in range(probs.shape[1])] for kept in sets])
    kept_probs = probs * keeps
    return kept_probs / kept_probs.sum(-1, keepdim=True)


def grid(points: int) -> torch.Tensor:
    """All pairs of uniform numbers from a regular grid: what they pick is the distribution, up to the grid."""
    line = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    return torch.cartesian_prod(line, line)


def frequencies(spec: str, logits: torch.Tensor, numbers: torch.Tensor, temperature: float) -> torch.Tensor:
    rows, vocab = logits.shape
    asked = surveyed(logits.repeat_interleave(len(numbers), 0), (EOS,))
    sampler = parse_decoder(spec)
    sampler = Sampler(sampler.truncation, temperature)
    token = sampler.choose(asked, numbers.repeat(rows, 1)).view(rows, -1)
    return torch.stack([row.bincount(minlength=vocab) for row in token]) / len(numbers)


def drawn(draw, asked, numbers: torch.Tensor) -> torch.Tensor:
    return draw.token(asked.eos_ids, numbers)


@pytest.mark.parametrize(("temperature", "spec"), crossed(TEMPERATURES, [spec for spec in SAMPLERS if fits(spec, 12)]))
def test_induced_distribution_is_the_definition(spec: str, temperature: float):
    logits = example()
    points = 100
    found = frequencies(spec, logits, grid(points), temperature)
    expected = definition(spec, logits, temperature)
    assert_close(found, expected.to(found.dtype), atol=2.0 / points, rtol=0)
    assert (found[expected > 2.0 / points] > 0).all()
    assert not (found[expected == 0] > 0).any()


@pytest.mark.parametrize("spec", [spec for spec in SAMPLERS if fits(spec, 12)])
def test_many_draws_pass_a_chi_square_test(spec: str):
    """With the library's own random numbers: 20,000 contexts, one draw each."""
    logits = example()[:1]
    draws = 20_000
    numbers = uniforms(5, torch.arange(draws), torch.full((draws,), 3))
    counts = frequencies(spec, logits, numbers, 1.0)[0] * draws
    expected = definition(spec, logits, 1.0)[0] * draws
    assert not (counts[expected == 0] > 0).any()
    cells = expected > 5
    if cells.sum() > 1:
        statistic = ((counts - expected)[cells].square() / expected[cells]).sum()
        degrees = cells.sum() - 1
        p_value = torch.special.gammaincc(degrees / 2, statistic / 2)
        assert p_value > 1e-4, f"chi-square {statistic:.1f} with {degrees} degrees of freedom"


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("spec", [spec for spec in TRUNCATION_SPECS if spec.startswith("consistent-")])
def test_consistent_samplers_never_make_eos_less_probable(spec: str, temperature: float):
    """The condition of Theorem 4.1, q(eos) >= p(eos), from what is really kept."""
    logits = 3 * torch.randn(64, 150, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    asked = surveyed(logits, (EOS,)).at(temperature)
    truncation = parse_decoder(spec).truncation
    keeps = truncation.line(asked).keeps(torch.arange(150), asked.log_probs())
    keeps[:, EOS] = True
    probs = asked.log_probs().exp()
    q_eos = probs[:, EOS] / (probs * keeps).sum(-1)
    assert (q_eos >= probs[:, EOS]).all()
    below = torch.stack([q_eos - 1e-9, torch.full_like(q_eos, 0.5)], dim=-1).clamp(min=0)
    above = torch.stack([q_eos + 1e-9, torch.full_like(q_eos, 0.5)], dim=-1)
    assert (drawn(draw(truncation, asked, below), asked, below) == EOS).all()
    assert (drawn(draw(truncation, asked, above), asked, above)[q_eos < 1 - 1e-8] != EOS).all()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_list_and_front_draw_the_same(rule):
    """Also over several blocks, at a temperature, and with two ways to end."""
    logits = 4 * torch.randn(200, 2 * BLOCK + 40, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    asked = surveyed(logits, (EOS, 1500)).at(0.8)
    numbers = torch.rand(200, 2, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    for truncation in (rule, Consistent(rule)):
        listed, fronted = draw(truncation, asked, numbers), draw_from_front(truncation, asked, numbers)
        assert torch.equal(drawn(listed, asked, numbers), drawn(fronted, asked, numbers))
        assert_close(listed.survival, fronted.survival)


def test_nucleus_and_consistent_nucleus_part_where_eos_is_drawn():
    logits = 3 * torch.randn(3000, 40, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    asked = surveyed(logits, (EOS,))
    numbers = torch.rand(3000, 2, generator=torch.Generator().manual_seed(13), dtype=torch.float64)
    plain, consistent = (
        drawn(draw(t, asked, numbers), asked, numbers) for t in (Nucleus(0.5), Consistent(Nucleus(0.5)))
    )
    parted = plain != consistent
    assert 0 < parted.sum() < 1000
    assert (consistent[parted] == EOS).all()


def test_ancestral_takes_the_block_and_then_the_token():
    """Over three blocks, against the inverse of the whole cumulative distribution in the order of ids."""
    logits = torch.randn(50, 3 * BLOCK - 9, generator=torch.Generator().manual_seed(14), dtype=torch.float64)
    logits[:, EOS] = -math.inf
    numbers = torch.rand(50, 2, generator=torch.Generator().manual_seed(15), dtype=torch.float64)
    running = logits.softmax(-1).cumsum(-1)
    expected = torch.searchsorted(running, numbers[:, 1:] * running[:, -1:], right=True)[:, 0]
    asked = surveyed(logits, (EOS,))
    assert torch.equal(drawn(draw_from_all(asked, numbers), asked, numbers), expected)


@pytest.mark.parametrize(
    ("scale", "spec"),
    crossed([(30.0, 1e-6), (1e7, 1.0), (0.0, 1e30), (10.0, 1e-30)], [spec for spec in SAMPLERS if fits(spec, 101)]),
)
def test_equal_tokens_are_drawn_equally_whatever_the_scale(scale: tuple[float, float], spec: str):
    """A rounding error must not break a tie of 101 tokens: all that are kept come up, and no other."""
    offset, temperature = scale
    logits = torch.full((1, 101), offset)
    found = frequencies(spec, logits, grid(101), temperature)[0]
    expected = definition(spec, torch.zeros(1, 101, dtype=torch.float64), 1.0)[0]
    assert_close(found, expected.float(), atol=0.012, rtol=0)


def test_several_ways_to_end_are_drawn_by_their_share():
    logits = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
    asked = surveyed(logits.repeat(40_000, 1), (0, 2))
    token = drawn(draw_from_all(asked, grid(200)), asked, grid(200))
    assert_close(token.bincount() / 40_000, torch.tensor([0.2, 0.5, 0.3]), atol=0.01, rtol=0)


def test_a_draw_at_the_edge_of_a_block_is_still_a_token_that_can_occur():
    logits = torch.randn(400, 3 * BLOCK, generator=torch.Generator().manual_seed(16), dtype=torch.float64)
    logits[:, ::BLOCK] = -math.inf
    asked = surveyed(logits, (EOS,))
    masses = asked._block_log_mass.exp()
    edges = (masses.cumsum(1) / masses.sum(1, keepdim=True))[:, :2]
    for wiggle in (-2, -1, 0, 1, 2):
        for edge in edges.T:
            numbers = torch.stack([torch.ones(400, dtype=torch.float64) - 2**-53, edge + wiggle * 2**-53], dim=1)
            token = drawn(draw_from_all(asked, numbers), asked, numbers)
            assert (asked.log_probs_of(token) > -math.inf).all()


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1 - 2**-53])
def test_quantile_never_picks_weight_zero(fraction: float):
    weights = torch.tensor([[0, 1e-300, 0, 3, 0], [0, 0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4, 0]], dtype=torch.float64)
    picked = quantile(weights, torch.full((3,), fraction, dtype=torch.float64))
    assert (weights.gather(1, picked[:, None]) > 0).all()


@pytest.mark.parametrize("temperature", [0, -1, math.inf, math.nan, 1e-31, 1e31])
def test_bad_temperature(temperature: float):
    with pytest.raises(ValueError, match=r"temperature must lie between 1e-30 and 1e30, got"):
        Sampler(None, temperature)
