"""Proofs that a decoding never ends: a ball of states around a cycle of tokens that every step maps into the next.

Let F_v be the state after reading token v, and s_0, ..., s_P states (centres) with tokens v_1, ..., v_P, none of them
eos. With J_t the derivative of F at s_{t-1}, Q_t(r) a bound on its remainder within r, and rho an error allowed at
each step,

    r_t = |J_t ... J_1| r_0 + sum over i <= t of |J_t ... J_{i+1}| (Q_i(r_{i-1}) + |F(s_{i-1}) - s_i| + rho)

bounds the distance of the state from s_t. If the decoder must choose v_{t+1} everywhere within r_t of s_t, and
r_P <= r_0 where s_P = s_0, then from anywhere within r_0 of s_0 the tokens repeat for ever: after P steps the state is
back in the ball from which it started. One period is often not enough to contract, so the tube is followed over
several, for all radii at once, until one of them closes.

rho is the larger of two numbers: four times the rounding measured along the cycle, and the bound of
`proofs.expansion`, which follows from the weights. That bound makes one assumption: within one sum, rounding errors
have random signs. All else is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from eosin.devices import own_precision
from eosin.proofs.dynamics import Dynamics
from eosin.proofs.expansion import SLACK, Expansion, norm_bound

ROUNDING = 1e-6
"""The least error allowed at each step."""
SAFETY = 4
"""The error allowed at each step is at least this many times the largest one measured along the cycle."""
SPARE_LEAD = 1e-3
"""The least lead of a choice after the ball and rounding took their part: sums of probabilities err too."""
RADII = (1e-2, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4)
"""Radii of balls to be proved; the largest that can be is taken."""
GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
"""Radii at which remainders are computed; no tube may become wider than the last."""
LONGEST_PERIOD, LONGEST_TUBE = 24, 64
ATTRACTED = 1e-11
"""A state that moves by no more than this in a period has arrived."""
MOST_PERIODS = 400
STAGES = 4
"""The most stages of a period."""

Margin = Callable[[Float64[Tensor, "vocab n"]], Float64[Tensor, " n"]]
"""From the least leads of a token to its margin. Where the margin is positive, the decoder must choose the token."""

Source = tuple[int, Tensor]
"""The number of steps after which an error was added to the distance, and the error for each radius."""


@dataclass(frozen=True)
class Cycle:
    """A certified cycle of tokens, with the numbers of its proof."""

    tokens: tuple[int, ...]
    """From the centre on, over and over."""
    centre: Float64[Tensor, " state"]
    radius: float
    """From every state within this distance of the centre, the tokens repeat for ever."""
    repeats: int
    """The number of periods after which the ball is mapped into itself."""
    contraction: float
    """A bound on the norm of the derivative over these periods."""
    widest: float
    """The largest radius of the tube."""
    margin: float
    """The margin of the least safe choice, in nats at the decoder's temperature."""
    rounding: float
    """The error allowed at each step."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which keeps Python's floats exactly."""
        return {**vars(self), "tokens": list(self.tokens), "centre": self.centre.tolist()}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Cycle:
        centre = torch.tensor([float(number) for number in table["centre"]], dtype=torch.float64, device="cpu")
        tokens = tuple(index(token) for token in table["tokens"])
        numbers = {name: float(value) for name, value in table.items() if name not in ("centre", "tokens", "repeats")}
        return cls(tokens, centre, repeats=index(table["repeats"]), **numbers)


@own_precision()
@torch.no_grad()
def prove_cycle(
    dynamics: Dynamics, tokens: Sequence[int], state: Float[Tensor, " state"], eos_ids: Sequence[int], margin: Margin
) -> Cycle | None:
    """Prove that decoding from near this state repeats these tokens for ever; None where the proof fails."""
    if len(tokens) > LONGEST_PERIOD or set(tokens) & set(eos_ids):
        return None
    centre = find_attractor(dynamics, tokens, state.detach().double())
    return None if centre is None else follow_tube(dynamics, tokens, centre, margin, RADII)


@own_precision()
@torch.no_grad()
def reprove_cycle(dynamics: Dynamics, cycle: Cycle, eos_ids: Sequence[int], margin: Margin) -> Cycle | None:
    """Prove a cycle again from its tokens, centre and radius alone; its other numbers are not trusted."""
    known = set(range(dynamics.vocab_size)) - set(eos_ids)
    is_ball = (
        len(cycle.centre) == dynamics.size and bool(cycle.centre.isfinite().all()) and 0 < cycle.radius <= GRID[-1]
    )
    if len(cycle.tokens) not in range(1, LONGEST_PERIOD + 1) or not set(cycle.tokens) <= known or not is_ball:
        return None
    return follow_tube(dynamics, cycle.tokens, cycle.centre, margin, (cycle.radius,))


def find_attractor(dynamics: Dynamics, tokens: Sequence[int], state: Tensor) -> Tensor | None:
    """The state to which the cycle attracts this one; None where it does not."""
    for _ in range(MOST_PERIODS):
        before = state
        for token in tokens:
            state = dynamics.advance(token, state)
        if float((state - before).norm()) <= ATTRACTED:
            return state
    return None


def follow_tube(
    dynamics: Dynamics, tokens: Sequence[int], centre: Tensor, margin: Margin, radii: Sequence[float]
) -> Cycle | None:
    """Follow the tube around a cycle until one of the radii closes; None where none does or a choice is not safe."""
    orbit = Orbit(dynamics, tokens, centre)
    start = torch.tensor(radii, dtype=torch.float64, device=centre.device)
    if orbit.rounding[0] > start.max():  # one step can leave every ball
        return None
    tube = Tube(orbit, start)
    for repeats in range(1, max(1, LONGEST_TUBE // len(tokens)) + 1):
        tube.follow_one_period()
        closed = tube.radii <= start
        if not closed.any():
            continue
        margins = orbit.margins(margin, tube.widest)
        if (proved := closed & (margins > 0)).any():
            best = int(proved.int().argmax())
            widest = tube.widest[:, best].max()
            return Cycle(
                tokens=tuple(tokens),
                centre=centre,
                radius=float(start[best]),
                repeats=repeats,
                contraction=tube.contraction,
                widest=float(widest),
                margin=float(margins[best]),
                rounding=float(orbit.rounding[orbit.place(widest)]),
            )
    return None


class Orbit:
    """One turn of a cycle: the centres, the derivatives between them, and the bounds around each."""

    def __init__(self, dynamics: Dynamics, tokens: Sequence[int], centre: Tensor):
        self.tokens = tokens
        self.grid = torch.tensor(GRID, dtype=torch.float64, device=centre.device)
        self.centres, self.jacobians, self.remainders, bounds = [centre], [], [], []
        for token in tokens:
            after = dynamics.expand(token, Expansion.around(self.centres[-1], self.grid, dynamics.unit))
            self.centres.append(after.value)
            self.jacobians.append(after.jacobian)
            self.remainders.append(after.length)
            bounds.append(after.error.norm(dim=0))
        self.gap = float((self.centres.pop() - centre).norm()) * SLACK
        here = list(zip(tokens, self.centres, strict=True))
        self.leads = [dynamics.leads(*at) for at in here]
        measured = SAFETY * max(dynamics.rounding(*at) for at in here)
        self.rounding = torch.stack(bounds).amax(0).clamp(min=max(ROUNDING, measured))
        """The error allowed at each step, within each radius of the grid."""

    def error(self, phase: int, radii: Float64[Tensor, " radii"]) -> Float64[Tensor, " radii"]:
        """The error of one step: remainder, rounding, and at the end of a period the gap to the first centre.

        A remainder is a sum of powers of the radius, from the second on. Divided by the square of the radius it does
        not fall, so its value at the next radius of the grid bounds it.
        """
        place = self.place(radii)
        remainder = self.remainders[phase][place] * (radii / self.grid[place]) ** 2
        gap = self.gap if phase == len(self.tokens) - 1 else 0.0
        return torch.where(radii <= self.grid[-1], (remainder + self.rounding[place] + gap) * SLACK, torch.inf)

    def place(self, radii: Float64[Tensor, "*radii"]) -> Int[Tensor, "*radii"]:
        """The place of the next radius of the grid."""
        return torch.searchsorted(self.grid, radii).clamp(max=len(self.grid) - 1)

    def margins(self, margin: Margin, widest: Float64[Tensor, "period radii"]) -> Float64[Tensor, " radii"]:
        """The margin at the phase where it is least; leads shrink as the tube widens."""
        margins = []
        for token, (lead, slope), radii in zip(self.tokens, self.leads, widest, strict=True):
            least = lead[:, None] - slope[:, None] * (radii * SLACK) - SPARE_LEAD
            least[token] = torch.inf
            margins.append(margin(least))
        return torch.stack(margins).amin(0)


class Tube:
    """The distance from the centres that states can reach which start within some radii of the first one.

    The product of all later derivatives carries on the error of each step. Its norm is often far smaller than the
    product of their norms. To need fewer products, errors are gathered at the ends of a few stages of each period and
    carried on from there. The derivatives repeat with the period, and so do the products.
    """

    def __init__(self, orbit: Orbit, start: Float64[Tensor, " radii"]):
        self.orbit = orbit
        self.radii = start
        self.widest = start.expand(len(orbit.tokens), -1)
        """The widest radii at each phase, over all periods so far."""
        self.steps = 0
        self.gathered: list[Source] = [(0, start)]
        self.fresh: list[Source] = []
        """Errors of the current stage."""
        identity = torch.eye(len(orbit.centres[0]), dtype=torch.float64, device=start.device)
        self.products = [identity for _ in orbit.tokens]
        self.norms: list[list[float]] = [[1.0] for _ in orbit.tokens]
        """For each phase, bounds on the norms of the products of 0, 1, 2, ... derivatives from there on."""

    @property
    def contraction(self) -> float:
        return self._norm(0, self.steps)

    def follow_one_period(self) -> None:
        period, widest = len(self.orbit.tokens), []
        stage = -(-period // STAGES)
        for phase in range(period):
            widest.append(self.radii)
            error = self.orbit.error(phase, self.radii)
            self.steps += 1
            self.fresh.append((self.steps, error))
            from_here = self._carry(self.fresh)
            self.radii = (self._carry(self.gathered) + from_here) * SLACK
            if (phase + 1) % stage == 0 or phase + 1 == period:
                self.gathered.append((self.steps, from_here))
                self.fresh = []
        self.widest = self.widest.maximum(torch.stack(widest))

    def _carry(self, sources: Sequence[Source]) -> Float64[Tensor, " radii"]:
        """A bound on the present size of earlier errors."""
        norms = [self._norm(step % len(self.norms), self.steps - step) for step, _ in sources]
        return torch.stack([norm * error for norm, (_, error) in zip(norms, sources, strict=True)]).sum(0) * SLACK

    def _norm(self, phase: int, steps: int) -> float:
        """A bound on the norm of the product of this many derivatives from a phase on."""
        norms, jacobians = self.norms[phase], self.orbit.jacobians
        while len(norms) <= steps:
            self.products[phase] = jacobians[(phase + len(norms) - 1) % len(jacobians)] @ self.products[phase]
            norms.append(norm_bound(self.products[phase]))
        return norms[steps]
