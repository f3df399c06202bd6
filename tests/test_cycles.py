"""Certified cycles: what is proved never ends, in float32 and float64, and impostors are not proved."""

import pytest
import torch
from members import neural
from torch.testing import assert_close

import eosin
from eosin.auditing.loops import repeating_tail
from eosin.models.dynamics import dynamics_of
from eosin.models.heads import HEADS
from eosin.models.language_model import CORES
from eosin.models.recurrent import Recurrent
from eosin.theory.cycles import ROUNDING, certify, norm_bound

RECURRENT = [name for name, core in CORES.items() if issubclass(core, Recurrent)]
VOCAB, EOS, STEPS = 40, 3, 200


def looping_model(core: str, seed: int, gain: float = 1.0, **settings):
    return neural(
        core, "softmax", vocab=VOCAB, eos=EOS, width=12, seed=seed, gain=gain, scale=2.0, eos_bias=-50.0, **settings
    )


@torch.no_grad()
def state_after(model, prefix, tokens):
    """The state before the last of the tokens is read: the one from which it was chosen."""
    _, state = model.prefill(prefix)
    for token in tokens[:-1]:
        _, state = model.step(torch.tensor([token]), state)
    return state


def candidates(core: str, gain: float = 1.0, seeds: int = 12):
    """Models, and the cycle of tokens and the state in which greedy decoding from some prefix finds itself."""
    for seed in range(seeds):
        model = looping_model(core, seed, gain)
        prefix = torch.tensor([[1, 2, 5]])
        tokens = eosin.decode(model, prefix, "greedy", max_steps=STEPS).tokens[0]
        tail = repeating_tail(torch.tensor(tokens).numpy())
        if tail is None:
            continue
        state = state_after(model, prefix, tokens[: STEPS - tail.period + 1])
        yield model, tokens[STEPS - tail.period :], dynamics_of(model).flat(state.first.tensors)[0]


@pytest.mark.parametrize("core", RECURRENT)
def test_most_loops_of_small_models_are_proved_and_run_for_ever(core: str):
    found = [
        (model, certify(dynamics_of(model), tokens, state, (EOS,)), tokens) for model, tokens, state in candidates(core)
    ]
    proved = [(model, cycle) for model, cycle, _ in found if cycle is not None]
    assert len(found) >= 6
    assert len(proved) >= len(found) // 2
    for number, (model, cycle) in enumerate(proved):
        assert cycle.margin > 0
        assert cycle.contraction < 1
        assert cycle.widest < 1
        runs_for_ever(model, cycle, steps=100 if number else 3_000)


@torch.no_grad()
def runs_for_ever(model, cycle, steps: int):
    """From the edge of the ball, in both precisions, the tokens are those of the cycle."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(8, len(cycle.centre), dtype=torch.float64, generator=generator)
    starts = cycle.centre + directions / directions.norm(dim=1, keepdim=True) * cycle.radius * 0.999
    for dtype in (torch.float32, torch.float64):
        model = model.to(dtype)
        _, state = model.prefill(torch.tensor([[1]] * 8))
        tensors = tuple(part.to(dtype) for part in starts.split(12, dim=1))
        state = type(state)(type(state.first)(tensors), state.second)
        for step in range(steps):
            token = cycle.tokens[step % cycle.period]
            logits, state = model.step(torch.full((8,), token), state)
            assert (logits.dense().argmax(1) == cycle.tokens[(step + 1) % cycle.period]).all()
    model.to(torch.float64)


@pytest.mark.parametrize("core", RECURRENT)
def test_a_step_in_float32_errs_less_than_is_allowed(core: str):
    for model, tokens, state in candidates(core, seeds=4):
        dynamics = dynamics_of(model)
        exact = dynamics.advance(tokens[0], state)
        small = model.to(torch.float32)
        inside = type(small.core.initial(1))(tuple(part[None].float() for part in state.split(12)))
        embedded = small.embedding(torch.tensor([[tokens[0]]]))
        _, after = small.core(embedded, inside)
        assert float((dynamics.flat(after.tensors)[0] - exact).detach().norm()) < ROUNDING


@pytest.mark.parametrize("core", RECURRENT)
def test_a_cycle_through_eos_is_no_proof(core: str):
    for model, tokens, state in candidates(core, seeds=3):
        assert certify(dynamics_of(model), tokens, state, (EOS, tokens[0])) is None


@pytest.mark.parametrize("core", RECURRENT)
def test_other_tokens_than_those_chosen_are_no_proof(core: str):
    for model, tokens, state in candidates(core, seeds=6):
        other = [(token + 1) % VOCAB for token in tokens]
        other = [token + (token == EOS) for token in other]
        cycle = certify(dynamics_of(model), other, state, (EOS,))
        if cycle is not None:  # then it is a cycle of this model too
            runs_for_ever(model, cycle, steps=100)


def test_a_repelling_cycle_is_not_proved():
    """h' = tanh(2 h) has a fixed point at 0 that everything leaves."""
    model = looping_model("tanh", seed=0, layers=1)
    with torch.no_grad():
        (layer,) = model.core.layers
        for parameter in layer.parameters():
            parameter.zero_()
        layer.weight_hh_l0.copy_(2 * torch.eye(12))
        model.output.bias.zero_()
        model.output.weight.zero_()
        model.output.bias[7] = 5.0
    assert certify(dynamics_of(model), [7], torch.zeros(12), (EOS,)) is None
    attracted = certify(dynamics_of(model), [7], torch.full((12,), 0.9), (EOS,))
    assert attracted is not None
    assert_close(attracted.centre.tanh(), (2 * attracted.centre).tanh().tanh(), atol=1e-9, rtol=0)


def test_a_counter_that_ends_the_row_later_is_not_proved():
    """An LSTM cell that adds a little at each step: the tokens repeat, the state does not, and eos comes in the end."""
    model = looping_model("lstm", seed=0, layers=1)
    with torch.no_grad():
        (layer,) = model.core.layers
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0[:12] = -7.0  # enter a little
        layer.bias_ih_l0[12:24] = 40.0  # keep everything
        layer.bias_ih_l0[24:36] = 40.0
        layer.bias_ih_l0[36:] = 40.0
        model.output.weight.zero_()
        model.output.bias.zero_()
        model.output.bias[7] = 0.5
        model.output.weight[EOS, 0] = 1.0
    tokens = eosin.decode(model, [[1]], "greedy", max_steps=2_000).tokens[0]
    assert tokens[:100] == [7] * 100
    assert tokens[-1] == EOS
    state = state_after(model, torch.tensor([[1]]), [7] * 50)
    assert certify(dynamics_of(model), [7], dynamics_of(model).flat(state.first.tensors)[0], (EOS,)) is None


def test_heads_that_count_and_models_without_a_formula_have_no_dynamics():
    for head in HEADS:
        assert (dynamics_of(neural("tanh", head)) is not None) == (head == "softmax")
    assert dynamics_of(neural("transformer", "softmax")) is None
    assert dynamics_of(eosin.Floor(neural("tanh", "softmax"), epsilon=0.1)) is None


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (30, 30), (30, 7)])
def test_the_bound_on_a_norm(shape: tuple[int, int]):
    for scale in (1e-200, 1.0, 1e150):
        matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * scale
        exact = float(torch.linalg.matrix_norm(matrix, 2))
        assert exact <= norm_bound(matrix) <= min(shape) ** 0.125 * exact * 1.001
    assert norm_bound(torch.zeros(3, 3, dtype=torch.float64)) == 0
