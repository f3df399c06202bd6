"""A folder of results: which pieces are finished and what came out, the records of audits, the examples.

    pieces.jsonl    a line for each finished piece: what it was, what came out, how long it took, on what machine
    records/        counts of audits, a folder for each run
    examples/       traced completions
    tables/ figures/ report.html    what is shown; made from the rest, and made anew at any time

The folder is read without torch, and holds all that the tables need: runs and corpora lie elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from eosin.auditing.record import Record, lines_of, pooled, read_records
from eosin.errors import BadInput
from eosin.reproduction.pieces import Audit, Examples, Piece, Training

PIECES, LOCK = "pieces.jsonl", "lock"
Entry = dict[str, Any]


class Results:
    """What is finished."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        path = folder / PIECES
        for number, line in enumerate(lines_of(path, "finished pieces") if path.is_file() else [], 1):
            entry = read_entry(line, number, path)
            self.entries[entry["name"]] = entry

    def entry(self, piece: Piece) -> Entry | None:
        """What came out of a piece, if it is finished."""
        found = self.entries.get(piece.name)
        same = found is not None and found["key"] == piece.key and found.get("finished", True)
        return found if same and self._has_file(piece) else None

    def _has_file(self, piece: Piece) -> bool:
        return not isinstance(piece, (Audit, Examples)) or (self.folder / piece.file).is_file()

    def check(self, piece: Piece) -> None:
        """A finished piece must not be replaced by another one of the same name."""
        found = self.entries.get(piece.name)
        if found and isinstance(piece, Training) and found.get("finished", True) and found["key"] != piece.key:
            raise BadInput(
                f"{self.folder} holds results of another {piece.name}, with other settings than these; "
                "name another folder (--out)"
            )

    def add(self, piece: Piece, result: Entry) -> None:
        """Remember that a piece is finished: a whole line at a time."""
        entry = {"name": piece.name, "key": piece.key, "what": piece.what, **result}
        line = json.dumps(entry, sort_keys=True) + "\n"
        path = self.folder / PIECES
        kept = path.read_bytes().rfind(b"\n") + 1 if path.is_file() else 0
        with path.open("a", encoding="utf-8") as file:
            file.truncate(kept)  # a line that a kill cut off
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.entries[piece.name] = json.loads(line)

    def training(self, run: str) -> Entry | None:
        """What came out of a run: of its end, or of how far it was."""
        return self.entries.get(f"training {run}")

    def standing(self, run: str) -> str:
        """The name of a run in records: one that was looked at before its end is told by its epoch."""
        entry = self.training(run)
        return run if entry is None or entry["finished"] else f"{run}@epoch-{entry['best_epoch']}"

    def as_it_stands(self, piece: Piece) -> Piece:
        """The piece for runs as far as they are."""
        runs = {key: self.standing(run) for key, run in vars(piece).items() if key in ("run", "remedy_run")}
        return piece if isinstance(piece, Training) else replace(piece, **runs)

    def records(self, audit: Audit) -> dict[str, Record]:
        """By decoder; of the run as it stands."""
        path = self.folder / replace(audit, run=self.standing(audit.run)).file
        return {record.signature["decoder"]: record for record in pooled(read_records(path))} if path.is_file() else {}

    def examples(self, piece: Examples) -> list[Entry]:
        path = self.folder / cast(Examples, self.as_it_stands(piece)).file
        return [json.loads(line) for line in lines_of(path, "examples")] if path.is_file() else []


def read_entry(line: str, number: int, path: Path) -> Entry:
    try:
        entry = json.loads(line)
        if not isinstance(entry["name"], str) or not isinstance(entry["key"], str):
            raise TypeError("a piece has a name and a key")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"line {number} of {path} is not a finished piece: {error}; put back a good copy") from error
    return entry


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One reproduction at a time in a folder; the lock goes with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / LOCK).open("w")
    except OSError as error:
        raise BadInput(f"cannot write in {folder}: {error.strerror}; name another folder (--out)") from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"another process is at work in {folder}; wait for it, or name another (--out)") from None
        yield
