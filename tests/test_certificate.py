"""Certificates against decoding: every promise holds, every bound holds, and where it can be met it is met."""

import itertools
import json
import math
import re
from dataclasses import dataclass

import pytest
import torch
from definitions import kept_by_spec
from distributions import lined, listed, surveyed
from hypothesis import given, settings
from hypothesis import strategies as st
from members import (
    BOUNDED,
    DECODERS,
    EOS,
    EPSILON,
    MODELS,
    REACHING,
    RULES,
    SEARCHES,
    TEMPERED,
    VOCAB,
    Specimen,
    TwoEnds,
    fits,
    logit_against_eos,
    neural,
    prefixes,
)
from torch.nn import functional
from torch.testing import assert_close

import eosin
from eosin.decoding.floor import Floor
from eosin.decoding.samplers import Greedy, Sampler
from eosin.decoding.truncation import Consistent, Eta, Interval, MinP, SmallestSet, TopK, Typical
from eosin.errors import BadInput
from eosin.guarantees.certificate import EPSILONS, ONE_BY_ONE, EndingBounds, certify, find_epsilon, find_floor
from eosin.log_odds import NO_PROMISE, Promise, apply_temperature, find_last_finite, get_promise, is_most_probable
from eosin.logits import as_logits
from eosin.models.heads import HEADS, NonMonotonic, SelfTerminating
from eosin.models.neural_lm import CORES, NeuralLM
from eosin.proofs.constructions import Coin, Repeater, build_theorem_3_4

TEMPERATURES = [0.3, 1.0, 2.5]
PROMISING = [specimen for specimen in MODELS if hasattr(specimen.model, "promise")]
FITTING = [spec for spec in DECODERS if fits(spec, VOCAB)]


def counted(steps: int) -> torch.Tensor:
    return torch.arange(1, steps + 1, dtype=torch.float64)


def log_odds_of(logits, eos_ids, temperature: float = 1.0) -> torch.Tensor:
    """log(p(eos) / (1 - p(eos))) of each row."""
    dense = as_logits(logits).dense().detach().double() / temperature
    is_eos = torch.isin(torch.arange(dense.shape[1]), torch.tensor(eos_ids))
    return dense[:, is_eos].logsumexp(1) - dense[:, ~is_eos].logsumexp(1)


# the core: how far a direction reaches


def hidden_vectors(core, rows: int = 40, time: int = 12) -> torch.Tensor:
    inputs = 3 * torch.randn(rows, time, core.width, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return core(inputs, core.initial(rows))[0].detach().flatten(0, 1)


def lively_core(name: str):
    """Large weights, so that hidden units saturate; a norm with a gain and a bias; a start that lies outside."""
    core = neural(name, "softmax", gain=8.0, seed=4).core
    with torch.no_grad():
        for norm in (module for module in core.modules() if isinstance(module, torch.nn.LayerNorm)):
            norm.bias.normal_()
        getattr(core, "start", torch.empty(0)).normal_(0, 3)
    return core


@pytest.mark.parametrize("name", REACHING)
def test_no_hidden_vector_exceeds_the_reach(name: str):
    core = lively_core(name)
    hidden = hidden_vectors(core)
    generator = torch.Generator().manual_seed(6)
    directions = torch.cat([torch.randn(300, core.width, dtype=torch.float64, generator=generator), hidden, -hidden])
    assert ((directions @ hidden.T).amax(1) <= core.reach(directions) + 1e-9).all()


@pytest.mark.parametrize("name", REACHING)
def test_the_reach_is_reached(name: str):
    """In the direction of those of its entries that are saturated; or of what the last norm made."""
    core = neural(name, "softmax", gain=8.0, seed=4, layers=1).core
    hidden = hidden_vectors(core)
    directions = hidden if name == "transformer" else hidden.round()
    share = (directions * hidden).sum(1) / core.reach(directions)
    assert 0.9 < share[directions.any(1)].max() <= 1 + 1e-9


def test_a_gru_may_stay_where_it_started():
    core = CORES["gru"](width=4, layers=1).double()
    with torch.no_grad():
        core.start.fill_(3.0)
        core.layers[0].bias_ih_l0[4:8] = 40.0  # the update gate keeps all
    hidden = hidden_vectors(core)
    assert hidden.amin() > 2.9
    assert core.reach(torch.ones(1, 4, dtype=torch.float64)) == 12


# the model: p(eos) is never below what is promised


@pytest.mark.parametrize("specimen", PROMISING, ids=str)
def test_promises_hold_along_real_decodings(specimen: Specimen):
    """Along random tokens, at each step, in every row and at each temperature."""
    model, tokens = specimen.model, prefixes(12, length=30, seed=9)
    promised = {temperature: get_promise(model, temperature)(counted(30)) for temperature in TEMPERATURES}
    assert all((promise[1:] >= promise[:-1]).all() for promise in promised.values())
    logits, state = model.prefill(prefixes(12))
    for step, token in enumerate(tokens.T):
        for temperature, promise in promised.items():
            assert (log_odds_of(logits, model.eos_ids, temperature) >= promise[step] - 1e-9).all()
        logits, state = model.step(token, state)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", REACHING)
def test_xi_is_met_by_saturated_units(name: str, temperature: float):
    """All weights point where the hidden vector is: p(eos) comes within ten times of the bound of Lemma 3.2."""
    model = saturated(name, margin=2.0)
    promised = get_promise(model, temperature)(counted(1))
    found = log_odds_of(model.prefill(prefixes(5, length=8))[0], model.eos_ids, temperature)
    assert (found >= promised - 1e-9).all()
    assert (found <= promised + math.log(10)).all()
    xi = certify(model, f"ancestral,temperature={temperature}").log10_xi
    assert_close(xi, float(promised.sigmoid().log10()))


def saturated(name: str, margin: float) -> NeuralLM:
    """Reads every token alike; its logits lead that of eos by `margin`, which the hidden vector can hardly better."""
    model = neural(name, "softmax", layers=1, scale=0.0, gain=8.0)
    with torch.no_grad():
        model.embedding.weight.copy_(model.embedding.weight[:1].expand(VOCAB, -1))
        hidden = model.core(model.embedding(prefixes(1, length=8)), model.core.initial(1))[0][0, -1]
        direction = hidden if name == "transformer" else hidden.round()
        model.output.weight[:] = margin * direction / (direction @ hidden)
        model.output.weight[EOS] = 0
    return model


@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=9),
    st.integers(1, 3),
    st.sampled_from([0.1, 0.7, 1.0, 1.3, 5.0]),
)
def test_tempered_odds(logits: list[float], eos_count: int, temperature: float):
    row = torch.tensor([logits], dtype=torch.float64)
    eos = tuple(range(min(eos_count, len(logits) - 1)))
    bound = apply_temperature(log_odds_of(row, eos), temperature, len(logits), len(eos))
    assert (log_odds_of(row, eos, temperature) >= bound - 1e-9).all()


@pytest.mark.parametrize("eos_count", [1, 2])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_tempered_odds_can_be_no_better(temperature: float, eos_count: int):
    """Hot, where all other tokens are equal; cold, where there is one other, and equal ways to end."""
    others = 6 if temperature > 1 else 1
    eos = [-1.0] if temperature > 1 or eos_count == 1 else [-1.0] * eos_count
    row = torch.tensor([eos + [0.5] * others], dtype=torch.float64)
    ids = tuple(range(len(eos)))
    bound = apply_temperature(log_odds_of(row, ids), temperature, len(eos) + others, len(eos))
    assert_close(log_odds_of(row, ids, temperature), bound)


@dataclass
class Fixed:
    """Says the same at every step. What it promises is exactly so."""

    logits: torch.Tensor
    eos_ids: tuple[int, ...] = (0,)

    @property
    def vocab_size(self) -> int:
        return len(self.logits)

    def prefill(self, prefix):
        return self.logits.expand(len(prefix), -1), Coin(0.5).prefill(prefix)[1]

    def step(self, token, state):
        return self.logits.expand(len(token), -1), state

    def promise(self, temperature: float = 1.0):
        log_odds = log_odds_of(self.logits[None], self.eos_ids, temperature)
        return Promise(lambda steps: log_odds.expand(len(steps)), "exactly this")


@given(
    st.lists(st.floats(-12, 12), min_size=4, max_size=9),
    st.integers(1, 3),
    st.sampled_from(TEMPERATURES),
    st.sampled_from([0.01, 0.4, 0.9]),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_floor_keeps_its_promise(logits, eos_count: int, temperature: float, epsilon: float, grace: int, known: bool):
    """With several ways to end, at every temperature, on a model that promises something or nothing."""
    fixed = Fixed(torch.tensor(logits, dtype=torch.float64), tuple(range(eos_count)))
    if not known:
        fixed.promise = lambda temperature=1.0: NO_PROMISE
    floor = Floor(fixed, epsilon, grace)
    promised = floor.promise(temperature)(counted(8))
    answer, state = floor.prefill(prefixes(1, vocab=2))
    for step in range(8):
        found = log_odds_of(answer, fixed.eos_ids, temperature)
        assert (found >= promised[step] - 1e-9).all()
        if temperature == 1 and known:
            assert_close(found, promised[step : step + 1], rtol=1e-7, atol=1e-7)
        answer, state = floor.step(torch.tensor([1]), state)


# the decoder: what it passes on is what it does at least


def kept_log_odds(kept: set[int], probs: torch.Tensor, eos_count: int) -> float:
    ends = sum(float(probs[token]) for token in kept if token < eos_count)
    others = sum(float(probs[token]) for token in kept if token >= eos_count)
    return -math.inf if ends == 0 else math.inf if others == 0 else math.log(ends / others)


ALL_RULES = [*RULES, TopK(1), Typical(0.5), Eta(0.6), *map(Consistent, (TopK(1), Typical(0.5), MinP(0.5)))]


@pytest.mark.parametrize("rule", ALL_RULES, ids=str)
@settings(max_examples=25)
@given(
    st.lists(st.floats(-6, 3), min_size=4, max_size=12),
    st.integers(1, 3),
    st.floats(0.02, 0.999),
)
def test_rules_keep_what_they_certainly_keep(rule, logits: list[float], eos_count: int, total: float):
    """By list and by line, the odds of drawing eos are at least what the rule says it passes on."""
    while not fits(str(rule), len(logits)):
        logits = logits + logits
    row = torch.tensor(logits, dtype=torch.float64)
    row[:eos_count] += math.log(total / (1 - total)) - log_odds_of(row[None], range(eos_count))
    asked = surveyed(row[None], tuple(range(eos_count)))
    (passed,) = rule.passes_on(log_odds_of(row[None], range(eos_count)), len(logits), eos_count).tolist()
    for (kept,) in (lined(rule, asked), listed(rule, asked)):
        assert kept is None or kept_log_odds(kept, row.softmax(0), eos_count) >= passed - 1e-9


def just_below(rule, probability: float) -> list[float]:
    """A distribution with an eos of this probability, the first, that the rule likes as little as it can."""
    rest = 1 - probability
    if rule.name == "top-k":
        return [probability, *[rest / rule.k] * int(rule.k)]
    if rule.name == "nucleus":
        crowd = max(1, math.ceil(rest / probability) - 1)
        return [probability, *[rest / crowd] * crowd]
    return [probability, rest]


SHARP = [rule for rule in [*RULES, TopK(1)] if rule.name in ("top-k", "nucleus", "min-p", "epsilon")]
"""Rules whose thresholds are exact. Others may be lower than `certain` and `sole` say: that is safe."""


@pytest.mark.parametrize("rule", SHARP, ids=str)
def test_a_little_less_is_not_certain(rule):
    """Just below its threshold there is a distribution from which the rule drops eos."""
    certain = rule.certain(10_000)
    for probability, expected in ((certain * 0.999, False), (certain * 1.001, True)):
        probs = just_below(rule, probability)
        assert (0 in kept_by_spec(str(rule), probs)) == expected


@pytest.mark.parametrize("rule", [rule for rule in SHARP if rule.sole < 1], ids=str)
def test_a_little_less_is_not_sole(rule):
    for probability, expected in ((rule.sole * 0.999, False), (min(rule.sole * 1.001, 1 - 1e-9), True)):
        assert (kept_by_spec(str(rule), [probability, 1 - probability]) == {0}) == expected


@pytest.mark.parametrize("spec", FITTING)
def test_what_keeps_eos_passes_on_everything(spec: str):
    decoder = eosin.parse_decoder(spec)
    least = torch.tensor([-1e5], dtype=torch.float64)
    assert bool(decoder.passes_on(least, VOCAB, 1) == least) == decoder.keeps_eos


def test_a_top_k_of_the_whole_vocabulary_keeps_eos():
    assert certify(build_theorem_3_4(5), "top-k:5").theorem == "Theorem 4.1"
    assert certify(build_theorem_3_4(5), "top-k:5").consistent
    assert certify(build_theorem_3_4(6), "top-k:5").consistent is None


@dataclass(frozen=True)
class ClosestFirst(SmallestSet):
    """The rule of typical sampling, by somebody who writes no more than what it keeps."""

    name = "closest-first"
    mass: float
    allowed = (Interval(0, 1),)

    def order(self, next_token):
        entropy = next_token.entropy[:, None].to(next_token.dtype)
        return lambda log_probs: -(log_probs + entropy).abs()

    def keep(self, next_token):
        return None

    def enough(self, running, next_token):
        return running[0] >= self.mass


@dataclass(frozen=True)
class WithoutTheBest(ClosestFirst):
    """It says that it can drop the most probable token, and not when it keeps it."""

    name = "without-the-best"
    keeps_best = False


@pytest.mark.parametrize("rule", [ClosestFirst(0.2), WithoutTheBest(0.2)], ids=lambda rule: rule.name)
def test_nothing_is_promised_of_a_rule_that_says_too_little(rule):
    """The surprise of 0.25 is closer to the entropy than that of 0.55, so eos is dropped at every step."""
    model, sampler = Fixed(torch.tensor([0.55, 0.25, 0.1, 0.1]).log(), (0,)), Sampler(rule)
    assert not eosin.decode(model, [[1]] * 5, sampler, max_steps=50).terminated.any()
    assert certify(model, sampler).consistent is None
    assert certify(model, Sampler(Consistent(rule))).consistent


def test_a_tie_guarantees_nothing():
    ties = torch.tensor([0.0, math.log(2), math.log(3)], dtype=torch.float64)
    assert [is_most_probable(ties, count).tolist() for count in (1, 2, 3)] == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]


# the certificate: one formula


def bound_log_survival(model, spec: str, max_steps: int) -> torch.Tensor:
    """An upper bound on the log of the share that has not ended after 1, 2, ..., max_steps steps."""
    bounds = EndingBounds.create(model, spec)
    hazard = functional.softplus(bounds.bound_at(counted(max_steps)))
    return -functional.pad(hazard, (min(bounds.extra_steps, max_steps), 0)).cumsum(0)[:max_steps]


def brute_force(model, spec: str, steps: int) -> tuple[int | None, int | None]:
    """The first step that is certain, and the first after which survival is below 1e-6, by going through them."""
    bound = bound_log_survival(model, spec, steps)
    certain, rare = (bound == -math.inf).nonzero(), (bound < math.log(1e-6)).nonzero()
    return (int(certain[0]) + 1 if len(certain) else None), (int(rare[0]) + 1 if len(rare) else None)


@pytest.mark.parametrize("spec", FITTING)
@pytest.mark.parametrize("head", BOUNDED)
def test_bounds_are_the_curve_s(spec: str, head: str):
    model = neural("tanh", head, epsilon=0.02)
    found = certify(model, spec)
    certain, rare = brute_force(model, spec, 3000)
    assert found.consistent
    assert found.rare_after == rare
    assert found.ends_by == certain or (certain is None and (found.ends_by or 3001) > 3000)
    assert_close(found.log10_rare_after, math.log10(rare))


@pytest.mark.parametrize("epsilon", [0.9, 0.75, 0.5, 0.3, 1e-2, 1e-3, 2.5e-3, 1e-4, 1e-6, 1e-9])
def test_greedy_bounds_are_those_of_the_theorem(epsilon: float):
    """floor(B) + 1, also where B is a whole number; two ways to end take ln 3."""
    expected = math.floor(-math.log(2) / math.log1p(-epsilon)) + 1
    for head in (SelfTerminating(epsilon), NonMonotonic(epsilon)):
        model = NeuralLM(CORES["tanh"](width=4), head, VOCAB, EOS)
        assert certify(model, "greedy").ends_by == certify(model, "beam:5,stop=first").ends_by == expected
        assert certify(model, "beam:5").ends_by == expected + 4
    for inner in (Coin(0.0), TwoEnds()):
        floor = Floor(inner, epsilon, grace=7)
        assert certify(floor, "greedy").ends_by == floor.greedy_bound


@pytest.mark.parametrize("log10_p", [-0.2, -1, -3, -6.5, -12])
def test_constant_odds_have_a_closed_form(log10_p: float):
    p = 10**log10_p
    coin = Fixed(torch.tensor([p, 1 - p], dtype=torch.float64).log())
    found = certify(coin, "ancestral")
    exact = math.log(1e-6) / math.log1p(-p)
    assert found.rare_after == pytest.approx(math.floor(exact) + 1, rel=1e-9)
    assert found.log10_xi == pytest.approx(log10_p)
    assert_close(bound_log_survival(coin, "ancestral", 50), counted(50) * math.log1p(-p))


@pytest.mark.parametrize("lead", [100.0, 1000.0, 1e5])
def test_astronomical_bounds_are_powers_of_ten(lead: float):
    found = certify(Fixed(torch.tensor([0.0, lead], dtype=torch.float64)), "ancestral")
    assert found.rare_after is None
    assert found.log10_rare_after == pytest.approx((lead + math.log(math.log(1e6))) / math.log(10), rel=1e-9)
    assert found.log10_xi == pytest.approx(-lead / math.log(10))
    assert found.consistent
    assert f"10^{found.log10_rare_after:.1f} steps" in str(found)
    assert "`eosin audit` measures" in str(found)


def test_many_steps_are_added_up_in_blocks_never_too_few():
    epsilon = 1e-9
    model = NeuralLM(CORES["tanh"](width=4), SelfTerminating(epsilon), VOCAB, EOS)
    found = certify(model, "ancestral").rare_after
    _, exact = brute_force(model, "ancestral", 200_000)
    assert exact > 5 * ONE_BY_ONE
    assert exact <= found <= 1.005 * exact


def test_likely_eos_guarantees_greedy_decoding_on_a_plain_softmax():
    """Where xi itself exceeds one half, no head is needed."""
    model = neural("lstm", "softmax", scale=0.01, eos_bias=9.0)
    assert certify(model, "greedy").ends_by == certify(model, "beam:3,stop=first").ends_by == 1
    assert eosin.decode(model, prefixes(20), "greedy", max_steps=1).terminated.all()
    assert certify(neural("lstm", "softmax", scale=0.01, eos_bias=0.0), "greedy").consistent is None


# decoding: the bounds hold, and models that speak against eos come near them


def against_eos(core: str, head: str, epsilon: float, rivals: int = 1) -> NeuralLM:
    """Goes on as long as the head lets it: eos is as probable as it must be, and rivals share the rest."""
    model = neural(core, head, epsilon=epsilon, scale=0.0)
    with torch.no_grad():
        model.output.bias[EOS] = logit_against_eos(head, 1e3)
        model.output.bias[[token for token in range(VOCAB) if token != EOS][:rivals]] = 1e3
    return model


def bounded(core: str, kind: str, epsilon: float, against: bool):
    """A model with a head that promises, or on a floor; one with random weights, or one that speaks against eos."""
    head = "softmax" if kind == "floor" else kind
    model = against_eos(core, head, epsilon) if against else neural(core, head, epsilon=epsilon, eos_bias=-1.0)
    return Floor(model, epsilon, grace=3) if kind == "floor" else model


STRICT = ["greedy", "beam:3", "beam:3,stop=first", "top-k:1", "nucleus:0.2", "nucleus:0.7", "min-p:0.5", "epsilon:0.1"]


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", [*BOUNDED, "floor"])
def test_every_decoding_has_ended_by_the_certain_step(core: str, kind: str):
    """Rows end at different times, none of them later."""
    for against, spec in itertools.product((True, False), STRICT[:3] if core != "lstm" else STRICT):
        model = bounded(core, kind, 0.1, against)
        bound = certify(model, spec).ends_by
        found = eosin.decode(model, prefixes(12), spec, max_steps=bound)
        assert found.terminated.all()
        assert found.steps.max() <= bound


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", [*EPSILON, "floor"])
def test_the_certain_step_is_met(core: str, kind: str):
    """Where everything but the head speaks against eos, greedy decoding ends at that step and no other."""
    for epsilon in (0.05, 0.3):
        model = bounded(core, kind, epsilon, against=True)
        bound = certify(model, "greedy").ends_by
        assert (eosin.decode(model, prefixes(4), "greedy", max_steps=3 * bound).steps == bound).all()


class Echo(Coin):
    """Three tokens to begin with, of which each repeats itself for ever."""

    def __init__(self):
        super().__init__(0.0, vocab_size=4)

    def step(self, token, state):
        logits = torch.full((len(token), 4), -math.inf, dtype=torch.float64).scatter(1, token[:, None], 0.0)
        return torch.where(token[:, None] == 0, self.probs.log(), logits), state


@pytest.mark.parametrize("epsilon", [0.02, 0.3])
def test_the_certain_step_of_a_beam_is_met(epsilon: float):
    floor = Floor(Echo(), epsilon, grace=1)
    bound = certify(floor, "beam:3,stop=first").ends_by
    assert certify(floor, "beam:3").ends_by == bound + 2
    for spec in ("beam:3,stop=first", "beam:3"):
        assert eosin.decode(floor, [[0], [0]], spec, max_steps=3 * bound).steps.tolist() == [bound, bound]


MEASURED = {
    "ancestral": 1, "ancestral,temperature=0.5": 1, "ancestral,temperature=2": 6, "consistent-nucleus:0.2": 1,
    "top-k:2": 2, "nucleus:0.9": 6, "typical:0.6": 1, "eta:0.1": 1,
}  # fmt: skip


@pytest.mark.parametrize(("spec", "rivals"), MEASURED.items())
def test_measured_survival_is_below_the_bound_and_near_it(spec: str, rivals: int):
    """A thousand decodings of a model that goes on as long as it can: at no step do more go on than may."""
    model, contexts = against_eos("tanh", "self-terminating", 0.1, rivals), 1000
    bound = bound_log_survival(model, spec, 40).exp()
    steps = eosin.decode(model, prefixes(1).expand(contexts, -1), spec, max_steps=40).steps
    survival = (steps[:, None] > torch.arange(1, 41)).double().mean(0)
    error = (bound * (1 - bound) / contexts).sqrt()
    assert (survival <= bound + 5 * error + 1e-9).all()
    likely = (bound > 0.05) & (bound < 1)
    assert (survival[likely] >= bound[likely] / 10).all()
    assert likely.any()
    assert (steps <= certify(model, spec).rare_after).all()


@pytest.mark.parametrize("spec", [spec for spec in FITTING if fits(spec, 4) and not spec.startswith("beam")])
def test_survival_by_enumeration(spec: str):
    """Every path that does not end, with its exact probability, on a model with random weights."""
    for head in BOUNDED:
        model = neural("gru", head, vocab=4, epsilon=0.1, layers=1, eos_bias=logit_against_eos(head, 4.0))
        bound = bound_log_survival(model, spec, 4)
        exact = survival_of(model, eosin.parse_decoder(spec), 4)
        assert all(share <= math.exp(most) + 1e-9 for share, most in zip(exact, bound, strict=False))
        assert exact[0] > 0


def survival_of(model, decoder, steps: int) -> list[float]:
    """The probability that decoding goes on, after each step."""
    found, weight = [], torch.ones(1, dtype=torch.float64)
    logits, state = model.prefill(torch.tensor([[1, 2]]))
    for _ in range(steps):
        induced = weight[:, None] * induced_by(decoder, as_logits(logits).dense().detach())
        row, token = induced[:, :EOS].nonzero(as_tuple=True)
        weight = induced[row, token]
        found.append(float(weight.sum()))
        if not len(row):
            return found
        logits, state = model.step(token, state.select(row))
    return found


def induced_by(decoder, logits: torch.Tensor) -> torch.Tensor:
    """The distribution a decoder draws from, by the definitions of its rules."""
    probs = (logits / getattr(decoder, "temperature", 1.0)).softmax(-1)
    rule, kept = getattr(decoder, "truncation", TopK(1)), torch.ones_like(probs)
    inner = getattr(rule, "inner", rule)
    if inner is not None and not inner.complete:
        sets = [kept_by_spec(str(inner), row) for row in probs.tolist()]
        kept = torch.tensor([[float(token in kept) for token in range(probs.shape[1])] for kept in sets])
    if rule is not inner:
        kept[:, EOS] = 1
    return probs * kept / (probs * kept).sum(1, keepdim=True)


# where nothing is guaranteed


@pytest.mark.parametrize("spec", FITTING)
def test_what_is_guaranteed_of_the_model_of_theorem_3_4(spec: str):
    """Its p(eos) is above 3e-4, so a cut there is harmless."""
    found = certify(build_theorem_3_4(VOCAB, EOS), spec)
    harmless = eosin.parse_decoder(spec).keeps_eos or spec in ("epsilon:3e-4", "eta:3e-4")
    assert found.consistent == (True if harmless else None)
    assert found.theorem == ("Theorem 4.1" if harmless else "Theorem 3.4")
    assert -3.5 < found.log10_xi < 0 or "temperature" in spec
    assert ("nothing is guaranteed" in str(found)) == (not harmless)


@pytest.mark.parametrize("spec", ["greedy", "beam:3", "beam:3,stop=first", "top-k:2", "nucleus:0.4", "min-p:0.5"])
def test_where_nothing_is_guaranteed_decoding_does_not_end(spec: str):
    model = build_theorem_3_4(VOCAB, EOS)
    assert certify(model, spec).theorem == "Theorem 3.4"
    assert not eosin.decode(model, prefixes(4), spec, max_steps=50).terminated.any()


def test_what_is_guaranteed_of_it_happens():
    model = build_theorem_3_4(VOCAB, EOS)
    for spec in ("epsilon:3e-4", "consistent-top-k:2"):
        steps = certify(model, spec).rare_after
        assert eosin.decode(model, prefixes(4), spec, max_steps=steps).terminated.all()


@pytest.mark.parametrize("model", [Coin(0.3, VOCAB), Repeater(4, p=0.0)], ids=["coin", "loop"])
def test_of_a_toy_nothing_is_known(model):
    for spec in ("ancestral", "consistent-top-k:2", "greedy", "nucleus:0.4"):
        found = certify(model, spec)
        assert found.consistent is found.ends_by is found.rare_after is found.log10_xi is None
        assert "nothing about p(eos)" in str(found)
    assert certify(model, "ancestral").theorem == "Theorem 4.1"
    assert "if p(eos) stays above some number" in str(certify(model, "ancestral"))
    assert certify(model, "greedy").theorem == "Theorem 3.4"


class Own(torch.nn.Module):
    """A head without a promise."""

    def __init__(self):
        super().__init__()
        self.inner = HEADS["self-terminating"](0.1)
        self.memory_shape = self.inner.memory_shape

    def forward(self, eos_logits, memory):
        return self.inner(eos_logits, memory)


def test_parts_of_one_s_own_promise_nothing():
    model = neural("tanh", "softmax")
    model.head = Own()
    assert certify(model, "ancestral").consistent is None
    model = neural("tanh", "softmax")
    core, model.core = model.core, torch.nn.Identity()
    assert certify(model, "ancestral").consistent is None
    model.core = core
    assert certify(model, "ancestral").consistent
    with torch.no_grad():
        model.output.bias[0] = math.nan
    assert certify(model, "ancestral").consistent is None


class SecondBest(Greedy):
    """A decoder that says nothing of what it passes on."""

    passes_on = None

    def __str__(self):
        return "second-best"


def test_a_decoder_of_one_s_own():
    found = certify(neural("tanh", "self-terminating"), SecondBest())
    assert found.consistent is None
    assert found.theorem == "Theorem 3.4"
    assert "p(eos) <= 1;" in str(found)


# budgets


@pytest.mark.parametrize("spec", [*SEARCHES, *TEMPERED, *(str(rule) for rule in RULES[::2] if rule != TopK(100))])
def test_a_floor_for_a_budget(spec: str):
    """It keeps to the budget, and the next lower one does not; half of the steps are left alone."""
    loop, budget = Repeater(VOCAB - 1, p=0.0), 12
    floor = find_floor(loop, spec, budget)
    assert certify(floor, spec).ends_within(budget)
    lower = EPSILONS[EPSILONS.index(floor.epsilon) - 1]
    assert not certify(Floor(loop, lower, floor.grace), spec).ends_within(budget)
    assert floor.grace == budget // 2
    assert floor.model is loop
    assert eosin.decode(floor, prefixes(30), spec, max_steps=budget).terminated.all()


def test_floors_in_numbers():
    expected = {"greedy": 2.77e-3, "beam:4": 2.81e-3, "beam:4,stop=first": 2.77e-3, "ancestral": 4.41e-4}
    for spec, epsilon in expected.items():
        floor = find_floor(Coin(0.0, VOCAB), spec, 500)
        assert (floor.epsilon, floor.grace) == (epsilon, 250)


def test_a_short_budget_shortens_the_grace_and_a_given_one_stays():
    assert find_floor(Coin(0.0), "beam:4", 5).grace == 1
    assert find_floor(Coin(0.0), "greedy", 100, grace=0).grace == 0
    assert find_floor(Coin(0.0), "greedy", 100, grace=99).epsilon == 0.501
    with pytest.raises(BadInput, match="no floor with a grace of 100 ends greedy by step 100"):
        find_floor(Coin(0.0), "greedy", 100, grace=100)
    with pytest.raises(BadInput, match="no floor with a grace of 0 ends beam:4 by step 3"):
        find_floor(Coin(0.0), "beam:4", 3)
    with pytest.raises(BadInput, match="budget must be a whole number from 1"):
        find_floor(Coin(0.0), "greedy", 0)


@pytest.mark.parametrize("budget", [1, 2, 69, 500, 693, 1500, 100_000])
def test_an_epsilon_for_a_budget(budget: int):
    epsilon = find_epsilon(budget)
    lower = EPSILONS[EPSILONS.index(epsilon) - 1]

    def bound(epsilon: float) -> int:
        return certify(NeuralLM(CORES["tanh"](width=4), SelfTerminating(epsilon), VOCAB, EOS), "greedy").ends_by

    assert bound(epsilon) <= budget < bound(lower)


# bounds that leave float64


class Bounded(NonMonotonic):
    """A head that says it has any bound."""

    grounds = "p(eos) as said"

    def __init__(self, bound):
        super().__init__()
        self.bound = bound


def with_bound(bound) -> NeuralLM:
    return NeuralLM(CORES["tanh"](width=4), Bounded(bound), VOCAB, EOS)


OVERFLOWS = {
    "exponential": lambda steps: -(steps / 10).exp(),
    "square": lambda steps: -(steps**2),
    "cancelled": lambda steps: torch.log(1 - (1 - 0.9**steps)),
    "certain": lambda steps: (1 - steps / 30).clamp(min=0).log(),
}


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_bound_that_becomes_infinite_claims_no_more_than_its_last_finite_value(name: str, temperature: float):
    """At 7,098 steps exp overflows: float64 cannot tell that from p(eos) = 1, so no sampler is said to have ended."""
    bound = OVERFLOWS[name]
    found = certify(with_bound(bound), f"ancestral,temperature={temperature}")
    assert found.ends_by is None
    assert found.consistent
    assert 1 <= found.rare_after <= 4000
    steps = counted(8000)
    finite = bound(steps) > -math.inf
    if not finite.all():
        assert find_last_finite(bound) == bound(steps)[finite][-1]
    promised = get_promise(with_bound(bound))(steps)
    assert promised.isfinite().all()
    assert (promised.diff() >= 0).all()
    assert (promised[~finite] == promised.max()).all()


def test_a_bound_that_is_never_finite_promises_nothing():
    assert certify(with_bound(lambda steps: torch.full_like(steps, -math.inf)), "ancestral").consistent is None


def test_absurd_steps_are_powers_of_ten():
    said = str(certify(with_bound(lambda steps: -torch.log1p(steps * 1e-200)), "greedy"))
    assert "Every decoding has ended by step 10^200.0." in said
    assert "From step 10^200.0 on" in said
    assert not re.search("[0-9,]{25}", said)


# what is said


def test_a_certificate_for_machines():
    found = certify(neural("lstm", "self-terminating", epsilon=0.01), "beam:4,stop=first")
    again = json.loads(json.dumps(found.as_json()))
    assert again["decoder"] == "beam:4,stop=first"
    assert (again["ends_by"], again["theorem"], again["consistent"]) == (69, "Theorem 4.3", True)
    assert again["explanation"] == list(found.explanation)


def test_a_certificate_for_people():
    floor = Floor(neural("lstm", "softmax"), 0.01, grace=20)
    assert str(certify(floor, "greedy")).splitlines()[:4] == [
        "greedy: always ends (Theorem 4.2)",
        "  Every decoding has ended by step 89.",
        "  From step 89 on it cannot pass over eos, for p(eos) > 0.5.",
        "  Known of the model: p(eos) >= 1 - (1 - 0.01)^(t - 20) at step t > 20, by the floor.",
    ]
    assert "p(eos) at temperature 2 > 0.05" in str(certify(floor, "typical:0.95,temperature=2"))


@pytest.mark.parametrize("spec", ["top-k:8", "gredy", "nucleus:7"])
def test_bad_decoders(spec: str):
    with pytest.raises(BadInput):
        certify(Coin(0.5, VOCAB), spec)


def test_samplers_made_by_hand():
    model = neural("tanh", "softmax")
    assert certify(model, Sampler(Consistent(TopK(2)), 0.8)).log10_xi < certify(model, Sampler()).log10_xi
