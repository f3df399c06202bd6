"""A folder of results: which pieces are finished and what came out, the records of audits, the examples.

    plan.toml       which preset, exhibits and initialisations it is of
    pieces.jsonl    a line for each finished piece: what it was, what came out, how long it took, on what machine
    records/        counts of audits, a folder for each run
    examples/       traced completions
    README.md tables/ figures/ report.html    what is shown; made from the rest, and made anew at any time

The folder is read without torch, and holds all that the tables need: runs and corpora lie elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from eosin.causes import Cause
from eosin.data.sources import SPLITS
from eosin.errors import BadInput
from eosin.paper.plan import Audit, Examples, Piece
from eosin.records.reading import load_records
from eosin.records.record import Record
from eosin.report.page import read_step
from eosin.settings import check_kinds
from eosin.storage.files import hash_files
from eosin.storage.json_lines import append_lines, parse_json, read_lines
from eosin.storage.locks import hold_lock

PIECES, LOCK = "pieces.jsonl", "lock"
Entry = dict[str, Any]
HELD: dict[str, dict[str, Any]] = {
    "corpus": {"statistics": dict[str, float], "lengths": dict[str, list[list[int]]]},
    "training": {
        "finished": bool,
        "run": str,
        "perplexity": dict[str, float],
        "best_epoch": int,
        "epochs": int,
        "precision": str,
        "training_seconds": float,
    },
    "bundled": {"finished": bool, "run": str, "perplexity": dict[str, float], "best_epoch": int, "epochs": int},
    "audit": {},
    "examples": {"contexts": list[int]},
}
"""What an entry must have, beside what every entry has."""
INSIDE: dict[str, dict[str, dict[str, Any]]] = {
    "corpus": {
        "statistics": {**dict.fromkeys((*SPLITS, "vocabulary"), int), "average_length": float},
        "lengths": dict.fromkeys(SPLITS, list),
    },
    "training": {"perplexity": {"valid": float, "test": float}},
    "bundled": {"perplexity": {"test": float}},
}
"""What tables of an entry must have."""
ALWAYS = {"name": str, "key": str, "seconds": float, "machine": dict[str, Any]}


class Results:
    """What is finished."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        self._records: dict[Path, dict[str, Record]] = {}
        path = folder / PIECES
        for number, line in enumerate(read_lines(path, "finished pieces") if path.is_file() else [], 1):
            entry = read_entry(line, number, path)
            self.entries[entry["name"]] = entry

    def entry(self, piece: Piece) -> Entry | None:
        """What came out of a piece, if it is finished."""
        found = self.entries.get(piece.name)
        whole = found is not None and found["key"] == piece.key and found.get("finished", True)
        return found if found and whole and self._has_all_of(piece, found) else None

    def _has_all_of(self, piece: Piece, found: Entry) -> bool:
        """Whether what lies in files of its own is there."""
        if isinstance(piece, Audit):
            return set(piece.decoders) <= self.whole_records(piece).keys()
        # a baseline and its remedy on each context
        return not isinstance(piece, Examples) or len(self.examples(piece)) == 2 * len(found["contexts"])

    def check(self, piece: Piece) -> None:
        """A finished piece must not be replaced by another one of the same name."""
        found = self.entries.get(piece.name)
        if found and piece.lasting and found["key"] != piece.key:
            raise BadInput(
                f"{self.folder} holds results of another {piece.name}, with other settings than these; "
                "name another folder (--out)"
            )

    def add(self, piece: Piece, result: Entry) -> None:
        """Remember that a piece is finished: a whole line at a time."""
        entry = {"name": piece.name, "key": piece.key, "what": piece.what, **result}
        line = json.dumps(entry, sort_keys=True)
        append_lines(self.folder / PIECES, [line])
        self.entries[piece.name] = json.loads(line)
        self._records.clear()

    def training(self, run: str) -> Entry | None:
        """What came out of a run: of its end, of how far it was, or of one that comes with the package."""
        return self.entries.get(f"training {run}") or self.entries.get(f"bundled {run}")

    def standing(self, run: str) -> str:
        """The name of a run in records: one that was looked at before its end is told by its epoch."""
        entry = self.training(run)
        return run if entry is None or entry["finished"] else f"{run}@epoch-{entry['best_epoch']}"

    def as_it_stands(self, piece: Piece) -> Piece:
        return piece.standing(self.standing)

    def records(self, audit: Audit) -> dict[str, Record]:
        """By decoder, of the run as it stands; a decoder that is not through with all contexts is left out."""
        return self.whole_records(audit.standing(self.standing))

    def whole_records(self, audit: Audit) -> dict[str, Record]:
        path = self.folder / audit.file
        if path not in self._records:
            self._records[path] = whole_records(path)
            settings = (self.training(audit.run.partition("@")[0]) or {}).get("settings")
            for record in self._records[path].values():
                check_own(record, audit, path, settings)
        return self._records[path]

    def examples(self, piece: Examples) -> list[Entry]:
        path = self.folder / piece.standing(self.standing).file
        lines = read_lines(path, "examples") if path.is_file() else []
        try:
            return [checked_example(parse_json(line)) for line in lines]
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
            raise BadInput(f"{path} is not a file of examples: {error}; remove it, and it is made anew") from error

    def digest(self, *what: object) -> str:
        """Of all results, and of what else is named."""
        files = sorted(path for kind in ("records", "examples") for path in self.folder.glob(f"{kind}/**/*.jsonl"))
        written = json.dumps([self.entries, hash_files(files), *map(str, what)], sort_keys=True)
        return sha256(written.encode()).hexdigest()[:16]


def checked_example(example: Entry) -> Entry:
    words = {key: str(example[key]) for key in ("run", "decoder", "prefix")}
    steps = [read_step(*step) for step in example["steps"]]
    return {
        **example,
        **words,
        "context": int(example["context"]),
        "cause": str(Cause(example["cause"])),
        "steps": steps,
    }


def read_entry(line: str, number: int, path: Path) -> Entry:
    try:
        entry = parse_json(line)
        check_kinds(entry, {**ALWAYS, **HELD[entry["what"]]})
        for name, kinds in INSIDE.get(entry["what"], {}).items():
            check_kinds(entry[name], kinds)
        json.dumps(entry, allow_nan=False)
        if not all(map(are_counted, entry.get("lengths", {}).values())):
            raise ValueError("lengths should be pairs of a length and how often it occurs")
        if lacking := {"processor", "torch", "eosin"} - entry["machine"].keys():
            raise ValueError(f"its machine lacks {', '.join(sorted(lacking))}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(
            f"line {number} of {path} is not a finished piece: {error}; remove that line, and it is done again"
        ) from error
    return entry


def are_counted(pairs: list[list[int]]) -> bool:
    return bool(pairs) and all(len(pair) == 2 and min(pair) >= 1 for pair in pairs)


def whole_records(path: Path) -> dict[str, Record]:
    """By decoder, those of a file that are through with all contexts."""
    found = [filed.record for filed in load_records([path])] if begun(path) else []
    return {record.signature.decoder: record for record in found if not record.missing}


def check_own(record: Record, audit: Audit, path: Path, settings: str | None = None) -> None:
    """Records may have been copied to where those of another audit, or of another text, should be."""
    asked = {"run": audit.run, "contexts_from": audit.contexts, "max_steps": audit.max_steps}
    asked |= {"settings": settings} if settings else {}
    for name, value in asked.items():
        there = record.signature.table.get(name)
        if there != value:
            raise BadInput(
                f"{path} holds records of another audit: {name} is {there!r} there, and should be "
                f"{value!r}; remove that file, and it is made anew"
            )


def begun(path: Path) -> bool:
    """Whether there are records, and not only the line at which a kill came."""
    return path.is_file() and any(True for _ in read_lines(path, "records"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One reproduction at a time in a folder; the lock goes with the process."""
    with hold_lock(folder / LOCK, f"another process is at work in {folder}; wait for it, or name another (--out)"):
        yield
