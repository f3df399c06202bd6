"""The measurements of a plan: the finished runs of its models, their records and their perplexities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eosin.paper.plan import Plan
from eosin.paper.results import AuditEntry, CorpusEntry, Results, RunEntry
from eosin.records.record import Record


@dataclass(frozen=True)
class Measurements:
    """By initialisation. Only runs with the settings of the plan, and so with its text, are found."""

    plan: Plan
    results: Results

    def find_runs(self, model: str) -> dict[int, RunEntry]:
        return self.find_finished(self.plan.list_runs(model))

    def find_finished(self, runs: Mapping[int, str]) -> dict[int, RunEntry]:
        pieces = {seed: piece for seed, run in runs.items() if (piece := self.plan.run_pieces.get(run))}
        return {seed: entry for seed, piece in pieces.items() if (entry := self.results.find(piece, RunEntry))}

    def find_records(self, model: str, decoder: str, contexts: str = "test", **how: Any) -> dict[int, Record]:
        """Finished records; `how` may have a floor or survival, as an audit."""
        return self.find_run_records(self.find_runs(model), decoder, contexts, **how)

    def find_run_records(
        self, runs: Mapping[int, RunEntry], decoder: str, contexts: str = "test", **how: Any
    ) -> dict[int, Record]:
        audits = {seed: self.plan.plan_audit(entry.run, (), contexts, **how) for seed, entry in runs.items()}
        by_decoder = {seed: self.results.find_records(audit) for seed, audit in audits.items()}
        return {seed: records[decoder] for seed, records in by_decoder.items() if decoder in records}

    def find_perplexities(self, model: str, floor: float = 0.0) -> dict[int, float]:
        """Test perplexities. That of a model on a floor is measured by its audit."""
        runs = self.find_runs(model)
        if not floor:
            return {seed: entry.perplexity.test for seed, entry in runs.items()}
        audits = {seed: self.plan.plan_audit(entry.run, floor=floor) for seed, entry in runs.items()}
        entries = {seed: self.results.find(audit, AuditEntry) for seed, audit in audits.items()}
        return {seed: entry.perplexity.test for seed, entry in entries.items() if entry and entry.perplexity}

    def find_data_lengths(self, models: Iterable[str]) -> dict[int, int]:
        """How many continuations of test have each length, in the first corpus of these models that is counted."""
        entries = (self.results.find(self.plan.plan_corpus(model), CorpusEntry) for model in models)
        return next((dict(entry.lengths.test) for entry in entries if entry), {})
