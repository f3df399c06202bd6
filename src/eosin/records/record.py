"""Records: counts with a signature. Counts of shards add up; ratios and intervals are computed from them on demand.

A record is one JSON line for one (model, decoder, contexts, seed, shard).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field, structs

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.records.signature import ALL, Signature
from eosin.records.statistics import (
    Estimate,
    LengthSummary,
    Ratio,
    SampledRatio,
    Share,
    count_survivors,
    summarize_lengths,
)
from eosin.storage.json_lines import parse_lines

NGRAMS = (1, 4)
SMALLEST_HASHES = 1024
"""Distinct completions are counted exactly up to this number, and estimated beyond it."""
Natural = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Pairs = list[tuple[Natural, Natural]]
"""JSON has no numbers as keys, so a table of numbers is a list of pairs."""
Loops = dict[tuple[int, ...], "LoopCount"]
Weights = dict[int, tuple[float, float]]
"""Sums of the survival estimator's weights, and of their squares, after some steps."""


class Unended(Struct, frozen=True):
    """Which contexts of a range did not end: a bit for each, compressed, in base64."""

    start: Natural
    count: Natural
    unended: str

    def __post_init__(self) -> None:
        self.unpack()

    @classmethod
    def pack(cls, start: int, unended: Sequence[bool]) -> Unended:
        number = int("".join("01"[bit] for bit in reversed(unended)) or "0", 2)
        bits = zlib.compress(number.to_bytes((len(unended) + 7) // 8, "little"), 9)
        return cls(start, len(unended), base64.b64encode(bits).decode())

    def unpack(self) -> list[bool]:
        bits = zlib.decompress(base64.b64decode(self.unended))
        if len(bits) != (self.count + 7) // 8:
            raise ValueError(f"unended has {8 * len(bits)} bits for {self.count} contexts")
        digits = f"{int.from_bytes(bits, 'little'):0{self.count}b}"[::-1]
        return [digit == "1" for digit in digits[: self.count]]


class StepSummary(Struct, frozen=True):
    """How many numbers there were, their sum, and the least and the greatest of them."""

    count: Natural = 0
    total: Natural = 0
    least: Natural = 0
    most: Natural = 0

    @classmethod
    def of(cls, number: int) -> StepSummary:
        return cls(1, number, number, number)

    def __add__(self, other: StepSummary) -> StepSummary:
        if not self.count or not other.count:
            return self if self.count else other
        return StepSummary(
            self.count + other.count,
            self.total + other.total,
            min(self.least, other.least),
            max(self.most, other.most),
        )

    @property
    def mean(self) -> float:
        return self.total / self.count


class LoopCount(Struct, frozen=True):
    """The contexts that fell into one loop of tokens."""

    onset: StepSummary
    """The step at which each began to repeat."""
    proved: StepSummary = StepSummary()
    """The step at which each was proved infinite, of those that were."""
    proofs: frozenset[str] = frozenset()
    """The kinds of proof."""
    example: Natural = 0
    """The first of the contexts."""
    text: str = ""
    """The tokens as text, if a tokenizer was known."""
    drift: tuple[Natural, Natural, Natural, float] | None = None
    """Measured on one context without a proof: the context, how many numbers of its state change with every turn, the
    number that changes most, and by how much."""

    def __post_init__(self) -> None:
        if self.onset.count < 1:
            raise ValueError("no context fell into this loop")

    @property
    def looping(self) -> int:
        """How many contexts repeat without a proof."""
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

    def to_table(self) -> dict[str, Any]:
        return msgspec.to_builtins(self, order="sorted")


class SampledLoops(Struct, frozen=True, omit_defaults=True):
    """Loops of which only a random share was followed to the limit. The others count as not ended."""

    share: float = 1.0
    """The probability with which a loop is followed."""
    seen: dict[Natural, Natural] = {}
    """How many loops were seen, by the step."""
    followed: dict[Natural, Natural] = {}
    """How many of them were followed."""
    ended: dict[Natural, Natural] = {}
    """Contexts whose loops were followed and ended, each with the step at which it ended."""

    def __post_init__(self) -> None:
        more = any(self.followed[step] > self.seen.get(step, 0) for step in self.followed)
        if not 0 < self.share <= 1 or more or len(self.ended) > sum(self.followed.values()):
            raise ValueError("more loops were followed than seen, more ended than were followed, or no share is given")

    def __add__(self, other: SampledLoops) -> SampledLoops:
        return SampledLoops(
            min(self.share, other.share),  # one audit has one share; a record without loops has 1
            dict(Counter(self.seen) + Counter(other.seen)),
            dict(Counter(self.followed) + Counter(other.followed)),
            self.ended | other.ended,
        )

    def ratio(self, survivors: int, contexts: int, limit: int) -> Ratio | SampledRatio:
        """The share of contexts that have not ended, given how many were not seen to end within the limit."""
        seen, followed = (count_until(steps, limit) for steps in (self.seen, self.followed))
        if not seen:
            return Ratio(survivors, contexts)
        ended = sum(step <= limit for step in self.ended.values())
        return SampledRatio(survivors, seen - followed, ended, self.share, contexts)


def count_until(steps: Mapping[int, int], limit: int) -> int:
    return sum(count for step, count in steps.items() if step <= limit)


class Counts(Struct, frozen=True):
    """What was counted over some contexts. All of it adds up."""

    contexts: int = 0
    tokens: int = 0
    """How many tokens were generated."""
    ended: Counter[int] = field(default_factory=Counter)
    """How many decodings were seen to end by themselves at each step."""
    causes: Counter[str] = field(default_factory=Counter)
    loops: Loops = {}
    """By the tokens that repeat, rotated to one canonical order: the contexts proved infinite or seen looping."""
    ngrams: Counter[int] = field(default_factory=Counter)
    """How many n-grams the completions have, for each n of NGRAMS."""
    repeated: Counter[int] = field(default_factory=Counter)
    """How many of them had occurred before in the same completion."""
    hashes: tuple[int, ...] = ()
    """The smallest hashes of the completions; they tell how many are distinct."""
    outcomes: tuple[Unended, ...] = ()
    weights: Weights = {}
    """Where survival was estimated instead of counted."""
    cut: int | None = 0
    """How many ended in the middle of a loop: eos came after a tail that repeats. None if unknown (version 0.1)."""
    sampled: SampledLoops = SampledLoops()

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            contexts=self.contexts + other.contexts,
            tokens=self.tokens + other.tokens,
            ended=self.ended + other.ended,
            causes=self.causes + other.causes,
            loops=add_loops(self.loops, other.loops),
            ngrams=self.ngrams + other.ngrams,
            repeated=self.repeated + other.repeated,
            hashes=tuple(sorted({*self.hashes, *other.hashes})[:SMALLEST_HASHES]),
            outcomes=tuple(sorted(self.outcomes + other.outcomes, key=lambda part: part.start)),
            weights=add_weights(self.weights, other.weights),
            cut=None if self.cut is None or other.cut is None else self.cut + other.cut,
            sampled=self.sampled + other.sampled,
        )

    def ratio(self, limit: int) -> Share:
        """r_L: the share of contexts with no eos among the first L tokens, counted or estimated."""
        if not self.weights:
            survivors = count_survivors(self.ended, self.contexts, limit)
            return self.sampled.ratio(survivors, self.contexts, limit)
        if limit not in self.weights:
            raise BadInput(f"survival was estimated after steps {', '.join(map(str, self.weights))}, not {limit}")
        return Estimate(*self.weights[limit], self.contexts)

    def has_ratio_at(self, limit: int) -> bool:
        return not self.weights or limit in self.weights

    @property
    def steps(self) -> Iterable[int]:
        """The steps at which the ratio changes, or at which it was estimated."""
        return self.weights or self.ended

    @property
    def lengths(self) -> LengthSummary | None:
        """The lengths of the completions that ended."""
        return summarize_lengths(self.endings)

    @property
    def endings(self) -> Mapping[int, float]:
        """How many contexts ended at each step, where a followed loop stands for those that were left."""
        late = Counter(self.sampled.ended.values())
        return {step: count + late[step] * (1 / self.sampled.share - 1) for step, count in self.ended.items()}

    def repetition(self, n: int) -> float:
        """Share of n-grams that had occurred before in the same completion."""
        return self.repeated[n] / self.ngrams[n] if self.ngrams[n] else 0.0

    @property
    def distinct(self) -> float:
        """How many completions are distinct: exact up to SMALLEST_HASHES, beyond that estimated from their density."""
        if len(self.hashes) < SMALLEST_HASHES:
            return len(self.hashes)
        return (SMALLEST_HASHES - 1) / (self.hashes[-1] / 2**64)

    @property
    def unended(self) -> dict[int, bool]:
        """For each context, whether its decoding did not end."""
        return {part.start + i: bit for part in self.outcomes for i, bit in enumerate(part.unpack())}

    def to_table(self) -> dict[str, Any]:
        table = {
            **structs.asdict(self),
            **{name: sorted(getattr(self, name).items()) for name in ("ended", "loops", "ngrams", "repeated")},
            "weights": [(step, *sums) for step, sums in sorted(self.weights.items())],
        }
        return msgspec.to_builtins(table, order="sorted")


class CountsOnDisk(Struct, frozen=True):
    """The form of counts in a JSON line."""

    contexts: Positive
    tokens: Natural
    ended: Pairs
    causes: dict[str, Natural]
    loops: list[tuple[tuple[Natural, ...], LoopCount]]
    ngrams: Pairs
    repeated: Pairs
    hashes: tuple[Annotated[int, Meta(ge=0)], ...]
    outcomes: tuple[Unended, ...]
    weights: list[tuple[Natural, float, float]]
    cut: Natural | None = None
    sampled: SampledLoops = SampledLoops()

    def unpack(self) -> Counts:
        if max(self.hashes, default=0) >= 2**64:
            raise ValueError(f"a hash has at most 64 bits, got {max(self.hashes):.3e}")
        table = {
            **structs.asdict(self),
            **{name: Counter(dict(getattr(self, name))) for name in ("ended", "causes", "ngrams", "repeated")},
            "loops": dict(self.loops),
            "weights": {step: (total, squares) for step, total, squares in self.weights},
        }
        return Counts(**table)


def add_loops(loops: Loops, more: Loops) -> Loops:
    return loops | {tokens: loops[tokens] + loop if tokens in loops else loop for tokens, loop in more.items()}


def add_weights(sums: Weights, more: Weights) -> Weights:
    zero = (0.0, 0.0)
    pairs = {step: (sums.get(step, zero), more.get(step, zero)) for step in sorted(sums.keys() | more.keys())}
    return {step: (a[0] + b[0], a[1] + b[1]) for step, (a, b) in pairs.items()}


class Record(Struct, frozen=True):
    """Counts, and everything that is needed to count them again."""

    signature: Signature
    counts: Counts

    @property
    def question(self) -> str:
        """What was asked: the signature without the shard."""
        return json.dumps({key: value for key, value in self.signature.table.items() if key != "shard"}, sort_keys=True)

    @property
    def ratio(self) -> Share:
        """The ratio at the limit of the audit."""
        return self.counts.ratio(self.signature.max_steps)

    @property
    def all_ended(self) -> bool:
        """Whether no context was seen not to end, and none was left in a loop."""
        return not self.ratio.value and not self.counts.causes[Cause.SAMPLED]

    @property
    def missing(self) -> int:
        """How many contexts are not counted yet."""
        count = self.signature.contexts.count
        return 0 if count is None else count - self.counts.contexts

    def to_line(self) -> str:
        return json.dumps({"signature": self.signature.table, "counts": self.counts.to_table()}, sort_keys=True)

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Read and check a line; a ValueError says what is wrong with it."""
        read = msgspec.json.decode(line, type=RecordOnDisk)
        record = cls(Signature.from_table(read.signature), read.counts.unpack())
        if not 0 <= record.ratio.value <= 1:
            raise ValueError("more decodings ended than there are contexts")
        return record


class RecordOnDisk(Struct, frozen=True):
    """The form of a record in a JSON line."""

    signature: dict[str, Any]
    counts: CountsOnDisk


def add_shards(records: Iterable[Record]) -> list[Record]:
    """Add up the shards of each question, in the order in which the questions first occur."""
    sums: dict[str, Record] = {}
    for record in records:
        question = record.question
        if question in sums:
            sums[question] = Record(sums[question].signature, sums[question].counts + record.counts)
        else:
            sums[question] = Record(record.signature.change(shard=ALL), record.counts)
    return list(sums.values())


def read_records(path: Path) -> Iterator[Record]:
    """Read the records of a file. A last line that a kill cut off is skipped."""
    return parse_lines(path, "records of an audit", "a record of an audit", Record.from_line)
