"""Dropout: the share that was asked for, the mean kept, the gradient that of a product, the seed in charge."""

import pytest
import torch
from torch.testing import assert_close

from eosin.models.dropout import dropout


@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.5, 0.999])
def test_a_share_of_elements_is_zero_and_the_mean_stays(share: float):
    torch.manual_seed(0)
    dropped = dropout(torch.ones(1_000, 1_001), share, True)
    n = dropped.numel()
    zeros = (dropped == 0).double().mean()
    assert abs(float(zeros) - share) < 5 * (share * (1 - share) / n) ** 0.5 + 1 / 2**16
    values = dropped[dropped != 0].unique()
    assert len(values) == 1
    assert float(values) == pytest.approx(1 / (1 - share), rel=2**-16 / (1 - share))


def test_elements_are_dropped_independently():
    """Pairs at any small distance are dropped together as often as chance has it."""
    torch.manual_seed(1)
    zero = (dropout(torch.ones(400_000), 0.3, True) == 0).double()
    for distance in (1, 2, 3, 4, 5, 8, 16):
        together = float((zero[distance:] * zero[:-distance]).mean())
        assert abs(together - 0.09) < 5 * (0.09 * 0.91 / 400_000) ** 0.5 + 1e-4


@pytest.mark.parametrize("shape", [(0, 3), (1,), (5,), (3, 7, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shapes_and_gradients(shape: tuple[int, ...], dtype: torch.dtype):
    values = torch.randn(shape).to(dtype).requires_grad_()
    torch.manual_seed(3)
    dropped = dropout(values, 0.5, True)
    assert dropped.shape == values.shape
    assert dropped.dtype is dtype
    torch.manual_seed(3)
    factor = dropout(torch.ones(shape, dtype=dtype), 0.5, True)
    assert_close(dropped, values * factor)
    assert_close(torch.autograd.grad(dropped.sum(), values)[0], factor)


@pytest.mark.parametrize(("share", "active"), [(0.5, False), (0.0, True)])
def test_without_dropout_nothing_happens_and_nothing_is_drawn(share: float, active: bool):
    before = torch.random.get_rng_state()
    values = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dropout(values, share, active), values)
    assert torch.equal(torch.random.get_rng_state(), before)
