"""The paper as a list of claims, each judged from records.

A claim is a few lines of `configs/claims/paper.toml`: what the paper says, which records decide it, a rule. A rule
compares an interval with a bound and answers *holds*, *does not* or *undecided*; where a record is missing the claim is
*not measured*. Two decoders, or two models, are compared on the same contexts within an initialisation, and the
differences are combined over initialisations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import fmean
from typing import Any, ClassVar

from eosin.errors import BadInput
from eosin.paper.exhibits import FOLDER, Exhibit, Shown, exhibit_names, filled_in, load_exhibit
from eosin.paper.plan import Bundled, Plan, Training
from eosin.paper.results import Results
from eosin.records.differences import Difference, combine, compare_paired, compare_unpaired, wasserstein_distance
from eosin.records.record import Record
from eosin.records.statistics import Ratio, compare
from eosin.report.tables import Column, Table, Value
from eosin.settings import build, check_known, lists_to_tuples, read_toml

CLAIMS = FOLDER / "claims" / "paper.toml"
TOKENIZATIONS = {"bpe": "BPE", "word": "words"}


class Verdict(StrEnum):
    HOLDS = "holds"
    DOES_NOT = "does not"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Case:
    """Which records a claim is about."""

    model: str
    decoder: str = "greedy"
    contexts: str = "test"


@dataclass(frozen=True)
class Claim:
    """What the paper says."""

    name: str
    says: str
    place: str
    """Where it says so."""
    rule: str
    cases: tuple[Case, ...]
    paper: str = ""
    """The paper's number; that of the exhibits where this is empty."""
    at_most: float = 0.5
    """The share of contexts, in percent, that may exceed L where decoding is said to end."""
    within: float = 5.0
    """How many percentage points apart ratios are that are called alike."""

    def __post_init__(self) -> None:
        check_known(self.rule, RULES, "a rule of claims")
        if len(self.cases) < RULES[self.rule].least_cases:
            raise ValueError(f"the rule {self.rule!r} needs {RULES[self.rule].least_cases} cases: {self.says}")

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(case.model for case in self.cases))


@dataclass(frozen=True)
class Judgement:
    """A claim, our number and what it says of the claim."""

    claim: Claim
    verdict: Verdict
    ours: str = ""
    """Our number with its interval."""
    paper: str = ""

    @property
    def brief(self) -> str:
        """The verdict, and our number without its interval."""
        number = self.ours.partition(" (")[0]
        return f"{self.verdict}: {number}" if number else str(self.verdict)


def load_claims(tokenization: str) -> list[Claim]:
    """All claims, with {tokenization} filled in."""
    table = filled_in(read_toml(CLAIMS), tokenization)
    claims = []
    for each in table["claims"]:
        cases = tuple(build(Case, case, "cases") for case in each["cases"])
        claims.append(build(Claim, lists_to_tuples({**each, "cases": cases}), "claims"))
    return claims


# What was measured


@dataclass(frozen=True)
class Evidence:
    """The results of a plan, as claims ask for them."""

    plan: Plan
    results: Results

    def judge(self, claim: Claim) -> Judgement:
        """The verdict on one claim."""
        check_same_contexts(claim, [record for case in claim.cases for record in self.records(case).values()])
        rule = RULES[claim.rule](claim, self)
        verdict, ours = rule.decide() if rule.is_measured() else (Verdict.NOT_MEASURED, "")
        return Judgement(claim, verdict, ours, claim.paper or rule.quote_paper())

    def records(self, case: Case) -> dict[int, Record]:
        """By initialisation, those of finished runs that have been audited to the end."""
        audits = {seed: self.plan.audit(run, (), case.contexts) for seed, run in self.finished_runs(case.model)}
        found = {seed: self.results.records(audit).get(case.decoder) for seed, audit in audits.items()}
        return {seed: record for seed, record in found.items() if record is not None}

    def finished_runs(self, model: str) -> list[tuple[int, str]]:
        """By initialisation, those that the results have with the settings of the plan, and so with its text."""
        trained: list[Bundled | Training] = [*self.plan.bundled, *self.plan.trainings]
        pieces = {piece.run: piece for piece in trained}
        runs = zip(self.plan.seeds_of(model), self.plan.runs(model), strict=True)
        return [(seed, run) for seed, run in runs if run in pieces and self.results.entry(pieces[run])]

    def perplexities(self, case: Case) -> dict[int, float]:
        """Of test, by initialisation."""
        entries = {seed: self.results.training(run) for seed, run in self.finished_runs(case.model)}
        return {seed: entry["perplexity"]["test"] for seed, entry in entries.items() if entry}

    def data_lengths(self, models: Iterable[str]) -> dict[int, int]:
        """How many continuations of test have each length, in the first corpus of these models that was counted."""
        entries = (self.results.entry(self.plan.corpus(model)) for model in models)
        return next((dict(map(tuple, entry["lengths"]["test"])) for entry in entries if entry), {})


# Rules


class Rule:
    """How records decide a claim."""

    least_cases: ClassVar[int] = 1

    def __init__(self, claim: Claim, evidence: Evidence):
        self.claim = claim
        self.evidence = evidence

    def is_measured(self) -> bool:
        """Whether every case has records, of the same initialisations."""
        return all(self.evidence.records(case) for case in self.claim.cases) and bool(self.shared_seeds())

    def shared_seeds(self) -> list[int]:
        """The initialisations that every case has."""
        found = [self.measure(case).keys() for case in self.claim.cases]
        return sorted(set(found[0]).intersection(*found[1:]))

    def measure(self, case: Case) -> dict[int, Any]:
        return self.evidence.records(case)

    def decide(self) -> tuple[Verdict, str]:
        """The verdict, and our number in words."""
        raise NotImplementedError

    def quote_paper(self) -> str:
        """The paper's numbers of the cases."""
        found = [quote(case.model, case.decoder) for case in self.claim.cases]
        return " → ".join(found) if all(found) else ""


class Ends(Rule):
    """At most a small share of the contexts exceeds L, with each of the decoders."""

    def decide(self) -> tuple[Verdict, str]:
        shares = [mean_share(self.evidence.records(case)) for case in self.claim.cases]
        worst = max(shares, key=lambda share: share.value)
        most = self.claim.at_most / 100
        verdict = Verdict.HOLDS if all(share.high <= most for share in shares) else Verdict.UNDECIDED
        return Verdict.DOES_NOT if any(share.low > most for share in shares) else verdict, in_percent(worst)

    def quote_paper(self) -> str:
        return quote(self.claim.cases[0].model, self.claim.cases[0].decoder)


class Fails(Rule):
    """Some decoding exceeds L. It does not where none did and the paper's ratio is outside our interval."""

    def decide(self) -> tuple[Verdict, str]:
        case = self.claim.cases[0]
        share, paper = mean_share(self.evidence.records(case)), papers_mean(case.model, case.decoder)
        if share.value > 0:
            return Verdict.HOLDS, in_percent(share)
        excluded = paper is not None and 100 * share.high < paper
        return Verdict.DOES_NOT if excluded else Verdict.UNDECIDED, in_percent(share)


class Compares(Rule):
    """The first case exceeds the second; a subclass says by what measure."""

    least_cases = 2

    def is_measured(self) -> bool:
        return bool(self.shared_seeds())

    def difference(self) -> Difference:
        first, second = (self.measure(case) for case in self.claim.cases)
        return combine([self.compare(first[seed], second[seed]) for seed in self.shared_seeds()])

    def compare(self, first: Any, second: Any) -> Difference:
        """Of one initialisation."""
        raise NotImplementedError

    def decide(self) -> tuple[Verdict, str]:
        found = self.difference()
        verdict = Verdict.HOLDS if found.low > 0 else Verdict.DOES_NOT if found.high < 0 else Verdict.UNDECIDED
        return verdict, self.describe(found)

    def describe(self, found: Difference) -> str:
        raise NotImplementedError

    def means(self) -> tuple[float, float]:
        """Of both cases, over the initialisations that both have."""
        first, second = (self.measure(case) for case in self.claim.cases)
        seeds = self.shared_seeds()
        return fmean(self.value(first[seed]) for seed in seeds), fmean(self.value(second[seed]) for seed in seeds)

    def value(self, measured: Any) -> float:
        raise NotImplementedError


class Falls(Compares):
    """The share of contexts that exceed L is lower in the second case; compared context by context."""

    def compare(self, first: Record, second: Record) -> Difference:
        one, other = first.counts.unended, second.counts.unended
        both = sorted(one.keys() & other.keys())
        return compare_paired(compare([one[context] for context in both], [other[context] for context in both]))

    def value(self, measured: Record) -> float:
        return 100 * ratio_of(measured).value

    def describe(self, found: Difference) -> str:
        first, second = self.means()
        return f"{first:.2f} → {second:.2f} (down by {100 * found.low:.2f} to {100 * found.high:.2f})"


class Costs(Compares):
    """The test perplexity is higher in the first case. One initialisation has no spread; the paper's stands in."""

    def measure(self, case: Case) -> dict[int, float]:
        return self.evidence.perplexities(case)

    def compare(self, first: float, second: float) -> Difference:
        spreads = [papers_spread(case.model) for case in self.claim.cases]
        return Difference.around(math.log(first / second), 2 * math.hypot(*spreads))

    def difference(self) -> Difference:
        first, second = (self.measure(case) for case in self.claim.cases)
        seeds = self.shared_seeds()
        if len(seeds) == 1:
            return self.compare(first[seeds[0]], second[seeds[0]])
        return combine([Difference.around(math.log(first[seed] / second[seed]), 0.0) for seed in seeds])

    def value(self, measured: float) -> float:
        return measured

    def describe(self, found: Difference) -> str:
        first, second = self.means()
        return f"{second:.1f} → {first:.1f} (factor {math.exp(found.low):.3f} to {math.exp(found.high):.3f})"

    def quote_paper(self) -> str:
        found = [quote_perplexity(case.model) for case in self.claim.cases]
        return " → ".join(reversed(found)) if all(found) else ""


class Nearer(Compares):
    """The lengths of the first case are nearer to the data's. What did not end counts as long as L."""

    def is_measured(self) -> bool:
        return super().is_measured() and bool(self.evidence.data_lengths(self.claim.models))

    def distance(self, record: Record) -> tuple[float, float]:
        return wasserstein_distance(all_lengths(record), self.evidence.data_lengths(self.claim.models))

    def compare(self, first: Record, second: Record) -> Difference:
        (near, error), (far, other_error) = self.distance(first), self.distance(second)
        return Difference.around(far - near, 1.96 * math.hypot(error, other_error))

    def value(self, measured: Record) -> float:
        return self.distance(measured)[0]

    def describe(self, found: Difference) -> str:
        first, second = self.means()
        return f"{second:.1f} → {first:.1f} tokens away (down by {found.low:.1f} to {found.high:.1f})"


class Alike(Rule):
    """The ratios of all cases are within a few percentage points of the first."""

    least_cases = 2

    def decide(self) -> tuple[Verdict, str]:
        found = [self.difference(case) for case in self.claim.cases[1:]]
        most = self.claim.within / 100
        verdict = Verdict.HOLDS if all(-most <= each.low and each.high <= most for each in found) else Verdict.UNDECIDED
        if any(each.low > most or each.high < -most for each in found):
            verdict = Verdict.DOES_NOT
        shares = [mean_share(self.evidence.records(case)).value for case in self.claim.cases]
        low, high = min(each.low for each in found), max(each.high for each in found)
        listed = ", ".join(f"{100 * share:.1f}" for share in shares)
        return verdict, f"{listed} (apart by {100 * low:.1f} to {100 * high:.1f})"

    def difference(self, case: Case) -> Difference:
        first, second = (self.evidence.records(each) for each in (self.claim.cases[0], case))
        return combine(
            [compare_unpaired(ratio_of(first[seed]), ratio_of(second[seed])) for seed in self.shared_seeds()]
        )


RULES: dict[str, type[Rule]] = {
    "ends": Ends,
    "fails": Fails,
    "falls": Falls,
    "costs": Costs,
    "nearer": Nearer,
    "alike": Alike,
}


# Numbers


def ratio_of(record: Record) -> Ratio:
    """r_L at the limit of the audit, counted."""
    found = record.ratio
    if not isinstance(found, Ratio):
        raise BadInput("a claim is judged from counts, and these records are estimates of survival")
    return found


def mean_share(records: dict[int, Record]) -> Difference:
    """The mean r_L over initialisations, with an interval."""
    ratios = [ratio_of(record) for record in records.values()]
    shares = [Difference(ratio.value, *ratio.interval()) for ratio in ratios]
    if not any(share.value for share in shares):
        return Difference(0.0, 0.0, max(share.high for share in shares))
    combined = combine(shares)
    return Difference(combined.value, max(0.0, combined.low), min(1.0, combined.high))


def all_lengths(record: Record) -> dict[int, int]:
    """How many completions have each length; those that did not end have that of the limit."""
    counts, limit = record.counts, record.signature.max_steps
    lengths = dict(counts.ended)
    lengths[limit] = lengths.get(limit, 0) + counts.contexts - sum(lengths.values())
    return lengths


def check_same_contexts(claim: Claim, records: Sequence[Record]) -> None:
    """Records on contexts of one kind must be of the same contexts and the same limit."""
    for first, second in itertools.pairwise(sorted(records, key=lambda record: record.signature.contexts_from or "")):
        alike = ["max_steps", *["contexts"] * (first.signature.contexts_from == second.signature.contexts_from)]
        for key in alike:
            if first.signature.table.get(key) != second.signature.table.get(key):
                raise BadInput(
                    f"{claim.says}: records of different {key} cannot be compared, {first.signature.table.get(key)} of "
                    f"{first.signature.run} and {second.signature.table.get(key)} of {second.signature.run}; "
                    "audit both on the same text, with the same limit"
                )


def in_percent(share: Difference) -> str:
    return f"{100 * share.value:.2f} ({100 * share.low:.2f} to {100 * share.high:.2f})"


# The paper's numbers, from the exhibits


@cache  # read some hundred times by a table of claims
def shown_models(kind: str) -> list[tuple[Exhibit, Shown]]:
    exhibits = [load_exhibit(name) for name in exhibit_names()]
    return [(exhibit, shown) for exhibit in exhibits if exhibit.kind == kind for shown in exhibit.models]


def paper_numbers(model: str, decoder: str) -> list[float]:
    """The paper's r_L, mean and deviation; empty where it has none."""
    for _, shown in shown_models("ratios"):
        if shown.model == model and decoder in shown.paper:
            return list(shown.paper[decoder])
    found = [
        shown.paper["ratio"]
        for exhibit, shown in shown_models("heads")
        if shown.model == model and exhibit.decoders == (decoder,) and "ratio" in shown.paper
    ]
    return list(found[0]) if found else []


def paper_perplexity(model: str) -> list[float]:
    found = [s.paper["perplexity"] for _, s in shown_models("heads") if s.model == model and "perplexity" in s.paper]
    return list(found[0]) if found else []


def papers_mean(model: str, decoder: str) -> float | None:
    numbers = paper_numbers(model, decoder)
    return numbers[0] if numbers else None


def papers_spread(model: str) -> float:
    """The deviation between the paper's initialisations, as a share of the mean perplexity; 5% where it has none."""
    numbers = paper_perplexity(model)
    return numbers[1] / numbers[0] if len(numbers) == 2 else 0.05


def quote(model: str, decoder: str) -> str:
    return in_print(paper_numbers(model, decoder))


def quote_perplexity(model: str) -> str:
    return in_print(paper_perplexity(model))


def in_print(numbers: Sequence[float]) -> str:
    """Mean and deviation as the paper prints them."""
    return " ± ".join(f"{number:.2f}" if place == 0 else f"{number:g}" for place, number in enumerate(numbers))


# The table


def judge_all(plan: Plan, results: Results) -> dict[str, list[Judgement]]:
    """Every claim about a model of the plan, by tokenization: those about BPE models, then those about words."""
    models = {piece.model for piece in plan.bundled} | {piece.model for piece in plan.trainings}
    evidence = Evidence(plan, results)
    seen: set[Claim] = set()
    judged = {}
    for tokenization in TOKENIZATIONS:
        claims = [claim for claim in load_claims(tokenization) if models & set(claim.models) and claim not in seen]
        judged[tokenization] = [evidence.judge(claim) for claim in claims]
        seen.update(claims)
    return {tokenization: judgements for tokenization, judgements in judged.items() if judgements}


def claims_table(judgements: Sequence[Judgement], tokenization: str) -> Table:
    """What the paper says, its number, ours, and the verdict."""
    rows = tuple(
        (judged.claim.says, judged.claim.place, judged.paper, judged.ours or "-", str(judged.verdict))
        for judged in judgements
    )
    headings = ("the paper says", "in", "its number", "ours", "verdict")
    columns = tuple(Column(heading, left=True) for heading in headings)
    note = "r_L in percent, with 95% intervals. A claim holds where the interval lies on its side of the bound."
    return Table(columns, rows, f"Claims of the paper, {TOKENIZATIONS[tokenization]}", note)


def compare_results(found: Mapping[str, Sequence[Judgement]]) -> Table:
    """The verdicts of several folders of results side by side, by what each folder is called."""
    names = dict.fromkeys(judged.claim.name for judgements in found.values() for judged in judgements)
    by_name = {title: {judged.claim.name: judged for judged in judgements} for title, judgements in found.items()}
    rows: list[tuple[Value, ...]] = []
    for name in names:
        cells = [each.get(name) for each in by_name.values()]
        says = next(judged.claim.says for judged in cells if judged)
        rows.append((says, *(judged.brief if judged else None for judged in cells)))
    columns = (Column("the paper says", left=True), *(Column(title, left=True) for title in found))
    return Table(columns, tuple(rows))
