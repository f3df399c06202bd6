"""Tables of audits: by decoder, at several limits, over the steps, of the lengths.

Every table has a row, or a column, for each record. What all records have in common is its title; what tells them
apart stands before the decoder, so audits of several models, contexts or limits can share a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.records.record import LoopCount, Record
from eosin.records.statistics import Estimate, Ratio
from eosin.report.tables import Column, Table, Value, one_decimal, three_digits, two_decimals, whole

Signature = Mapping[str, Any]
Share = Ratio | Estimate
Measure = tuple[Column, Callable[[Record], Value]]


# what a record is of

LAST_RESORT = ("settings", "weights", "digest", "proofs", "device", "threads", "torch", "eosin")
"""Facts that say little to people, and are shown only where nothing else tells two records apart."""
REWORDED = {"model", "run", "contexts", "contexts_from", "max_steps", "decoder", "shard", "estimator"}


def facts(signature: Signature) -> dict[str, Value]:
    """A signature in the words of a table; whatever else it has keeps its name."""
    model, contexts = signature.get("model", {}), signature.get("contexts", {})
    words = {
        "model": _plain(signature.get("run", model.get("kind"))),
        "context set": _context_set(signature),
        "L": signature["max_steps"],
        "weights": model.get("weights"),
        "digest": contexts.get("digest"),
        "estimator": "survival" if signature.get("estimator") == "survival" else None,
    }
    others = {key: _plain(value) for key, value in signature.items() if key not in REWORDED}
    return {key: value for key, value in {**words, **others}.items() if value is not None}


def _context_set(signature: Signature) -> str | None:
    contexts = signature.get("contexts", {})
    if "count" not in contexts:
        return None
    origin = signature.get("contexts_from")
    return f"{contexts['count']:,}" + (f" of {origin}" if origin else "")


def _plain(value: Any) -> Value:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)


def told_apart(signatures: Sequence[Signature], ignoring: Iterable[str] = ()) -> list[str]:
    """The facts that differ; of those that are a last resort, only what makes more of the signatures different."""
    known = [{**facts(signature), "decoder": signature["decoder"]} for signature in signatures]
    names = [name for name in dict.fromkeys(name for each in known for name in each) if name not in set(ignoring)]
    usual = [name for name in names if name not in {*LAST_RESORT, "decoder"}]
    chosen = [name for name in usual if _kinds(known, [name]) > 1]
    for name in (name for name in LAST_RESORT if name in names):
        if _kinds(known, [*chosen, name, "decoder"]) > _kinds(known, [*chosen, "decoder"]):
            chosen.append(name)
    return chosen


def _kinds(known: Sequence[Mapping[str, Value]], names: Sequence[str]) -> int:
    return len({tuple(each.get(name) for name in names) for each in known})


def in_common(signatures: Sequence[Signature], ignoring: Iterable[str] = ()) -> str:
    """The facts that are the same for all, in words."""
    first, *others = [facts(signature) for signature in signatures]
    return ", ".join(
        f"{name} {value}"
        for name, value in first.items()
        if name not in {*LAST_RESORT, *ignoring} and all(each.get(name) == value for each in others)
    )


def identities(records: Sequence[Record]) -> list[Measure]:
    """The columns that say which record a row is of."""
    names = told_apart([record.signature for record in records])
    told: list[Measure] = [(Column(name, left=True), _fact(name)) for name in names]
    return [*told, (Column("decoder", left=True), lambda record: record.signature["decoder"])]


def _fact(name: str) -> Callable[[Record], Value]:
    return lambda record: facts(record.signature).get(name)


def label(record: Record, names: Sequence[str]) -> str:
    """The same in one phrase, for a heading."""
    known = facts(record.signature)
    return ", ".join([*(str(known.get(name, "-")) for name in names), record.signature["decoder"]])


# what is measured


def ratio_of(record: Record) -> Share:
    return record.counts.ratio(record.signature["max_steps"])


def percent(ratio: Share) -> float:
    return 100 * ratio.value


def percent_interval(ratio: Share) -> tuple[float, float]:
    low, high = ratio.interval()
    return 100 * low, 100 * high


def missing(record: Record) -> int:
    """Contexts of the audit that are not counted yet: it was stopped, or is still under way."""
    return record.signature.get("contexts", {}).get("count", record.counts.contexts) - record.counts.contexts


def mean_length(record: Record) -> float | None:
    lengths = record.counts.lengths
    return None if lengths is None else lengths.mean


def repetition(record: Record, n: int) -> float | None:
    return 100 * record.counts.repetition(n) if record.counts.ngrams else None


def _to(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f} to {ends[1]:.2f}"


RATIO: list[Measure] = [
    (Column("r_L (%)", two_decimals), lambda record: percent(ratio_of(record))),
    (Column("95% interval", _to, ("95% low", "95% high")), lambda record: percent_interval(ratio_of(record))),
]
REST: list[Measure] = [
    (Column("mean length", one_decimal), mean_length),
    (Column("rep-1 (%)", one_decimal), lambda record: repetition(record, 1)),
    (Column("rep-4 (%)", one_decimal), lambda record: repetition(record, 4)),
    (Column("different", whole), lambda record: record.counts.different or None),
    (Column("contexts", whole), lambda record: record.counts.contexts),
]
WHERE_THERE_ARE_SOME: list[Measure] = [(Column("missing", whole), missing)]
"""Columns that are left out where they would be all zeros."""


def causes(records: Sequence[Record]) -> list[Measure]:
    """A count for each cause that occurs."""
    occurring = {str(cause) for record in records for cause, count in record.counts.causes.items() if count}
    known = [str(cause) for cause in Cause]
    names = [*(name for name in known if name in occurring), *sorted(occurring.difference(known))]
    return [(Column(name, whole), _cause(name)) for name in names]


def _cause(name: str) -> Callable[[Record], Value]:
    return lambda record: record.counts.causes[name]


# the tables


def tabulated(records: Sequence[Record], measures: Sequence[Measure], what: str = "") -> Table:
    """A row for each record."""
    chosen = [*identities(records), *measures]
    return Table(
        columns=tuple(column for column, _ in chosen),
        rows=tuple(tuple(of(record) for _, of in chosen) for record in records),
        title=titled(what, in_common([record.signature for record in records])),
    )


def titled(what: str, common: str) -> str:
    return (" " if what.endswith("?") else ": ").join(part for part in (what, common) if part)


def by_decoder(records: Iterable[Record]) -> Table:
    """The non-termination ratio with its interval, why decodings ended or did not, and what they look like."""
    records = list(records)
    some = [(column, of) for column, of in WHERE_THERE_ARE_SOME if any(of(record) for record in records)]
    return tabulated(records, [*RATIO, *causes(records), *REST, *some])


def at_limits(records: Sequence[Record], limits: Sequence[int]) -> Table:
    """The ratio at several limits, all from the same decodings."""
    for record in records:
        given, decoder = record.signature["max_steps"], record.signature["decoder"]
        if max(limits) > given:
            raise BadInput(f"nothing is known at L = {max(limits)}: {decoder} was given {given} steps; ask for fewer")
    return tabulated(records, [_at(limit) for limit in limits], "ratios and 95% intervals")


def _at(limit: int) -> Measure:
    parts = (f"r_{limit} (%)", f"r_{limit} 95% low", f"r_{limit} 95% high")

    def ratio(record: Record) -> Value:
        found = record.counts.ratio(limit)
        return percent(found), *percent_interval(found)

    return Column(parts[0], lambda value: f"{value[0]:.2f} ({_to(value[1:])})", parts), ratio


def by_step(records: Sequence[Record], first: Column, rows: Sequence[tuple[Value, ...]], what: str) -> Table:
    """A column for each record."""
    signatures = [record.signature for record in records]
    names = told_apart(signatures)
    columns = (first, *(Column(label(record, names), two_decimals) for record in records))
    return Table(columns, tuple(rows), titled(what, in_common(signatures)))


def survival(records: Sequence[Record]) -> Table:
    """The share that has not ended after each step at which some did, in percent."""
    limits = [record.signature["max_steps"] for record in records]
    steps = sorted({0, *limits, *(step for record in records for step in record.counts.steps)})
    rows = [
        (
            step,
            *(
                percent(record.counts.ratio(step)) if step <= limit and record.counts.knows(step) else None
                for record, limit in zip(records, limits, strict=True)
            ),
        )
        for step in steps
    ]
    return by_step(records, Column("step"), rows, "share that has not ended after a step (%)")


QUANTILES = ("5%", "25%", "50%", "75%", "95%")


def quantiles(records: Sequence[Record]) -> Table:
    """The lengths of what ended."""
    ended: Measure = (Column("ended", whole), lambda record: sum(record.counts.ended.values()))
    mean: Measure = (Column("mean length", one_decimal), mean_length)
    deviation: Measure = (Column("deviation", one_decimal), _deviation)
    return tabulated(
        records, [ended, mean, deviation, *(_quantile(i) for i in range(len(QUANTILES)))], "lengths of what ended"
    )


def _deviation(record: Record) -> float | None:
    lengths = record.counts.lengths
    return None if lengths is None else lengths.deviation


def _quantile(place: int) -> Measure:
    def length(record: Record) -> Value:
        lengths = record.counts.lengths
        return None if lengths is None else lengths.quantiles[place]

    return Column(QUANTILES[place], whole), length


def histogram(records: Sequence[Record]) -> Table:
    """The share of contexts that ended at lengths from one power of two to the next, and that did not, in percent."""
    for record in records:
        if not record.counts.outcomes:
            raise BadInput(f"survival of {record.signature['decoder']} was estimated, so nothing ended at any length")
    longest = max(record.signature["max_steps"] for record in records)
    rows: list[tuple[Value, ...]] = []
    for start in (2**power for power in range(longest.bit_length())):
        stop = min(2 * start, longest + 1)
        shares = [
            percent(record.counts.ratio(start - 1)) - percent(record.counts.ratio(stop - 1)) for record in records
        ]
        rows.append((f"{start}" if stop == start + 1 else f"{start} to {stop - 1}", *shares))
    rows.append(("no end", *(percent(record.counts.ratio(longest)) for record in records)))
    return by_step(records, Column("length", left=True), rows, "share of the contexts (%)")


SHOWN_LOOPS = 20


def loops(records: Sequence[Record]) -> Table:
    """The tokens that repeat, how many contexts fell into each loop, and what is known about it."""
    found = [(record, tokens, loop) for record in records for tokens, loop in record.counts.loops.items()]
    found.sort(key=lambda each: -each[2].onset.count)
    told = identities(records)
    columns = (
        *(column for column, _ in told),
        Column("period", whole),
        Column("proved", whole),
        Column("looping", whole),
        Column("onset", one_decimal),
        Column("proved at", one_decimal),
        Column("by", left=True),
        Column("counting cells", whole),
        Column("most a turn", three_digits),
        Column("tokens", left=True),
    )
    rows = [
        (*(of(record) for _, of in told), *_loop(tokens, loop, record)) for record, tokens, loop in found[:SHOWN_LOOPS]
    ]
    more = f"{len(found) - SHOWN_LOOPS:,} more loops are not shown" if len(found) > SHOWN_LOOPS else ""
    title = titled("loops", in_common([record.signature for record in records]))
    return Table(columns, tuple(rows), title, more)


def _loop(tokens: tuple[int, ...], loop: LoopCount, record: Record) -> tuple[Value, ...]:
    _, cells, _, most = loop.drift or (None, None, None, None)
    return (
        len(tokens),
        loop.proved.count,
        loop.looping,
        loop.onset.mean,
        loop.proved.mean if loop.proved.count else None,
        ", ".join(sorted(loop.proofs)) or None,
        cells,
        most if cells else None,
        shortened(loop.text or " ".join(map(str, tokens))),
    )


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
