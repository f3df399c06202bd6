"""The termination floor: its formula, its bound, and that it wraps anything."""

import math

import pytest
import torch
from members import MODELS, Specimen, TwoEnds, fits, neural, prefixes
from torch.testing import assert_close

import eosin
from eosin.decoding.floor import Floor
from eosin.logits import as_logits
from eosin.proofs.constructions import Coin, Repeater, build_theorem_3_4


def probs(logits):
    return as_logits(logits).dense().double().softmax(-1).detach()


@pytest.mark.parametrize("grace", [0, 3])
def test_formula(specimen: Specimen, grace: int):
    model, epsilon = specimen.model, 0.07
    floor = Floor(model, epsilon, grace)
    eos = list(model.eos_ids)
    others = [token for token in range(model.vocab_size) if token not in eos]
    prefix, tokens = prefixes(4), prefixes(4, length=12, seed=2)
    (plain, state), (raised, floor_state) = model.prefill(prefix), floor.prefill(prefix)
    for step, token in enumerate(tokens.T, start=1):
        before, after = probs(plain), probs(raised)
        factor = (1 - epsilon) ** max(0, step - grace)
        assert_close(1 - after[:, eos].sum(1), (1 - before[:, eos].sum(1)) * factor, atol=1e-6, rtol=1e-6)
        assert_close(after[:, others], before[:, others] * factor, atol=1e-6, rtol=1e-6)
        (plain, state), (raised, floor_state) = model.step(token, state), floor.step(token, floor_state)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.3, 0.5])
@pytest.mark.parametrize("grace", [0, 20])
def test_greedy_ends_within_the_bound(epsilon: float, grace: int):
    """On a model that never ends, the bound is met exactly."""
    floor = Floor(Repeater(3, p=0.0), epsilon, grace)
    found = eosin.decode(floor, [[1], [2]], "greedy", max_steps=2 * floor.greedy_bound)
    assert found.terminated.all()
    assert (found.lengths <= floor.greedy_bound).all()
    assert (found.lengths >= floor.greedy_bound - 1).all()


@pytest.mark.parametrize("epsilon", [1e-2, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_with_two_ways_to_end(epsilon: float, dtype: torch.dtype):
    """They share p(eos), so the most probable of them takes longer to lead."""
    floor = Floor(TwoEnds(dtype), epsilon)
    found = eosin.decode(floor, [[1], [2]], "greedy", max_steps=2 * floor.greedy_bound)
    assert found.terminated.all()
    assert floor.greedy_bound - 1 <= found.lengths.min() <= found.lengths.max() <= floor.greedy_bound
    assert floor.greedy_bound == math.floor(-math.log(3) / math.log1p(-epsilon)) + 1


def test_the_bound_is_not_lost_to_float32():
    """p(eos) is above one half by a hair at the last step; in float32 it would be a tie, won by the lower id."""

    class One(Coin):
        eos_ids = (1,)

        def step(self, token, state):
            return torch.tensor([20.0, -math.inf]).expand(len(token), -1), state

    floor = Floor(One(0.0), 1 - 2 ** (-1 / 68.99999))
    assert floor.greedy_bound == 69
    assert eosin.decode(floor, [[0]], "greedy", max_steps=100).lengths.tolist() == [69]


def test_a_floor_under_a_model_that_always_ends():
    found = eosin.decode(Floor(Coin(1.0), 0.1), [[1]], "greedy", max_steps=5)
    assert found.tokens == [[0]]
    assert found.log_prob.tolist() == [0.0]


@pytest.mark.parametrize(("epsilon", "bound"), [(1e-2, 69), (1e-3, 693), (2.5e-3, 277), (1e-4, 6932)])
def test_bounds_in_numbers(epsilon: float, bound: int):
    assert Floor(Coin(0.0), epsilon).greedy_bound == bound


@pytest.mark.parametrize("specimen", MODELS, ids=str)
def test_greedy_ends_for_every_model(specimen: Specimen):
    floor = Floor(specimen.model, epsilon=0.05, grace=4)
    found = eosin.decode(floor, prefixes(20), "greedy", max_steps=100)
    assert found.terminated.all()
    assert found.lengths.max() <= floor.greedy_bound == 4 + 14


@pytest.mark.parametrize("spec", ["greedy", "beam:4", "beam:4,stop=first", "top-k:2", "nucleus:0.5", "min-p:0.1"])
def test_the_floor_ends_what_theorem_3_4_says_never_ends(spec: str):
    model = build_theorem_3_4(9)
    assert fits(spec, 9)
    assert not eosin.decode(model, prefixes(5, vocab=9), spec, max_steps=400).terminated.any()
    assert eosin.decode(Floor(model, 0.01), prefixes(5, vocab=9), spec, max_steps=400).terminated.all()


def test_nothing_changes_during_the_grace_period():
    model = neural("lstm", "softmax", seed=3)
    plain, raised = (eosin.decode(m, prefixes(30), "ancestral", max_steps=10) for m in (model, Floor(model, 0.5, 10)))
    assert plain.tokens == raised.tokens


@pytest.mark.parametrize("settings", [{"epsilon": 0}, {"epsilon": 1}, {"epsilon": math.nan}, {"grace": -1}])
def test_bad_settings(settings):
    with pytest.raises(ValueError, match=r"(epsilon|grace) must"):
        Floor(Coin(0.5), **settings)


def test_a_floor_is_a_module_around_a_module():
    model = neural("tanh", "softmax").train()
    floor = Floor(model, 0.1)
    assert sum(p.numel() for p in floor.parameters()) == sum(p.numel() for p in model.parameters())
    floor.eval()
    assert not model.training
    assert "epsilon=0.1, grace=0" in repr(floor)
    assert torch.equal(floor.score(prefixes(2), prefixes(2, length=1)).isfinite(), torch.ones(2, 1, dtype=torch.bool))
