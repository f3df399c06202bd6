"""First-order expansions with a rigorous remainder: how far a step can carry nearby states apart.

An expansion stands for all values that a quantity takes while a state moves by e, |e| <= radius, around a centre:

    value + jacobian e + anything of at most `remainder`, coordinate by coordinate, and of at most `length` as a whole

The length is in the 2-norm. Through a matrix it stays far shorter than what its coordinates, each at its worst, could
add up to. Several radii are tried at once: they share the value and the jacobian, and each has its own remainder.

It can be added, multiplied, mapped linearly and put through tanh and sigmoid, and what comes out is an expansion again:
the remainder grows by what the second derivatives allow. So the formula of a recurrent cell, written once, gives the
next state on numbers and its error bound on expansions. Everything is in float64; `SLACK` covers its rounding, but for
products that cancel: there an error of some 1e-14 of the factors is left, far less than the 1e-6 that a proof allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

SLACK = 1 + 1e-9
MOST_CURVED = math.atanh(1 / math.sqrt(3))
"""Where the second derivative of tanh is largest; it falls on both sides."""


@dataclass(frozen=True)
class Expansion:
    value: Float64[Tensor, " n"]
    jacobian: Float64[Tensor, "n state"]
    remainder: Float64[Tensor, "n radii"]
    length: Float64[Tensor, " radii"]
    radii: Float64[Tensor, " radii"]

    @classmethod
    def around(cls, centre: Float64[Tensor, " state"], radii: Float64[Tensor, " radii"]) -> Expansion:
        """The state itself."""
        exact = centre.new_zeros(len(centre), len(radii))
        identity = torch.eye(len(centre), dtype=torch.float64, device=centre.device)
        return cls(centre, identity, exact, exact[0], radii)

    def _becoming(self, value: Tensor, jacobian: Tensor, remainder: Tensor, length: Tensor) -> Expansion:
        """Another one of the same radii; the two bounds on its remainder bound each other."""
        length = length.minimum(remainder.norm(dim=0)) * SLACK
        return Expansion(value, jacobian, (remainder * SLACK).minimum(length), length, self.radii)

    @property
    def deviation(self) -> Float64[Tensor, "n radii"]:
        """How far each coordinate can get from its value."""
        return (self.jacobian.norm(dim=1, keepdim=True) * self.radii + self.remainder) * SLACK

    @property
    def spread(self) -> Float64[Tensor, " radii"]:
        """How far all coordinates together can get from their values."""
        return (norm_bound(self.jacobian) * self.radii + self.length) * SLACK

    def __add__(self, other: Expansion | Tensor) -> Expansion:
        if isinstance(other, Tensor):
            return replace(self, value=self.value + other)
        return self._becoming(
            self.value + other.value,
            self.jacobian + other.jacobian,
            self.remainder + other.remainder,
            self.length + other.length,
        )

    __radd__ = __add__

    def __sub__(self, other: Expansion) -> Expansion:
        return self + other * -1.0

    def __mul__(self, other: Expansion | float) -> Expansion:
        if isinstance(other, float):
            size = abs(other)
            return self._becoming(self.value * other, self.jacobian * other, self.remainder * size, self.length * size)
        mine, others = self.value.abs()[:, None], other.value.abs()[:, None]
        both, at_most = together(self.deviation, other.deviation, other.spread)
        return self._becoming(
            self.value * other.value,
            self.value[:, None] * other.jacobian + other.value[:, None] * self.jacobian,
            mine * other.remainder + others * self.remainder + both,
            mine.max() * other.length + others.max() * self.length + at_most,
        )

    def __getitem__(self, rows: slice) -> Expansion:
        return self._becoming(self.value[rows], self.jacobian[rows], self.remainder[rows], self.length)

    @classmethod
    def joined(cls, parts: Sequence[Expansion]) -> Expansion:
        """Parts one after the other, as a state is made of them."""
        return parts[0]._becoming(
            torch.cat([part.value for part in parts]),
            torch.cat([part.jacobian for part in parts]),
            torch.cat([part.remainder for part in parts]),
            torch.stack([part.length for part in parts]).norm(dim=0),
        )

    def chunk(self, parts: int) -> tuple[Expansion, ...]:
        size = len(self.value) // parts
        return tuple(self[i * size : (i + 1) * size] for i in range(parts))

    def __rmatmul__(self, matrix: Float64[Tensor, "m n"]) -> Expansion:
        """The image under a linear map: `matrix @ expansion`."""
        by_rows = matrix.norm(dim=1)[:, None] * self.length
        return self._becoming(
            matrix @ self.value,
            matrix @ self.jacobian,
            (matrix.abs() @ self.remainder).minimum(by_rows),
            norm_bound(matrix) * self.length,
        )

    def tanh(self) -> Expansion:
        value, deviation = self.value.tanh(), self.deviation
        return self._through(value, 1 - value**2, curvature(self.value, deviation), deviation)

    def sigmoid(self) -> Expansion:
        """It is (1 + tanh(x / 2)) / 2."""
        value, deviation = self.value.sigmoid(), self.deviation
        return self._through(value, value * (1 - value), curvature(self.value / 2, deviation / 2) / 8, deviation)

    def _through(self, value: Tensor, slope: Tensor, curved: Tensor, deviation: Tensor) -> Expansion:
        """A function of each coordinate: its slope at the value, and its curvature as far as the coordinate gets."""
        bent, at_most = together(curved / 2 * deviation, deviation, self.spread)
        return self._becoming(
            value,
            slope[:, None] * self.jacobian,
            slope.abs()[:, None] * self.remainder + bent,
            slope.abs().max() * self.length + at_most,
        )


def together(
    one: Float64[Tensor, "n radii"], other: Float64[Tensor, "n radii"], spread: Float64[Tensor, " radii"]
) -> tuple[Float64[Tensor, "n radii"], Float64[Tensor, " radii"]]:
    """A bound on the product of two quantities by those of each, the second one's length being given too."""
    product = one * other
    return product, product.norm(dim=0).minimum(one.amax(dim=0) * spread)


def curvature(value: Float64[Tensor, " n"], distance: Float64[Tensor, "n radii"]) -> Float64[Tensor, "n radii"]:
    """The largest second derivative of tanh up to some distance from each value, in absolute value."""
    nearest, farthest = value.abs()[:, None] - distance, value.abs()[:, None] + distance
    worst = torch.where(farthest < MOST_CURVED, farthest, nearest.clamp(min=MOST_CURVED))
    return 2 * worst.tanh() / worst.cosh() ** 2 * SLACK


def norm_bound(matrix: Float64[Tensor, "n m"]) -> float:
    """An upper bound on the 2-norm: the eighth root of the sum of the eighth powers of the singular values.

    The products are taken in float32, which is faster, and what that can err is added: with |A|_F the Frobenius norm,
    an entry of A' A errs by at most n eps times its rows' norms, so the whole by n eps |A|_F^2; and once more likewise.
    """
    scale = float(matrix.abs().max())
    if scale == 0:
        return 0.0
    size = scale * float((matrix / scale).norm())
    scaled = (matrix / size).float()
    slack = (len(matrix) + matrix.shape[1] + 2) * torch.finfo(torch.float32).eps
    square = scaled.T @ scaled
    fourth = float((square @ square).double().norm()) + 4 * slack
    return size * fourth**0.25 * SLACK
