"""The heads against their definitions, written out naively, over 1,500 steps."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from members import EOS, VOCAB, neural, prefixes
from torch.testing import assert_close

from eosin.logits import Dense, Rewritten, log_odds_of_eos, rewrite_eos
from eosin.models.heads import HEADS, NonMonotonic, SelfTerminating

BOUNDED = [head for head in HEADS if head != "softmax"]
CPU = torch.device("cpu")


def definition(head: str, eos_logits: list[float], epsilon: float) -> list[float]:
    """1 - p_t(eos) at t = 1, 2, ..., straight from the papers, in Python floats."""
    sigmoids = [1 / (1 + math.exp(-z)) for z in eos_logits]
    if head == "self-terminating":
        alphas, alpha = [], 1.0
        for sigmoid in sigmoids:
            alpha *= (1 - epsilon) * sigmoid
            alphas.append(alpha)
        return alphas
    return [(1 - s) * (1 - epsilon) ** t for t, s in enumerate(sigmoids, start=1)]


@pytest.mark.parametrize("head", BOUNDED)
@pytest.mark.parametrize("epsilon", [1e-4, 1e-3, 1e-2, 0.5])
def test_log_survival_is_the_definition_over_1500_steps(head: str, epsilon: float):
    generator = torch.Generator().manual_seed(0)
    # "go on" most of the time, in either head's sense, so that the product does not vanish at once
    sign = 1 if head == "self-terminating" else -1
    eos_logits = sign * (6 + torch.randn(3, 1500, generator=generator, dtype=torch.float64))
    layer = HEADS[head](epsilon)
    survival, _ = layer(eos_logits, layer.initial(3, CPU))
    for row in range(3):
        expected = definition(head, eos_logits[row].tolist(), epsilon)
        assert_close(survival[row].exp().tolist(), expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("head", BOUNDED)
def test_one_formula_for_sequence_and_step(head: str):
    layer = HEADS[head](1e-3)
    eos_logits = torch.randn(4, 1500, generator=torch.Generator().manual_seed(1))
    whole, end = layer(eos_logits, layer.initial(4, CPU))
    memory, steps = layer.initial(4, CPU), []
    for column in eos_logits.T:
        survival, memory = layer(column[:, None], memory)
        steps.append(survival[:, 0])
    assert_close(torch.stack(steps, 1), whole, rtol=1e-12, atol=0)
    assert_close(memory.tensors[0], end.tensors[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("head", HEADS)
def test_distribution_is_the_definition(head: str):
    """softmax of the rewritten logits: eos as defined, the other tokens in the ratios of their softmax."""
    model = neural("lstm", head, epsilon=0.01)
    prefix, tokens = prefixes(5), prefixes(5, length=30, seed=2)
    logits, _ = model(torch.cat([prefix, tokens], 1), model.initial(5), context=2)
    probs = logits.dense().softmax(-1)
    plain = getattr(logits, "inner", logits).dense()
    others = [token for token in range(VOCAB) if token != EOS]
    if head == "softmax":
        expected_survival = 1 - plain.softmax(-1)[..., EOS]
    else:
        rows = [definition(head, row, 0.01) for row in plain[..., EOS].tolist()]
        expected_survival = torch.tensor(rows, dtype=torch.float64)
    assert_close(probs[..., EOS], 1 - expected_survival, rtol=1e-9, atol=1e-12)
    rest = plain[..., others].softmax(-1) * expected_survival[..., None]
    assert_close(probs[..., others], rest, rtol=1e-9, atol=0)


@pytest.mark.parametrize("head", BOUNDED)
def test_context_does_not_count(head: str):
    """The count starts after the prefix: a longer prefix with the same last hidden vector changes nothing."""
    layer = HEADS[head](0.1)
    model = neural("tanh", head, epsilon=0.1)
    for length in (1, 5, 20):
        prefix = prefixes(3, length=length)
        logits, _ = model.prefill(prefix)
        eos_logit = logits.inner.dense()[:, EOS]
        expected, _ = layer(eos_logit[:, None], layer.initial(3, CPU))
        assert_close(1 - logits.dense().softmax(-1)[:, EOS], expected[:, 0].exp())


@pytest.mark.parametrize("head", BOUNDED)
def test_promise_holds_for_adversarial_logits(head: str):
    """p_t(eos) >= 1 - (1 - epsilon)^t, however large the logits that speak against it."""
    epsilon = 0.01
    layer = HEADS[head](epsilon)
    for eos_logit in (-1e4, -50.0, 0.0, 50.0, 1e4):
        survival, _ = layer(torch.full((1, 1500), eos_logit), layer.initial(1, CPU))
        steps = torch.arange(1, 1501, dtype=torch.float64)
        assert (survival[0] <= steps * math.log1p(-epsilon) * (1 - 1e-12)).all()
        assert not survival.isnan().any()


def test_self_terminating_never_falls():
    layer = SelfTerminating(1e-3)
    eos_logits = 5 * torch.randn(8, 400, generator=torch.Generator().manual_seed(2))
    survival, _ = layer(eos_logits, layer.initial(8, CPU))
    assert (survival.diff(dim=1) < 0).all()


def test_non_monotonic_may_fall():
    layer = NonMonotonic(1e-3)
    survival, _ = layer(torch.tensor([[3.0, -3.0]]), layer.initial(1, CPU))
    assert survival[0, 1] > survival[0, 0]


@pytest.mark.parametrize("head", BOUNDED)
def test_gradients_of_the_rewritten_distribution(head: str):
    layer = HEADS[head](0.01)

    def log_probs(logits: torch.Tensor) -> torch.Tensor:
        survival, _ = layer(logits[..., EOS], layer.initial(len(logits), CPU))
        return Rewritten(Dense(logits), (EOS,), lambda _: survival).dense().log_softmax(-1)

    logits = torch.randn(2, 6, VOCAB, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_probs, (logits,))


@pytest.mark.parametrize("head", BOUNDED)
def test_gradients_stay_finite_far_out(head: str):
    """Where p(eos) is so close to zero or one that a clamp would have cut the gradient off."""
    layer = HEADS[head](1e-3)
    for size in (40.0, -40.0, 700.0, -700.0):
        logits = torch.zeros(1, 1500, VOCAB, dtype=torch.float64)
        logits[..., EOS] = size
        logits.requires_grad_()
        survival, _ = layer(logits[..., EOS], layer.initial(1, CPU))
        dense = Rewritten(Dense(logits), (EOS,), lambda _, survival=survival: survival).dense()
        log_probs = dense.log_softmax(-1)
        assert log_probs.isfinite().all()
        (gradient,) = torch.autograd.grad(log_probs.sum(), logits)
        assert gradient.isfinite().all()


@given(st.integers(1, 10**15 - 1))
def test_log_odds_are_exact(millionths: int):
    p = Fraction(millionths, 10**15)
    log_survival = torch.tensor(math.log1p(-float(p)), dtype=torch.float64)
    expected = math.log(float(p)) - math.log1p(-float(p))
    assert math.isclose(float(log_odds_of_eos(log_survival)), expected, rel_tol=1e-9, abs_tol=1e-9)


def test_log_odds_at_the_ends():
    assert float(log_odds_of_eos(torch.tensor(0.0))) == -math.inf
    tiny = torch.tensor(-1e-300, dtype=torch.float64)
    assert math.isclose(float(log_odds_of_eos(tiny)), math.log(1e-300))
    assert float(log_odds_of_eos(torch.tensor(-1000.0))) == 1000.0
    certain = Rewritten(Dense(torch.zeros(2, 4)), (1,), lambda s: torch.full_like(s, -math.inf)).dense()
    assert certain.softmax(-1).tolist() == [[0, 1, 0, 0]] * 2
    nothing_else = torch.tensor([[-math.inf, 3.0, -math.inf]])
    assert torch.equal(Rewritten(Dense(nothing_else), (1,), lambda s: s - 1).dense(), nothing_else)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head", BOUNDED)
def test_the_promise_survives_low_precision(head: str, dtype: torch.dtype):
    epsilon = 1e-3
    layer = HEADS[head](epsilon)
    logits = torch.randn(1, 1500, VOCAB).to(dtype)
    logits[..., EOS] = 60 if head == "self-terminating" else -60
    survival, _ = layer(logits[..., EOS], layer.initial(1, CPU))
    log_probs = Rewritten(Dense(logits), (EOS,), lambda _: survival).dense().double().log_softmax(-1)
    log_survival = torch.log(-torch.expm1(log_probs[0, :, EOS]))
    bound = torch.arange(1, 1501, dtype=torch.float64) * math.log1p(-epsilon)
    assert_close(log_survival, bound, rtol=1e-4, atol=1e-5)


def test_several_ways_to_end_keep_their_ratios():
    logits = torch.randn(4, VOCAB, dtype=torch.float64)
    logits[1, 2] = -math.inf
    logits[2, [2, 5]] = -math.inf  # no probability to share: equally, then
    rewritten = Rewritten(Dense(logits), (2, 5), lambda s: s + math.log(0.5)).dense().softmax(-1)
    before = logits.softmax(-1)
    assert_close(1 - rewritten[:, [2, 5]].sum(1), 0.5 * (1 - before[:, [2, 5]].sum(1)))
    others = [0, 1, 3, 4, 6]
    assert_close(rewritten[:, others] / rewritten[:, others].sum(1, keepdim=True), logits[:, others].softmax(-1))
    assert_close(rewritten[[0, 1, 3], 2] * before[[0, 1, 3], 5], rewritten[[0, 1, 3], 5] * before[[0, 1, 3], 2])
    assert rewritten[2, 2] == rewritten[2, 5] > 0


def test_rewriting_to_what_is_already_there_changes_nothing():
    logits = torch.randn(5, VOCAB, dtype=torch.float64)
    assert_close(Rewritten(Dense(logits), (1, 4), lambda survival: survival).dense(), logits)
    eos, rest = logits[:, [1]], logits[:, [0, 2, 3, 4, 5, 6]].logsumexp(-1)
    assert_close(rewrite_eos(eos, rest, lambda survival: survival), eos)


@pytest.mark.parametrize("head", BOUNDED)
@pytest.mark.parametrize("epsilon", [0, 1, -0.1, 1.5, math.nan])
def test_bad_epsilon(head: str, epsilon: float):
    with pytest.raises(ValueError, match="epsilon must lie strictly between 0 and 1, got"):
        HEADS[head](epsilon)
