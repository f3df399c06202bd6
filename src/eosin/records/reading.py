"""Records from files and folders: each shard once, shards of one question added up."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eosin.errors import BadInput
from eosin.records.record import Record, pooled, read_records

INSIDE = ("*.jsonl", "audits/*.jsonl", "*/audits/*.jsonl", "*/*.jsonl", "records/*/*.jsonl")
"""Where records are in a folder of records, in a run directory, in a folder of runs, in results of a reproduction and
in their records.
"""


@dataclass(frozen=True)
class Filed:
    """A record, and the files that its shards are in."""

    record: Record
    files: tuple[Path, ...]


def load_records(places: Sequence[str | Path]) -> list[Filed]:
    """The records of files and folders. A shard that is there twice, as in a copy of a file, is counted once."""
    shards: dict[tuple[str, str], Record] = {}
    files: dict[str, dict[Path, None]] = {}
    for path, record in _all_records(places):
        shard = (record.question, str(record.signature.get("shard")))
        if decided(shards.setdefault(shard, record)) != decided(record):
            raise BadInput(
                f"{path} disagrees with another file on contexts {shard[1]} by {record.signature['decoder']}, though "
                "both have the same signature; leave one of them out"
            )
        files.setdefault(record.question, {})[path] = None
    found = [Filed(record, tuple(files[record.question])) for record in pooled(shards.values())]
    for each in found:
        _check_apart(each)
    return found


def decided(record: Record) -> dict[str, object]:
    """What the signature decides. How far proved loops were followed depends on which row found them first."""
    counts = record.counts
    names = ("contexts", "ended", "ngrams", "repeated", "hashes", "outcomes", "weights")
    onsets = {tokens: loop.onset for tokens, loop in counts.loops.items()}
    return {**{name: vars(counts)[name] for name in names}, "loops": onsets}


def _check_apart(filed: Filed) -> None:
    """Shards may come in any order and be incomplete, but must not overlap."""
    counts = filed.record.counts
    if counts.outcomes and len(counts.unended) != sum(len(part.unended) for part in counts.outcomes):
        names = " and ".join(map(str, filed.files))
        raise BadInput(f"shards in {names} overlap: some contexts would be counted twice; leave one of them out")


def _all_records(places: Sequence[str | Path]) -> Iterable[tuple[Path, Record]]:
    for place in map(Path, places):
        if place.is_dir():
            yield from _of_folder(place)
        elif place.exists():
            yield from ((place, record) for record in records_of(place))
        else:
            raise BadInput(f"there is no file or folder {place}")


def _of_folder(folder: Path) -> Iterable[tuple[Path, Record]]:
    paths = [path for pattern in INSIDE for path in sorted(folder.glob(pattern)) if begins_with_a_record(path)]
    if not paths:
        raise BadInput(f"there are no records in {folder}; `eosin audit` makes them")
    return ((path, record) for path in paths for record in records_of(path))


def begins_with_a_record(path: Path) -> bool:
    """Folders hold other files too: logs, completions."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline()
    return line.endswith("\n") and '"signature"' in line and '"counts"' in line


def records_of(path: Path) -> list[Record]:
    """The records of a file that must have some."""
    try:
        records = list(read_records(path))
        for record in records:
            _check(record)
    except BadInput:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, zlib.error) as error:
        raise BadInput(f"{path} is not a file of records of an audit: {type(error).__name__}, {error}") from error
    if not records:
        raise BadInput(f"there are no records in {path}; `eosin audit` makes them")
    return records


def _check(record: Record) -> None:
    """What every table needs."""
    signature, counts = record.signature, record.counts
    if not isinstance(signature["decoder"], str) or not signature["max_steps"] >= 1:
        raise ValueError("a signature lacks a decoder or a limit")
    if not 0 <= counts.ratio(signature["max_steps"]).value <= 1:
        raise ValueError("more ended than there are contexts")
