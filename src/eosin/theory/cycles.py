"""Proofs that a decoding never ends: a ball of states around a cycle of tokens that every step maps into the next.

Let F_v be the state after reading token v, and s_0, ..., s_P states (centres) with tokens v_1, ..., v_P, none of them
eos. With J_t the derivative of F at s_{t-1}, Q_t(r) a bound on its remainder within r, and rho an error allowed at
each step,

    r_t = |J_t ... J_1| r_0 + sum over i <= t of |J_t ... J_{i+1}| (Q_i(r_{i-1}) + |F(s_{i-1}) - s_i| + rho)

bounds how far the state can be from s_t. If greedy decoding chooses v_{t+1} everywhere within r_t of s_t, and
r_P + |s_P - s_0| <= r_0, then from anywhere within r_0 of s_0 the tokens repeat for ever: after P steps the state is
back in the ball that it started from. One period is often not enough to contract, so 2, 4, 8, ... are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from eosin.theory.expansion import SLACK, Expansion

ROUNDING = 1e-6
"""rho: the error that a step in float32 may make. What steps really make is measured against it."""
LOGIT_ROUNDING = 1e-3
"""By how much a choice must lead beyond what the ball takes from it: rounded logits may not turn it."""
RADII = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
LONGEST = 64
"""The most steps that are proved at once: a period times how often it is repeated."""
SETTLED = 1e-11
MOST_PERIODS = 400


@runtime_checkable
class Dynamics(Protocol):
    """What a proof needs of a model: its state as one float64 vector, and one step of it as a formula."""

    def read(self, token: int, state: Expansion) -> Expansion:
        """The state after one more token, with its error bound."""

    def advance(self, token: int, state: Float64[Tensor, " state"]) -> Float64[Tensor, " state"]:
        """The same on numbers."""

    def leads(self, token: int, state: Float64[Tensor, " state"]) -> tuple[Tensor, Tensor]:
        """By how much a token's logit leads each other one, and how fast a lead can shrink with the distance."""


@dataclass(frozen=True)
class Cycle:
    """A certified cycle of tokens: what was proved, and with which figures."""

    tokens: tuple[int, ...]
    """From the centre on, over and over."""
    centre: Float64[Tensor, " state"]
    radius: float
    """Every state this near to the centre never ends."""
    repeats: int
    """How many periods it took until the ball was mapped into itself."""
    contraction: float
    """The norm of the derivative over that time."""
    widest: float
    """The largest radius on the way."""
    margin: float
    """The smallest lead of a chosen token that is left, in logits."""
    rounding: float

    @property
    def period(self) -> int:
        return len(self.tokens)


def certify(
    dynamics: Dynamics, tokens: Sequence[int], state: Float[Tensor, " state"], eos_ids: Sequence[int]
) -> Cycle | None:
    """A proof that decoding from near this state repeats these tokens for ever; None where there is none."""
    if set(tokens) & set(eos_ids):
        return None
    centre = settled(dynamics, tokens, state.detach().double())
    if centre is None:
        return None
    repeats = 1
    while repeats * len(tokens) <= LONGEST:
        orbit = orbit_of(dynamics, list(tokens) * repeats, centre)
        for radius in RADII:
            proved = prove(dynamics, tokens, orbit, radius, repeats)
            if proved is not None:
                return proved
        repeats *= 2
    return None


def settled(dynamics: Dynamics, tokens: Sequence[int], state: Tensor) -> Tensor | None:
    """The state that the cycle attracts this one to, if it attracts it at all."""
    for _ in range(MOST_PERIODS):
        before = state
        for token in tokens:
            state = dynamics.advance(token, state)
        if float((state - before).norm()) <= SETTLED:
            return state
    return None


@dataclass(frozen=True)
class Orbit:
    """Centres along a cycle, and the norms of all products of derivatives between them."""

    tokens: list[int]
    centres: list[Tensor]
    norms: list[list[float]]
    """norms[t][i] bounds |J_t ... J_{i+1}|; norms[t][t] is 1."""


def orbit_of(dynamics: Dynamics, tokens: list[int], centre: Tensor) -> Orbit:
    centres, norms = [centre], [[1.0]]
    products = centre.new_empty(len(centre), 0)
    size = len(centre)
    for token in tokens:
        step = dynamics.read(token, Expansion.around(centres[-1], 0.0))
        identity = torch.eye(size, dtype=torch.float64, device=centre.device)
        products = step.jacobian @ torch.cat([products, identity], dim=1)
        norms.append([*map(norm_bound, products.split(size, dim=1)), 1.0])  # type: ignore[no-untyped-call]
        centres.append(step.value)
    return Orbit(tokens, centres, norms)


def prove(dynamics: Dynamics, cycle: Sequence[int], orbit: Orbit, radius: float, repeats: int) -> Cycle | None:
    """Whether the ball of this radius around the first centre is mapped into itself, choosing the same tokens."""
    radii, errors, margins = [radius], [], []
    for t, token in enumerate(orbit.tokens):
        margins.append(margin_at(dynamics, token, orbit.centres[t], radii[t]))
        if margins[-1] <= 0 or radii[t] > 1:
            return None
        remainder = dynamics.read(token, Expansion.around(orbit.centres[t], radii[t])).remainder
        errors.append(float(remainder.norm()) * SLACK + ROUNDING)
        from_errors = sum(norm * error for norm, error in zip(orbit.norms[t + 1][1:], errors, strict=True))
        radii.append((orbit.norms[t + 1][0] * radius + from_errors) * SLACK)
    gap = float((orbit.centres[-1] - orbit.centres[0]).norm())
    if radii[-1] + gap > radius:
        return None
    contraction = orbit.norms[-1][0]
    return Cycle(tuple(cycle), orbit.centres[0], radius, repeats, contraction, max(radii), min(margins), ROUNDING)


def margin_at(dynamics: Dynamics, token: int, centre: Tensor, radius: float) -> float:
    """The smallest lead of a token over another that is left anywhere in the ball."""
    lead, slope = dynamics.leads(token, centre)
    left = lead - radius * slope * SLACK - LOGIT_ROUNDING
    left[token] = torch.inf
    return float(left.min())


def norm_bound(matrix: Float64[Tensor, "n m"]) -> float:
    """An upper bound on the 2-norm: the eighth root of the sum of the eighth powers of the singular values."""
    scale = float(matrix.abs().max())
    if scale == 0:
        return 0.0
    square = (matrix / scale).T @ (matrix / scale)
    return scale * float((square @ square).norm()) ** 0.25 * SLACK
