"""Laws of every model: steps equal the whole sequence, rows are independent, states are values."""

import itertools

import pytest
import torch
from members import EOS, NEURAL, VOCAB, Specimen, crossed, neural, prefixes
from torch.testing import assert_close

from eosin.decoding.distribution import Workspace, survey
from eosin.logits import as_logits
from eosin.models.neural_lm import CORES
from eosin.models.recurrent import TanhRNN
from eosin.settings import get_parameters


def dense(logits):
    return as_logits(logits).dense()


def walk(model, prefix, tokens):
    """Log-probabilities before each token, by steps, and the state at the end."""
    logits, state = model.prefill(prefix)
    rows = [dense(logits).log_softmax(-1)]
    for token in tokens.T:
        logits, state = model.step(token, state)
        rows.append(dense(logits).log_softmax(-1))
    return torch.stack(rows, 1), state


def test_score_equals_steps(specimen: Specimen):
    model = specimen.make()
    prefix, continuation = prefixes(5), prefixes(5, length=9, seed=2)
    by_steps, _ = walk(model, prefix, continuation[:, :-1])
    by_steps = by_steps.gather(-1, continuation[..., None])[..., 0]
    assert_close(model.score(prefix, continuation), by_steps, atol=1e-6, rtol=1e-6, check_dtype=False)


@pytest.mark.parametrize("specimen", NEURAL, ids=str)
def test_whole_sequence_equals_steps_for_every_token(specimen: Specimen):
    model = specimen.make()
    prefix, tokens = prefixes(4), prefixes(4, length=12, seed=3)
    by_steps, stepped = walk(model, prefix, tokens)
    sequence = torch.cat([prefix, tokens], dim=1)
    logits, state = model(sequence, model.initial(4), context=2)
    assert_close(logits.dense().log_softmax(-1), by_steps)
    again, _ = model.step(tokens[:, 0], state)
    other, _ = model.step(tokens[:, 0], stepped)
    assert_close(dense(again), dense(other))


def test_next_token_is_a_distribution_over_sequences(specimen: Specimen):
    """All completions of two tokens, and those that end sooner, have probability one together."""
    model = specimen.make()
    prefix = torch.tensor([[1, 2, 5]])
    pairs = torch.tensor(list(itertools.product(range(VOCAB), repeat=2)))
    scores = model.score(prefix.expand(len(pairs), -1), pairs)
    (eos,) = model.eos_ids
    first_ends = scores[pairs[:, 0] == eos][0, 0].exp()
    goes_on = scores[pairs[:, 0] != eos].sum(1).exp().sum()
    assert_close(float((first_ends + goes_on).detach()), 1.0, atol=1e-6, rtol=0)


def test_select_commutes_with_step(specimen: Specimen):
    model = specimen.make()
    _, state = walk(model, prefixes(4), prefixes(4, length=3, seed=5))
    rows = torch.tensor([2, 0, 2, 3, 1, 1])
    token = torch.tensor([1, 5, 0, 6])
    logits, after = model.step(token, state)
    picked, picked_after = model.step(token[rows], state.select(rows))
    assert_close(dense(picked), dense(logits)[rows])
    (more, _), (expected, _) = model.step(token[rows], picked_after), model.step(token[rows], after.select(rows))
    assert_close(dense(more), dense(expected))


def test_step_leaves_its_state_alone(specimen: Specimen):
    model = specimen.make()
    _, state = model.prefill(prefixes(3))
    token = torch.tensor([1, 2, 4])
    once, _ = model.step(token, state)
    model.step(torch.tensor([5, 5, 5]), state)
    again, _ = model.step(token, state)
    assert torch.equal(dense(once), dense(again))


def test_joined_rows_go_on_as_if_alone(specimen: Specimen):
    """Also where the prefixes had different lengths, and after the longer rows have left."""
    model = specimen.make()
    _, few = walk(model, prefixes(2, length=2), prefixes(2, length=1, seed=6))
    _, many = walk(model, prefixes(3, length=5), prefixes(3, length=4, seed=7))
    token = torch.tensor([1, 2, 4, 5, 6])
    together, joined = model.step(token, few.join(many))
    apart = torch.cat([dense(model.step(token[:2], few)[0]), dense(model.step(token[2:], many)[0])])
    assert_close(dense(together), apart)
    short = torch.tensor([1, 0])
    left, _ = model.step(token[short], joined.select(short))
    expected, _ = model.step(token[short], model.step(token[:2], few)[1].select(short))
    assert_close(dense(left), dense(expected))


def test_same_tells_rows_apart(specimen: Specimen):
    model = specimen.make()
    # more rows than the smallest batch: in fewer a row's last bits depend on its place
    prefix = torch.tensor([[1, 2, 5], [6, 4, 0]]).repeat(16, 1)
    _, state = model.prefill(prefix)
    even, odd = torch.arange(0, 32, 2), torch.arange(1, 32, 2)
    assert state.same(state.select(torch.arange(32))).all()
    assert state.select(even).same(state.select(even.roll(3))).all()
    if specimen in NEURAL:
        assert not state.select(even).same(state.select(odd)).any()
        _, later = model.step(torch.ones(32, dtype=torch.int64), state)
        assert not later.same(state).any()


def test_same_sees_a_single_bit():
    from eosin.states import TensorState

    value = torch.tensor([[1.0, 2.0], [0.0, float("nan")], [3.0, 4.0]])
    other = value.clone()
    other[0, 1] = torch.nextafter(other[0, 1], torch.tensor(9.0))
    other[1, 0] = -0.0
    assert TensorState((value,)).same(TensorState((other,))).tolist() == [False, False, True]
    counts = TensorState((torch.tensor([1, 2, 3]),))
    assert counts.same(TensorState((torch.tensor([1, 5, 3]),))).tolist() == [True, False, True]


@pytest.mark.parametrize("core", [name for name, core in CORES.items() if "dropout" in get_parameters(core)])
def test_dropout_is_for_training_only(core: str):
    model = neural(core, "softmax", dtype=torch.float32)
    model.core = CORES[core](width=16, layers=2, dropout=0.5)
    prefix, continuation = prefixes(4), prefixes(4, length=5, seed=2)
    model.train()
    assert not torch.equal(model.score(prefix, continuation), model.score(prefix, continuation))
    model.eval()
    assert torch.equal(model.score(prefix, continuation), model.score(prefix, continuation))


@pytest.mark.parametrize("core", CORES)
def test_tied_matrices_are_one(core: str):
    tied, untied = neural(core, "softmax", tied=True), neural(core, "softmax")
    assert tied.output.weight is tied.embedding.weight
    assert untied.output.weight is not untied.embedding.weight
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == VOCAB * 16


@pytest.mark.parametrize("tied", [False, True])
def test_a_start_as_torch_s_is_that_of_its_layers(tied: bool):
    """Under the same seed, weights that torch's own layers draw; a tied matrix is an embedding."""
    model = neural("tanh", "softmax", tied=tied, dtype=torch.float32)
    torch.manual_seed(3)
    model.start_as_torch()
    torch.manual_seed(3)
    output, embedding = torch.nn.Linear(16, VOCAB), torch.nn.Embedding(VOCAB, 16)
    assert torch.equal(model.embedding.weight, embedding.weight)
    assert torch.equal(model.output.weight, embedding.weight if tied else output.weight)
    assert torch.equal(model.output.bias, output.bias)
    assert float(model.embedding.weight.detach().std()) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("core", CORES)
def test_gradients_reach_every_parameter(core: str):
    model = neural(core, "self-terminating").train()
    model.score(prefixes(4), prefixes(4, length=5, seed=2)).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(("kind", "module"), [("tanh", "RNN"), ("lstm", "LSTM"), ("gru", "GRU")])
def test_layers_are_torch_s_own_stack(kind: str, module: str):
    """Our layer by layer is the well-known library's stack of as many layers, gradients of the start included."""
    core = CORES[kind](width=8, layers=3, learned_start=True).double()
    stack = getattr(torch.nn, module)(8, 8, num_layers=3, batch_first=True).double()
    with torch.no_grad():
        core.start.normal_()
        for number, layer in enumerate(core.layers):
            for name, value in layer.named_parameters():
                getattr(stack, name.replace("l0", f"l{number}")).copy_(value)
    inputs = torch.randn(4, 6, 8, dtype=torch.float64, requires_grad=True)
    hidden, after = core(inputs, core.initial(4))
    # torch has one tensor for the hidden vectors of all layers and one for all cells
    start = core.start[:, None].expand(-1, 4, -1).unflatten(0, (3, -1)).transpose(0, 1)
    starts = tuple(start.contiguous())
    expected, memory = stack(inputs, starts if kind == "lstm" else starts[0])
    memory = memory if kind == "lstm" else (memory,)
    assert_close(hidden, expected)
    together = torch.stack(after.tensors).unflatten(0, (3, -1)).transpose(0, 1)
    assert_close(together, torch.stack(memory))
    weights, state_weights = torch.randn_like(hidden), torch.randn_like(together)
    mine, theirs = (
        torch.autograd.grad(
            (out * weights).sum() + (state * state_weights).sum(), [inputs, core.start, *layers.parameters()]
        )
        for out, state, layers in (
            (hidden, together, core.layers),
            (expected, torch.stack(memory), stack),
        )
    )
    for ours, torch_s in zip(mine, theirs, strict=True):
        assert_close(ours, torch_s)


@pytest.mark.parametrize(("core", "width", "threads"), crossed(["tanh", "lstm", "gru"], [50, 100, 256], [1, 2, 3]))
def test_a_row_s_bits_do_not_depend_on_its_company(core: str, width: int, threads: int):
    """In float32, also at widths that are no multiple of a vector's length, from the smallest batch on."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    model = neural(core, "non-monotonic", width=width, vocab=300, dtype=torch.float32)
    try:
        with torch.inference_mode():
            _, state = model.prefill(prefixes(1024, vocab=300))
            token = prefixes(1024, length=1, vocab=300, seed=4)[:, 0]
            whole, after = model.step(token, state)
            for size in (16, 17, 31, 100, 333, 777, 1023):
                rows = torch.randperm(1024, generator=torch.Generator().manual_seed(size))[:size]
                part, part_after = model.step(token[rows], state.select(rows))
                assert part_after.same(after.select(rows)).all(), size
                asked, expected = (survey(x, n, Workspace([EOS])) for x, n in ((part, size), (whole, 1024)))
                assert torch.equal(asked.log_total, expected.log_total[rows]), size
    finally:
        torch.set_num_threads(before)


def test_learned_start_is_used_and_trained():
    core = TanhRNN(width=4, layers=1, learned_start=True)
    inputs = torch.zeros(2, 1, 4)
    before, _ = core(inputs, core.initial(2))
    with torch.no_grad():
        core.start.fill_(0.7)
    after, _ = core(inputs, core.initial(2))
    assert not torch.equal(before, after)
    after.sum().backward()
    assert core.start.grad is not None
    assert not TanhRNN(width=4).start.requires_grad


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: CORES["tanh"](width=0), "width"),
        (lambda: CORES["lstm"](layers=0), "layers"),
        (lambda: CORES["gru"](dropout=1.0), "dropout"),
        (lambda: CORES["transformer"](width=10, heads=4), "width"),
        (lambda: CORES["transformer"](width=16, layers=0), "layers"),
        (lambda: CORES["transformer"](width=16, dropout=-0.1), "dropout"),
        (lambda: neural("tanh", "softmax", eos=VOCAB), "eos_id"),
        (lambda: neural("tanh", "softmax", vocab=1, eos=0), "vocab_size"),
    ],
)
def test_bad_settings_name_the_field(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_eos_is_where_it_was_said_to_be():
    assert neural("tanh", "softmax").eos_ids == (EOS,)
