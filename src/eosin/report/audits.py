"""Tables of audits: by decoder, at several limits, over the steps, of the lengths.

Every table has a row, or a column, for each record. Facts that all records share are in the title; facts that differ
stand before the decoder. So audits of several models, context sets or limits can share a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.records.record import LoopCount, Record
from eosin.records.statistics import LengthSummary, Share
from eosin.report.facts import find_differing_facts, list_facts, make_title
from eosin.report.tables import (
    Column,
    Table,
    Value,
    format_count,
    format_one_decimal,
    format_three_digits,
    format_two_decimals,
    shorten,
)

Measure = tuple[Column, Callable[[Record], Value]]
"""A column, and its value for a record."""


def to_percent(share: Share) -> float:
    return 100 * share.value


def to_percent_interval(share: Share) -> tuple[float, float]:
    low, high = share.interval()
    return 100 * low, 100 * high


def make_identity_columns(records: Sequence[Record]) -> list[Measure]:
    """The columns that say which record a row is about."""
    names = find_differing_facts([record.signature for record in records])
    facts: list[Measure] = [(Column(name, left=True), _get_fact(name)) for name in names]
    return [*facts, (Column("decoder", left=True), lambda record: record.signature.decoder)]


def _get_fact(name: str) -> Callable[[Record], Value]:
    return lambda record: list_facts(record.signature).get(name)


def _describe_length(describe: Callable[[LengthSummary], Value]) -> Callable[[Record], Value]:
    return lambda record: describe(record.counts.lengths) if record.counts.lengths else None


def _measure_repetition(n: int) -> Callable[[Record], Value]:
    return lambda record: 100 * record.counts.repetition(n) if record.counts.ngrams else None


def format_interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f} to {ends[1]:.2f}"


def format_row(record: Record) -> str:
    """The ratio and the causes, in a line."""
    causes = "".join(f", {count:,} {cause}" for cause, count in record.counts.causes.items() if count)
    return f"{record.signature.decoder}: r_L {to_percent(record.ratio):.2f}%{causes}"


MEAN_LENGTH: Measure = (
    Column("mean length of ended", format_one_decimal),
    _describe_length(lambda lengths: lengths.mean),
)
RATIO_MEASURES: list[Measure] = [
    (Column("r_L (%)", format_two_decimals), lambda record: to_percent(record.ratio)),
    (
        Column("95% interval", format_interval, ("95% low", "95% high")),
        lambda record: to_percent_interval(record.ratio),
    ),
]
CONTEXTS: Measure = (Column("contexts", format_count), lambda record: record.counts.contexts)
OTHER_MEASURES: list[Measure] = [
    MEAN_LENGTH,
    (Column("rep-1 (%)", format_one_decimal), _measure_repetition(1)),
    (Column("rep-4 (%)", format_one_decimal), _measure_repetition(4)),
    (Column("distinct", format_count), lambda record: record.counts.distinct or None),
    CONTEXTS,
]
MISSING: Measure = (Column("missing", format_count), lambda record: record.missing)


def make_cause_columns(records: Sequence[Record]) -> list[Measure]:
    """A count for each cause that occurs."""
    occurring = {str(cause) for record in records for cause, count in record.counts.causes.items() if count}
    known = [str(cause) for cause in Cause]
    names = [*(name for name in known if name in occurring), *sorted(occurring.difference(known))]
    return [(Column(name, format_count), _count_cause(name)) for name in names]


def _count_cause(name: str) -> Callable[[Record], Value]:
    return lambda record: record.counts.causes[name]


# the tables


def tabulate(records: Sequence[Record], measures: Sequence[Measure], subject: str = "") -> Table:
    """A row for each record."""
    chosen = [*make_identity_columns(records), *measures]
    return Table(
        columns=tuple(column for column, _ in chosen),
        rows=tuple(tuple(measure(record) for _, measure in chosen) for record in records),
        title=make_title(subject, [record.signature for record in records]),
        note=describe_sampled_loops(records),
    )


def describe_sampled_loops(records: Sequence[Record]) -> str:
    """How many loops were followed, and what became of them; empty where none was left."""
    each = [
        f"of {sum(loops.seen.values()):,} of {record.signature.decoder}, {sum(loops.followed.values()):,} were "
        f"followed to the limit and {len(loops.ended):,} of these ended"
        for record in records
        if (loops := record.counts.sampled).seen
    ]
    return f"loops are sampled (--follow-loops 1 follows all): {'; '.join(each)}" if each else ""


def tabulate_decoders(records: Iterable[Record], wide: bool = True) -> Table:
    """The ratio with its interval, the causes of ending, and what the completions look like.

    A table that is not wide has the columns of a first look.
    """
    records = list(records)
    missing = [MISSING] if any(record.missing for record in records) else []
    causes = make_cause_columns(records)
    if wide:
        return tabulate(records, [*RATIO_MEASURES, *causes, *OTHER_MEASURES, *missing])
    unended = [measure for measure in causes if measure[0].heading not in (Cause.EOS, Cause.STOP)]
    return tabulate(records, [*RATIO_MEASURES, *unended, MEAN_LENGTH, CONTEXTS, *missing])


def tabulate_limits(records: Sequence[Record], limits: Sequence[int]) -> Table:
    """The ratio at several limits, from the same decodings."""
    for record in records:
        given, decoder = record.signature.max_steps, record.signature.decoder
        if max(limits) > given:
            raise BadInput(f"nothing is known at L = {max(limits)}: {decoder} was given {given} steps; ask for fewer")
    return tabulate(records, [_measure_at(limit) for limit in limits], "ratios and 95% intervals")


def _measure_at(limit: int) -> Measure:
    parts = (f"r_{limit} (%)", f"r_{limit} 95% low", f"r_{limit} 95% high")

    def measure(record: Record) -> Value:
        ratio = record.counts.ratio(limit)
        return to_percent(ratio), *to_percent_interval(ratio)

    return Column(parts[0], lambda value: f"{value[0]:.2f} ({format_interval(value[1:])})", parts), measure


def _tabulate_columns(records: Sequence[Record], first: Column, rows: Sequence[tuple[Value, ...]], what: str) -> Table:
    """A column for each record."""
    signatures = [record.signature for record in records]
    names = find_differing_facts(signatures)
    facts = [list_facts(signature) for signature in signatures]
    labels = [
        ", ".join([*(str(known.get(name, "-")) for name in names), signature.decoder])
        for known, signature in zip(facts, signatures, strict=True)
    ]
    columns = (first, *(Column(label, format_two_decimals) for label in labels))
    return Table(columns, tuple(rows), make_title(what, signatures))


def tabulate_survival(records: Sequence[Record]) -> Table:
    """The share of decodings that have not ended after each step at which some did, in percent."""

    def measure(record: Record, step: int) -> float | None:
        known = step <= record.signature.max_steps and record.counts.has_ratio_at(step)
        return to_percent(record.counts.ratio(step)) if known else None

    limits = [record.signature.max_steps for record in records]
    steps = sorted({0, *limits, *(step for record in records for step in record.counts.steps)})
    rows = [(step, *(measure(record, step) for record in records)) for step in steps]
    return _tabulate_columns(records, Column("step"), rows, "share that has not ended after a step (%)")


QUANTILES = ("5%", "25%", "50%", "75%", "95%")


def tabulate_quantiles(records: Sequence[Record]) -> Table:
    """The lengths of completions that ended."""
    ended: Measure = (Column("ended", format_count), lambda record: sum(record.counts.ended.values()))
    deviation = (Column("deviation", format_one_decimal), _describe_length(lambda lengths: lengths.deviation))
    quantiles = [(Column(name, format_count), _get_quantile(place)) for place, name in enumerate(QUANTILES)]
    return tabulate(records, [ended, MEAN_LENGTH, deviation, *quantiles], "lengths of what ended")


def _get_quantile(place: int) -> Callable[[Record], Value]:
    return _describe_length(lambda lengths: lengths.quantiles[place])


def tabulate_histogram(records: Sequence[Record]) -> Table:
    """The share of contexts, in percent, that ended at lengths between powers of two, and that did not end."""
    for record in records:
        if not record.counts.outcomes:
            raise BadInput(f"survival of {record.signature.decoder} was estimated, so nothing ended at any length")
    longest = max(record.signature.max_steps for record in records)
    rows: list[tuple[Value, ...]] = []
    for start in (2**power for power in range(longest.bit_length())):
        stop = min(2 * start, longest + 1)
        shares = [
            to_percent(record.counts.ratio(start - 1)) - to_percent(record.counts.ratio(stop - 1)) for record in records
        ]
        rows.append((f"{start}" if stop == start + 1 else f"{start} to {stop - 1}", *shares))
    rows.append(("no end", *(to_percent(record.counts.ratio(longest)) for record in records)))
    return _tabulate_columns(records, Column("length", left=True), rows, "share of the contexts (%)")


def tabulate_audit(records: Sequence[Record], wide: bool = False) -> list[Table]:
    """What an audit prints: the decoders and, if there are any, the loops."""
    tables = [replace(tabulate_decoders(records, wide), title="")]
    if any(record.counts.loops for record in records):
        tables.append(replace(tabulate_loops(records, wide), title="loops"))
    return tables


MOST_LOOPS, FEW_LOOPS = 20, 5
FIRST_LOOK = ("tokens", "period", "proved", "looping")
LOOP_MEASURES: list[tuple[Column, Callable[[tuple[int, ...], LoopCount], Value]]] = [
    (Column("tokens", left=True), lambda tokens, loop: shorten(loop.text or " ".join(map(str, tokens)), 60)),
    (Column("period", format_count), lambda tokens, _: len(tokens)),
    (Column("proved", format_count), lambda _, loop: loop.proved.count),
    (Column("looping", format_count), lambda _, loop: loop.looping),
    (Column("onset", format_one_decimal), lambda _, loop: loop.onset.mean),
    (Column("proved at", format_one_decimal), lambda _, loop: loop.proved.mean if loop.proved.count else None),
    (Column("by", left=True), lambda _, loop: ", ".join(sorted(loop.proofs)) or None),
    (Column("counting cells", format_count), lambda _, loop: loop.drift[1] if loop.drift else None),
    (
        Column("most a turn", format_three_digits),
        lambda _, loop: loop.drift[3] if loop.drift and loop.drift[1] else None,
    ),
]


def tabulate_loops(records: Sequence[Record], wide: bool = True) -> Table:
    """The tokens that repeat, how many contexts fell into each loop, and, if wide, what else is known about it."""
    loops = [(record, tokens, loop) for record in records for tokens, loop in record.counts.loops.items()]
    loops.sort(key=lambda each: -each[2].onset.count)
    identity, most = make_identity_columns(records), MOST_LOOPS if wide else FEW_LOOPS
    measures = LOOP_MEASURES if wide else [each for each in LOOP_MEASURES if each[0].heading in FIRST_LOOK]
    rows = [
        (*(of_record(record) for _, of_record in identity), *(of_loop(tokens, loop) for _, of_loop in measures))
        for record, tokens, loop in loops[:most]
    ]
    more = f"{len(loops) - most:,} more loops are not shown" if len(loops) > most else ""
    title = make_title("loops", [record.signature for record in records])
    return Table(tuple(column for column, _ in [*identity, *measures]), tuple(rows), title, more)
