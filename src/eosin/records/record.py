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

from eosin.errors import BadInput
from eosin.records.statistics import Estimate, Lengths, Ratio, lengths, survivors
from eosin.settings import check_kinds

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
class Spread:
    """How many numbers there were, their sum, and the least and the greatest of them."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    @classmethod
    def of(cls, number: int) -> Spread:
        return cls(1, number, number, number)

    def __add__(self, other: Spread) -> Spread:
        if not self.count or not other.count:
            return self if self.count else other
        return Spread(
            self.count + other.count,
            self.total + other.total,
            min(self.least, other.least),
            max(self.most, other.most),
        )

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass(frozen=True)
class LoopCount:
    """The contexts that fell into one loop of tokens."""

    onset: Spread
    """The step at which each began to repeat."""
    proved: Spread = Spread()
    """The step at which each was proved infinite, of those that were."""
    proofs: frozenset[str] = frozenset()
    """By what."""
    example: int = 0
    """The first of the contexts."""
    text: str = ""
    """The tokens in words, where somebody knew them."""
    drift: tuple[int, int, int, float] | None = None
    """Of one context of which nothing was proved: the context, how many numbers of its state move on with every turn,
    which of them most, and by how much. None where that was not looked at."""

    @property
    def looping(self) -> int:
        """How many repeat, and nothing was proved of them."""
        return self.onset.count - self.proved.count

    def __add__(self, other: LoopCount) -> LoopCount:
        drifts = [loop.drift for loop in (self, other) if loop.drift is not None]
        return LoopCount(
            self.onset + other.onset,
            self.proved + other.proved,
            self.proofs | other.proofs,
            min(self.example, other.example),
            self.text or other.text,
            min(drifts, default=None),
        )

    def written(self) -> dict[str, Any]:
        return {**vars(self), "onset": vars(self.onset), "proved": vars(self.proved), "proofs": sorted(self.proofs)}

    @classmethod
    def read(cls, written: dict[str, Any]) -> LoopCount:
        return cls(
            onset=Spread(**written["onset"]),
            proved=Spread(**written["proved"]),
            proofs=frozenset(written["proofs"]),
            example=written["example"],
            text=written["text"],
            drift=None if written["drift"] is None else tuple(written["drift"]),
        )


@dataclass(frozen=True)
class Weights:
    """Sums of the survival estimator's weights, and of their squares, after some steps."""

    sums: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __add__(self, other: Weights) -> Weights:
        steps = self.sums.keys() | other.sums.keys()
        pairs = {step: (self.sums.get(step, (0.0, 0.0)), other.sums.get(step, (0.0, 0.0))) for step in sorted(steps)}
        return Weights({step: (a[0] + b[0], a[1] + b[1]) for step, (a, b) in pairs.items()})


@dataclass(frozen=True)
class Counts:
    """What was counted over some contexts. All of it adds up."""

    contexts: int = 0
    tokens: int = 0
    """That were produced."""
    ended: Counter[int] = field(default_factory=Counter)
    """How many ended by themselves at each step."""
    causes: Counter[str] = field(default_factory=Counter)
    loops: dict[tuple[int, ...], LoopCount] = field(default_factory=dict)
    """Of the contexts that were proved infinite or seen looping, by the tokens that repeat, in one order for all."""
    ngrams: Counter[int] = field(default_factory=Counter)
    """How many n-grams the completions have, for each n of NGRAMS."""
    repeated: Counter[int] = field(default_factory=Counter)
    """How many of them had occurred before in the same completion."""
    hashes: tuple[int, ...] = ()
    """The smallest hashes of the completions, which tell how many are different."""
    outcomes: tuple[Outcomes, ...] = ()
    weights: Weights = field(default_factory=Weights)
    """Where survival was estimated, and not counted."""
    cut: int | None = 0
    """How many ended in the middle of a loop: eos came after a tail that repeats. None where that was not counted, as
    in records of version 0.1."""

    def __add__(self, other: Counts) -> Counts:
        summed = [f.name for f in fields(self) if f.name not in ("loops", "cut")]
        merged: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in summed}
        merged["cut"] = None if self.cut is None or other.cut is None else self.cut + other.cut
        merged["loops"] = added(self.loops, other.loops)
        merged["hashes"] = tuple(sorted({*self.hashes, *other.hashes})[:SMALLEST_HASHES])
        merged["outcomes"] = tuple(sorted(merged["outcomes"], key=lambda part: part.start))
        return Counts(**merged)

    def ratio(self, limit: int) -> Ratio | Estimate:
        """r_L: the share of contexts with no eos among the first L tokens, counted or estimated."""
        if not self.weights.sums:
            return Ratio(survivors(self.ended, self.contexts, limit), self.contexts)
        if limit not in self.weights.sums:
            raise BadInput(f"survival was estimated after steps {', '.join(map(str, self.weights.sums))}, not {limit}")
        return Estimate(*self.weights.sums[limit], self.contexts)

    def knows(self, limit: int) -> bool:
        """Whether the ratio after so many steps can be told."""
        return not self.weights.sums or limit in self.weights.sums

    @property
    def steps(self) -> Iterable[int]:
        """The steps at which the ratio changes, or at which it was estimated."""
        return self.weights.sums or self.ended

    @property
    def periods(self) -> Counter[int]:
        """How many contexts were proved infinite or seen looping, by the period of the loop."""
        return sum((Counter({len(tokens): loop.onset.count}) for tokens, loop in self.loops.items()), Counter())

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
        by_number = {name: sorted(vars(self)[name].items()) for name in ("ended", "ngrams", "repeated")}
        return {
            **vars(self),
            **by_number,
            "loops": [[list(tokens), loop.written()] for tokens, loop in sorted(self.loops.items())],
            "outcomes": [part.written() for part in self.outcomes],
            "weights": [[step, *sums] for step, sums in sorted(self.weights.sums.items())],
        }

    @classmethod
    def read(cls, written: dict[str, Any]) -> Counts:
        tables = {name: Counter(dict(written[name])) for name in ("ended", "causes", "ngrams", "repeated")}
        return cls(
            written["contexts"],
            written["tokens"],
            **tables,
            loops={tuple(tokens): LoopCount.read(loop) for tokens, loop in written["loops"]},
            hashes=tuple(written["hashes"]),
            outcomes=tuple(Outcomes.read(part) for part in written["outcomes"]),
            weights=Weights({step: (total, squares) for step, total, squares in written["weights"]}),
            cut=written.get("cut"),
        )


def added(
    loops: dict[tuple[int, ...], LoopCount], more: dict[tuple[int, ...], LoopCount]
) -> dict[tuple[int, ...], LoopCount]:
    together = dict(loops)
    for tokens, loop in more.items():
        together[tokens] = together[tokens] + loop if tokens in together else loop
    return together


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
        table = read_json(line)
        check_shape(table["signature"], table["counts"])
        record = cls(table["signature"], Counts.read(table["counts"]))
        record.check()
        return record

    def check(self) -> None:
        """Raise a ValueError where this cannot have been counted."""
        counts = self.counts
        numbers = [*counts.ended, counts.tokens, counts.cut or 0, *(loop.onset.count for loop in counts.loops.values())]
        for table in (counts.ended, counts.causes, counts.ngrams, counts.repeated):
            numbers += table.values()
        if any(number < 0 for number in numbers):
            raise ValueError(f"a count is negative: {min(numbers)}")
        if counts.contexts < 1:
            raise ValueError(f"contexts must be at least 1, got {counts.contexts}")
        if any(loop.onset.count < 1 or len(loop.drift or range(4)) != 4 for loop in counts.loops.values()):
            raise ValueError("a loop that nothing fell into, or whose drift is no drift")


PAIRS = list[list[int]]
COUNTS: dict[str, Any] = {
    "contexts": int,
    "tokens": int,
    "ended": PAIRS,
    "causes": dict[str, int],
    "ngrams": PAIRS,
    "repeated": PAIRS,
    "hashes": list[int],
    "weights": list[list[float]],
    "cut": int | None,
}
OUTCOMES: dict[str, Any] = {"start": int, "count": int, "unended": str}
LOOP: dict[str, Any] = {
    "tokens": list[int],
    "onset": dict[str, int],
    "proved": dict[str, int],
    "proofs": list[str],
    "example": int,
    "text": str,
    "drift": list[float] | None,
}
SIGNATURE: dict[str, Any] = {
    "decoder": str,
    "shard": str,
    "max_steps": int,
    "model": dict[str, Any],
    "contexts": dict[str, Any],
}
MODEL: dict[str, Any] = {"kind": str, "weights": str}
CONTEXTS: dict[str, Any] = {"count": int, "digest": str}


def check_shape(signature: dict[str, Any], counts: dict[str, Any]) -> None:
    """Raise a ValueError where a written record is made of something else. A signature may have more, or less."""
    parts = [({"cut": None, **counts}, COUNTS), *((part, OUTCOMES) for part in counts["outcomes"])]
    parts += [({"tokens": tokens, **loop}, LOOP) for tokens, loop in counts["loops"]]
    signed = [(signature, SIGNATURE), (signature.get("model", {}), MODEL), (signature.get("contexts", {}), CONTEXTS)]
    parts += [(part, {key: kind for key, kind in kinds.items() if key in part}) for part, kinds in signed]
    for part, kinds in parts:
        check_kinds(part, kinds)


ALL = "all"
"""The shard of records that have been added up."""


def pooled(records: Iterable[Record]) -> list[Record]:
    """Shards of one question added up, in the order in which the questions first occur."""
    together: dict[str, Record] = {}
    for record in records:
        before = together.get(record.question)
        if before is None:
            together[record.question] = Record({**record.signature, "shard": ALL}, record.counts)
        else:
            together[record.question] = Record(before.signature, before.counts + record.counts)
    return list(together.values())


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file. A last line that was cut off by a kill is no record."""
    for number, line in enumerate(lines_of(path, "records of an audit"), 1):
        try:
            yield Record.read(line)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, zlib.error) as error:
            raise BadInput(f"line {number} of {path} is not a record of an audit: {error}") from error


def read_json(line: str) -> Any:
    """What a line of JSON holds; no number that we write takes more than 64 bits."""
    return json.loads(line, parse_int=_short_int)


def _short_int(digits: str) -> int:
    if len(digits) > len(str(2**64)):
        raise ValueError(f"{digits[:20]}... is too large a number")
    return int(digits)


def lines_of(path: Path, what: str) -> list[str]:
    """The whole lines of a file of JSON lines; what a kill left of a last one is no line."""
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a file of {what}: it is not UTF-8") from error
    if rest and rest[0] != "{":
        raise BadInput(f"{path} is not a file of {what}, and is left as it is: it ends with {rest[:40]!r}")
    return lines
