"""Records: counts with a signature. Counts of shards add up; everything shown is computed from them when it is shown.

One record is one JSON line for one (model, decoder, contexts, seed, shard). It needs no torch to be read.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from eosin.auditing.termination import Lengths, Ratio, lengths, survivors
from eosin.errors import BadInput

NGRAMS = (1, 4)
SMALLEST_HASHES = 1024
"""Different completions are counted exactly up to this number, and estimated beyond it."""


@dataclass(frozen=True)
class Outcomes:
    """Which contexts of a range did not end, a bit each."""

    start: int
    unended: tuple[bool, ...]

    def written(self) -> dict[str, Any]:
        bits = bytes(
            sum(bit << place for place, bit in enumerate(self.unended[at : at + 8]))
            for at in range(0, len(self.unended), 8)
        )
        packed = base64.b64encode(zlib.compress(bits, 9)).decode()
        return {"start": self.start, "count": len(self.unended), "unended": packed}

    @classmethod
    def read(cls, written: dict[str, Any]) -> Outcomes:
        bits = zlib.decompress(base64.b64decode(written["unended"]))
        unended = tuple(bool(bits[i // 8] >> i % 8 & 1) for i in range(written["count"]))
        return cls(written["start"], unended)


@dataclass(frozen=True)
class Counts:
    """What was counted over some contexts. All of it adds up."""

    contexts: int = 0
    tokens: int = 0
    """That were produced."""
    ended: Counter[int] = field(default_factory=Counter)
    """How many ended by themselves at each step."""
    causes: Counter[str] = field(default_factory=Counter)
    periods: Counter[int] = field(default_factory=Counter)
    """How many were proved infinite or seen looping, by the period of the loop."""
    ngrams: Counter[int] = field(default_factory=Counter)
    """How many n-grams the completions have, for each n of NGRAMS."""
    repeated: Counter[int] = field(default_factory=Counter)
    """How many of them had occurred before in the same completion."""
    hashes: tuple[int, ...] = ()
    """The smallest hashes of the completions, which tell how many are different."""
    outcomes: tuple[Outcomes, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        merged = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        merged["hashes"] = tuple(sorted({*self.hashes, *other.hashes})[:SMALLEST_HASHES])
        merged["outcomes"] = tuple(sorted(merged["outcomes"], key=lambda part: part.start))
        return Counts(**merged)

    def ratio(self, limit: int) -> Ratio:
        """r_L: the share of contexts with no eos among the first L tokens."""
        return Ratio(survivors(self.ended, self.contexts, limit), self.contexts)

    @property
    def lengths(self) -> Lengths | None:
        return lengths(self.ended)

    def repetition(self, n: int) -> float:
        """Share of n-grams that had occurred before in the same completion."""
        return self.repeated[n] / self.ngrams[n] if self.ngrams[n] else 0.0

    @property
    def different(self) -> float:
        """How many completions are different: exact up to SMALLEST_HASHES, beyond that estimated from their density."""
        if len(self.hashes) < SMALLEST_HASHES:
            return len(self.hashes)
        return (SMALLEST_HASHES - 1) / (self.hashes[-1] / 2**64)

    @property
    def unended(self) -> dict[int, bool]:
        """Whether each context was left without an end."""
        return {part.start + i: bit for part in self.outcomes for i, bit in enumerate(part.unended)}

    def written(self) -> dict[str, Any]:
        by_number = {name: sorted(vars(self)[name].items()) for name in ("ended", "periods", "ngrams", "repeated")}
        return {**vars(self), **by_number, "outcomes": [part.written() for part in self.outcomes]}

    @classmethod
    def read(cls, written: dict[str, Any]) -> Counts:
        tables = {name: Counter(dict(written[name])) for name in ("ended", "causes", "periods", "ngrams", "repeated")}
        outcomes = tuple(Outcomes.read(part) for part in written["outcomes"])
        return cls(written["contexts"], written["tokens"], **tables, hashes=tuple(written["hashes"]), outcomes=outcomes)


@dataclass(frozen=True)
class Record:
    """Counts, and everything that is needed to count them again."""

    signature: dict[str, Any]
    counts: Counts

    @property
    def question(self) -> str:
        """What was asked: the signature but for which part of the contexts was looked at."""
        return json.dumps({key: value for key, value in self.signature.items() if key != "shard"}, sort_keys=True)

    def written(self) -> str:
        return json.dumps({"signature": self.signature, "counts": self.counts.written()}, sort_keys=True)

    @classmethod
    def read(cls, line: str) -> Record:
        table = json.loads(line)
        return cls(table["signature"], Counts.read(table["counts"]))


def pooled(records: Iterable[Record]) -> list[Record]:
    """Shards of one question added up, in the order in which the questions first occur."""
    together: dict[str, Record] = {}
    for record in records:
        before = together.get(record.question)
        if before is None:
            together[record.question] = Record({**record.signature, "shard": "all"}, record.counts)
        else:
            together[record.question] = Record(before.signature, before.counts + record.counts)
    return list(together.values())


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file. A last line that was cut off by a kill is no record."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield Record.read(line)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"line {number} of {path} is not a record of an audit: {error}") from error
