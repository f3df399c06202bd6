"""A folder of results: finished pieces with their outcomes, records of audits, and examples.

    plan.toml       the preset, exhibits and initialisations
    pieces.jsonl    a line for each finished piece: its outcome, how long it took, on what machine
    records/        records of audits, a folder for each run
    examples/       traced completions
    README.md tables/ figures/ report.html    made from the rest, at any time

The folder is read without torch and holds all that the tables need. Runs and corpora are elsewhere.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from eosin.errors import BadInput
from eosin.paper.plan import AuditRun, Piece, TraceExamples
from eosin.published import PACKAGE
from eosin.records.reading import load_records
from eosin.records.record import Record
from eosin.report.traces import Example
from eosin.storage.files import hash_files
from eosin.storage.json_lines import append_lines, parse_lines, read_lines
from eosin.storage.locks import hold_lock

PIECES, LOCK = "pieces.jsonl", "lock"
COMMITTED = PACKAGE.parents[1] / "results", PACKAGE / "results"
"""Results of presets, in the project and in an installed package."""
Positive = Annotated[int, Meta(ge=1, le=2**62)]
LengthCounts = Annotated[list[tuple[Positive, Positive]], Meta(min_length=1)]
"""Pairs of a length and how often it occurs."""


class Machine(Struct, frozen=True):
    """Everything that decides how long something takes."""

    processor: str
    torch: str
    eosin: str
    threads: int = 1
    python: str = ""


class Entry(Struct, frozen=True, kw_only=True, tag_field="what"):
    """The outcome of a finished piece."""

    name: str
    key: str
    seconds: float
    machine: Machine


class CorpusStatistics(Struct, frozen=True):
    """What `eosin prepare` prints of a corpus."""

    train: int
    valid: int
    test: int
    vocabulary: int
    average_length: float
    longest: int = 0
    dropped: int = 0
    unknown: float = 0.0


class Lengths(Struct, frozen=True):
    """The lengths of the continuations of each split."""

    train: LengthCounts
    valid: LengthCounts
    test: LengthCounts


class CorpusEntry(Entry, frozen=True, kw_only=True, tag="corpus"):
    """A corpus in numbers."""

    tokenization: str = ""
    statistics: CorpusStatistics
    lengths: Lengths


class Perplexities(Struct, frozen=True, omit_defaults=True):
    """The perplexity of each split that was measured."""

    test: float
    valid: float | None = None
    train: float | None = None


class RunEntry(Entry, frozen=True, kw_only=True, tag="training"):
    """A run that is trained to the end."""

    run: str
    perplexity: Perplexities
    best_epoch: int
    epochs: int
    finished: bool = True
    """False in the lines of versions that kept unfinished runs; these lines are skipped."""
    model: str = ""
    initialisation: int = 0
    weights: str | None = None
    """A digest of the weights."""
    settings: str | None = None
    """A digest of the settings, as records have it."""
    valid_perplexities: list[float] = []
    training_seconds: float | None = None
    precision: str | None = None
    device: str | None = None


class BundledEntry(RunEntry, frozen=True, kw_only=True, tag="bundled"):
    """A run that comes with the package."""


class AuditEntry(Entry, frozen=True, kw_only=True, tag="audit", omit_defaults=True):
    """An audit, whose records are in a file of their own."""

    perplexity: Perplexities | None = None
    """Of a model on a floor."""
    continuations: list[tuple[Positive, Positive]] = []
    """Lengths of what follows the prefixes in real sequences, and how often each occurs."""


class ExamplesEntry(Entry, frozen=True, kw_only=True, tag="examples"):
    """Examples, which are in a file of their own."""

    contexts: list[int]


AnyEntry = CorpusEntry | RunEntry | BundledEntry | AuditEntry | ExamplesEntry
SomeEntry = TypeVar("SomeEntry", bound=Entry)


class Results:
    """All finished pieces of a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.entries: dict[str, AnyEntry] = {}
        self._records: dict[Path, dict[str, Record]] = {}
        path, remedy = folder / PIECES, "; remove that line, and it is done again"
        if path.is_file():
            for entry in parse_lines(path, "finished pieces", "a finished piece", parse_entry, remedy):
                self.entries[entry.name] = entry

    def is_finished(self, piece: Piece) -> bool:
        return self.find(piece, Entry) is not None

    def find(self, piece: Piece, kind: type[SomeEntry]) -> SomeEntry | None:
        """The outcome of a piece; None if it is not finished or its files are incomplete."""
        found = self.entries.get(piece.name)
        if not isinstance(found, kind) or found.key != piece.key:
            return None
        if isinstance(found, RunEntry) and not found.finished:
            return None
        if isinstance(piece, AuditRun) and not set(piece.decoders) <= self.find_records(piece).keys():
            return None
        if isinstance(found, ExamplesEntry) and isinstance(piece, TraceExamples):
            # a baseline and its remedy on each context
            return found if len(self.read_examples(piece)) == 2 * len(found.contexts) else None
        return found

    def find_run(self, name: str) -> RunEntry | None:
        """The outcome of a finished run, trained or bundled."""
        found = self.entries.get(f"training {name}") or self.entries.get(f"bundled {name}")
        return found if isinstance(found, RunEntry) and found.finished else None

    def refuse_other_settings(self, piece: Piece) -> None:
        """Raise BadInput if the folder has a run of this name with other settings."""
        found = self.entries.get(piece.name)
        if found and not piece.replaceable and found.key != piece.key:
            raise BadInput(
                f"{self.folder} has results of another {piece.name}, with other settings than these; "
                "name another folder (--out)"
            )

    def add(self, piece: Piece, outcome: dict[str, Any]) -> AnyEntry:
        """Append the outcome of a finished piece."""
        table = {"name": piece.name, "key": piece.key, "what": piece.what, **outcome}
        entry = self.entries[piece.name] = msgspec.convert(table, AnyEntry)
        append_lines(self.folder / PIECES, [json.dumps(msgspec.to_builtins(entry), sort_keys=True)])
        self._records.clear()
        return entry

    def find_records(self, audit: AuditRun) -> dict[str, Record]:
        """By decoder; a decoder that has not counted all contexts is left out."""
        path = self.folder / audit.file
        if path not in self._records:
            self._records[path] = read_finished_records(path)
            run = self.find_run(audit.run)
            for record in self._records[path].values():
                check_record(record, audit, path, run.settings if run else None)
        return self._records[path]

    def read_examples(self, piece: TraceExamples) -> list[Example]:
        path, remedy = self.folder / piece.file, "; remove that file, and it is made again"
        return list(parse_lines(path, "examples", "an example", parse_example, remedy)) if path.is_file() else []

    def compute_digest(self, *more: object) -> str:
        """A digest of all results, and of anything else that is given."""
        files = sorted(path for kind in ("records", "examples") for path in self.folder.glob(f"{kind}/**/*.jsonl"))
        content = json.dumps([msgspec.to_builtins(self.entries), hash_files(files), *map(str, more)], sort_keys=True)
        return sha256(content.encode()).hexdigest()[:16]


def find_earlier(piece: Piece, preset: str) -> AnyEntry | None:
    """The outcome of a piece in the results that come with the project: how long it took before, on what machine."""
    folder = next((each for each in COMMITTED if (each / preset / PIECES).is_file()), None)
    found = read_committed(folder / preset).entries.get(piece.name) if folder else None
    return found if found and found.key == piece.key else None


@cache
def read_committed(folder: Path) -> Results:
    return Results(folder)


def parse_entry(line: str) -> AnyEntry:
    return msgspec.json.decode(line, type=AnyEntry)


def parse_example(line: str) -> Example:
    return msgspec.json.decode(line, type=Example)


def read_finished_records(path: Path) -> dict[str, Record]:
    """By decoder, the records of a file that count all contexts."""
    is_begun = path.is_file() and any(True for _ in read_lines(path, "records"))
    found = [filed.record for filed in load_records([path])] if is_begun else []
    return {record.signature.decoder: record for record in found if not record.missing}


def check_record(record: Record, audit: AuditRun, path: Path, settings: str | None) -> None:
    """Raise BadInput if a record is of another audit or another text: files may have been copied."""
    wanted = {"run": audit.run, "contexts_from": audit.contexts, "max_steps": audit.max_steps}
    wanted |= {"settings": settings} if settings else {}
    for name, value in wanted.items():
        found = record.signature.table.get(name)
        if found != value:
            raise BadInput(
                f"{path} has records of another audit: {name} is {found!r} there, and should be {value!r}; "
                "remove that file, and it is made again"
            )


def lock_results(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder for this process alone."""
    return hold_lock(folder / LOCK, f"another process is at work in {folder}; wait for it, or name another (--out)")
