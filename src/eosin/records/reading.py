"""Records from files and folders: each shard once, the shards of one question added up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from eosin.errors import BadInput
from eosin.records.record import Counts, Record, add_shards, read_records
from eosin.storage.files import HUB, OWN

PATTERNS = ("*.jsonl", "audits/*.jsonl", "*/audits/*.jsonl", "*/*.jsonl", "records/*/*.jsonl")
"""Where records are: in a folder of records, a run directory, a folder of runs, the results of a reproduction, and
their records.
"""


def choose_audit_folder(name: str) -> Path:
    """The folder for the records of a model without a run directory: a bundled one, `hf:` or `py:`."""
    place = re.sub(r"[^\w.+-]+", "-", name.removeprefix(HUB).removeprefix(OWN)).strip("-.")
    return Path("audits") / (place or "model")


def examples_path(records: Path) -> Path:
    """The file of the examples that `eosin audit` keeps beside its records."""
    return records.with_suffix(".examples")


@dataclass(frozen=True)
class FiledRecord:
    """A record, and the files that its shards are in."""

    record: Record
    files: tuple[Path, ...]


def load_records(places: Sequence[str | Path]) -> list[FiledRecord]:
    """The records of files and folders. A shard that occurs twice, as in a copy of a file, is counted once."""
    shards: dict[tuple[str, str], Record] = {}
    files: dict[str, dict[Path, None]] = {}
    for path, record in _read_places(places):
        question, signature = record.question, record.signature
        known = shards.setdefault((question, signature.shard), record)
        if _select_determined_counts(known.counts) != _select_determined_counts(record.counts):
            raise BadInput(
                f"{path} disagrees with another file on contexts {signature.shard} by {signature.decoder}, though "
                "both have the same signature; leave one of them out"
            )
        files.setdefault(question, {})[path] = None
    found = [FiledRecord(record, tuple(files[record.question])) for record in add_shards(shards.values())]
    for each in found:
        _check_overlap(each)
    return found


def _select_determined_counts(counts: Counts) -> tuple[object, ...]:
    """The counts that the signature determines. Where a loop is proved depends on which row of a batch found it."""
    onsets = {tokens: loop.onset for tokens, loop in counts.loops.items()}
    added_up = counts.contexts, counts.ended, counts.ngrams, counts.repeated, counts.hashes, counts.weights
    return *added_up, counts.sampled, counts.unended, onsets


def _check_overlap(filed: FiledRecord) -> None:
    """Shards may come in any order and be incomplete, but must not overlap."""
    for part, following in pairwise(filed.record.counts.outcomes):
        if part.start + part.count > following.start:
            names = " and ".join(map(str, filed.files))
            raise BadInput(f"shards in {names} overlap: some contexts would be counted twice; leave one of them out")


def _read_places(places: Sequence[str | Path]) -> Iterator[tuple[Path, Record]]:
    for place in map(Path, places):
        if place.is_dir():
            paths = [path for pattern in PATTERNS for path in sorted(place.glob(pattern)) if _holds_records(path)]
        elif place.exists():
            paths = [place]
        else:
            raise BadInput(f"there is no file or folder {place}")
        records = [(path, record) for path in paths for record in read_records(path)]
        if not records:
            raise BadInput(f"there are no records in {place}; `eosin audit` makes them")
        yield from records


def _holds_records(path: Path) -> bool:
    """Folders hold other JSON lines too: logs, completions."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline()
    return line.endswith("\n") and '"signature"' in line and '"counts"' in line
