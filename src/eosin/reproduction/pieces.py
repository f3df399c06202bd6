"""Pieces of work: corpora, trainings, audits, examples. Which ones a reproduction needs, in which order, each once.

A piece is plain data with a name and a key; a piece whose key is among the finished ones is never done again. Nothing
here trains or decodes, so that a finished reproduction can be told from an unfinished one without torch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from eosin.reproduction.exhibits import Exhibit, Pair
from eosin.reproduction.presets import Preset

TRACED = 300
"""Steps of an example that are traced at most."""
Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Piece:
    """Something to be done once."""

    what: ClassVar[str]

    @property
    def name(self) -> str:
        """Tells it from all other pieces of one reproduction."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Of everything that decides what comes out."""
        return sha256(json.dumps([self.what, asdict(self)], sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Corpus(Piece):
    """The corpus of a model, prepared and counted."""

    what = "corpus"
    model: str
    changes: Changes

    @property
    def name(self) -> str:
        return f"corpus of {self.model}"


@dataclass(frozen=True)
class Training(Piece):
    """A model with one initialisation, trained to the end."""

    what = "training"
    run: str
    model: str
    seed: int
    changes: Changes

    @property
    def name(self) -> str:
        return f"training {self.run}"


@dataclass(frozen=True)
class Audit(Piece):
    """Decoders on the contexts of one run."""

    what = "audit"
    run: str
    contexts: str
    count: int
    max_steps: int
    decoders: tuple[str, ...]
    survival: bool = False
    floor: float = 0.0

    @property
    def name(self) -> str:
        return f"audit {self.run} {self.file.stem}"

    @property
    def file(self) -> Path:
        """Of its records, in the folder of the results."""
        parts = [self.contexts, str(self.max_steps), *["survival"] * self.survival]
        parts += [f"floor-{self.floor:g}"] * (self.floor > 0)
        return Path("records") / self.run / ("-".join(parts) + ".jsonl")


@dataclass(frozen=True)
class Examples(Piece):
    """Contexts that a baseline does not end, traced with it and with its remedy."""

    what = "examples"
    run: str
    decoder: str
    remedy_run: str
    remedy_decoder: str
    records: str
    """The file that says on which contexts the baseline does not end."""
    max_steps: int
    shown: int

    @property
    def name(self) -> str:
        return f"examples {self.run} {self.decoder}, {self.remedy_run} {self.remedy_decoder}"

    @property
    def file(self) -> Path:
        parts = [self.run, self.decoder, self.remedy_run, self.remedy_decoder]
        return Path("examples") / ("-".join(parts).replace(":", "-") + ".jsonl")


@dataclass(frozen=True)
class Plan:
    """What a preset makes of some exhibits."""

    preset: Preset
    exhibits: tuple[Exhibit, ...]
    seeds: tuple[int, ...]

    @property
    def pieces(self) -> list[Piece]:
        """Each once: corpora, then run by run its training and audits, then examples."""
        audits = gathered(self._audits())
        worked = [
            piece for run in self.trainings for piece in [run, *(audit for audit in audits if audit.run == run.run)]
        ]
        return [*unique(self._corpora()), *worked, *unique(self._examples())]

    @property
    def trainings(self) -> list[Training]:
        return unique(self._trainings())

    def changes(self, model: str) -> Changes:
        """What the preset sets otherwise for a model."""
        special = self.preset.lstm if "-lstm-" in model else {}
        usual = self.preset.changes
        return {name: {**usual.get(name, {}), **special.get(name, {})} for name in {**usual, **special}}

    def runs(self, model: str) -> list[str]:
        """One for each initialisation."""
        return [run_name(model, seed) for seed in self.seeds]

    def audit(self, run: str, decoders: Sequence[str], contexts: str = "test", **how: Any) -> Audit:
        return Audit(run, contexts, self.preset.contexts, self.preset.max_steps, tuple(decoders), **how)

    def _corpora(self) -> Iterator[Corpus]:
        for exhibit in self.exhibits:
            yield from (Corpus(shown.model, self.changes(shown.model)) for shown in exhibit.counted)

    def _trainings(self) -> Iterator[Training]:
        for exhibit in self.exhibits:
            for model in exhibit.trained:
                yield from (
                    Training(swept(run_name(model, seed), tried), model, seed, changed(self.changes(model), tried))
                    for tried in exhibit.combinations
                    for seed in self.seeds
                )

    def _audits(self) -> Iterator[Audit]:
        for exhibit in self.exhibits:
            for shown, contexts in itertools.product(exhibit.models, exhibit.contexts):
                for run in self.runs(shown.model) if exhibit.decoders else ():
                    yield self.audit(run, exhibit.specifications, contexts, floor=shown.floor)
                    if exhibit.survival:
                        yield self.audit(run, exhibit.specifications, contexts, survival=True)
            for pair in exhibit.pairs:
                yield self.audit(self.runs(pair.model)[0], [pair.decoder])
                yield self.audit(self.runs(pair.remedy_model)[0], [pair.remedy_decoder])

    def _examples(self) -> Iterator[Examples]:
        for exhibit in self.exhibits:
            yield from (self.examples(pair, exhibit.shown) for pair in exhibit.pairs)

    def examples(self, pair: Pair, shown: int) -> Examples:
        """Of the first initialisation."""
        run, remedy = self.runs(pair.model)[0], self.runs(pair.remedy_model)[0]
        records, steps = str(self.audit(run, [pair.decoder]).file), min(TRACED, self.preset.max_steps)
        return Examples(run, pair.decoder, remedy, pair.remedy_decoder, records, steps, shown)


def run_name(model: str, seed: int) -> str:
    """The name of a model's run; a model of your own is the path of a file."""
    stem = model.rpartition("/")[2].removesuffix(".toml")
    return stem if seed == 0 else f"{stem}-seed-{seed}"


def swept(run: str, tried: dict[str, Any]) -> str:
    """The name of a run of a sweep."""
    return "-".join([run, *(f"{name.split('.')[1]}-{value}".lower() for name, value in tried.items())])


def changed(changes: Changes, tried: dict[str, Any]) -> Changes:
    """With what a sweep tries, each setting written as `section.key`."""
    result = {name: dict(settings) for name, settings in changes.items()}
    for name, value in tried.items():
        section, key = name.split(".")
        result.setdefault(section, {})[key] = value
    return result


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
