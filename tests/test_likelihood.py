"""Log-probabilities without logits: the values and gradients of log-softmax, whatever the blocks."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from members import EOS, NEURAL, Specimen, prefixes
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from eosin.models.loss import BLOCK, group_by_block, log_softmax_at

VOCABULARIES = [2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]


def inputs(rows, vocab, width=6, scale=1.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocab, width, generator=generator, dtype=torch.float64) * scale
    bias = torch.randn(vocab, generator=generator, dtype=torch.float64)
    return [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight, bias)]


def by_definition(hidden, weight, bias, target, without=None):
    logits = hidden @ weight.T + bias
    if without is not None:
        logits = logits.index_fill(1, torch.tensor([without]), -math.inf)
    return logits.log_softmax(1).gather(1, target[:, None])[:, 0]


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("left_out", ["nothing", "first", "last"])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_values_and_gradients_are_those_of_log_softmax(vocab: int, left_out: str, rows: int):
    without = {"nothing": None, "first": 0, "last": vocab - 1}[left_out]
    parameters = inputs(rows, vocab)
    target = torch.randint(0, vocab, (rows,), generator=torch.Generator().manual_seed(1))
    target[target == without] = 0 if without else 1
    outside = torch.linspace(-1, 2, rows, dtype=torch.float64)
    ours, theirs = (compute(*parameters, target, without) for compute in (log_softmax_at, by_definition))
    assert_close(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours, parameters, outside), torch.autograd.grad(theirs, parameters, outside), strict=True
    ):
        assert_close(mine, expected)


def test_gradient_by_finite_differences():
    parameters = inputs(4, BLOCK + 3, width=2)
    target = torch.tensor([0, BLOCK, BLOCK + 2, 7])
    assert torch.autograd.gradcheck(lambda *p: log_softmax_at(*p, target, 5), parameters)


@given(scale=st.sampled_from([0.0, 1.0, 1e2, 1e4]), seed=st.integers(0, 20), vocab=st.sampled_from(VOCABULARIES))
def test_no_overflow_and_never_above_zero(scale: float, seed: int, vocab: int):
    parameters = inputs(5, vocab, scale=scale, dtype=torch.float32, seed=seed)
    target = torch.randint(0, vocab, (5,), generator=torch.Generator().manual_seed(seed))
    found = log_softmax_at(*parameters, target)
    assert found.isfinite().all()
    assert (found <= 1e-6).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), parameters))
    exact = by_definition(*(p.double() for p in parameters), target)
    assert_close(found.double(), exact, atol=2e-6 * (1 + scale), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_hidden_vectors(dtype: torch.dtype):
    """As under autocast: vectors of half precision, weights of full precision, sums of full precision."""
    hidden, weight, bias = inputs(7, BLOCK + 40, dtype=torch.float32)
    target = torch.arange(7) * 70
    half = hidden.detach().to(dtype).requires_grad_()
    found = log_softmax_at(half, weight, bias, target)
    assert found.dtype is torch.float32
    assert_close(found, by_definition(half.float(), weight, bias, target), atol=0.1, rtol=0.02)
    gradients = torch.autograd.grad(found.sum(), [half, weight, bias])
    assert [g.dtype for g in gradients] == [dtype, torch.float32, torch.float32]
    whole = half.detach().float().requires_grad_()
    exact = torch.autograd.grad(by_definition(whole, weight, bias, target).sum(), [whole, weight, bias])
    for mine, expected in zip(gradients, exact, strict=True):
        assert float((mine.float() - expected).norm() / expected.norm()) < 0.01


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        result = operation(*arguments, **(named or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if torch.is_tensor(tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_all_logits_are_kept_for_a_gradient_and_never_without():
    parameters = inputs(30, 4 * BLOCK)
    target = torch.arange(30)
    with Largest() as with_gradient:
        log_softmax_at(*parameters, target)
    assert with_gradient.elements == 30 * 4 * BLOCK
    for context in (torch.no_grad, torch.inference_mode):
        with context(), Largest() as without:
            log_softmax_at(*parameters, target)
        assert without.elements == 30 * BLOCK


def test_autocast_reaches_the_output_layer():
    parameters = inputs(4, 9, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = log_softmax_at(*parameters, torch.arange(4))
    exact = by_definition(*parameters, torch.arange(4))
    assert 1e-5 < float((found - exact).detach().abs().max()) < 0.1


@given(target=st.lists(st.integers(0, 4 * BLOCK - 1), max_size=30))
def test_rows_by_block_are_a_partition(target: list[int]):
    tensor = torch.tensor(target, dtype=torch.int64)
    parts = group_by_block(tensor, 4 * BLOCK)
    assert len(parts) == 4
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(target)))
    for block, part in enumerate(parts):
        assert all(target[row] // BLOCK == block for row in part.tolist())


def by_dense_logits(model, prefix, continuation):
    tokens = torch.cat([prefix, continuation[:, :-1]], dim=1)
    logits, _ = model(tokens, model.initial(len(prefix)), context=prefix.shape[1] - 1)
    return logits.dense().log_softmax(-1).gather(-1, continuation[..., None])[..., 0]


@pytest.mark.parametrize("specimen", NEURAL, ids=str)
@pytest.mark.parametrize("wanted", ["all", "some", "only eos", "no eos"])
def test_wanted_tokens_have_the_values_and_gradients_of_dense_logits(specimen: Specimen, wanted: str):
    model = specimen.make()
    for parameter in model.parameters():
        parameter.requires_grad_()
    prefix, continuation = prefixes(6), prefixes(6, length=8, seed=4)
    ends = continuation == EOS
    lengths = torch.tensor([8, 1, 3, 8, 5, 2])
    where = {
        "all": torch.ones_like(ends),
        "some": torch.arange(8) < lengths[:, None],
        "only eos": ends,
        "no eos": ~ends,
    }[wanted]
    found = model.log_probs(prefix, continuation, where)
    expected = by_dense_logits(model, prefix, continuation)[where]
    assert_close(found, expected)
    parameters = [p for p in model.parameters() if p.requires_grad]
    outside = torch.linspace(0.5, 2, len(found), dtype=torch.float64)
    ours = torch.autograd.grad(found, parameters, outside, allow_unused=True)
    theirs = torch.autograd.grad(expected, parameters, outside, allow_unused=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(torch.zeros(()) if mine is None else mine, torch.zeros(()) if other is None else other.to(mine))
