"""First-order expansions with a rigorous remainder: how far a step can carry nearby states apart.

An expansion stands for all values that a quantity takes while a state moves by e, |e| <= radius, around a centre:

    value + jacobian e + anything of at most `remainder`, coordinate by coordinate, and of at most `length` as a whole

together with a bound on what rounding adds where the same formula is computed in another precision, `error`.

The length is in the 2-norm. Through a matrix it stays far shorter than what its coordinates, each at its worst, could
add up to. Several radii are tried at once: they share the value and the jacobian, and each has its own remainder.

It can be added, subtracted, multiplied, mapped linearly and put through tanh and sigmoid, also beside vectors and
numbers that do not depend on the state. What comes out is an expansion again: the remainder grows by what the second
derivatives allow. So the formula of a recurrent cell, written once, gives the next state on numbers and its error
bounds on expansions.

Rounding is bounded from the sizes of all that is added and multiplied, so terms that cancel count in full. With u the
unit of the precision, a sum, a product, tanh and sigmoid err by u times a size at every step: that is proved. For the
n products p of a matrix with a vector, n u |p|_1 is proved, whatever the order of summation, but it is a hundred times
what is ever seen, and no proof in float32 would be left. So one assumption is made: the errors within one sum have
random signs. Then u sqrt(n) |p|_2 bounds them (Higham and Mary, 2019). Signs are not random where a product is so large
that it swallows all that are added to it, so what a term has above LARGE counts n times. A bias and
what comes from the inputs count as terms too: a sum may begin with them.

Everything is in float64; `SLACK` covers its rounding, but for products that cancel: there an error of some 1e-14 of the
factors is left, far less than the 1e-6 that a proof allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from eosin.devices import own_precision

SLACK = 1 + 1e-9
LARGE = 4.0
"""A term above this may be so large that the others are lost in it."""
UNITS = 4
"""How many units tanh and sigmoid err by, of values of at most one."""
MOST_CURVED = math.atanh(1 / math.sqrt(3))
"""Where the second derivative of tanh is largest; it falls on both sides."""


@dataclass(frozen=True)
class Expansion:
    value: Float64[Tensor, " n"]
    jacobian: Float64[Tensor, "n state"]
    remainder: Float64[Tensor, "n radii"]
    length: Float64[Tensor, " radii"]
    radii: Float64[Tensor, " radii"]
    error: Float64[Tensor, "n radii"]
    """A bound on the rounding of each coordinate."""
    unit: float
    """The error of one operation, relative to its result; zero in exact arithmetic."""
    terms: int = 0
    """The number of terms of its sums, if a matrix just made it."""

    @classmethod
    def around(
        cls, centre: Float64[Tensor, " state"], radii: Float64[Tensor, " radii"], unit: float = 0.0
    ) -> Expansion:
        """The state itself."""
        exact = centre.new_zeros(len(centre), len(radii))
        identity = torch.eye(len(centre), dtype=torch.float64, device=centre.device)
        return cls(centre, identity, exact, exact[0], radii, exact, unit)

    def constant(self, value: Float64[Tensor, " n"]) -> Expansion:
        """A quantity that does not depend on the state."""
        exact = value.new_zeros(len(value), len(self.radii))
        jacobian = value.new_zeros(len(value), self.jacobian.shape[1])
        return Expansion(value, jacobian, exact, exact[0], self.radii, exact, self.unit)

    def _to_expansion(self, other: Expansion | Tensor | float) -> Expansion:
        """What stands beside this in a formula: another expansion, a vector, or a number."""
        if isinstance(other, Expansion):
            return other
        value = other.detach() if isinstance(other, Tensor) else torch.full_like(self.value, other)
        return self.constant(value.to(self.value).expand_as(self.value))

    def _with(self, value: Tensor, jacobian: Tensor, remainder: Tensor, length: Tensor, error: Tensor) -> Expansion:
        """Another expansion with the same radii; the two bounds on its remainder bound each other."""
        length = length.minimum(remainder.norm(dim=0)) * SLACK
        remainder = (remainder * SLACK).minimum(length)
        return Expansion(value, jacobian, remainder, length, self.radii, error * SLACK, self.unit)

    @property
    def size(self) -> Float64[Tensor, "n radii"]:
        """The largest absolute value of each coordinate, rounded or not."""
        return self.value.abs()[:, None] + self.deviation + self.error

    def _after_rounding(self) -> Expansion:
        """The same after the rounding of one operation."""
        return replace(self, error=(self.error + self.unit * self.size) * SLACK)

    @property
    def deviation(self) -> Float64[Tensor, "n radii"]:
        """The largest distance of each coordinate from its value."""
        return (self.jacobian.norm(dim=1, keepdim=True) * self.radii + self.remainder) * SLACK

    @property
    def spread(self) -> Float64[Tensor, " radii"]:
        """The largest distance of all coordinates together from their values."""
        return (norm_bound(self.jacobian) * self.radii + self.length) * SLACK

    def __add__(self, other: Expansion | Tensor | float) -> Expansion:
        if not isinstance(other, Expansion):
            return self._to_expansion(other) + self
        terms = max(self.terms, other.terms)
        # the products of a matrix may be added one by one to what stands on the left
        added = self._with(
            self.value + other.value,
            self.jacobian + other.jacobian,
            self.remainder + other.remainder,
            self.length + other.length,
            self.error + other.error + self.unit * bound_sum_rounding(self.size, above_large(self.size), terms),
        )
        return replace(added._after_rounding(), terms=terms)

    def __radd__(self, other: Tensor | float) -> Expansion:
        return self + other

    def __neg__(self) -> Expansion:
        return self._scale(-1.0)

    def __sub__(self, other: Expansion | Tensor | float) -> Expansion:
        return self + -other

    def __rsub__(self, other: Tensor | float) -> Expansion:
        return -self + other

    def _scale(self, factor: float) -> Expansion:
        """Times a power of two, which rounds nothing."""
        size = abs(factor)
        return self._with(
            self.value * factor,
            self.jacobian * factor,
            self.remainder * size,
            self.length * size,
            self.error * size,
        )

    def __mul__(self, other: Expansion | Tensor | float) -> Expansion:
        if isinstance(other, float) and abs(math.frexp(other)[0]) == 0.5:
            return self._scale(other)
        if not isinstance(other, Expansion):
            # the number may have been rounded, or computed from a parameter
            constant = self._to_expansion(other)
            other = replace(constant, error=UNITS * self.unit * constant.size)
        mine, others = self.value.abs()[:, None], other.value.abs()[:, None]
        both, at_most = bound_product(self.deviation, other.deviation, other.spread)
        multiplied = self._with(
            self.value * other.value,
            self.value[:, None] * other.jacobian + other.value[:, None] * self.jacobian,
            mine * other.remainder + others * self.remainder + both,
            mine.max() * other.length + others.max() * self.length + at_most,
            self.size * other.error + other.size * self.error,
        )
        return multiplied._after_rounding()

    def __rmul__(self, other: Tensor | float) -> Expansion:
        return self * other

    def __getitem__(self, rows: slice) -> Expansion:
        return self._with(self.value[rows], self.jacobian[rows], self.remainder[rows], self.length, self.error[rows])

    @classmethod
    def concatenate(cls, parts: Sequence[Expansion]) -> Expansion:
        """The parts one after the other, as in a state."""
        return parts[0]._with(
            torch.cat([part.value for part in parts]),
            torch.cat([part.jacobian for part in parts]),
            torch.cat([part.remainder for part in parts]),
            torch.stack([part.length for part in parts]).norm(dim=0),
            torch.cat([part.error for part in parts]),
        )

    def chunk(self, parts: int) -> tuple[Expansion, ...]:
        size = len(self.value) // parts
        return tuple(self[i * size : (i + 1) * size] for i in range(parts))

    def __rmatmul__(self, matrix: Float64[Tensor, "m n"]) -> Expansion:
        """The image under a linear map: `matrix @ expansion`."""
        by_rows = matrix.norm(dim=1)[:, None] * self.length
        sizes, terms = matrix.abs(), matrix.shape[1]
        products = (sizes.square() @ self.size.square()).sqrt()
        large = torch.stack([above_large(sizes * size).sum(1) for size in self.size.T], dim=1)
        image = self._with(
            matrix @ self.value,
            matrix @ self.jacobian,
            (sizes @ self.remainder).minimum(by_rows),
            norm_bound(matrix) * self.length,
            sizes @ self.error + self.unit * bound_sum_rounding(products, large, terms),
        )
        return replace(image, terms=terms)

    def tanh(self) -> Expansion:
        value, deviation = self.value.tanh(), self.deviation
        curved, steepest = bound_curvature(self.value, deviation), bound_slope(self.value, deviation + self.error)
        return self._apply(value, 1 - value**2, curved, steepest, deviation)

    def sigmoid(self) -> Expansion:
        """It is (1 + tanh(x / 2)) / 2."""
        value, deviation = self.value.sigmoid(), self.deviation
        curved = bound_curvature(self.value / 2, deviation / 2) / 8
        steepest = bound_slope(self.value / 2, (deviation + self.error) / 2) / 4
        return self._apply(value, value * (1 - value), curved, steepest, deviation)

    def _apply(self, value: Tensor, slope: Tensor, curved: Tensor, steepest: Tensor, deviation: Tensor) -> Expansion:
        """Apply a function to each coordinate, given its slope at the value and bounds on its curvature and slope."""
        bent, at_most = bound_product(curved / 2 * deviation, deviation, self.spread)
        return self._with(
            value,
            slope[:, None] * self.jacobian,
            slope.abs()[:, None] * self.remainder + bent,
            slope.abs().max() * self.length + at_most,
            steepest * self.error + UNITS * self.unit,
        )


def bound_sum_rounding(
    length: Float64[Tensor, "n radii"], large: Float64[Tensor, "n radii"], terms: int
) -> Float64[Tensor, "n radii"]:
    """The rounding of sums, in units, from the 2-norm of their terms and from the parts of these above LARGE."""
    return math.sqrt(terms) * length + terms * large


def above_large(sizes: Tensor) -> Tensor:
    return (sizes - LARGE).clamp(min=0)


def bound_product(
    one: Float64[Tensor, "n radii"], other: Float64[Tensor, "n radii"], spread: Float64[Tensor, " radii"]
) -> tuple[Float64[Tensor, "n radii"], Float64[Tensor, " radii"]]:
    """A bound on the product of two quantities from bounds on each, and on the length of the second."""
    product = one * other
    return product, product.norm(dim=0).minimum(one.amax(dim=0) * spread)


def bound_curvature(value: Float64[Tensor, " n"], distance: Float64[Tensor, "n radii"]) -> Float64[Tensor, "n radii"]:
    """The largest second derivative of tanh up to some distance from each value, in absolute value."""
    nearest, farthest = value.abs()[:, None] - distance, value.abs()[:, None] + distance
    worst = torch.where(farthest < MOST_CURVED, farthest, nearest.clamp(min=MOST_CURVED))
    return 2 * worst.tanh() / worst.cosh() ** 2 * SLACK


def bound_slope(value: Float64[Tensor, " n"], distance: Float64[Tensor, "n radii"]) -> Float64[Tensor, "n radii"]:
    """The largest slope of tanh up to some distance from each value."""
    return (value.abs()[:, None] - distance).clamp(min=0).cosh() ** -2 * SLACK


@own_precision()
@torch.no_grad()
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
