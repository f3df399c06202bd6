"""Expansions: the value and derivative of the cell, and a remainder that nothing exceeds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from members import FORMULAS, neural
from torch.testing import assert_close

from eosin.proofs.expansion import Expansion, bound_curvature

WIDTH = 6


def core_of(name: str, gain: float = 3.0, layers: int = 2):
    return neural(name, "softmax", width=WIDTH, layers=layers, gain=gain).core


def split(core, state):
    return tuple(state.split(WIDTH))


def step(core, inputs, state):
    return torch.cat(core.next_memory(inputs, split(core, state)))


def some_state(core, seed: int = 0):
    size = core.depth * core.tensors_per_layer * WIDTH
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 0.7


def expanded(core, inputs, centre, radius):
    parts = Expansion.around(centre, torch.tensor([radius, 2 * radius], dtype=torch.float64))
    count = len(centre) // WIDTH
    return core.next_memory(inputs, tuple(parts[i * WIDTH : (i + 1) * WIDTH] for i in range(count)))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula_is_the_core(name: str, layers: int):
    """In float64, from any state."""
    core = core_of(name, layers=layers)
    for seed in range(3):
        inputs, state = torch.randn(WIDTH, dtype=torch.float64), some_state(core, seed)
        before = core.initial(1)
        given = type(before)(tuple(part[None] for part in split(core, state)))
        hidden, after = core(inputs[None, None], given)
        assert_close(step(core, inputs, state), torch.cat([tensor[0] for tensor in after.tensors]))
        assert_close(core.next_memory(inputs, split(core, state))[-core.tensors_per_layer], hidden[0, 0])


@pytest.mark.parametrize("name", FORMULAS)
def test_the_jacobian_is_the_derivative(name: str):
    core = core_of(name)
    inputs, centre = torch.randn(WIDTH, dtype=torch.float64), some_state(core)
    parts = expanded(core, inputs, centre, 0.1)
    exact = torch.autograd.functional.jacobian(lambda s: step(core, inputs, s), centre)
    assert_close(torch.cat([part.jacobian for part in parts]), exact)
    assert_close(torch.cat([part.value for part in parts]), step(core, inputs, centre))


@pytest.mark.parametrize("radius", [1e-6, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("gain", [0.5, 3.0, 8.0])
@pytest.mark.parametrize("name", FORMULAS)
def test_nothing_exceeds_the_remainder(name: str, gain: float, radius: float):
    core = core_of(name, gain)
    generator = torch.Generator().manual_seed(1)
    inputs, centre = torch.randn(WIDTH, dtype=torch.float64, generator=generator), some_state(core)
    parts = expanded(core, inputs, centre, radius)
    value, jacobian, remainder = (
        torch.cat([getattr(part, field) for part in parts]) for field in ("value", "jacobian", "remainder")
    )
    length = Expansion.concatenate(parts).length
    # random directions, and those in which single coordinates move most
    directions = torch.cat([torch.randn(200, len(centre), dtype=torch.float64, generator=generator), jacobian])
    for direction in directions:
        for distance in (radius, 0.5 * radius):
            e = direction / direction.norm() * distance
            error = step(core, inputs, centre + e) - value - jacobian @ e
            assert (error.abs() <= remainder[:, 0] + 1e-14).all()
            assert error.norm() <= length[0] + 1e-14
    assert (remainder[:, 0] <= remainder[:, 1]).all()
    assert length[0] <= length[1]
    assert length[0] <= remainder[:, 0].norm() * (1 + 1e-6)


@given(st.floats(-4, 4), st.floats(0, 3))
def test_the_curvature_of_tanh_is_its_largest_nearby(value: float, distance: float):
    nearby = torch.linspace(value - distance, value + distance, 1001, dtype=torch.float64)
    largest = (2 * nearby.tanh() * (1 - nearby.tanh() ** 2)).abs().max()
    found = bound_curvature(torch.tensor([value], dtype=torch.float64), torch.tensor([[distance]], dtype=torch.float64))
    assert float(largest) <= float(found) <= float(largest) * 1.001 + 1e-4


def test_the_length_of_a_remainder_is_shorter_than_its_coordinates_allow():
    """Errors of the first layer do not all push one way in the second."""
    core = neural("tanh", "softmax", width=64, layers=2, gain=3.0).core
    centre = torch.randn(128, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.7
    whole = Expansion.around(centre, torch.tensor([1e-3], dtype=torch.float64))
    after = Expansion.concatenate(core.next_memory(torch.zeros(64, dtype=torch.float64), whole.chunk(2)))
    assert float(after.length) < 0.7 * float(after.remainder.norm())


@pytest.mark.parametrize("name", FORMULAS)
def test_the_remainder_is_of_second_order(name: str):
    core = core_of(name)
    inputs, centre = torch.randn(WIDTH, dtype=torch.float64), some_state(core)
    sizes = [
        torch.cat([part.remainder for part in expanded(core, inputs, centre, radius)]).norm() for radius in (1e-4, 1e-5)
    ]
    assert float(sizes[0]) == pytest.approx(100 * float(sizes[1]), rel=0.01)


def constant_mix(x, c, n):
    """Everything that a formula may do with a vector c and a number n, in both orders."""
    return c * x + x * c - (c - x) * (x - c) + n * x + x * n + (n - x) * (x - n) + (x + c) * (c + x) + (n + x) * (x + n)


@pytest.mark.parametrize("number", [0.3, 2, -4.0])
def test_constants_may_stand_on_both_sides(number: float):
    generator = torch.Generator().manual_seed(2)
    centre, constant = torch.randn(2, WIDTH, dtype=torch.float64, generator=generator)
    whole = Expansion.around(centre, torch.tensor([0.1], dtype=torch.float64))
    mixed = constant_mix(whole, constant, number)
    assert_close(mixed.value, constant_mix(centre, constant, number))
    exact = torch.autograd.functional.jacobian(lambda s: constant_mix(s, constant, number), centre)
    assert_close(mixed.jacobian, exact)
    for direction in torch.randn(100, WIDTH, dtype=torch.float64, generator=generator):
        e = direction / direction.norm() * 0.1
        error = constant_mix(centre + e, constant, number) - mixed.value - mixed.jacobian @ e
        assert (error.abs() <= mixed.remainder[:, 0] + 1e-14).all()


@pytest.mark.parametrize("number", [0.3, 2.0, -0.7])
def test_rounding_of_products_with_constants_is_bounded(number: float):
    """In float32, where neither the number nor a gate computed from a parameter is exact."""
    generator = torch.Generator().manual_seed(3)
    centre, parameter = torch.randn(2, 500, generator=generator)
    radii = torch.tensor([0.0], dtype=torch.float64)
    exact = Expansion.around(centre.double(), radii, unit=torch.finfo(torch.float32).eps / 2)
    for found, computed in (
        (exact * number, centre * number),
        (parameter.double().sigmoid() * exact, parameter.sigmoid() * centre),
    ):
        assert ((computed.double() - found.value).abs() <= found.error[:, 0]).all()
    assert bool((exact * number).error.any()) == (number != 2.0)
