"""Pieces of work: corpora, trainings, audits, examples. Which ones a reproduction needs, in which order, each once.

A piece is plain data with a name and a key; a piece whose key is among the finished ones is never done again. Nothing
here trains or decodes, so that a finished reproduction can be told from an unfinished one without torch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from eosin.data.sources import BUNDLED, open_source
from eosin.paper.exhibits import Exhibit, Pair, Shown, model_file
from eosin.paper.presets import Preset
from eosin.settings import assigned, with_bases
from eosin.storage.files import BUNDLED_RUNS, hash_files

TRACED = 300
"""Steps that are kept of an example that does not end, from where it begins to repeat."""
Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Piece:
    """Something to be done once."""

    what: ClassVar[str]
    lasting: ClassVar[bool] = False
    """Whether one of other settings must not take its place."""

    @property
    def name(self) -> str:
        """Tells it from all other pieces of one reproduction."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Of everything that decides what comes out."""
        return sha256(json.dumps([self.what, self.decided_by()], sort_keys=True).encode()).hexdigest()[:16]

    def decided_by(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def looks_at(self) -> tuple[str, ...]:
        """Runs without which it cannot be done; a training looks at its own, where nothing is to be trained."""
        return ()

    def standing(self, name_of: Callable[[str], str]) -> Piece:
        """The piece with runs called by how far they are."""
        return self


@dataclass(frozen=True)
class Corpus(Piece):
    """The corpus of a model, prepared and counted."""

    what = "corpus"
    model: str
    changes: Changes
    settings: str
    """A digest of everything that is set."""
    bundled: str = ""
    """The run that comes with the package whose corpus it is."""

    @property
    def name(self) -> str:
        return f"corpus of {self.model}"

    def decided_by(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "bundled" or value}


@dataclass(frozen=True)
class Bundled(Piece):
    """A trained model that comes with the package, measured."""

    what = "bundled"
    lasting = True
    run: str
    model: str
    digest: str
    """Of its files."""

    @property
    def name(self) -> str:
        return f"bundled {self.run}"

    @property
    def looks_at(self) -> tuple[str, ...]:
        return (self.run,)


@dataclass(frozen=True)
class Training(Piece):
    """A model with one initialisation, trained to the end."""

    what = "training"
    lasting = True
    run: str
    model: str
    seed: int
    changes: Changes
    settings: str

    @property
    def name(self) -> str:
        return f"training {self.run}"

    @property
    def looks_at(self) -> tuple[str, ...]:
        return (self.run,)


@dataclass(frozen=True)
class Audit(Piece):
    """Decoders on the contexts of one run."""

    what = "audit"
    run: str
    contexts: str
    count: int
    max_steps: int
    decoders: tuple[str, ...]
    """These may become more: what decides a record is in its own signature."""
    survival: bool = False
    floor: float = 0.0

    @property
    def name(self) -> str:
        return f"audit {self.run} {self.file.stem}"

    @property
    def file(self) -> Path:
        """Of its records, in the folder of the results."""
        parts = [self.contexts, *[str(self.count)] * (self.count > 0), str(self.max_steps)]
        parts += ["survival"] * self.survival + [f"floor-{self.floor:g}"] * (self.floor > 0)
        return Path("records") / self.run / ("-".join(parts) + ".jsonl")

    def decided_by(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "decoders"}

    @property
    def looks_at(self) -> tuple[str, ...]:
        return (self.run,)

    def standing(self, name_of: Callable[[str], str]) -> Audit:
        return replace(self, run=name_of(self.run))


@dataclass(frozen=True)
class Examples(Piece):
    """Contexts that a baseline does not end, traced with it and with its remedy."""

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
    def baseline(self) -> Audit:
        """Which says on what contexts it does not end."""
        return Audit(self.run, "test", self.count, self.max_steps, (self.decoder,))

    @property
    def looks_at(self) -> tuple[str, ...]:
        return self.run, self.remedy_run

    def standing(self, name_of: Callable[[str], str]) -> Examples:
        return replace(self, run=name_of(self.run), remedy_run=name_of(self.remedy_run))


@dataclass(frozen=True)
class Plan:
    """What a preset makes of some exhibits."""

    preset: Preset
    exhibits: tuple[Exhibit, ...]
    seeds: tuple[int, ...]
    given: tuple[str, ...] = ()
    """Settings that are to be otherwise, as `section.key=value`."""

    @cached_property
    def pieces(self) -> list[Piece]:
        """Each once: corpora, then run by run its training and audits, then examples."""
        audits = self.audits
        runs: list[Bundled | Training] = [*self.bundled, *self.trainings]
        worked = [piece for run in runs for piece in [run, *(each for each in audits if each.run == run.run)]]
        return [*self.corpora, *worked, *self.all_examples]

    @cached_property
    def corpora(self) -> list[Corpus]:
        return unique(self._corpora())

    @cached_property
    def trainings(self) -> list[Training]:
        return unique(self._trainings())

    @cached_property
    def bundled(self) -> list[Bundled]:
        names = dict.fromkeys(name for exhibit in self.exhibits for name in exhibit.trained)
        runs = {run: model for model, run in self.preset.bundled.items() if model in names}
        return [Bundled(run, model, digest_of_bundled(run)) for run, model in runs.items()]

    @cached_property
    def audits(self) -> list[Audit]:
        return gathered(self._audits())

    @cached_property
    def all_examples(self) -> list[Examples]:
        return unique(self.examples(pair, exhibit.shown) for exhibit in self.exhibits for pair in exhibit.pairs)

    def of(self, exhibit: Exhibit) -> Plan:
        """What one exhibit alone needs."""
        return replace(self, exhibits=(exhibit,))

    def changes(self, model: str) -> Changes:
        """What the preset sets otherwise for a model."""
        special = [changes for pattern, changes in self.preset.matching.items() if fnmatch(model, pattern)]
        return merged(self.preset.changes, *special, *map(assigned, self.given))

    def initialisations(self, exhibit: Exhibit, model: str) -> tuple[int, ...]:
        """Seeds; single completions are of the first, a search for settings is of the first few."""
        if exhibit.sweep:
            return self.seeds_of(model)[: exhibit.initialisations]
        return self.seeds[:1] if exhibit.pairs else self.seeds_of(model)

    def seeds_of(self, model: str) -> tuple[int, ...]:
        """The last pattern that a model's name matches says how many there are of it."""
        if model in self.preset.bundled:
            return self.seeds[:1]
        fewer = [count for pattern, count in self.preset.initialisations_of.items() if fnmatch(model, pattern)]
        return self.seeds[: fewer[-1]] if fewer else self.seeds

    def runs(self, model: str) -> list[str]:
        """One for each initialisation."""
        if model in self.preset.bundled:
            return [self.preset.bundled[model]]
        return [run_name(model, seed) for seed in self.seeds_of(model)]

    def runs_tried(self, exhibit: Exhibit, model: str, tried: dict[str, Any]) -> list[str]:
        """One for each initialisation of a combination of settings."""
        return [self.training(model, seed, tried).run for seed in self.initialisations(exhibit, model)]

    def audit(self, run: str, decoders: Sequence[str], contexts: str = "test", **how: Any) -> Audit:
        return Audit(run, contexts, self.preset.contexts, self.preset.max_steps, tuple(decoders), **how)

    def examples(self, pair: Pair, shown: int) -> Examples:
        """Of the first initialisation."""
        run, remedy = self.runs(pair.model)[0], self.runs(pair.remedy_model)[0]
        size = self.preset.contexts, self.preset.max_steps
        return Examples(run, pair.decoder, remedy, pair.remedy_decoder, *size, shown)

    def corpus(self, model: str) -> Corpus:
        changes, bundled = self.changes(model), self.preset.bundled.get(model, "")
        return Corpus(model, changes, digest_of_bundled(bundled) or digest_of_settings(model, changes), bundled)

    def training(self, model: str, seed: int, tried: dict[str, Any]) -> Training:
        """A run of a model; one of a sweep that tries what the model is anyway is that model's own run."""
        changes = self.changes(model)
        usual = merged(plain_settings(model), changes)
        new = {name: value for name, value in tried.items() if of_section(usual, name) != value}
        if new:
            changes = merged(changes, *({section: {key: value}} for (section, key), value in split(tried).items()))
        name = swept(run_name(model, seed), tried) if new else run_name(model, seed)
        return Training(name, model, seed, changes, digest_of_settings(model, changes))

    def _corpora(self) -> Iterator[Corpus]:
        return (self.corpus(shown.model) for exhibit in self.exhibits for shown in exhibit.counted)

    def _trainings(self) -> Iterator[Training]:
        for exhibit in self.exhibits:
            models = [model for model in exhibit.trained if model not in self.preset.bundled]
            for model, tried in itertools.product(models, exhibit.combinations):
                for seed in self.initialisations(exhibit, model):
                    yield self.training(model, seed, tried)

    def _audits(self) -> Iterator[Audit]:
        for exhibit in self.exhibits:
            for shown, contexts in itertools.product(exhibit.models, exhibit.contexts):
                yield from self._audits_of(shown, contexts, exhibit)
            for pair in exhibit.pairs:
                yield self.audit(self.runs(pair.model)[0], [pair.decoder])
                yield self.audit(self.runs(pair.remedy_model)[0], [pair.remedy_decoder])

    def _audits_of(self, shown: Shown, contexts: str, exhibit: Exhibit) -> Iterator[Audit]:
        if not exhibit.decoders:
            return
        tried = [run for values in exhibit.combinations for run in self.runs_tried(exhibit, shown.model, values)]
        for run in tried if exhibit.sweep else self.runs(shown.model):
            yield self.audit(run, exhibit.specifications, contexts, floor=shown.floor)
            if exhibit.survival:
                yield self.audit(run, exhibit.specifications, contexts, survival=True)


# settings, read without torch


def plain_settings(model: str) -> Changes:
    """The sections of a model's file and of those it starts from."""
    return merged(*with_bases(model_file(model)))


def merged(base: Changes, *changes: Changes) -> Changes:
    """Section by section, later settings before earlier ones."""
    together = {name: dict(settings) for name, settings in base.items()}
    for change in changes:
        for name, settings in change.items():
            together[name] = {**together.get(name, {}), **settings}
    return together


def digest_of_settings(model: str, changes: Changes) -> str:
    """Of all that is set, and of the text if it is one's own."""
    settings = merged(plain_settings(model), changes)
    data = settings.get("data", {})
    text = digest_of_text(*(str(data.get(name, "")) for name in ("source", "valid", "test")))
    return sha256(json.dumps([settings, text], sort_keys=True).encode()).hexdigest()[:16]


@cache
def digest_of_bundled(run: str) -> str:
    """Of the files of a run that comes with the package; empty where there is no run."""
    return hash_files(sorted((BUNDLED_RUNS / run).iterdir()))[:16] if run else ""


@cache
def digest_of_text(source: str, valid: str, test: str) -> str:
    """A bundled text never changes, and one that is not there yet has no digest."""
    own = source and source.partition("@")[0] not in BUNDLED and Path(source).exists()
    return open_source(source, valid, test).digest() if own else ""


def split(tried: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """A sweep writes a setting as `section.key`."""
    return {tuple(name.split(".", 1)): value for name, value in tried.items()}  # type: ignore[misc]


def of_section(settings: Changes, name: str) -> Any:
    section, key = name.split(".", 1)
    return settings.get(section, {}).get(key)


def run_name(model: str, seed: int) -> str:
    """The name of a model's run; a model of your own is the path of a file."""
    stem = model.rpartition("/")[2].removesuffix(".toml")
    return stem if seed == 0 else f"{stem}-seed-{seed}"


def swept(run: str, tried: dict[str, Any]) -> str:
    """The name of a run of a sweep."""
    return "-".join([run, *(f"{key}-{value}".lower() for (_, key), value in split(tried).items())])


Some = TypeVar("Some", bound=Piece)


def unique(pieces: Iterable[Some]) -> list[Some]:
    return list({piece.key: piece for piece in pieces}.values())


def gathered(audits: Iterable[Audit]) -> list[Audit]:
    """Audits that share a file of records are one, with the decoders of all."""
    together: dict[Path, Audit] = {}
    for audit in audits:
        before = together.get(audit.file, replace(audit, decoders=()))
        together[audit.file] = replace(audit, decoders=tuple(dict.fromkeys([*before.decoders, *audit.decoders])))
    return list(together.values())
