"""What candidates made of the same prompts with the same random numbers, beside the model as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from eosin.auditing.tally import is_cut_loop
from eosin.contracts import LanguageModel
from eosin.decoding.job import Job
from eosin.decoding.scoring import score_by_steps
from eosin.devices import eval_mode
from eosin.outcome import Completion
from eosin.records.differences import Difference, compare_paired
from eosin.records.statistics import LengthSummary, Ratio, compare, summarize_lengths
from eosin.remedies.candidates import Candidate
from eosin.report.audits import format_interval
from eosin.report.tables import Column, Table, format_one_decimal, format_two_decimals


@dataclass(frozen=True)
class Measurement:
    """A candidate and its completions, in the order of the prompts."""

    candidate: Candidate
    completions: Sequence[Completion]
    budget: int
    max_steps: int
    baseline: Measurement | None = None
    """None of the baseline itself."""
    rescored: float | None = None
    """The log-probability of all completions under the model without floor, if these have one."""

    @cached_property
    def unended(self) -> list[bool]:
        """Whether each completion has not ended within the budget."""
        return [not each.terminated or each.steps > self.budget for each in self.completions]

    @property
    def ratio(self) -> Ratio:
        return Ratio(sum(self.unended), len(self.completions))

    @property
    def ended(self) -> Counter[int]:
        """How many ended by themselves at each step, after the budget too."""
        return Counter(each.steps for each in self.completions if each.terminated)

    @property
    def late(self) -> Ratio:
        """Of what ended by itself, the share that did so after the budget."""
        return Ratio(sum(count for step, count in self.ended.items() if step > self.budget), self.ended.total())

    @property
    def lengths(self) -> LengthSummary | None:
        """Of what ended; a beam may go on after the end of its best hypothesis."""
        return summarize_lengths(Counter(len(each.tokens) for each in self.completions if each.terminated))

    @property
    def cut(self) -> Ratio:
        """The share that eos ended in the middle of a loop."""
        return Ratio(sum(map(is_cut_loop, self.completions)), len(self.completions))

    @property
    def mean_log_prob(self) -> float:
        """The log-probability of a token under the model without floor, on average."""
        total = sum(each.log_prob for each in self.completions) if self.rescored is None else self.rescored
        return total / sum(len(each.tokens) for each in self.completions)

    @property
    def difference(self) -> Difference | None:
        """Of the ratios of the baseline and of this one, on the same prompts."""
        if self.baseline is None:
            return None
        found = compare_paired(compare(self.unended, self.baseline.unended))
        return Difference(found.value, max(found.low, -1.0), min(found.high, 1.0))

    @cached_property
    def unchanged(self) -> list[bool]:
        """Whether each completion is that of the baseline."""
        others = (self.baseline or self).completions
        return [is_same(one, other) for one, other in zip(self.completions, others, strict=True)]

    @property
    def kept(self) -> Ratio | None:
        """Of what ended by itself within the budget in the baseline, the share that is unchanged."""
        unended = (self.baseline or self).unended
        same = [each for each, late in zip(self.unchanged, unended, strict=True) if not late]
        return Ratio(sum(same), len(same)) if same else None

    def as_json(self) -> dict[str, Any]:
        candidate, floor, lengths = self.candidate, self.candidate.floor, self.lengths
        return {
            "name": candidate.name,
            "decoder": str(candidate.decoder),
            "eos_ids": list(map(int, candidate.plain.eos_ids)),
            "stop_strings": candidate.stop_strings,
            "floor": floor and {"epsilon": floor.epsilon, "grace": floor.grace},
            "ratio": self.ratio.value,
            "interval": self.ratio.interval(),
            "difference": self.difference and vars(self.difference),
            "lengths": lengths and vars(lengths),
            "unchanged": sum(self.unchanged) / len(self.unchanged),
            "unchanged_of_ended": self.kept and self.kept.value,
            "loop_cut": self.cut.value,
            "log_prob_per_token": self.mean_log_prob,
        }


def is_same(one: Completion, other: Completion) -> bool:
    """Whether two completions are equal, as far as both are known: a loop may be proved at different steps."""
    known = min(len(one.tokens), len(other.tokens))
    is_alike = one.terminated == other.terminated and (not one.terminated or len(one.tokens) == len(other.tokens))
    return is_alike and torch.equal(one.tokens[:known], other.tokens[:known])


@torch.inference_mode()
def score_completions(job: Job, completions: Sequence[Completion], known: Sequence[Completion]) -> float:
    """The log-probability of all completions under the model of a job, which gave `known` theirs."""
    model = job.model
    score = model.score if isinstance(model, LanguageModel) else partial(score_by_steps, model)
    total = 0.0
    with eval_mode(model):
        for context, each, other in zip(job.contexts, completions, known, strict=True):
            if torch.equal(each.tokens, other.tokens):
                total += other.log_prob
                continue
            tokens = each.tokens[None].to(context.prefix.device)
            total += float(score(context.prefix[None], tokens).double().sum())
    return total


def tabulate_measurements(measurements: Sequence[Measurement], title: str) -> Table:
    """A row for each candidate."""
    columns = (
        Column("", left=True),
        Column("r_L (%)", format_two_decimals),
        Column("95% interval", format_interval),
        Column("change (points)", lambda each: f"{each[0]:+.1f} ({each[1]:+.1f} to {each[2]:+.1f})"),
        Column("length (5 to 95%)", lambda each: f"{each[0]:.0f} ({each[1]:.0f} to {each[2]:.0f})"),
        Column("same (%)", format_one_decimal),
        Column("ended, same (%)", format_one_decimal),
        Column("loop cut (%)", format_one_decimal),
        Column("log p/token", format_two_decimals),
    )
    return Table(columns, tuple(map(make_row, measurements)), title)


def make_row(each: Measurement) -> tuple[Any, ...]:
    difference, lengths, (low, high) = each.difference, each.lengths, each.ratio.interval()
    return (
        each.candidate.name,
        100 * each.ratio.value,
        (100 * low, 100 * high),
        difference and (100 * difference.value, 100 * difference.low, 100 * difference.high),
        lengths and (lengths.mean, lengths.quantiles[0], lengths.quantiles[-1]),
        100 * sum(each.unchanged) / len(each.unchanged),
        each.kept and 100 * each.kept.value,
        100 * each.cut.value,
        each.mean_log_prob,
    )
