"""The plan of a reproduction: which corpora, trainings, audits and traces it needs, in order, each once.

A piece of work is plain data with a name and a key. A piece whose key is among the finished ones is not done again.
Nothing here imports torch, so a finished reproduction is recognised without it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from eosin.bundled_runs import BUNDLED_RUNS
from eosin.data.sources import BUNDLED, open_source
from eosin.paper.exhibits import Exhibit, ExhibitModel, Pair, PublishedModel, find_model
from eosin.paper.presets import Preset
from eosin.published import find_published
from eosin.settings import label_settings, list_changes, merge, parse_assignment, read_with_bases
from eosin.storage.files import hash_file, hash_files

Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Piece:
    """Work that is done once."""

    what: ClassVar[str]
    replaceable: ClassVar[bool] = True
    """Whether results of other settings may be replaced."""

    @property
    def name(self) -> str:
        """Unique among the pieces of a reproduction."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """A digest of everything that decides the outcome."""
        return sha256(json.dumps([self.what, self.inputs], sort_keys=True).encode()).hexdigest()[:16]

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything that decides the outcome."""
        return asdict(self)

    @property
    def needed_runs(self) -> tuple[str, ...]:
        """The runs that must be finished first."""
        return ()


@dataclass(frozen=True)
class PrepareCorpus(Piece):
    """Prepare and count the corpus of a model."""

    what = "corpus"
    model: str
    changes: Changes
    settings: str
    """A digest of all settings."""
    bundled: str = ""
    """The bundled run whose corpus it is."""

    @property
    def name(self) -> str:
        return f"corpus of {self.model}"

    @property
    def inputs(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "bundled" or value}


@dataclass(frozen=True)
class RunPiece(Piece):
    """Work that ends with a finished run of a model."""

    replaceable = False
    run: str
    model: str

    @property
    def name(self) -> str:
        return f"{self.what} {self.run}"


@dataclass(frozen=True)
class MeasureBundled(RunPiece):
    """Measure the perplexity of a bundled model."""

    what = "bundled"
    digest: str
    """Of its files."""


@dataclass(frozen=True)
class TrainRun(RunPiece):
    """Train one initialisation of a model to the end."""

    what = "training"
    seed: int
    changes: Changes
    settings: str


@dataclass(frozen=True)
class AuditRun(Piece):
    """Audit decoders on some contexts with one run."""

    what = "audit"
    run: str
    contexts: str
    count: int
    max_steps: int
    decoders: tuple[str, ...]
    """No part of the key: more may be added, and each record has its own signature."""
    survival: bool = False
    floor: float = 0.0

    @property
    def name(self) -> str:
        return f"audit {self.run} {self.file.stem}"

    @property
    def file(self) -> Path:
        """The file of its records, in the folder of results."""
        parts = [self.contexts, *[str(self.count)] * (self.count > 0), str(self.max_steps)]
        parts += ["survival"] * self.survival + [f"floor-{self.floor:g}"] * (self.floor > 0)
        return Path("records") / self.run / ("-".join(parts) + ".jsonl")

    @property
    def timings(self) -> Path:
        """The file of the seconds that each decoder took, over all processes."""
        return self.file.with_suffix(".seconds")

    @property
    def inputs(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "decoders"}

    @property
    def needed_runs(self) -> tuple[str, ...]:
        return (self.run,)


@dataclass(frozen=True)
class AuditPublished(AuditRun):
    """Audit decoders with a model that others trained, on prefixes of real sequences."""

    model: str = ""
    prefixes: tuple[int, ...] = ()
    sequences: str = ""
    """The file of real sequences, of which `count` are taken."""

    @property
    def inputs(self) -> dict[str, Any]:
        return {**super().inputs, "texts": hash_file(find_published(self.sequences))}

    @property
    def needed_runs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class TraceExamples(Piece):
    """Trace contexts that a baseline does not end, with the baseline and with its remedy."""

    what = "examples"
    run: str
    decoder: str
    remedy_run: str
    remedy_decoder: str
    count: int
    max_steps: int
    shown: int

    @property
    def name(self) -> str:
        return f"{self.shown} examples of {self.run} {self.decoder}, {self.remedy_run} {self.remedy_decoder}"

    @property
    def file(self) -> Path:
        parts = [self.run, self.decoder, self.remedy_run, self.remedy_decoder, str(self.shown)]
        return Path("examples") / ("-".join(parts).replace(":", "-") + ".jsonl")

    @property
    def decodings(self) -> list[tuple[str, str]]:
        """Run and decoder of the baseline and of the remedy."""
        return [(self.run, self.decoder), (self.remedy_run, self.remedy_decoder)]

    @property
    def baseline(self) -> AuditRun:
        """The audit that tells which contexts the baseline does not end."""
        return AuditRun(self.run, "test", self.count, self.max_steps, (self.decoder,))

    @property
    def needed_runs(self) -> tuple[str, ...]:
        return self.run, self.remedy_run


@dataclass(frozen=True)
class Plan:
    """The work that some exhibits need at the size of a preset."""

    preset: Preset
    exhibits: tuple[Exhibit, ...]
    seeds: tuple[int, ...]
    assignments: tuple[str, ...] = ()
    """Changes of settings, each as `section.key=value`."""

    @cached_property
    def pieces(self) -> list[Piece]:
        """Each piece once: corpora, then for each run its training and its audits, then examples."""
        work: list[Piece] = []
        for run, piece in self.run_pieces.items():
            work += [piece, *(audit for audit in self.audits if audit.run == run)]
        return [*self.corpora, *work, *self.published, *self.examples]

    @cached_property
    def needs(self) -> dict[str, list[str]]:
        """For the name of each piece, the names of those that must be finished first."""
        corpora = {read_data_settings(piece): piece.name for piece in self.corpora}
        audits = {piece.file: piece.name for piece in self.audits}
        found = {piece.name: [self.run_pieces[run].name for run in piece.needed_runs] for piece in self.pieces}
        for training in self.trainings:
            found[training.name] += [name for data, name in corpora.items() if data == read_data_settings(training)]
        for example in self.examples:
            found[example.name].append(audits[example.baseline.file])
        return found

    @cached_property
    def run_pieces(self) -> dict[str, RunPiece]:
        """By the names of the runs."""
        pieces: list[RunPiece] = [*self.bundled, *self.trainings]
        return {piece.run: piece for piece in pieces}

    @cached_property
    def corpora(self) -> list[PrepareCorpus]:
        members = (member for exhibit in self.exhibits for member in exhibit.corpus_models)
        return drop_duplicates(self.plan_corpus(member.model) for member in members)

    @cached_property
    def bundled(self) -> list[MeasureBundled]:
        needed = {name for exhibit in self.exhibits for name in exhibit.trained_models}
        runs = {run: model for model, run in self.preset.bundled.items() if model in needed}
        return [MeasureBundled(run, model, hash_bundled(run)) for run, model in runs.items()]

    @cached_property
    def trainings(self) -> list[TrainRun]:
        return drop_duplicates(
            self.plan_training(model, seed, combination)
            for exhibit in self.exhibits
            for model, combination in itertools.product(exhibit.trained_models, exhibit.combinations)
            if model not in self.preset.bundled
            for seed in self._list_exhibit_seeds(exhibit, model)
        )

    @cached_property
    def audits(self) -> list[AuditRun]:
        return merge_audits(self._iterate_audits())

    @cached_property
    def published(self) -> list[AuditPublished]:
        models = (each for exhibit in self.exhibits for each in exhibit.published)
        return drop_duplicates(audit for each in models for audit in self.plan_published(each))

    @cached_property
    def examples(self) -> list[TraceExamples]:
        pairs = ((pair, exhibit.shown) for exhibit in self.exhibits for pair in exhibit.pairs)
        return drop_duplicates(self.plan_examples(pair, shown) for pair, shown in pairs)

    def select(self, exhibit: Exhibit) -> Plan:
        """The part of the plan that one exhibit needs."""
        return replace(self, exhibits=(exhibit,))

    def list_seeds(self, model: str) -> tuple[int, ...]:
        """The initialisations of a model. Of several patterns that match its name the last one counts."""
        if model in self.preset.bundled:
            return self.seeds[:1]
        counts = [count for pattern, count in self.preset.initialisations_of.items() if fnmatch(model, pattern)]
        return self.seeds[: counts[-1]] if counts else self.seeds

    def list_runs(self, model: str) -> dict[int, str]:
        """The names of a model's runs, by initialisation."""
        bundled = self.preset.bundled.get(model)
        return {seed: bundled or name_run(model, seed) for seed in self.list_seeds(model)}

    def list_sweep_runs(self, exhibit: Exhibit, model: str, combination: dict[str, Any]) -> dict[int, str]:
        """The names of the runs of one combination of a sweep, by initialisation."""
        seeds = self._list_exhibit_seeds(exhibit, model)
        return {seed: self.plan_training(model, seed, combination).run for seed in seeds}

    def plan_audit(self, run: str, decoders: Sequence[str] = (), contexts: str = "test", **how: Any) -> AuditRun:
        return AuditRun(run, contexts, self.preset.contexts, self.preset.max_steps, tuple(decoders), **how)

    def plan_published(self, model: PublishedModel) -> list[AuditPublished]:
        """The audit of a model that others trained and, if it has a floor, that of greedy decoding on the floor."""
        plain = AuditPublished(
            model.name,
            find_published(model.contexts).stem,
            model.sequences,
            model.max_steps or self.preset.max_steps,
            model.decoders,
            model=model.model,
            prefixes=model.prefixes,
            sequences=model.contexts,
        )
        return [plain, *([replace(plain, decoders=("greedy",), floor=model.floor)] if model.floor else [])]

    def plan_examples(self, pair: Pair, shown: int) -> TraceExamples:
        """Examples are of the first initialisation."""
        run, remedy = (self.list_runs(model)[self.seeds[0]] for model in (pair.model, pair.remedy_model))
        size = self.preset.contexts, self.preset.max_steps
        return TraceExamples(run, pair.decoder, remedy, pair.remedy_decoder, *size, shown)

    def plan_corpus(self, model: str) -> PrepareCorpus:
        changes, bundled = self._merge_changes(model), self.preset.bundled.get(model, "")
        return PrepareCorpus(model, changes, hash_bundled(bundled) or hash_settings(model, changes), bundled)

    def plan_training(self, model: str, seed: int, combination: dict[str, Any]) -> TrainRun:
        """A run of a model. A combination of a sweep that changes nothing is the model's own run."""
        changes, name = self._merge_changes(model), name_run(model, seed)
        usual = merge(read_model_settings(model), changes)
        if merge(usual, *list_changes(combination)) != usual:
            changes = merge(changes, *list_changes(combination))
            name += f"-{label_settings(combination)}"
        return TrainRun(name, model, seed, changes, hash_settings(model, changes))

    def _merge_changes(self, model: str) -> Changes:
        """Everything that the preset and the caller change for a model."""
        special = [changes for pattern, changes in self.preset.matching.items() if fnmatch(model, pattern)]
        return merge(self.preset.changes, *special, *map(parse_assignment, self.assignments))

    def _list_exhibit_seeds(self, exhibit: Exhibit, model: str) -> tuple[int, ...]:
        """Examples are of the first initialisation, a sweep of the first few."""
        if exhibit.sweep:
            return self.list_seeds(model)[: exhibit.initialisations]
        return self.seeds[:1] if exhibit.pairs else self.list_seeds(model)

    def _iterate_audits(self) -> Iterator[AuditRun]:
        for exhibit in self.exhibits:
            for member, contexts in itertools.product(exhibit.models, exhibit.contexts):
                yield from self._iterate_model_audits(member, contexts, exhibit)
            for pair in exhibit.pairs:
                piece = self.plan_examples(pair, exhibit.shown)
                yield from (self.plan_audit(run, [decoder]) for run, decoder in piece.decodings)

    def _iterate_model_audits(self, member: ExhibitModel, contexts: str, exhibit: Exhibit) -> Iterator[AuditRun]:
        if not exhibit.decoders:
            return
        runs = list(self.list_runs(member.model).values())
        if exhibit.sweep:
            found = (self.list_sweep_runs(exhibit, member.model, each) for each in exhibit.combinations)
            runs = [run for by_seed in found for run in by_seed.values()]
        for run in runs:
            yield self.plan_audit(run, exhibit.specifications, contexts, floor=member.floor)
            if exhibit.survival:
                yield self.plan_audit(run, exhibit.specifications, contexts, survival=True)


# settings, read without torch


def read_model_settings(model: str) -> Changes:
    """The sections of a model's file and of the files it starts from."""
    return merge(*read_with_bases(find_model(model)))


def read_data_settings(piece: PrepareCorpus | TrainRun) -> str:
    """Those that decide the corpus, in one form."""
    return json.dumps(merge(read_model_settings(piece.model), piece.changes).get("data", {}), sort_keys=True)


def hash_settings(model: str, changes: Changes) -> str:
    """A digest of all settings, and of the text if it is your own."""
    settings = merge(read_model_settings(model), changes)
    data = settings.get("data", {})
    text = hash_text(*(str(data.get(name, "")) for name in ("source", "valid", "test")))
    return sha256(json.dumps([settings, text], sort_keys=True).encode()).hexdigest()[:16]


@cache
def hash_bundled(run: str) -> str:
    """A digest of the files of a bundled run; empty if no run is named."""
    return hash_files(sorted((BUNDLED_RUNS / run).iterdir()))[:16] if run else ""


@cache
def hash_text(source: str, valid: str, test: str) -> str:
    """A digest of your own text; empty for a bundled one, which never changes, and for one that does not exist yet."""
    is_own = source and source.partition("@")[0] not in BUNDLED and Path(source).exists()
    return open_source(source, valid, test).compute_digest() if is_own else ""


def name_run(model: str, seed: int) -> str:
    """The name of a model's run. A model of your own is named by a path."""
    stem = model.rpartition("/")[2].removesuffix(".toml")
    return stem if seed == 0 else f"{stem}-seed-{seed}"


SomePiece = TypeVar("SomePiece", bound=Piece)


def drop_duplicates(pieces: Iterable[SomePiece]) -> list[SomePiece]:
    return list({piece.key: piece for piece in pieces}.values())


def merge_audits(audits: Iterable[AuditRun]) -> list[AuditRun]:
    """Audits that share a file of records become one, with the decoders of all."""
    merged: dict[Path, AuditRun] = {}
    for audit in audits:
        before = merged[audit.file].decoders if audit.file in merged else ()
        merged[audit.file] = replace(audit, decoders=tuple(dict.fromkeys([*before, *audit.decoders])))
    return list(merged.values())
