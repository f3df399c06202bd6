"""Proofs that a decoding never ends: a ball of states around a cycle of tokens that every step maps into the next.

Let F_v be the state after reading token v, and s_0, ..., s_P states (centres) with tokens v_1, ..., v_P, none of them
eos. With J_t the derivative of F at s_{t-1}, Q_t(r) a bound on its remainder within r, and rho an error allowed at
each step,

    r_t = |J_t ... J_1| r_0 + sum over i <= t of |J_t ... J_{i+1}| (Q_i(r_{i-1}) + |F(s_{i-1}) - s_i| + rho)

bounds how far the state can be from s_t. If the decoder must choose v_{t+1} everywhere within r_t of s_t, and
r_P <= r_0 where s_P = s_0, then from anywhere within r_0 of s_0 the tokens repeat for ever: after P steps the state is
back in the ball that it started from. One period is often not enough to contract, so the tube is followed over
several, all radii at once, until one of them closes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from eosin.theory.expansion import SLACK, Expansion

ROUNDING = 1e-6
"""The least error allowed at each step."""
SAFETY = 10
"""The error allowed at each step is at least so many times the largest that was measured along the cycle."""
LOGIT_ROUNDING = 1e-3
"""By how much a choice must lead beyond what the ball takes from it: rounded logits may not turn it."""
RADII = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
LONGEST = 64
"""The most steps that a tube is followed."""
SETTLED = 1e-11
MOST_PERIODS = 400

Margin = Callable[[Float64[Tensor, "vocab n"]], Float64[Tensor, " n"]]
"""From the least leads of a token to how safely a decoder must choose it: not at all where that is not positive."""


@runtime_checkable
class Dynamics(Protocol):
    """What a proof needs of a model: its state as one float64 vector, and one step of it as a formula."""

    def read(self, token: int, state: Expansion) -> Expansion:
        """The state after one more token, with its error bound."""

    def advance(self, token: int, state: Float64[Tensor, " state"]) -> Float64[Tensor, " state"]:
        """The same on numbers."""

    def rounding(self, token: int, state: Float64[Tensor, " state"]) -> float:
        """How far a step in the model's own precision is from this."""

    def leads(self, token: int, state: Float64[Tensor, " state"]) -> tuple[Tensor, Tensor]:
        """By how much a token's logit leads each other one, and how fast a lead can shrink with the distance."""


@dataclass(frozen=True)
class Cycle:
    """A certified cycle of tokens: what was proved, and with which figures."""

    tokens: tuple[int, ...]
    """From the centre on, over and over."""
    centre: Float64[Tensor, " state"]
    radius: float
    """From every state this near to the centre, the tokens repeat for ever."""
    repeats: int
    """How many periods it took until the ball was mapped into itself."""
    contraction: float
    """A bound on the norm of the derivative over that time."""
    widest: float
    """The largest radius on the way."""
    margin: float
    """How safe the least safe choice is, in nats."""
    rounding: float
    """The error that was allowed at each step."""

    @property
    def period(self) -> int:
        return len(self.tokens)

    def written(self) -> dict[str, Any]:
        """As JSON can hold it; numbers of Python are written so that they read back exactly."""
        return {**vars(self), "tokens": list(self.tokens), "centre": self.centre.tolist()}

    @classmethod
    def read(cls, written: dict[str, Any]) -> Cycle:
        centre = torch.tensor(written["centre"], dtype=torch.float64)
        return cls(**{**written, "tokens": tuple(written["tokens"]), "centre": centre})


def certify(
    dynamics: Dynamics, tokens: Sequence[int], state: Float[Tensor, " state"], eos_ids: Sequence[int], margin: Margin
) -> Cycle | None:
    """A proof that decoding from near this state repeats these tokens for ever; None where there is none."""
    if len(tokens) > LONGEST or set(tokens) & set(eos_ids):
        return None
    centre = settled(dynamics, tokens, state.detach().double())
    return None if centre is None else prove(dynamics, tokens, centre, margin, RADII)


def check(dynamics: Dynamics, cycle: Cycle, eos_ids: Sequence[int], margin: Margin) -> Cycle | None:
    """The proof done again from a cycle's centre and radius, and nothing else that it says of itself."""
    if set(cycle.tokens) & set(eos_ids):
        return None
    return prove(dynamics, cycle.tokens, cycle.centre, margin, (cycle.radius,))


def settled(dynamics: Dynamics, tokens: Sequence[int], state: Tensor) -> Tensor | None:
    """The state that the cycle attracts this one to, if it attracts it at all."""
    for _ in range(MOST_PERIODS):
        before = state
        for token in tokens:
            state = dynamics.advance(token, state)
        if float((state - before).norm()) <= SETTLED:
            return state
    return None


def prove(
    dynamics: Dynamics, tokens: Sequence[int], centre: Tensor, margin: Margin, radii: Sequence[float]
) -> Cycle | None:
    """Follow the tube around a cycle until one of the radii closes; None where no choice is safe, or none closes."""
    orbit = Orbit(dynamics, tokens, centre)
    tube = Tube(orbit, margin, torch.tensor(radii, dtype=torch.float64, device=centre.device))
    for repeats in range(1, LONGEST // len(tokens) + 1):
        for phase in range(len(tokens)):
            tube.step(phase)
            if not tube.possible.any():
                return None
        if (closed := tube.closed).any():
            best = int(closed.int().argmax())
            return Cycle(
                tokens=tuple(tokens),
                centre=centre,
                radius=float(tube.start[best]),
                repeats=repeats,
                contraction=tube.norms[-1][0],
                widest=float(tube.widest[best]),
                margin=float(tube.margins[best]),
                rounding=orbit.rounding,
            )
    return None


class Orbit:
    """The centres along a cycle, and what is known at each."""

    def __init__(self, dynamics: Dynamics, tokens: Sequence[int], centre: Tensor):
        self.dynamics = dynamics
        self.tokens = tokens
        self.centres = [centre]
        for token in tokens:
            self.centres.append(dynamics.advance(token, self.centres[-1]))
        self.gap = float((self.centres.pop() - centre).norm()) * SLACK
        self.leads = [dynamics.leads(*at) for at in zip(tokens, self.centres, strict=True)]
        measured = max(dynamics.rounding(*at) for at in zip(tokens, self.centres, strict=True))
        self.rounding = max(ROUNDING, SAFETY * measured)

    def least_leads(self, phase: int, radii: Tensor) -> Float64[Tensor, "vocab radii"]:
        """Of the chosen token over each other one, anywhere within these radii of the centre."""
        lead, slope = self.leads[phase]
        least = lead[:, None] - slope[:, None] * (radii * SLACK) - LOGIT_ROUNDING
        least[self.tokens[phase]] = torch.inf
        return least

    def disturbance(self, phase: int) -> float:
        """What comes on top of the remainder at a step: rounding, and at the end of a period the way to the start."""
        return self.rounding + (self.gap if phase == len(self.tokens) - 1 else 0.0)


class Tube:
    """How far from the centres states can get that start within some radii of the first one."""

    def __init__(self, orbit: Orbit, margin: Margin, start: Float64[Tensor, " radii"]):
        self.orbit = orbit
        self.margin = margin
        self.start = start
        self.radii = start
        self.widest = start
        self.margins = torch.full_like(start, torch.inf)
        self.possible: Bool[Tensor, " radii"] = torch.ones_like(start, dtype=torch.bool)
        self.errors: list[Tensor] = []
        self.products: list[Tensor] = []
        """J_t ... J_{i+1} for each i within the first period."""
        self.norms: list[list[float]] = [[1.0]]
        """norms[t][i] bounds |J_t ... J_{i+1}|; norms[t][t] is 1."""

    def step(self, phase: int) -> None:
        orbit, token = self.orbit, self.orbit.tokens[phase]
        self.margins = self.margins.minimum(self.margin(orbit.least_leads(phase, self.radii)))
        self.possible = self.possible & (self.margins > 0) & (self.radii <= 1)
        after = orbit.dynamics.read(token, Expansion.around(orbit.centres[phase], self.radii))
        self.errors.append((after.remainder.norm(dim=0) + orbit.disturbance(phase)) * SLACK)
        self._multiply(after.jacobian)
        grown = torch.tensor(self.norms[-1], dtype=torch.float64, device=self.start.device)
        self.radii = (grown @ torch.stack([self.start, *self.errors])) * SLACK
        self.widest = self.widest.maximum(self.radii)

    def _multiply(self, jacobian: Tensor) -> None:
        """One more factor. Derivatives repeat with the period, so products that begin later have been seen before."""
        period, t = len(self.orbit.tokens), len(self.norms)
        self.products = [jacobian @ product for product in self.products]
        if t <= period:
            self.products.append(jacobian)
        new = [norm_bound(product) for product in self.products]
        self.norms.append([*new, *(self.norms[t - period] if t >= period else [1.0])])

    @property
    def closed(self) -> Bool[Tensor, " radii"]:
        """Which balls are back within themselves; asked at the end of a period."""
        return self.possible & (self.radii <= self.start)


def norm_bound(matrix: Float64[Tensor, "n m"]) -> float:
    """An upper bound on the 2-norm: the eighth root of the sum of the eighth powers of the singular values."""
    scale = float(matrix.abs().max())
    if scale == 0:
        return 0.0
    square = (matrix / scale).T @ (matrix / scale)
    return scale * float((square @ square).norm()) ** 0.25 * SLACK
