"""Truncation rules: which tokens may be drawn.

Each rule puts the vocabulary into an order of preference and keeps the front of it. All but one prefer the more
probable token. All of them are incomplete in the paper's sense: they can drop eos at every step. `Consistent` repairs
any of them: it keeps the same set, and eos.

    TopK(k)          the k most probable                                                Fan et al., 2018
    Nucleus(mu)      the smallest set whose probability exceeds mu                      Holtzman et al., 2020
    MinP(ratio)      p >= ratio * (the largest p)                                       Nguyen et al., 2024
    Epsilon(cut)     p >= cut                                                           Hewitt et al., 2022
    Eta(cut)         p >= min(cut, sqrt(cut) * exp(-entropy))                           Hewitt et al., 2022
    Typical(mass)    closest to the entropy first, the smallest set that reaches mass   Meister et al., 2023
    TopNSigma(n)     logit >= the largest logit - n * standard deviation of the logits  Tang et al., 2024
    TopH(share)      the largest set whose entropy is at most share * entropy           Potraghloo et al., 2025

Most kept sets are small. So a rule first looks at the few tokens that it prefers, and lists those it keeps (`Kept`). If
they may be too many to list, it draws a line through the whole order instead (`Line`), still without sorting it.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, astuple, dataclass, fields, replace
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.nn import functional

from eosin.contracts import EosIds, Truncation
from eosin.decoding.distribution import LARGEST_TIE, NextToken, mask_tokens
from eosin.decoding.selection import Line, Order, by_probability, find_line
from eosin.errors import BadInput
from eosin.log_odds import LogOdds, is_most_probable, pass_on

SURE = 4 * LARGEST_TIE
"""A promise or a proof must exceed a bound by this much: by a tie, and by what rounding can take from a sum. A sum over
a block errs by 1.4e-6 where small numbers are all rounded in one direction, and by 2.2e-6 at most."""
FEW = 64
"""How many tokens a rule looks at before it draws a line."""
ROUNDING = 1e-12
"""A probability of eos that exceeds a bound by less may be below it."""

R = TypeVar("R", bound="Rule")


@dataclass(frozen=True)
class Kept:
    """The tokens a row may continue with, in a list, the ones that end the sequence apart. Dropped ones have -inf."""

    ids: Int[Tensor, "batch ranked"]
    log_probs: Float64[Tensor, "batch ranked"]
    """The model's log-probability of each kept token that does not end the sequence."""
    eos_log_probs: Float64[Tensor, "batch eos"]
    """The same for the tokens that end it."""
    complete: Bool[Tensor, " batch"]
    """False where the rule might keep other tokens than are listed."""

    def mask(self, eos_ids: EosIds, vocab_size: int) -> Bool[Tensor, "batch vocab"]:
        """True at every kept token."""
        mask = mask_tokens(self.ids, self.log_probs, vocab_size)
        mask[:, eos_ids] = self.eos_log_probs > -math.inf
        return mask


@dataclass(frozen=True)
class Interval:
    """Values above `low` and below `high`, or up to it if closed."""

    low: float
    high: float
    closed: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low < value < self.high or (self.closed and value == self.high)

    def __str__(self) -> str:
        return f"({self.low:g}, {self.high:g}{']' if self.closed else ')'}"


class Rule:
    """A truncation rule. Its fields are its values, and are numbers. A subclass says what it keeps.

    In a specification the values follow the name in the order of the fields, as in "nucleus:0.9". A rule of two values
    is written "name:0.9:2"; a field with a default may be left out at the end.
    """

    name: ClassVar[str]
    """The rule in a specification."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that are understood."""
    examples: ClassVar[tuple[str, ...]]
    """Values that people use, as they are written. Messages show the first; the tests check the laws at each."""
    allowed: ClassVar[tuple[Interval, ...]]
    """For each field, the values that it may have."""
    keeps_eos: ClassVar[bool] = False
    keeps_best: ClassVar[bool] = True
    """Whether the most probable token can never be dropped."""

    def __post_init__(self) -> None:
        for field, value, allowed in zip(fields(self), self.values, self.allowed, strict=True):  # type: ignore[arg-type]
            if value not in allowed:
                raise BadInput(f"{self.name}: {field.name} must lie in {allowed}, got {value}")

    @classmethod
    def parse(cls: type[R], text: str) -> R:
        """The rule with the values that follow its name in a specification."""
        values = [parse_number(part) for part in text.split(":")] if text else []
        known = fields(cls)  # type: ignore[arg-type]
        least = sum(field.default is MISSING for field in known)
        if not least <= len(values) <= len(known):
            needed = "a value" if len(known) == 1 else f"{len(known)} values"
            raise BadInput(f"{cls.name} needs {needed}, as in '{cls.name}:{cls.examples[0]}'")
        return cls(*values)

    def __str__(self) -> str:
        return ":".join([self.name, *map(shorten, self.values)])

    @property
    def values(self) -> tuple[float, ...]:
        return astuple(self)  # type: ignore[call-overload]

    @property
    def complete(self) -> bool:
        return False

    @property
    def few(self) -> int:
        return FEW

    @property
    def sole(self) -> float:
        """A token more probable than this is the only one kept; optional: 1 promises nothing."""
        return 1.0

    def certain(self, vocab_size: int) -> float:
        """A token more probable than this is kept; optional: 1 promises nothing."""
        return 0.5 if self.keeps_best else 1.0

    def passes_on(self, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
        """With m eos tokens, use the most probable one: p >= p(eos) / m."""
        certain = self.certain(vocab_size)
        if certain == 0:
            return log_odds
        least = functional.logsigmoid(log_odds).exp() / eos_count - ROUNDING
        kept = (least > certain) | (is_most_probable(log_odds, eos_count) & self.keeps_best)
        left = torch.where(kept, log_odds - math.log(eos_count), -math.inf)
        return torch.where(least > self.sole, math.inf, left)

    def check(self, vocab_size: int) -> None:
        """Any vocabulary will do."""

    def count(self, log_probs: Float64[Tensor, "batch ranked"], next_token: NextToken) -> Int[Tensor, " batch"]:
        """How many of the most probable tokens are kept; all of them may mean that there are more to keep."""
        raise NotImplementedError

    def is_complete(self, count: Int[Tensor, " batch"], looked_at: int) -> Bool[Tensor, " batch"]:
        """Whether no token behind those looked at can be kept."""
        return count < looked_at

    def line(self, next_token: NextToken) -> Line:
        """The line behind the last token that is kept."""
        raise NotImplementedError

    def keep(self, next_token: NextToken) -> Kept | None:
        ranked = next_token.guess_top(self.few)
        looked_at = ranked.ids.shape[1]
        count = self.count(ranked.log_probs, next_token)
        kept = torch.arange(looked_at, device=count.device) < count[:, None]
        complete = self.is_complete(count, looked_at) | (looked_at == next_token.vocab_size)
        is_eos = ranked.ids[..., None] == next_token.eos_ids
        eos_kept = (is_eos & kept[..., None]).any(1)
        return Kept(
            ids=ranked.ids,
            log_probs=ranked.log_probs.masked_fill(~kept | is_eos.any(-1), -math.inf),
            eos_log_probs=next_token.eos_log_probs.masked_fill(~eos_kept, -math.inf),
            complete=complete if ranked.sure is None else complete & (ranked.sure | ~kept).all(1),
        )

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        """How safely a token is kept alone, given the least by which it leads each other one; optional: never."""
        return torch.full_like(leads[0], -math.inf)


class SmallestSet(Rule):
    """Keeps the shortest front of an order that weighs enough, or the front before it reaches that.

    A weight may be several numbers per token; `enough` gets the running sum of each. What a rule needs to know of the
    whole distribution it asks of `next_token`.
    """

    keeps_last: ClassVar[bool] = True
    """Whether the token with which the front weighs enough is kept."""

    def __init_subclass__(cls) -> None:
        """In another order the most probable token need not be the first, so nothing is promised of it."""
        if "order" in vars(cls) and "keeps_best" not in vars(cls):
            cls.keeps_best = False

    def order(self, next_token: NextToken) -> Order:
        return by_probability

    def weight(self, log_probs: Float[Tensor, "batch n"]) -> Float[Tensor, "sums batch n"]:
        """What each token contributes."""
        return log_probs.exp()[None]

    def enough(self, running: Float[Tensor, "sums batch n"], next_token: NextToken) -> Bool[Tensor, "batch n"]:
        """Whether fronts with these sums weigh enough. Sums that differ by less than `next_token.tie` are equal."""
        raise NotImplementedError

    def count(self, log_probs: Float64[Tensor, "batch ranked"], next_token: NextToken) -> Int[Tensor, " batch"]:
        return self.keeps_last + (~self.enough(self.weight(log_probs).cumsum(2), next_token)).sum(1)

    def is_complete(self, count: Int[Tensor, " batch"], looked_at: int) -> Bool[Tensor, " batch"]:
        return count < looked_at + self.keeps_last

    def line(self, next_token: NextToken) -> Line:
        def enough(running: Float[Tensor, "sums batch n"]) -> Bool[Tensor, "batch n"]:
            return self.enough(running, next_token)

        return find_line(next_token, self.order(next_token), self.weight, enough, self.keeps_last)


class Threshold(Rule):
    """Keeps every token that is probable enough, and the most probable one where none is."""

    def least(self, next_token: NextToken) -> Float64[Tensor, " batch"]:
        """The least log-probability that is kept."""
        raise NotImplementedError

    def _least(self, next_token: NextToken) -> Float64[Tensor, " batch"]:
        """A token that misses the bound by a tie meets it."""
        return self.least(next_token) - next_token.tie

    def count(self, log_probs: Float64[Tensor, "batch ranked"], next_token: NextToken) -> Int[Tensor, " batch"]:
        return (log_probs >= self._least(next_token)[:, None]).sum(1).clamp(min=1)

    def line(self, next_token: NextToken) -> Line:
        least, best = self._least(next_token), next_token.best()
        none = next_token.best_log_prob < least
        of_best = next_token.rounded_log_probs_of(best[:, None])[:, 0]
        preference = torch.where(none, of_best, least.to(of_best.dtype))
        return Line(by_probability, preference, torch.where(none, best, next_token.vocab_size))


@dataclass(frozen=True)
class TopK(SmallestSet):
    """The k most probable tokens; of equally probable ones those with the lower ids."""

    name = "top-k"
    examples = ("2", "4", "100")
    k: float
    """A whole number."""

    def __post_init__(self) -> None:
        if not float(self.k).is_integer() or self.k < 1:
            raise BadInput(f"top-k: k must be a whole number of at least 1, got {self.k}")

    @property
    def few(self) -> int:
        return min(4 * FEW, int(self.k))

    def check(self, vocab_size: int) -> None:
        if self.k > vocab_size:
            raise BadInput(f"top-k: k must be at most {vocab_size}, the size of the vocabulary, got {self.k}")

    @property
    def sole(self) -> float:
        return 0.5 if self.k == 1 else 1.0

    def certain(self, vocab_size: int) -> float:
        return 0.0 if self.k >= vocab_size else 1 / (1 + self.k)

    def weight(self, log_probs: Float[Tensor, "batch n"]) -> Float[Tensor, "sums batch n"]:
        return torch.ones_like(log_probs)[None]

    def enough(self, running: Float[Tensor, "sums batch n"], next_token: NextToken) -> Bool[Tensor, "batch n"]:
        return running[0] >= self.k

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        return leads.amin(0) if self.k == 1 else super().margin(leads)


@dataclass(frozen=True)
class Nucleus(SmallestSet):
    """The smallest set of most probable tokens whose probability exceeds mu; with mu = 1 every token."""

    name = "nucleus"
    aliases = ("top-p",)
    examples = ("0.2", "0.4", "0.9")
    allowed = (Interval(0, 1, closed=True),)
    mu: float

    @property
    def complete(self) -> bool:
        return self.mu == 1

    @property
    def sole(self) -> float:
        return max(0.5, self.mu + SURE)

    def certain(self, vocab_size: int) -> float:
        """The others alone are not enough."""
        return min(0.5, 1 - self.mu)

    def enough(self, running: Float[Tensor, "sums batch n"], next_token: NextToken) -> Bool[Tensor, "batch n"]:
        return running[0] > self.mu + next_token.tie

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        return leads.amin(0).minimum(least_log_prob(leads) - math.log(self.mu + SURE))


@dataclass(frozen=True)
class Typical(SmallestSet):
    """The tokens whose surprise is closest to the entropy; this can drop the most probable one."""

    name = "typical"
    aliases = ("typical-p",)
    examples = ("0.2", "0.95")
    allowed = (Interval(0, 1),)
    keeps_best = False
    mass: float

    def certain(self, vocab_size: int) -> float:
        """The others alone do not reach the mass."""
        return 1 - self.mass + SURE

    def order(self, next_token: NextToken) -> Order:
        entropy = next_token.entropy[:, None].to(next_token.dtype)
        return lambda log_probs: -(log_probs + entropy).abs()

    def keep(self, next_token: NextToken) -> None:
        """The most probable tokens say nothing: they may all be dropped."""

    def enough(self, running: Float[Tensor, "sums batch n"], next_token: NextToken) -> Bool[Tensor, "batch n"]:
        return (running[0] > 0) & (running[0] >= self.mass - next_token.tie)  # the mass may be less than a tie


@dataclass(frozen=True)
class MinP(Threshold):
    """Every token at least `ratio` times as probable as the most probable one."""

    name = "min-p"
    examples = ("0.1", "0.5")
    allowed = (Interval(0, 1, closed=True),)
    ratio: float

    @property
    def sole(self) -> float:
        return 1 / (1 + self.ratio * math.exp(-SURE))

    def certain(self, vocab_size: int) -> float:
        return self.ratio / (1 + self.ratio)

    def least(self, next_token: NextToken) -> Float64[Tensor, " batch"]:
        return next_token.best_log_prob + math.log(self.ratio)

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        return leads.amin(0) + math.log(self.ratio) - SURE


@dataclass(frozen=True)
class Epsilon(Threshold):
    """Every token of probability at least `cut`."""

    name = "epsilon"
    aliases = ("epsilon-cutoff",)
    examples = ("3e-4", "0.1")
    allowed = (Interval(0, 1),)
    cut: float

    @property
    def sole(self) -> float:
        return max(0.5, 1 - self.cut * math.exp(-SURE))

    def certain(self, vocab_size: int) -> float:
        return min(0.5, self.cut)

    def least(self, next_token: NextToken) -> Float64[Tensor, " batch"]:
        return torch.full_like(next_token.best_log_prob, math.log(self.cut))

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        return leads.amin(0).minimum(math.log(self.cut) - SURE - greatest_other_log_prob(leads))


@dataclass(frozen=True)
class Eta(Threshold):
    """As epsilon, with a lower cut where the model is unsure."""

    name = "eta"
    aliases = ("eta-cutoff",)
    examples = ("3e-4", "0.1")
    allowed = (Interval(0, 1),)
    cut: float

    def certain(self, vocab_size: int) -> float:
        return min(0.5, self.cut)

    def least(self, next_token: NextToken) -> Float64[Tensor, " batch"]:
        return (math.log(self.cut) / 2 - next_token.entropy).clamp(max=math.log(self.cut))

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        least = (math.log(self.cut) / 2 - greatest_entropy(leads)).clamp(max=math.log(self.cut))
        return leads.amin(0).minimum(least - SURE - greatest_other_log_prob(leads))


@dataclass(frozen=True)
class TopNSigma(Threshold):
    """Every token whose logit is within n standard deviations of the largest."""

    name = "top-n-sigma"
    examples = ("1", "0.5")
    allowed = (Interval(0, math.inf),)
    n: float

    def least(self, next_token: NextToken) -> Float64[Tensor, " batch"]:
        return next_token.best_log_prob - self.n * next_token.deviation


@dataclass(frozen=True)
class TopH(SmallestSet):
    """The most probable tokens, as long as their entropy is at most a share of the whole distribution's.

    The entropy of a kept set with mass m, renormalised, is log m - (sum of p log p) / m: it takes two running sums.
    """

    name = "top-h"
    examples = ("0.4", "0.9")
    allowed = (Interval(0, 1, closed=True),)
    keeps_last = False
    share: float

    @property
    def complete(self) -> bool:
        return self.share == 1

    def weight(self, log_probs: Float[Tensor, "batch n"]) -> Float64[Tensor, "sums batch n"]:
        log_probs = log_probs.double()  # where one token has almost all probability, the two sums almost cancel
        probs = log_probs.exp()
        return torch.stack([probs, probs * log_probs.clamp(min=-1e4)])  # zero where the probability is

    def enough(self, running: Float[Tensor, "sums batch n"], next_token: NextToken) -> Bool[Tensor, "batch n"]:
        mass, negative = running
        entropy = mass.log() - negative / mass
        return entropy > self.share * (1 + next_token.tie) * next_token.entropy[:, None]


@dataclass(frozen=True)
class Consistent:
    """What `inner` keeps, and eos (Section 4.1): q(eos) >= p(eos), so sampling from a consistent model ends."""

    inner: Truncation
    keeps_eos: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.inner.keeps_eos:
            raise BadInput(f"consistent: the inner rule must be one that can drop eos, got {self.inner}")

    @property
    def complete(self) -> bool:
        return self.inner.complete

    def check(self, vocab_size: int) -> None:
        self.inner.check(vocab_size)

    def passes_on(self, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
        """All of the promise, and more where the inner rule keeps little besides eos."""
        return log_odds.maximum(pass_on(self.inner, log_odds, vocab_size, eos_count))

    def keep(self, next_token: NextToken) -> Kept | None:
        kept = self.inner.keep(next_token)
        return None if kept is None else replace(kept, eos_log_probs=next_token.eos_log_probs)

    def line(self, next_token: NextToken) -> Line:
        return self.inner.line(next_token)

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        """No token is ever kept alone: eos is kept too."""
        return torch.full_like(leads[0], -math.inf)

    def __str__(self) -> str:
        return f"consistent-{self.inner}"


def keep_mask(truncation: Truncation, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
    """The kept set of each row as a mask, from the same list or line as a draw."""
    kept = truncation.keep(next_token)
    if kept is None:
        return keep_mask_by_line(truncation, next_token)
    mask = kept.mask(next_token.eos_ids, next_token.vocab_size)
    rows = (~kept.complete).nonzero()[:, 0]
    if len(rows):
        mask[rows] = keep_mask_by_line(truncation, next_token.select(rows))
    return mask


def keep_mask_by_line(truncation: Truncation, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
    line, support = truncation.line(next_token), next_token.support()
    mask = torch.empty_like(support)
    for ids, log_probs in next_token.parts():
        mask[:, ids] = line.keeps(ids, log_probs)
    if truncation.keeps_eos:
        mask[:, next_token.eos_ids] = True
    return mask & support


TRUNCATIONS: dict[str, type[Rule]] = {
    rule.name: rule for rule in (TopK, Nucleus, Typical, MinP, Epsilon, Eta, TopNSigma, TopH)
}
"""Every rule by its name in a specification. A rule of your own can be added at any time."""


def least_log_prob(leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
    """The least log-probability of a token that leads each other one by at least so much."""
    return -torch.log1p((-leads).exp().sum(0))


def greatest_other_log_prob(leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
    """The greatest log-probability that another token can then have: there may be only these two tokens."""
    return functional.logsigmoid(-leads.amin(0))


def greatest_entropy(leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
    """The greatest entropy that the distribution can then have: all others are equally probable."""
    rest = -torch.expm1(least_log_prob(leads))
    leader = 1 - rest
    spread = torch.special.entr(leader) + torch.special.entr(rest) + rest * math.log(max(1, len(leads) - 1))
    return torch.where(rest <= 0.5, spread, math.inf)  # beyond that it need not grow with the rest


def parse_number(text: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        raise BadInput(f"{text!r} is not a number")
    value = float(text)
    return int(value) if value.is_integer() else value


def shorten(number: float) -> str:
    """The shorter of 0.0003 and 3e-4, which read back as the same number."""
    number = float(number)
    plain = str(int(number)) if number.is_integer() and number < 1e15 else repr(number)
    forms = (f"{number:.{places}e}".replace("e-0", "e-") for places in range(17))
    scientific = next(form for form in forms if float(form) == number)
    return scientific if 0 < number < 1 and len(scientific) < len(plain) else plain
