"""Certificates: whether a model ends under a decoder, by which theorem and by which step, known before decoding.

The model promises a lower bound on the log-odds of eos at each step (`eosin.log_odds`): from its weights by Lemma 3.2,
from a self-terminating head, or from a floor. The decoder passes on a part of it. The result is a lower bound on the
probability q_t that decoding ends at step t, and the rest follows from it:

    survival after n steps <= product over t <= n of (1 - q_t)

Where q_t is one, the bound on steps is strict, as in Theorems 4.2 and 4.3. Where q_t is positive from some step on,
decoding ends with probability one, as in Theorem 4.1. Where q_t is never positive nothing is guaranteed: Theorem 3.4
has a model that does not end. All this holds for exact arithmetic.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional

from eosin.contracts import Collecting, Decoder, Generative, Tempered
from eosin.decoding.floor import Floor
from eosin.decoding.job import check_model, check_whole, to_decoder
from eosin.devices import on_cpu, own_precision
from eosin.errors import BadInput
from eosin.log_odds import LAST_POWER, NO_PROMISE, LogOdds, Promise, get_promise, pass_on

RARE = 1e-6
"""A survival below this is called rare."""
PARTS = 1024
"""The number of parts into which a search divides an interval."""
ONE_BY_ONE = 2**13
"""Steps that are added up one by one. Later ones are added in blocks, each 1/512 as long as all steps before it."""
BLOCK_STARTS = torch.cat(
    [
        torch.arange(ONE_BY_ONE, dtype=torch.float64),
        (ONE_BY_ONE * (1 + 1 / 512) ** torch.arange(2**14, dtype=torch.float64)).floor(),
    ]
)
CERTAIN_LOG_ODDS = sys.float_info.max
"""Log-odds above this are those of a certain event."""
MOST_DIGITS = 15
"""Steps of more digits are given as a power of ten."""
LOG10_FAR = 6
"""log10 of a number of steps for which nobody decodes."""
EPSILONS = tuple(float(f"{digits}e-{places}") for places in range(14, 2, -1) for digits in range(100, 1000))
"""Numbers of three digits, from 1e-12 to 0.999, as people write them into a settings file."""


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed of a model under one decoder; its `str` says it in sentences."""

    decoder: str
    consistent: bool | None
    """True if decoding ends with probability one, None if nothing is guaranteed. A certificate never proves that
    decoding may not end; a certified cycle does."""
    theorem: str
    """The theorem of the paper that says so, or that says why nothing is guaranteed. With another head, a floor or a
    truncation the argument of its proof holds."""
    ends_by: int | None
    """Every decoding has ended by this step; None if no step is certain."""
    rare_after: int | None
    """Survival is below 1e-6 from this step on; None if that step is unknown or has more than 15 digits."""
    log10_rare_after: float | None
    """log10 of that step, however large."""
    log10_xi: float | None
    """log10 of a lower bound on p(eos) at every step, at the decoder's temperature; None if the bound is zero."""
    grounds: str
    """The promise of the model in words."""
    explanation: tuple[str, ...]
    """The certificate in sentences."""

    def __str__(self) -> str:
        verdicts = {True: "always ends" if self.ends_by else "ends with probability one", None: "nothing is guaranteed"}
        return "\n  ".join([f"{self.decoder}: {verdicts[self.consistent]} ({self.theorem})", *self.explanation])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def ends_within(self, budget: int) -> bool:
        """Whether fewer than one decoding in a million goes on for more steps."""
        return self.rare_after is not None and self.rare_after <= budget


@own_precision()
@on_cpu()
def certify(model: Generative, decoder: str | Decoder) -> Certificate:
    """What is guaranteed of a model under a decoder, before anything is decoded.

    model    anything that can be decoded; nothing is known of a model without a method `promise`
    decoder  a specification such as "greedy" or "consistent-nucleus:0.2", or a Decoder
    """
    bounds = EndingBounds.create(model, decoder)
    rare_after, log10_rare_after = bounds.rare_step
    return Certificate(
        decoder=str(bounds.decoder),
        consistent=None if bounds.first_possible is None else True,
        theorem=choose_theorem(bounds),
        ends_by=bounds.ends_by,
        rare_after=rare_after,
        log10_rare_after=log10_rare_after,
        log10_xi=bounds.log10_xi,
        grounds=bounds.grounds,
        explanation=tuple(explain(bounds)),
    )


@own_precision()
@on_cpu()
def find_floor(model: Generative, decoder: str | Decoder, budget: int, grace: int | None = None) -> Floor:
    """The lowest floor under a model with which fewer than one decoding in a million exceeds the budget.

    model    anything that can be decoded
    decoder  the decoder to be used: a floor for greedy decoding may be too low for sampling
    budget   the largest number of steps wanted
    grace    the number of steps without a floor (default: half of the budget, or less if that is too much)
    """
    check_whole("budget", budget, 1, 2**31)
    wanted = budget // 2 if grace is None else check_whole("grace", grace, 0, 2**31)
    # a large model goes through all its weights for a promise
    cached = PromisesOnly(model.vocab_size, model.eos_ids, cache(partial(get_promise, model)))

    def is_enough(epsilon: float) -> bool:
        rare_after, _ = EndingBounds.create(Floor(cached, epsilon, wanted), decoder).rare_step
        return rare_after is not None and rare_after <= budget

    while not is_enough(EPSILONS[-1]):
        if grace is not None or wanted == 0:
            raise BadInput(f"no floor with a grace of {wanted} ends {decoder} by step {budget}: allow more steps")
        wanted //= 2
    return Floor(model, EPSILONS[bisect_left(EPSILONS, True, key=is_enough)], wanted)


@dataclass(frozen=True)
class PromisesOnly:
    """What certificates ask of a model: its tokens and its promises. It cannot be decoded."""

    vocab_size: int
    eos_ids: tuple[int, ...]
    promise: Callable[..., Promise] = lambda temperature=1.0: NO_PROMISE

    def prefill(self, prefix: Any) -> Any:
        raise NotImplementedError

    def step(self, token: Any, state: Any) -> Any:
        raise NotImplementedError


def find_epsilon(budget: int) -> float:
    """The lowest epsilon of a self-terminating or non-monotonic head that ends greedy decoding within the budget."""
    check_whole("budget", budget, 1, 2**31)
    return EPSILONS[bisect_left(EPSILONS, True, key=lambda epsilon: math.log(2) / -math.log1p(-epsilon) < budget)]


@dataclass(frozen=True)
class EndingBounds:
    """Lower bounds on the log-odds that a decoder ends at each step: what it passes on of the promise of a model."""

    decoder: Decoder
    temperature: float
    promise: Promise
    vocab_size: int
    eos_count: int

    @classmethod
    def create(cls, model: Generative, decoder: str | Decoder) -> EndingBounds:
        check_model(model)
        parsed = to_decoder(decoder, model.vocab_size)
        temperature = parsed.temperature if isinstance(parsed, Tempered) else 1.0
        return cls(parsed, temperature, get_promise(model, temperature), model.vocab_size, len(model.eos_ids))

    @property
    def grounds(self) -> str:
        last = self.promise(torch.tensor([2.0**LAST_POWER], dtype=torch.float64))
        return (self.promise if bool(last > -math.inf) else NO_PROMISE).grounds

    @property
    def extra_steps(self) -> int:
        """Steps that a beam may need after the first that certainly ends a hypothesis: each later one ends another."""
        return self.decoder.needed - 1 if isinstance(self.decoder, Collecting) else 0

    def bound_at(self, steps: Float64[Tensor, " steps"]) -> LogOdds:
        """The least log-odds that decoding ends at each step."""
        return self.pass_on(self.promise(steps))

    def pass_on(self, log_odds: LogOdds) -> LogOdds:
        return pass_on(self.decoder, log_odds, self.vocab_size, self.eos_count)

    @property
    def keeps_eos(self) -> bool:
        """Whether the decoder passes on a promise however low."""
        return bool(self.pass_on(torch.tensor([-1e300], dtype=torch.float64)) > -math.inf)

    @property
    def threshold(self) -> float:
        """The probability of eos above which the decoder cannot pass over it."""
        log_odds = torch.linspace(-40, 40, 8_001, dtype=torch.float64)
        below = int((self.pass_on(log_odds) == -math.inf).sum())
        return 1.0 if below == len(log_odds) else float(log_odds[below].sigmoid())

    @property
    def log10_xi(self) -> float | None:
        xi = float(functional.logsigmoid(self.promise(torch.ones(1, dtype=torch.float64)))) / math.log(10)
        return None if xi == -math.inf else xi

    @cached_property
    def first_possible(self) -> int | None:
        """The first step at which decoding ends with a probability that is known to be positive."""
        return self.find_first_step(above=-math.inf)

    @cached_property
    def first_certain(self) -> int | None:
        """The first step at which decoding, or a hypothesis of a beam, certainly ends."""
        return self.find_first_step(above=CERTAIN_LOG_ODDS)

    @property
    def ends_by(self) -> int | None:
        """The step by which every decoding has ended."""
        return None if self.first_certain is None else self.first_certain + self.extra_steps

    def find_first_step(self, above: float) -> int | None:
        """The first step at which the log-odds of ending exceed a number. A promise never falls, so all later ones do.

        Steps beyond 2^50 are found up to a part in 2^50, and never too early.
        """
        low, high = 0, None
        points = [2**power for power in range(LAST_POWER + 1)]
        while points:
            exceeds = self.bound_at(torch.tensor(points, dtype=torch.float64)) > above
            first = int((~exceeds).sum())
            low = points[first - 1] if first else low
            if first < len(points):
                high = points[first]
            if high is None:
                return None
            points = split_interval(low, high)
        return high

    @cached_property
    def rare_step(self) -> tuple[int | None, float | None]:
        """The step from which on survival is below 1e-6, if it has few enough digits, and its log10.

        Each step of a block counts as the first of the block, whose log-odds are the least.
        """
        if self.first_possible is None:
            return None, None
        starts = float(self.first_possible) + BLOCK_STARTS  # the step may exceed 2^63
        log_hazard = log_softplus(self.bound_at(starts))
        widths = BLOCK_STARTS.diff(append=torch.tensor([math.inf], dtype=torch.float64))
        before = functional.pad((widths.log() + log_hazard)[:-1].logcumsumexp(0), (1, 0), value=-math.inf)
        block = int((before < math.log(-math.log(RARE))).sum()) - 1
        still_needed = max(-math.log(RARE) - math.exp(before[block]), sys.float_info.min)
        log_steps = math.log(still_needed) - float(log_hazard[block])
        log10 = float(torch.stack([starts[block].log(), starts.new_tensor(log_steps)]).logsumexp(0)) / math.log(10)
        if log10 > MOST_DIGITS:
            return None, log10
        steps = int(starts[block]) + math.floor(math.exp(log_steps)) + self.extra_steps
        return steps, math.log10(steps)


def split_interval(low: int, high: int) -> list[int]:
    """At most PARTS whole numbers between two, evenly spread; none if the interval is too small to split."""
    if high - low <= max(1, high >> 50):
        return []
    return sorted({low + (high - low) * part // PARTS for part in range(1, PARTS)} - {low})


def log_softplus(log_odds: LogOdds) -> LogOdds:
    """log(-log(1 - p)), the log of the hazard, from log(p / (1 - p))."""
    return torch.where(log_odds < -30, log_odds, functional.softplus(log_odds).log())


def choose_theorem(bounds: EndingBounds) -> str:
    """A decoder that cannot drop eos from the first step on meets the condition of Theorem 4.1 too."""
    if bounds.keeps_eos or (bounds.first_possible == 1 and bounds.first_certain is None):
        return "Theorem 4.1"
    if bounds.first_possible is None:
        return "Theorem 3.4"
    return "Theorem 4.3" if bounds.decoder.rows_per_context > 1 else "Theorem 4.2"


def format_step(step: int) -> str:
    return f"{step:,}" if step < 10**MOST_DIGITS else f"10^{math.log10(step):.1f}"


def explain(bounds: EndingBounds) -> Iterator[str]:
    """A certificate in sentences."""
    ends_by, (rare_after, log10_rare_after) = bounds.ends_by, bounds.rare_step
    eos = "p(eos)" if bounds.temperature == 1 else f"p(eos) at temperature {bounds.temperature:g}"
    if ends_by is not None:
        yield f"Every decoding has ended by step {format_step(ends_by)}."
    if log10_rare_after is not None and (ends_by is None or rare_after != ends_by):
        steps = format_step(rare_after) if rare_after else f"10^{log10_rare_after:.1f}"
        yield f"Fewer than one decoding in a million goes on for more than {steps} steps."
    if log10_rare_after is not None and log10_rare_after > LOG10_FAR:
        yield "The bound is true, and mostly very far from what happens: `eosin audit` measures what happens."
    if not bounds.keeps_eos and bounds.first_possible is not None:
        step = format_step(bounds.first_possible)
        yield f"From step {step} on it cannot pass over eos, for {eos} > {bounds.threshold:.2g}."
    elif not bounds.keeps_eos:
        yield f"It can pass over eos while {eos} <= {bounds.threshold:.2g}; nothing rules out that it does so for ever."
    elif bounds.first_possible is None:
        yield f"It keeps eos, so it ends with probability one if {eos} stays above some number greater than zero."
    yield f"Known of the model: {bounds.grounds}."
    if bounds.log10_xi is not None:
        xi = f"{10**bounds.log10_xi:.2g}" if bounds.log10_xi > -4 else f"10^{bounds.log10_xi:.1f}"
        yield f"The least {eos} at any step: {xi}."
