"""What is known before decoding: whether a model and a decoder end, by which theorem, and by which step.

The model promises how probable eos is at least at each step (`eosin.log_odds`): from its weights by Lemma 3.2, from a
self-terminating head, or from a floor. The decoder says what it passes on of that. What comes out is a lower bound on
the probability q_t that decoding ends at step t, and everything else follows from it:

    survival after n steps <= product over t <= n of (1 - q_t)

Where q_t is one the bound on steps is strict, as in Theorems 4.2 and 4.3. Where it is above zero from some step on,
decoding ends with probability one, as in Theorem 4.1. Where it is never above zero nothing is guaranteed: Theorem 3.4
has a model that does not end. All this is about exact arithmetic.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
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
from eosin.log_odds import LogOdds, Promise, grounds_of, passed_on, promise_of

RARE = 1e-6
"""A survival below this is as good as none."""
LAST = 900
"""Steps are searched up to 2^LAST: there is no smaller epsilon that means anything."""
ARMS = 1024
"""Into how many parts a search divides what is left."""
ONE_BY_ONE = 2**13
"""So many steps are added up one by one, later ones in blocks, each a part in 512 of what was before."""
BLOCK_STARTS = torch.cat(
    [
        torch.arange(ONE_BY_ONE, dtype=torch.float64),
        (ONE_BY_ONE * (1 + 1 / 512) ** torch.arange(2**14, dtype=torch.float64)).floor(),
    ]
)
MOST = sys.float_info.max
"""Log-odds above this are those of a certain event."""
MOST_DIGITS = 15
"""Steps of more digits are given as a power of ten."""
FAR = 6
"""Nobody decodes for so many steps: log10."""
EPSILONS = tuple(float(f"{digits}e-{places}") for places in range(14, 2, -1) for digits in range(100, 1000))
"""Numbers of three digits, from 1e-12 to 0.999: what a person would write into a settings file."""


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed of a model under one decoder; its `str` says it to people."""

    decoder: str
    consistent: bool | None
    """True if decoding ends with probability one. None if nothing is guaranteed; that it may not end is never proved
    here: a certified cycle is such a proof."""
    theorem: str
    """The theorem of the paper that says so, or why nothing can be said. With another head, a floor or a truncation it
    is the argument of its proof that holds."""
    ends_by: int | None
    """Every decoding has ended by this step; None if no step is certain."""
    rare_after: int | None
    """Survival is below 1e-6 from this step on; None if that step has more than 15 digits, or is unknown."""
    log10_rare_after: float | None
    """log10 of that step, however large."""
    log10_xi: float | None
    """log10 of the least probability of eos at any step, at the decoder's temperature; None if that may be zero."""
    grounds: str
    """What the model promises."""
    explanation: tuple[str, ...]
    """The same in sentences."""

    def __str__(self) -> str:
        said = {True: "always ends" if self.ends_by else "ends with probability one", None: "nothing is guaranteed"}
        return "\n  ".join([f"{self.decoder}: {said[self.consistent]} ({self.theorem})", *self.explanation])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def within(self, budget: int) -> bool:
        """Whether decoding has ended by this step, but for one case in a million."""
        return self.rare_after is not None and self.rare_after <= budget


@own_precision()
@on_cpu()
def certify(model: Generative, decoder: str | Decoder) -> Certificate:
    """What is guaranteed, before anything is decoded, of a model under a decoder.

    model    anything that can be decoded; of a model without a method `promise` nothing is known
    decoder  a specification such as "greedy" or "consistent-nucleus:0.2", or a Decoder
    """
    pair = Pair.of(model, decoder)
    possible, certain = pair.first_step(above=-math.inf), pair.first_step(above=MOST)
    rare_after, log10_rare_after = (None, None) if possible is None else pair.rare_step(possible)
    found = Certificate(
        decoder=str(pair.decoder),
        consistent=None if possible is None else True,
        theorem=theorem_of(pair, possible, certain),
        ends_by=None if certain is None else certain + pair.more,
        rare_after=rare_after,
        log10_rare_after=log10_rare_after,
        log10_xi=pair.log10_xi,
        grounds=pair.grounds,
        explanation=(),
    )
    return replace(found, explanation=tuple(explained(pair, found, possible)))


@own_precision()
@on_cpu()
def log_survival(model: Generative, decoder: str | Decoder, max_steps: int) -> Float64[Tensor, " steps"]:
    """The log of what the share of decodings that have not ended cannot exceed, after 1, 2, ..., max_steps steps."""
    pair = Pair.of(model, decoder)
    steps = torch.arange(1, check_whole("max_steps", max_steps, 1, 2**31) + 1, dtype=torch.float64)
    hazard = functional.pad(functional.softplus(pair.ending(steps)), (min(pair.more, max_steps), 0))
    return -hazard.cumsum(0)[:max_steps]


@own_precision()
@on_cpu()
def floor_for_budget(model: Generative, decoder: str | Decoder, budget: int, grace: int | None = None) -> Floor:
    """The lowest floor under a model with which a decoder ends within the budget: for certain, or but for one in 10^6.

    model    anything that can be decoded
    decoder  the one to be used: a floor for greedy decoding may be too low for sampling
    budget   the most steps wanted
    grace    for how many steps the model is left alone; half of the budget if not given, less if that is too much
    """
    check_whole("budget", budget, 1, 2**31)
    wanted = budget // 2 if grace is None else check_whole("grace", grace, 0, 2**31)
    remembered = Remembered(model)

    def enough(epsilon: float) -> bool:
        return Pair.of(Floor(remembered, epsilon, wanted), decoder).within(budget)

    while not enough(EPSILONS[-1]):
        if grace is not None or wanted == 0:
            raise BadInput(f"no floor with a grace of {wanted} ends {decoder} by step {budget}: allow more steps")
        wanted //= 2
    return Floor(model, EPSILONS[bisect_left(EPSILONS, True, key=enough)], wanted)


class Remembered:
    """A model that makes each promise once: a large one goes through all its weights for it."""

    def __init__(self, model: Generative):
        self.vocab_size, self.eos_ids = model.vocab_size, model.eos_ids
        self.prefill, self.step = model.prefill, model.step
        self.promise = cache(partial(promise_of, model))


def epsilon_for_budget(budget: int) -> float:
    """The lowest epsilon of a self-terminating or non-monotonic head with which greedy decoding ends in the budget."""
    check_whole("budget", budget, 1, 2**31)
    return EPSILONS[bisect_left(EPSILONS, True, key=lambda it: math.log(2) / -math.log1p(-it) < budget)]


@dataclass(frozen=True)
class Pair:
    """A model and a decoder, and what the first promises and the second passes on."""

    decoder: Decoder
    temperature: float
    promise: Promise
    grounds: str
    vocab_size: int
    eos_count: int

    @classmethod
    def of(cls, model: Generative, decoder: str | Decoder) -> Pair:
        parsed = to_decoder(decoder)
        check_model(model)
        parsed.check(model.vocab_size)
        temperature = parsed.temperature if isinstance(parsed, Tempered) else 1.0
        promise, grounds = promise_of(model, temperature), grounds_of(model)
        known = bool(promise(torch.tensor([2.0**LAST], dtype=torch.float64)) > -math.inf)
        grounds = grounds if known else "nothing about p(eos)"
        return cls(parsed, temperature, promise, grounds, model.vocab_size, len(model.eos_ids))

    @property
    def more(self) -> int:
        """How many steps a beam may go on after the first that certainly ends a hypothesis: each ends one more."""
        return self.decoder.needed - 1 if isinstance(self.decoder, Collecting) else 0

    def ending(self, steps: Float64[Tensor, " steps"]) -> LogOdds:
        """The least log-odds that decoding ends at each step."""
        return self.passed_on(self.promise(steps))

    def passed_on(self, log_odds: LogOdds) -> LogOdds:
        return passed_on(self.decoder, log_odds, self.vocab_size, self.eos_count)

    @property
    def keeps_eos(self) -> bool:
        """Whether the least promise is passed on."""
        return bool(self.passed_on(torch.tensor([-1e300], dtype=torch.float64)) > -math.inf)

    @property
    def threshold(self) -> float:
        """The probability of eos above which it is not passed over."""
        log_odds = torch.linspace(-40, 40, 8_001, dtype=torch.float64)
        passed_over = int((self.passed_on(log_odds) == -math.inf).sum())
        return 1.0 if passed_over == len(log_odds) else float(log_odds[passed_over].sigmoid())

    @property
    def log10_xi(self) -> float | None:
        xi = float(functional.logsigmoid(self.promise(torch.ones(1, dtype=torch.float64)))) / math.log(10)
        return None if xi == -math.inf else xi

    def first_step(self, above: float) -> int | None:
        """The first step at which the log-odds of ending exceed a number; as a promise never falls, all later ones do.

        Steps beyond 2^50 are found up to a part in 2^50, and never too early.
        """
        low, high = 0, None
        points = [2**power for power in range(LAST + 1)]
        while points:
            exceeds = self.ending(torch.tensor(points, dtype=torch.float64)) > above
            first = int((~exceeds).sum())
            low = points[first - 1] if first else low
            if first < len(points):
                high = points[first]
            if high is None:
                return None
            points = between(low, high)
        return high

    def rare_step(self, first: int) -> tuple[int | None, float]:
        """The step from which on survival is below 1e-6, if it can be written out, and its log10.

        Only steps from `first` on count. Of a block of steps each counts like the first of them, which is the least.
        """
        starts = first + BLOCK_STARTS
        log_hazard = log_softplus(self.ending(starts))
        widths = BLOCK_STARTS.diff(append=torch.tensor([math.inf], dtype=torch.float64))
        before = functional.pad((widths.log() + log_hazard)[:-1].logcumsumexp(0), (1, 0), value=-math.inf)
        block = int((before < math.log(-math.log(RARE))).sum()) - 1
        still_needed = max(-math.log(RARE) - math.exp(before[block]), sys.float_info.min)
        log_steps = math.log(still_needed) - float(log_hazard[block])
        log10 = float(torch.stack([starts[block].log(), starts.new_tensor(log_steps)]).logsumexp(0)) / math.log(10)
        if log10 > MOST_DIGITS:
            return None, log10
        steps = int(starts[block]) + math.floor(math.exp(log_steps)) + self.more
        return steps, math.log10(steps)

    def within(self, budget: int) -> bool:
        """Whether survival is certainly below 1e-6 after so many steps."""
        first = self.first_step(above=-math.inf)
        steps = None if first is None else self.rare_step(first)[0]
        return steps is not None and steps <= budget


def between(low: int, high: int) -> list[int]:
    """Whole numbers between two, a great many if there are; none where the two cannot be told apart."""
    if high - low <= max(1, high >> 50):
        return []
    return sorted({low + (high - low) * part // ARMS for part in range(1, ARMS)} - {low})


def log_softplus(log_odds: LogOdds) -> LogOdds:
    """log(-log(1 - p)), the log of the hazard, from log(p / (1 - p))."""
    return torch.where(log_odds < -30, log_odds, functional.softplus(log_odds).log())


def theorem_of(pair: Pair, possible: int | None, certain: int | None) -> str:
    """What cannot pass over eos from the first step on meets the condition of Theorem 4.1 too."""
    if pair.keeps_eos or (possible == 1 and certain is None):
        return "Theorem 4.1"
    if possible is None:
        return "Theorem 3.4"
    return "Theorem 4.3" if pair.decoder.rows_per_context > 1 else "Theorem 4.2"


def explained(pair: Pair, found: Certificate, possible: int | None) -> Iterator[str]:
    """A certificate in sentences."""
    eos = "p(eos)" if pair.temperature == 1 else f"p(eos) at temperature {pair.temperature:g}"
    yield from steps_explained(found)
    if not pair.keeps_eos and possible is not None:
        yield f"From step {possible:,} on it cannot pass over eos, for {eos} > {pair.threshold:.2g}."
    elif not pair.keeps_eos:
        yield f"It can pass over eos while {eos} <= {pair.threshold:.2g}; nothing rules out that it does so for ever."
    elif possible is None:
        yield f"It keeps eos, so it ends with probability one if {eos} stays above some number greater than zero."
    yield f"Known of the model: {pair.grounds}."
    if found.log10_xi is not None:
        yield f"The least {eos} at any step: {power_of_ten(found.log10_xi)}."


def steps_explained(found: Certificate) -> Iterator[str]:
    if found.ends_by is not None:
        yield f"Every decoding has ended by step {found.ends_by:,}."
    if found.log10_rare_after is not None and (found.ends_by is None or found.rare_after != found.ends_by):
        steps = f"{found.rare_after:,}" if found.rare_after else f"10^{found.log10_rare_after:.1f}"
        yield f"Fewer than one decoding in a million goes on for more than {steps} steps."
    if found.log10_rare_after is not None and found.log10_rare_after > FAR:
        yield "The bound is true, and mostly very far from what happens: `eosin audit` measures what happens."


def power_of_ten(log10: float) -> str:
    return f"{10**log10:.2g}" if log10 > -4 else f"10^{log10:.1f}"
