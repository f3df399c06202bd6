"""The paper as a list of claims, each judged from records.

A claim is an entry of `configs/claims/paper.toml`: what the paper says, the records that decide it, and a rule. A rule
compares an interval with a bound and answers *holds*, *does not* or *undecided*. If a record is missing, the claim is
*not measured*. Two decoders or models are compared on the same contexts within an initialisation; the differences are
combined over initialisations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import fmean
from typing import TypeVar

from eosin.errors import BadInput
from eosin.paper.exhibits import (
    CONFIGS,
    EXHIBITS,
    Exhibit,
    ExhibitModel,
    PaperNumber,
    fill_in,
    list_names,
    load_exhibit,
)
from eosin.paper.measurements import Measurements
from eosin.paper.plan import Plan
from eosin.paper.results import Results
from eosin.records.differences import (
    Difference,
    average_differences,
    compare_paired,
    compare_unpaired,
    wasserstein_distance,
)
from eosin.records.record import Record
from eosin.records.statistics import Ratio, compare
from eosin.report.tables import Column, Table
from eosin.settings import build, check_known, read_toml

CLAIMS = CONFIGS / "claims" / "paper.toml"
TOKENIZATIONS = {"bpe": "BPE", "word": "words"}


class Verdict(StrEnum):
    HOLDS = "holds"
    DOES_NOT = "does not"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Case:
    """The records that a claim is about."""

    model: str
    decoder: str = "greedy"
    contexts: str = "test"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and how records decide it."""

    name: str
    says: str
    place: str
    """The table, figure or section that says so."""
    rule: str
    cases: tuple[Case, ...]
    paper: str = ""
    """The paper's number; if empty, that of the exhibits."""
    at_most: float = 0.5
    """Decoding is said to end if at most this percentage of contexts exceeds L."""
    within: float = 5.0
    """Ratios are alike if they differ by at most so many percentage points."""

    def __post_init__(self) -> None:
        check_known(self.rule, RULES, "a rule of claims")
        if len(self.cases) < RULES[self.rule].least_cases:
            raise ValueError(f"the rule {self.rule!r} needs {RULES[self.rule].least_cases} cases: {self.says}")

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(case.model for case in self.cases))


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim, with our number and the paper's."""

    claim: Claim
    verdict: Verdict
    ours: str = ""
    """Our number with its interval."""
    paper: str = ""


def load_claims(tokenization: str) -> list[Claim]:
    """All claims, with {tokenization} replaced."""
    table = fill_in(read_toml(CLAIMS), tokenization)
    claims = []
    for each in table["claims"]:
        cases = tuple(build(Case, case, "cases") for case in each["cases"])
        claims.append(build(Claim, {**each, "cases": cases}, "claims"))
    return claims


# judging


def judge(claim: Claim, measured: Measurements) -> Judgement:
    found = [measured.find_records(case.model, case.decoder, case.contexts) for case in claim.cases]
    check_same_contexts(claim, [record for records in found for record in records.values()])
    rule = RULES[claim.rule]
    verdict, ours = rule.decide(claim, found, measured)
    return Judgement(claim, verdict, ours, claim.paper or join_numbers(rule.quote(claim.cases)))


Measured = TypeVar("Measured")


def keep_common_seeds(found: Sequence[Mapping[int, Measured]]) -> list[list[Measured]]:
    """What was measured of each case for the initialisations that all cases have."""
    seeds = sorted(set(found[0]).intersection(*found[1:]))
    return [[by_seed[seed] for seed in seeds] for by_seed in found]


# rules: the verdict, and our number in words


Found = Sequence[Mapping[int, Record]]
"""The records of each case, by initialisation."""
Decision = tuple[Verdict, str]
NOT_MEASURED: Decision = (Verdict.NOT_MEASURED, "")


def decide_end(claim: Claim, found: Found, measured: Measurements) -> Decision:
    """With each decoder at most a small share of the contexts exceeds L."""
    shares = average_cases(found)
    if not shares:
        return NOT_MEASURED
    worst = max(shares, key=lambda share: share.value)
    return decide_within(shares, 0.0, claim.at_most / 100), format_share(worst)


def decide_failure(claim: Claim, found: Found, measured: Measurements) -> Decision:
    """Some decoding exceeds L. This is refuted if none did and the paper's ratio is outside our interval."""
    shares, paper = average_cases(found), quote_ratios(claim.cases)[0]
    if not shares:
        return NOT_MEASURED
    if shares[0].value > 0:
        return Verdict.HOLDS, format_share(shares[0])
    is_excluded = paper is not None and 100 * shares[0].high < paper.mean
    return Verdict.DOES_NOT if is_excluded else Verdict.UNDECIDED, format_share(shares[0])


def decide_fall(claim: Claim, found: Found, measured: Measurements) -> Decision:
    """The second case exceeds L on fewer contexts. They are compared context by context."""
    first, second = keep_common_seeds(found)
    if not first:
        return NOT_MEASURED
    fall = average_differences([compare_contexts(*pair) for pair in zip(first, second, strict=True)])
    before, after = (fmean(100 * get_counted_ratio(record).value for record in records) for records in (first, second))
    return decide_sign(fall), f"{before:.2f} → {after:.2f} (down by {100 * fall.low:.2f} to {100 * fall.high:.2f})"


def decide_cost(claim: Claim, found: Found, measured: Measurements) -> Decision:
    """The test perplexity is higher in the first case. A single initialisation takes the spread of the paper's."""
    first, second = keep_common_seeds([measured.find_perplexities(case.model) for case in claim.cases])
    if not first:
        return NOT_MEASURED
    half = 2 * math.hypot(*(find_spread(case.model) for case in claim.cases)) if len(first) == 1 else 0.0
    logs = [math.log(one / other) for one, other in zip(first, second, strict=True)]
    cost = average_differences([Difference.around(log, half) for log in logs])
    factors = f"factor {math.exp(cost.low):.3f} to {math.exp(cost.high):.3f}"
    return decide_sign(cost), f"{fmean(second):.1f} → {fmean(first):.1f} ({factors})"


def decide_nearness(claim: Claim, found: Found, measured: Measurements) -> Decision:
    """The lengths of the first case are nearer to the data's. A completion that did not end counts as L long."""
    lengths, common = measured.find_data_lengths(claim.models), keep_common_seeds(found)
    if not lengths or not all(common):
        return NOT_MEASURED
    first, second = ([wasserstein_distance(count_lengths(record), lengths) for record in records] for records in common)
    nearer = average_differences(
        [
            Difference.around(far - near, 1.96 * math.hypot(error, other_error))
            for (near, error), (far, other_error) in zip(first, second, strict=True)
        ]
    )
    near, far = (fmean(distance for distance, _ in distances) for distances in (first, second))
    ours = f"{far:.1f} → {near:.1f} tokens away (down by {nearer.low:.1f} to {nearer.high:.1f})"
    return decide_sign(nearer), ours


def decide_likeness(claim: Claim, found: Found, measured: Measurements) -> Decision:
    """All ratios are within a few percentage points of the first."""
    shares = average_cases(found)
    if not shares:
        return NOT_MEASURED
    first, *others = ([get_counted_ratio(each) for each in records] for records in keep_common_seeds(found))
    apart = [average_differences(list(map(compare_unpaired, first, other))) for other in others]
    low, high = min(each.low for each in apart), max(each.high for each in apart)
    listed = ", ".join(f"{100 * share.value:.1f}" for share in shares)
    verdict = decide_within(apart, -claim.within / 100, claim.within / 100)
    return verdict, f"{listed} (apart by {100 * low:.1f} to {100 * high:.1f})"


def quote_ratios(cases: Sequence[Case]) -> list[PaperNumber | None]:
    return [find_ratio(case.model, case.decoder) for case in cases]


@dataclass(frozen=True)
class Rule:
    """How measurements decide a claim."""

    decide: Callable[[Claim, Found, Measurements], Decision]
    least_cases: int = 1
    quote: Callable[[Sequence[Case]], list[PaperNumber | None]] = quote_ratios
    """The paper's numbers of the cases."""


RULES = {
    "ends": Rule(decide_end, quote=lambda cases: quote_ratios(cases[:1])),
    "fails": Rule(decide_failure),
    "falls": Rule(decide_fall, 2),
    "costs": Rule(decide_cost, 2, lambda cases: [find_perplexity(case.model) for case in reversed(cases)]),
    "nearer": Rule(decide_nearness, 2),
    "alike": Rule(decide_likeness, 2),
}


# numbers


def get_counted_ratio(record: Record) -> Ratio:
    """r_L at the limit of the audit, counted."""
    found = record.ratio
    if not isinstance(found, Ratio):
        raise BadInput("a claim is judged from counts, and these records are estimates of survival")
    return found


def average_cases(found: Found) -> list[Difference]:
    """The mean r_L of each case; empty unless all cases have records of the same initialisations."""
    return [average_shares(list(records.values())) for records in found] if all(keep_common_seeds(found)) else []


def average_shares(records: Sequence[Record]) -> Difference:
    """The mean r_L over initialisations, with an interval."""
    ratios = [get_counted_ratio(record) for record in records]
    shares = [Difference(ratio.value, *ratio.interval()) for ratio in ratios]
    if not any(share.value for share in shares):
        return Difference(0.0, 0.0, max(share.high for share in shares))
    combined = average_differences(shares)
    return Difference(combined.value, max(0.0, combined.low), min(1.0, combined.high))


def compare_contexts(first: Record, second: Record) -> Difference:
    """The difference of two ratios on the contexts that both records have."""
    one, other = first.counts.unended, second.counts.unended
    both = sorted(one.keys() & other.keys())
    return compare_paired(compare([one[context] for context in both], [other[context] for context in both]))


def decide_within(found: Sequence[Difference], least: float, most: float) -> Verdict:
    """Whether all intervals lie between two bounds; refuted if one of them lies outside."""
    if any(each.low > most or each.high < least for each in found):
        return Verdict.DOES_NOT
    is_inside = all(least <= each.low and each.high <= most for each in found)
    return Verdict.HOLDS if is_inside else Verdict.UNDECIDED


def decide_sign(found: Difference) -> Verdict:
    """Whether a difference is positive."""
    return Verdict.HOLDS if found.low > 0 else Verdict.DOES_NOT if found.high < 0 else Verdict.UNDECIDED


def count_lengths(record: Record) -> dict[int, int]:
    """How many completions have each length; those that did not end are as long as the limit."""
    counts, limit = record.counts, record.signature.max_steps
    lengths = dict(counts.ended)
    lengths[limit] = lengths.get(limit, 0) + counts.contexts - sum(lengths.values())
    return lengths


def check_same_contexts(claim: Claim, records: Sequence[Record]) -> None:
    """Raise BadInput unless records on one kind of contexts are of the same contexts and the same limit."""
    for first, second in itertools.pairwise(sorted(records, key=lambda record: record.signature.contexts_from or "")):
        alike = ["max_steps", *["contexts"] * (first.signature.contexts_from == second.signature.contexts_from)]
        for key in alike:
            if first.signature.table.get(key) != second.signature.table.get(key):
                raise BadInput(
                    f"{claim.says}: records of different {key} cannot be compared, {first.signature.table.get(key)} of "
                    f"{first.signature.run} and {second.signature.table.get(key)} of {second.signature.run}; "
                    "audit both on the same text, with the same limit"
                )


def format_share(share: Difference) -> str:
    return f"{100 * share.value:.2f} ({100 * share.low:.2f} to {100 * share.high:.2f})"


# the paper's numbers, from the exhibits


@cache  # a table of claims asks some hundred times
def list_exhibit_models(kind: str) -> list[tuple[Exhibit, ExhibitModel]]:
    exhibits = [load_exhibit(name) for name in list_names(EXHIBITS)]
    return [(exhibit, member) for exhibit in exhibits if exhibit.kind == kind for member in exhibit.models]


def find_ratio(model: str, decoder: str) -> PaperNumber | None:
    """The paper's r_L, if it has one."""
    in_ratios = (each.find_paper_number(decoder) for _, each in list_exhibit_models("ratios") if each.model == model)
    in_heads = (
        each.find_paper_number("ratio")
        for exhibit, each in list_exhibit_models("heads")
        if each.model == model and exhibit.decoders == (decoder,)
    )
    return next(filter(None, itertools.chain(in_ratios, in_heads)), None)


def find_perplexity(model: str) -> PaperNumber | None:
    found = (each.find_paper_number("perplexity") for _, each in list_exhibit_models("heads") if each.model == model)
    return next(filter(None, found), None)


def find_spread(model: str) -> float:
    """The deviation of the paper's perplexity as a share of its mean; 5% if it has none."""
    number = find_perplexity(model)
    return number.deviation / number.mean if number and number.deviation is not None else 0.05


def join_numbers(numbers: Sequence[PaperNumber | None]) -> str:
    """The paper's numbers as it prints them; empty if one is missing."""
    return " → ".join(map(str, numbers)) if all(numbers) else ""


# tables


def judge_all(plan: Plan, results: Results) -> dict[str, list[Judgement]]:
    """Judge every claim about a model of the plan, by tokenization: BPE models first, then words."""
    models = {piece.model for piece in plan.run_pieces.values()}
    measured = Measurements(plan, results)
    seen: set[Claim] = set()
    judged = {}
    for tokenization in TOKENIZATIONS:
        claims = [claim for claim in load_claims(tokenization) if models & set(claim.models) and claim not in seen]
        judged[tokenization] = [judge(claim, measured) for claim in claims]
        seen.update(claims)
    return {tokenization: judgements for tokenization, judgements in judged.items() if judgements}


def tabulate_claims(judged: Mapping[str, Sequence[Judgement]]) -> Table:
    """What the paper says, its number, ours, and the verdict."""
    rows = tuple(
        (TOKENIZATIONS[tokenization], each.claim.says, each.claim.place, each.paper, each.ours or "-", each.verdict)
        for tokenization, judgements in judged.items()
        for each in judgements
    )
    headings = ("tokens", "the paper says", "in", "its number", "ours", "verdict")
    note = "r_L in percent, with 95% intervals. A claim holds if the interval is on its side of the bound."
    return Table(tuple(Column(heading, left=True) for heading in headings), rows, "Claims of the paper", note)
