"""First-order expansions with a rigorous remainder: how far a step can carry nearby states apart.

An expansion stands for all values that a quantity takes while a state moves by e, |e| <= radius, around a centre:

    value + jacobian e + anything of at most `remainder`, coordinate by coordinate

Several radii are tried at once: they share the value and the jacobian, and each has its own remainder.

It can be added, multiplied, mapped linearly and put through tanh and sigmoid, and what comes out is an expansion again:
the remainder grows by what the second derivatives allow. So the formula of a recurrent cell, written once, gives the
next state on numbers and its error bound on expansions. Everything is in float64; `SLACK` covers its rounding, but for
products that cancel: there an error of some 1e-14 of the factors is left, far less than the 1e-6 that a proof allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

SLACK = 1 + 1e-9
TANH_CURVATURE = 4 / (3 * math.sqrt(3))
"""The largest second derivative of tanh."""
SIGMOID_CURVATURE = 1 / (6 * math.sqrt(3))


@dataclass(frozen=True)
class Expansion:
    value: Float64[Tensor, " n"]
    jacobian: Float64[Tensor, "n state"]
    remainder: Float64[Tensor, "n radii"]
    radii: Float64[Tensor, " radii"]

    @classmethod
    def around(cls, centre: Float64[Tensor, " state"], radii: Float64[Tensor, " radii"]) -> Expansion:
        """The state itself."""
        exact = centre.new_zeros(len(centre), len(radii))
        return cls(centre, torch.eye(len(centre), dtype=torch.float64, device=centre.device), exact, radii)

    @property
    def deviation(self) -> Float64[Tensor, "n radii"]:
        """How far each coordinate can get from its value."""
        return (self.jacobian.norm(dim=1, keepdim=True) * self.radii + self.remainder) * SLACK

    def __add__(self, other: Expansion | Tensor) -> Expansion:
        if isinstance(other, Tensor):
            return Expansion(self.value + other, self.jacobian, self.remainder, self.radii)
        return Expansion(
            self.value + other.value,
            self.jacobian + other.jacobian,
            (self.remainder + other.remainder) * SLACK,
            self.radii,
        )

    __radd__ = __add__

    def __sub__(self, other: Expansion) -> Expansion:
        return self + Expansion(-other.value, -other.jacobian, other.remainder, other.radii)

    def __mul__(self, other: Expansion) -> Expansion:
        second_order = self.deviation * other.deviation
        first_order = self.value.abs()[:, None] * other.remainder + other.value.abs()[:, None] * self.remainder
        return Expansion(
            self.value * other.value,
            self.value[:, None] * other.jacobian + other.value[:, None] * self.jacobian,
            (first_order + second_order) * SLACK,
            self.radii,
        )

    def __getitem__(self, rows: slice) -> Expansion:
        return Expansion(self.value[rows], self.jacobian[rows], self.remainder[rows], self.radii)

    @classmethod
    def joined(cls, parts: Sequence[Expansion]) -> Expansion:
        """Parts one after the other, as a state is made of them."""
        return cls(
            torch.cat([part.value for part in parts]),
            torch.cat([part.jacobian for part in parts]),
            torch.cat([part.remainder for part in parts]),
            parts[0].radii,
        )

    def chunk(self, parts: int) -> tuple[Expansion, ...]:
        size = len(self.value) // parts
        return tuple(self[i * size : (i + 1) * size] for i in range(parts))

    def __rmatmul__(self, matrix: Float64[Tensor, "m n"]) -> Expansion:
        """The image under a linear map: `matrix @ expansion`."""
        remainder = (matrix.abs() @ self.remainder) * SLACK
        return Expansion(matrix @ self.value, matrix @ self.jacobian, remainder, self.radii)

    def tanh(self) -> Expansion:
        value = self.value.tanh()
        return self._through(value, 1 - value**2, TANH_CURVATURE)

    def sigmoid(self) -> Expansion:
        value = self.value.sigmoid()
        return self._through(value, value * (1 - value), SIGMOID_CURVATURE)

    def _through(self, value: Tensor, slope: Tensor, curvature: float) -> Expansion:
        """A function of each coordinate: its slope at the value, and at most so much curvature anywhere."""
        remainder = (slope.abs()[:, None] * self.remainder + curvature / 2 * self.deviation**2) * SLACK
        return Expansion(value, slope[:, None] * self.jacobian, remainder, self.radii)
