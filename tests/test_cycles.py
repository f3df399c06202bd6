"""Certified cycles: what is proved never ends, in float32 and float64, and impostors are not proved."""

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from members import crossed, neural
from torch.testing import assert_close

import eosin
from eosin.decoding.loops import find_tail
from eosin.decoding.samplers import Greedy
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES
from eosin.models.recurrent import Recurrent
from eosin.proofs.cycles import ROUNDING, SAFETY, Cycle, norm_bound, prove_cycle, reprove_cycle
from eosin.proofs.dynamics import dynamics_of
from eosin.proofs.expansion import Expansion

RECURRENT = [name for name, core in CORES.items() if issubclass(core, Recurrent)]
VOCAB, EOS, STEPS = 40, 3, 200


def certify(dynamics, tokens, state, eos_ids):
    return prove_cycle(dynamics, tokens, state, eos_ids, Greedy().margin)


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


def candidates(core: str, gain: float = 1.0, seeds: int = 8):
    """Models, and the cycle of tokens and the state in which greedy decoding from some prefix finds itself."""
    for seed in range(seeds):
        found = candidate(core, seed, gain)
        if found is not None:
            yield deepcopy(found)


@cache
def candidate(core: str, seed: int, gain: float):
    """One of them; None where greedy decoding has no loop. Found once for all tests, which use copies."""
    model = looping_model(core, seed, gain)
    prefix = torch.tensor([[1, 2, 5]])
    tokens = eosin.decode(model, prefix, "greedy", max_steps=STEPS).tokens[0]
    tail = find_tail(torch.tensor(tokens).numpy())
    if tail is None:
        return None
    state = state_after(model, prefix, tokens[: STEPS - tail.period + 1])
    return model, tokens[STEPS - tail.period :], dynamics_of(model).vectors(state)[0]


@pytest.mark.parametrize("core", RECURRENT)
def test_most_loops_of_small_models_are_proved_and_run_for_ever(core: str):
    found = [
        (model, certify(dynamics_of(model), tokens, state, (EOS,)), tokens) for model, tokens, state in candidates(core)
    ]
    proved = [(model, cycle) for model, cycle, _ in found if cycle is not None]
    assert len(found) >= 4
    assert len(proved) >= len(found) // 2
    for number, (model, cycle) in enumerate(proved):
        assert cycle.margin > 0
        assert cycle.contraction < 1
        assert cycle.widest < 1
        runs_for_ever(model, cycle, steps=100 if number else 800)


@torch.no_grad()
def runs_for_ever(model, cycle, steps: int):
    """From the edge of the ball, in both precisions, the tokens are those of the cycle."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(8, len(cycle.centre), dtype=torch.float64, generator=generator)
    starts = cycle.centre + directions / directions.norm(dim=1, keepdim=True) * cycle.radius * 0.999
    for dtype in (torch.float32, torch.float64):
        model = model.to(dtype)
        _, state = model.prefill(torch.tensor([[1]] * 8))
        state = type(state)(dynamics_of(model).memory(starts, dtype), state.second)
        for step in range(steps):
            token = cycle.tokens[step % len(cycle.tokens)]
            logits, state = model.step(torch.full((8,), token), state)
            assert (logits.dense().argmax(1) == cycle.tokens[(step + 1) % len(cycle.tokens)]).all()
    model.to(torch.float64)


@pytest.mark.parametrize("core", RECURRENT)
def test_more_is_allowed_than_a_step_errs(core: str):
    """Steps in the model's own precision from elsewhere in the largest ball, against the definition."""
    # few numbers of bfloat16 are within a ball, so the rounding of some says less of that of others
    for dtype, most, part in ((torch.float64, 1e-14, 2), (torch.float32, 1e-5, 2), (torch.bfloat16, 1.0, SAFETY)):
        for model, tokens, state in candidates(core, seeds=3):
            dynamics = dynamics_of(model.to(dtype))
            directions = torch.randn(16, len(state), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
            rows = dynamics.memory(state + 1e-2 * directions / directions.norm(dim=1, keepdim=True), dtype)
            _, after = model.core(model.embedding(torch.tensor([[tokens[0]]] * 16)), rows)
            exact = torch.stack([dynamics.advance(tokens[0], row) for row in dynamics.weigh(rows)])
            error = float((dynamics.weigh(after) - exact).detach().norm(dim=1).max())
            assert dynamics.rounding(tokens[0], state) >= error / part
            assert error < most
            cycle = certify(dynamics, tokens, state, (EOS,))
            assert cycle is None or cycle.rounding >= SAFETY / part * error


@pytest.mark.parametrize("core", RECURRENT)
def test_a_certificate_is_written_read_and_checked(core: str):
    found = 0
    for model, tokens, state in candidates(core, seeds=6):
        dynamics = dynamics_of(model)
        cycle = certify(dynamics, tokens, state, (EOS,))
        if cycle is None:
            continue
        found += 1
        again = Cycle.from_dict(json.loads(json.dumps(cycle.to_dict())))
        assert again.to_dict() == cycle.to_dict()
        checked = reprove_cycle(dynamics, again, (EOS,), Greedy().margin)
        assert checked is not None
        assert checked.to_dict() == cycle.to_dict()
        elsewhere = replace(cycle, centre=cycle.centre + 0.2)
        assert reprove_cycle(dynamics, elsewhere, (EOS,), Greedy().margin) is None
        assert reprove_cycle(dynamics, replace(cycle, radius=1.5), (EOS,), Greedy().margin) is None
        assert reprove_cycle(dynamics, cycle, (cycle.tokens[0],), Greedy().margin) is None
        backwards = tuple(token - VOCAB for token in cycle.tokens)
        nonsense = ({"tokens": ()}, {"tokens": backwards}, {"radius": -1e-3}, {"centre": cycle.centre[:-1]})
        for change in nonsense:
            assert reprove_cycle(dynamics, replace(cycle, **change), (EOS,), Greedy().margin) is None
    assert found >= 2


def test_a_lead_that_rounding_can_take_is_none():
    """Two output vectors alike and long: in half precision their logits tie, and the lower id wins, which is eos."""
    for dtype, logit, lead in (
        (torch.bfloat16, 16.0, 0.02),
        (torch.float16, 16.0, 0.003),
        (torch.float32, 1e5, 0.0035),
    ):
        model = looping_model("tanh", seed=0, layers=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            model.output.bias.fill_(-logit)
            model.output.bias[[EOS, EOS + 1]] = logit
            model.output.bias[EOS + 1] += lead
        assert certify(dynamics_of(model), [EOS + 1], torch.zeros(12), (EOS,)) is not None
        assert certify(dynamics_of(model.to(dtype)), [EOS + 1], torch.zeros(12), (EOS,)) is None


def test_a_head_that_rewrites_eos_has_no_dynamics():
    class AlwaysSome(HEADS["softmax"]):
        def forward(self, eos_logits, memory):
            return torch.full_like(eos_logits, -0.05, dtype=torch.float64), super().forward(eos_logits, memory)[1]

    model = looping_model("tanh", seed=0)
    assert dynamics_of(model) is not None
    model.head = AlwaysSome()
    assert dynamics_of(model) is None


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
    assert certify(dynamics_of(model), [7], dynamics_of(model).vectors(state)[0], (EOS,)) is None


# rounding

HOSTILE_WIDTH = 188
LARGE = [0.0, 1.0, 30.0, 1e3, 1e4, 65_537.0, 1e6]
"""What cancels: in float32, 1e4 leaves steps of 2^-10."""
BIASES_OF_GATES = {
    "tanh": {},
    "lstm": {0: 40.0, 1: -40.0, 3: 40.0},  # enter, do not keep, show
    "gru": {0: 40.0, 1: -40.0},  # do not reset, do not keep
}


@torch.no_grad()
def cancelling_model(core: str, through: str, size: float, dtype: torch.dtype = torch.float32):
    """A model whose hidden numbers are all 0.7 times the mean of those before, with terms of some size that cancel.

    The greedy choice is token 1, and eos once the sum of the hidden numbers leaves the ball of radius 1e-2 by a little.
    """
    model = neural(core, "softmax", vocab=5, eos=EOS, width=HOSTILE_WIDTH, layers=1)
    for parameter in model.parameters():
        parameter.zero_()
    layer = list(model.core.layers[0].parameters())
    for gate, bias in BIASES_OF_GATES[core].items():
        layer[2].view(-1, HOSTILE_WIDTH)[gate] = bias
    new = 0 if core == "tanh" else 2
    inputs, hidden, inputs_bias, hidden_bias = (part.view(-1, HOSTILE_WIDTH, *part.shape[1:])[new] for part in layer)
    hidden.fill_(0.7 / HOSTILE_WIDTH)
    CANCELLING[through](model.embedding.weight, inputs, hidden, inputs_bias, hidden_bias, size)
    model.output.weight[EOS] = 1.0
    model.output.weight[EOS, [0, -1]] = 0.0
    model.output.bias[:] = -10.0
    model.output.bias[1] = 0.0
    model.output.bias[EOS] = -0.1469
    return model.to(dtype)


def cancel_biases(embedding, inputs, hidden, inputs_bias, hidden_bias, size):
    inputs_bias.fill_(size)
    hidden_bias.fill_(-size)


def cancel_the_embedding(embedding, inputs, hidden, inputs_bias, hidden_bias, size):
    embedding.fill_(size)
    inputs.copy_(torch.eye(len(inputs)))
    hidden_bias.fill_(-size)


def cancel_hidden_columns(embedding, inputs, hidden, inputs_bias, hidden_bias, size):
    """The first and the last hidden number are one, and weigh as much in either direction."""
    hidden[:, 0], hidden[:, -1] = size, -size
    hidden[[0, -1]] = 0.0
    inputs_bias[[0, -1]] = 40.0


def cancel_input_columns(embedding, inputs, hidden, inputs_bias, hidden_bias, size):
    embedding.fill_(1.0)
    inputs[:, 0], inputs[:, -1] = size, -size


CANCELLING = {
    "biases": cancel_biases,
    "embedding": cancel_the_embedding,
    "hidden columns": cancel_hidden_columns,
    "input columns": cancel_input_columns,
}


@torch.no_grad()
def hostile_starts(cycle, width: int):
    """States of the ball in which all hidden numbers, or one of them, or all at random are off by as much as can be."""
    directions = torch.randn(16, len(cycle.centre), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    directions[:12] = 0.0
    directions[:10, :width] = torch.tensor([1.0, -1.0]).repeat(5)[:, None]
    directions[10:12, 1] = 1.0
    lengths = torch.tensor([0.999, 0.999, 0.99, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.999, 0.7, *[0.999] * 4])
    return cycle.centre + directions / directions.norm(dim=1, keepdim=True) * cycle.radius * lengths[:, None]


@pytest.mark.parametrize(("through", "core"), crossed(CANCELLING, RECURRENT))
@torch.no_grad()
def test_what_cancels_is_not_proved_unless_it_goes_on(core: str, through: str):
    """Measured from sixteen random directions, the rounding of such a model is a fraction of what it can be."""
    proved = []
    for size in LARGE:
        model = cancelling_model(core, through, size)
        dynamics = dynamics_of(model)
        state = torch.zeros(dynamics.size)
        state[[0, HOSTILE_WIDTH - 1]] = float(through == "hidden columns")
        cycle = certify(dynamics, [1], state, (EOS,))
        if cycle is None:
            continue
        proved.append(size)
        starts = dynamics.memory(hostile_starts(cycle, HOSTILE_WIDTH), torch.float32)
        _, before = model.prefill(torch.ones(16, 1, dtype=torch.int64))
        goes_on(model, type(before)(starts, before.second), steps=300)
        _, after = model.core(model.embedding(torch.ones(16, 1, dtype=torch.int64)), starts)
        exact = torch.stack([dynamics.advance(1, row) for row in dynamics.weigh(starts)])
        assert float((dynamics.weigh(after) - exact).norm(dim=1).max()) <= cycle.rounding
    assert 0.0 in proved
    assert max(proved) <= 30


def goes_on(model, state, steps: int):
    for _ in range(steps):
        logits, state = model.step(torch.ones(16, dtype=torch.int64), state)
        assert (logits.dense().argmax(1) == 1).all()


@pytest.mark.parametrize("core", RECURRENT)
def test_in_float64_what_cancels_is_proved(core: str):
    """There rounding is a millionth of what a proof allows anyway."""
    model = cancelling_model(core, "biases", 65_537.0, torch.float64)
    dynamics = dynamics_of(model)
    cycle = certify(dynamics, [1], torch.zeros(dynamics.size), (EOS,))
    assert cycle is not None
    assert cycle.rounding == ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("core", RECURRENT)
def test_the_bound_on_rounding_is_above_what_is_measured(core: str, dtype: torch.dtype):
    for model, tokens, state in candidates(core, seeds=3):
        dynamics = dynamics_of(model.to(dtype))
        radii = torch.tensor([1e-4, 1e-1], dtype=torch.float64)
        near, far = dynamics.expand(tokens[0], Expansion.around(state, radii, dynamics.unit)).error.norm(dim=0)
        assert dynamics.rounding(tokens[0], state) <= near <= far
        assert near < 1e3 * dynamics.unit


def test_heads_that_count_and_models_without_a_formula_have_no_dynamics():
    for head in HEADS:
        assert (dynamics_of(neural("tanh", head)) is not None) == (head == "softmax")
    assert dynamics_of(neural("transformer", "softmax")) is None
    assert dynamics_of(eosin.Floor(neural("tanh", "softmax"), epsilon=0.1)) is None


class Reads(eosin.NeuralLM):
    """Reads every token twice."""

    def step(self, token, state):
        return super().step(token, super().step(token, state)[1])


class ReadsWithin(eosin.NeuralLM):
    def _read(self, tokens, state, context):
        return super()._read(tokens, state, context)


class Lends:
    """A wrapper that lends what it wraps, but for one method."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, token, state):
        return self.inner.step(token, state)


class Mistaken(CORES["lstm"]):
    """Its formula forgets a thousandth of what it reads."""

    def forward(self, inputs, state):
        return super().forward(inputs, state)

    def next_memory(self, inputs, memory):
        return super().next_memory(0.999 * inputs, memory)


class Projects(CORES["gru"]):
    """What it gives to the output is not in its memory."""

    def forward(self, inputs, state):
        hidden, after = super().forward(inputs, state)
        return hidden / 2, after

    def next_memory(self, inputs, memory):
        return super().next_memory(inputs, memory)


@pytest.mark.parametrize("core", [Mistaken, Projects])
def test_a_formula_that_is_not_the_core_s_step_is_not_trusted(core: type, caplog: pytest.LogCaptureFixture):
    model = eosin.NeuralLM(core(width=8), HEADS["softmax"](), vocab_size=9, eos_id=0)
    assert model.step_formula() is not None
    assert dynamics_of(model) is None
    assert f"{core.__name__}.next_memory is not what its forward does: no loop is certified" in caplog.text


class HalfStep(CORES["tanh"]):
    def forward(self, inputs, state):
        return super().forward(inputs / 2, state)


def test_a_formula_is_not_inherited_by_what_reads_tokens_otherwise():
    def made(kind, core="tanh"):
        return kind(CORES[core](width=8), HEADS["softmax"](), vocab_size=9, eos_id=0)

    assert dynamics_of(made(eosin.NeuralLM)) is not None
    assert dynamics_of(made(Reads)) is None
    assert dynamics_of(made(ReadsWithin)) is None
    assert dynamics_of(Lends(made(eosin.NeuralLM))) is None
    patched = made(eosin.NeuralLM)
    patched.step = patched.prefill
    assert dynamics_of(patched) is None
    halved = made(eosin.NeuralLM)
    halved.core = HalfStep(width=8)
    assert dynamics_of(halved) is None

    class Silent(eosin.NeuralLM):
        """Changes nothing that is read."""

        def score(self, prefix, continuation):
            return super().score(prefix, continuation)

    assert dynamics_of(made(Silent)) is not None


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (30, 30), (30, 7)])
def test_the_bound_on_a_norm(shape: tuple[int, int]):
    for scale in (1e-200, 1.0, 1e150):
        matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * scale
        exact = float(torch.linalg.matrix_norm(matrix, 2))
        assert exact <= norm_bound(matrix) <= min(shape) ** 0.125 * exact * 1.01
    assert norm_bound(torch.zeros(3, 3, dtype=torch.float64)) == 0
