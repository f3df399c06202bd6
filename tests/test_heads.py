"""The heads against their definitions in tests/definitions.py, over 1,500 steps."""

import math
from fractions import Fraction

import pytest
import torch
from definitions import SURVIVALS, survivals_by
from hypothesis import given
from hypothesis import strategies as st
from members import BOUNDED, EOS, EPSILON, VOCAB, logit_against_eos, neural, prefixes
from torch.testing import assert_close

import eosin
from eosin.errors import BadInput
from eosin.logits import Dense, Rewritten, log_odds_of_eos, rewrite_eos
from eosin.models.checkpoint import Architecture
from eosin.models.heads import HEADS, NonMonotonic, SelfTerminating, Softmax, build_head, keeps_softmax, resolve_head
from eosin.models.neural_lm import CORES, NeuralLM

REWRITING = [name for name, head in HEADS.items() if not keeps_softmax(head(**head.examples[0]))]
EXAMPLES = [(name, settings) for name in REWRITING for settings in HEADS[name].examples]
BOUNDED_EXAMPLES = [(name, settings) for name, settings in EXAMPLES if name in BOUNDED]


def start(layer, rows: int) -> torch.Tensor:
    return torch.zeros(rows, *layer.memory_shape, dtype=torch.float64)


def run(layer, eos_logits: torch.Tensor) -> torch.Tensor:
    """log(1 - p(eos)) at each position."""
    return layer(eos_logits, start(layer, len(eos_logits)))[0]


def defined(head: str, eos_logits: torch.Tensor, settings: dict) -> torch.Tensor:
    """1 - p_t(eos) by definition, of logits that are those of eos alone."""
    rows = [survivals_by(head, [[z] for z in row], 0, **settings) for row in eos_logits.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def test_every_head_has_a_definition_and_examples():
    assert set(HEADS) == set(SURVIVALS)
    assert all(head.examples for head in HEADS.values())


@pytest.mark.parametrize(("head", "settings"), EXAMPLES, ids=str)
def test_log_survival_is_the_definition_over_1500_steps(head: str, settings: dict):
    generator = torch.Generator().manual_seed(0)
    # "go on" most of the time, in the sense of the head, so that a product does not vanish at once
    eos_logits = logit_against_eos(head, 1.0) * (6 + torch.randn(3, 1500, generator=generator, dtype=torch.float64))
    survival = run(HEADS[head](**settings), eos_logits)
    assert_close(survival.exp(), defined(head, eos_logits, settings), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("head", HEADS)
def test_one_formula_for_sequence_and_step(head: str):
    layer = HEADS[head](**HEADS[head].examples[0])
    eos_logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    whole, memories = layer(eos_logits, start(layer, 4))
    assert memories.shape == (4, 300, *layer.memory_shape)
    assert memories.dtype == torch.float64
    memory = start(layer, 4)
    for place, column in enumerate(eos_logits.T):
        survival, after = layer(column[:, None], memory)
        memory = after[:, -1]
        assert_close(memory, memories[:, place], rtol=1e-12, atol=0)
        assert survival is whole is None or torch.allclose(survival[:, 0], whole[:, place], rtol=1e-12, atol=0)


@pytest.mark.parametrize("head", HEADS)
def test_distribution_is_the_definition(head: str):
    """softmax of the rewritten logits: eos as defined, the other tokens in the ratios of their softmax."""
    model = neural("lstm", head)
    prefix, tokens = prefixes(5), prefixes(5, length=30, seed=2)
    logits, _ = model(torch.cat([prefix, tokens], 1), model.initial(5), context=2)
    probs = logits.dense().softmax(-1)
    plain = (logits.source if isinstance(logits, Rewritten) else logits).dense()
    others = [token for token in range(VOCAB) if token != EOS]
    rows = [survivals_by(head, row, EOS, **HEADS[head].examples[0]) for row in plain.tolist()]
    expected_survival = torch.tensor(rows, dtype=torch.float64)
    assert_close(probs[..., EOS], 1 - expected_survival, rtol=1e-9, atol=1e-12)
    rest = plain[..., others].softmax(-1) * expected_survival[..., None]
    assert_close(probs[..., others], rest, rtol=1e-9, atol=0)


@pytest.mark.parametrize("head", REWRITING)
def test_context_does_not_count(head: str):
    """The count starts after the prefix: a longer prefix with the same last hidden vector changes nothing."""
    model = neural("tanh", head, epsilon=0.1)
    for length in (1, 5, 20):
        logits, _ = model.prefill(prefixes(3, length=length))
        expected = run(model.head, logits.source.dense()[:, EOS, None])
        assert_close(1 - logits.dense().softmax(-1)[:, EOS], expected[:, 0].exp())


@pytest.mark.parametrize(("head", "settings"), BOUNDED_EXAMPLES, ids=str)
def test_the_bound_holds_for_adversarial_logits_and_never_rises(head: str, settings: dict):
    """However large the logits that speak against eos."""
    layer = HEADS[head](**settings)
    bound = layer.bound(torch.arange(1, 1501, dtype=torch.float64))
    assert (bound[1:] <= bound[:-1]).all()
    assert bound[-1] < -math.log(2)
    for eos_logit in (-1e4, -50.0, 0.0, 50.0, 1e4):
        survival = run(layer, torch.full((1, 1500), eos_logit))
        assert (survival[0] <= bound * (1 - 1e-12)).all()
        assert not survival.isnan().any()
    assert "p(eos)" in layer.grounds


@pytest.mark.parametrize(("head", "settings"), EXAMPLES, ids=str)
def test_the_sign_of_the_eos_logit_is_as_declared(head: str, settings: dict):
    layer = HEADS[head](**settings)
    low, high = (float(run(layer, torch.tensor([[z]]))) for z in (-3.0, 3.0))
    assert (high < low) == layer.logit_favors_eos


@pytest.mark.parametrize("alias", ["st", "nmst"])
def test_an_alias_is_read_and_stays_as_it_was_written(alias: str):
    name = {"st": "self-terminating", "nmst": "non-monotonic"}[alias]
    settings = resolve_head({"kind": alias, "epsilon": 0.01})
    assert settings == {"kind": alias, "epsilon": 0.01}
    assert type(build_head(settings)) is HEADS[name]
    old = {"core": {"kind": "tanh", "width": 4}, "head": {"kind": alias}, "output": {"vocab_size": 5, "eos_id": 0}}
    assert Architecture.resolve(old).sections["head"] == {"kind": alias, "epsilon": 1e-3}
    with pytest.raises(BadInput, match="did you mean 'non-monotonic'"):
        resolve_head({"kind": "non-monotone"})


def test_a_subclass_with_another_forward_does_not_keep_the_softmax():
    class AlwaysSome(Softmax):
        def forward(self, eos_logits, memory):
            return torch.full_like(eos_logits, -0.05, dtype=torch.float64), super().forward(eos_logits, memory)[1]

    assert keeps_softmax(Softmax())
    assert not keeps_softmax(AlwaysSome())
    model = neural("tanh", "softmax")
    model.head = AlwaysSome()
    assert eosin.certify(model, "ancestral").consistent is None


def test_self_terminating_never_falls():
    layer = SelfTerminating(1e-3)
    eos_logits = 5 * torch.randn(8, 400, generator=torch.Generator().manual_seed(2))
    survival = run(layer, eos_logits)
    assert (survival.diff(dim=1) < 0).all()


def test_non_monotonic_may_fall():
    layer = NonMonotonic(1e-3)
    survival = run(layer, torch.tensor([[3.0, -3.0]]))
    assert survival[0, 1] > survival[0, 0]


@pytest.mark.parametrize("head", REWRITING)
def test_gradients_of_the_rewritten_distribution(head: str):
    layer = HEADS[head](**HEADS[head].examples[0])

    def log_probs(logits: torch.Tensor) -> torch.Tensor:
        survival = run(layer, logits[..., EOS])
        return Rewritten(Dense(logits), (EOS,), lambda _: survival).dense().log_softmax(-1)

    logits = torch.randn(2, 6, VOCAB, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_probs, (logits,))


@pytest.mark.parametrize("head", REWRITING)
def test_gradients_stay_finite_far_out(head: str):
    """Where p(eos) is so close to zero or one that a clamp would have cut the gradient off."""
    layer = HEADS[head](**HEADS[head].examples[0])
    for size in (40.0, -40.0, 700.0, -700.0):
        logits = torch.zeros(1, 1500, VOCAB, dtype=torch.float64)
        logits[..., EOS] = size
        logits.requires_grad_()
        survival = run(layer, logits[..., EOS])
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
def test_the_bound_survives_low_precision(head: str, dtype: torch.dtype):
    layer = HEADS[head](**HEADS[head].examples[0])
    logits = torch.randn(1, 1500, VOCAB).to(dtype)
    logits[..., EOS] = logit_against_eos(head, 60)
    survival = run(layer, logits[..., EOS])
    log_probs = Rewritten(Dense(logits), (EOS,), lambda _: survival).dense().double().log_softmax(-1)
    log_survival = torch.log(-torch.expm1(log_probs[0, :, EOS]))
    bound = layer.bound(torch.arange(1, 1501, dtype=torch.float64))
    assert (log_survival <= bound * (1 - 1e-4) + 1e-5)[bound > -10].all()  # beyond, 1 - p(eos) drowns in rounding


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


@pytest.mark.parametrize("head", EPSILON)
@pytest.mark.parametrize("epsilon", [0, 1, -0.1, 1.5, math.nan])
def test_bad_epsilon(head: str, epsilon: float):
    with pytest.raises(ValueError, match="epsilon must lie strictly between 0 and 1, got"):
        HEADS[head](epsilon)


class Flat(NonMonotonic):
    """Forgets that a sequence has a time."""

    def forward(self, eos_logits, memory):
        log_survival, memories = super().forward(eos_logits, memory)
        return log_survival[:, 0].float(), memories


class Forgetful(NonMonotonic):
    """Returns the last memory only."""

    def forward(self, eos_logits, memory):
        log_survival, memories = super().forward(eos_logits, memory)
        return log_survival, memories[:, -1]


@pytest.mark.parametrize(
    ("head", "got"),
    [(Flat, r"got \(2,\) float32 and \(2, 3\) float64"), (Forgetful, r"got \(2, 3\) float64 and \(2,\) float64")],
)
def test_a_head_of_wrong_shapes_is_one_line(head: type, got: str):
    with pytest.raises(BadInput, match=rf"the head {head.__name__} must answer .* here \(2, 3\) float64 and .*{got}"):
        NeuralLM(CORES["tanh"](width=4), head(), VOCAB, EOS)
