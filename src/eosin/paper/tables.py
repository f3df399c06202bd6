"""What exhibits show: our numbers beside the paper's, from the results alone.

A number of ours is a mean and deviation across initialisations, as in the paper, or with one initialisation a ratio and
its 95% interval. Add up our spread, twice the paper's deviation as printed, and the rounding of the paper's mean: a
star marks a number that is further from the paper's. Our spread is the wider of deviation and interval. A number with
neither, the perplexity of a single initialisation, gets no star.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.paper.exhibits import Exhibit, Shown, at_temperature
from eosin.paper.plan import Examples, Plan
from eosin.paper.results import Entry, Results
from eosin.records.record import Record
from eosin.records.statistics import mean_and_deviation, summarize_lengths
from eosin.report.audits import Share, to_percent, to_percent_interval
from eosin.report.tables import Column, Table, Value, format_count, format_one_decimal, format_two_decimals


@dataclass(frozen=True)
class View:
    """An exhibit, and the results it is shown with."""

    exhibit: Exhibit
    plan: Plan
    results: Results

    def records(self, shown: Shown, contexts: str = "test", survival: bool = False) -> list[dict[str, Record]]:
        """By decoder, for each initialisation that has been audited."""
        how: dict[str, Any] = {"survival": True} if survival else {"floor": shown.floor}
        audits = [self.plan.audit(run, (), contexts, **how) for run in self.plan.runs(shown.model)]
        return [found for audit in audits if (found := self.results.records(audit))]

    def of_decoder(self, shown: Shown, decoder: str, contexts: str = "test", survival: bool = False) -> list[Record]:
        return [found[decoder] for found in self.records(shown, contexts, survival) if decoder in found]

    def trainings(self, model: str) -> list[Entry]:
        entries = [self.results.training(run) for run in self.plan.runs(model)]
        return [entry for entry in entries if entry is not None]

    def table(self, columns: Sequence[Column], rows: Sequence[tuple[Value, ...]], *notes: str) -> Table:
        gaps = [*not_trained(self.untrained()), *self.unfinished()]
        said = " ".join(filter(None, [*notes, self.exhibit.note, self.plan.preset.caution, *gaps]))
        return Table(tuple(columns), measured_rows(columns, rows), self.exhibit.title, said)

    def untrained(self) -> list[str]:
        """Runs without results, and models that the preset leaves out."""
        runs = (piece.run for piece in self.plan.of(self.exhibit).trainings)
        left_out = (model for model in self.exhibit.trained if not self.plan.runs(model))
        return [*(run for run in runs if self.results.training(run) is None), *left_out]

    def unfinished(self) -> Iterator[str]:
        """What was looked at before its end."""
        own = self.plan.of(self.exhibit)
        found = {piece.run: self.results.training(piece.run) for piece in own.trainings}
        for entry in filter(None, found.values()):
            if not entry["finished"]:
                yield f"Unfinished: {entry['run']}, after {entry['epochs']} epochs (the best is {entry['best_epoch']})."
        audits = [audit for audit in own.audits if found.get(audit.run)]
        open_ones = [audit.name for audit in audits if not set(audit.decoders) <= self.results.records(audit).keys()]
        if open_ones:
            yield f"Not finished yet: {listed(open_ones)}."

    def only_decoder(self) -> str:
        if len(self.exhibit.decoders) != 1:
            asked = ", ".join(self.exhibit.decoders) or "none"
            raise BadInput(
                f"{self.exhibit.name}: an exhibit of kind {self.exhibit.kind!r} has one decoder, got {asked}"
            )
        return self.exhibit.decoders[0]

    def at_limit(self) -> str:
        """The limit and the number of contexts, as they were."""
        own = self.plan.of(self.exhibit)
        counts = {record.counts.contexts for audit in own.audits for record in self.results.records(audit).values()}
        contexts = f"{' or '.join(f'{count:,}' for count in sorted(counts))} contexts." if counts else ""
        return f"L = {self.plan.preset.max_steps:,}; {contexts}".rstrip("; ")


def measured_rows(columns: Sequence[Column], rows: Sequence[tuple[Value, ...]]) -> tuple[tuple[Value, ...], ...]:
    """Rows that have a number of ours, in a table that has columns for such numbers."""
    places = [place for place, column in enumerate(columns) if column.format is shown_ours]
    return tuple(row for row in rows if not places or any(row[place] is not None for place in places))


def not_trained(runs: Sequence[str]) -> Iterator[str]:
    if runs:
        yield f"Not run: {listed(runs)}."


MOST_LISTED = 12


def listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_LISTED
    return ", ".join([*names[:MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])


# a number of ours beside one of the paper's

Paper = tuple[float, float | None]
"""Mean and deviation, which is not always given."""
OURS = ("ours", "spread low", "spread high", "initialisations", "differs")


def ours(values: Sequence[float], interval: tuple[float, float] | None, paper: Paper | None) -> Value:
    """Mean, the two ends of its spread, how many initialisations, and whether it differs from the paper's.

    The interval is that of what was counted on the contexts, which are the same for every initialisation. A number
    without a spread is not compared.
    """
    if not values:
        return None
    mean, deviation = mean_and_deviation(list(values))
    if interval is None and len(values) == 1:
        return mean, mean, mean, 1, None if paper else 0
    counted = interval or (mean, mean)
    spread = (mean - deviation, mean + deviation) if len(values) > 1 else counted
    # initialisations that agree, as on zero, tell no more than the contexts they were tried on
    widest = min(spread[0], counted[0]), max(spread[1], counted[1])
    return mean, *spread, len(values), int(differs(*widest, paper))


def differs(low: float, high: float, paper: Paper | None) -> bool:
    if paper is None:
        return False
    mean, deviation = paper
    room = ROUNDING + 2 * (deviation or 0.0)
    return low > mean + room or high < mean - room


ROUNDING = 0.005
"""How far a mean of the paper may be from what it measured: all are printed with two decimals.

Deviations are taken as printed: with its rounding, twice, "0.00 ± 0.0" would reach up to 0.1.
"""


def shown_ours(value: tuple[float, float, float, int, int | None]) -> str:
    mean, low, high, initialisations, differing = value
    star = " *" if differing else ""
    if initialisations > 1:
        return f"{mean:.2f} ± {high - mean:.2f}{star}"
    return f"{mean:.2f} ({low:.2f} to {high:.2f}){star}" if high > low else f"{mean:.2f}{star}"


def shown_paper(value: Paper) -> str:
    mean, deviation = value
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:g}"


def our_column(heading: str) -> Column:
    return Column(heading, shown_ours, tuple(f"{heading}: {part}" for part in OURS))


def paper_column(heading: str) -> Column:
    return Column(heading, shown_paper, (f"{heading}: mean", f"{heading}: deviation"))


def ratio(records: Sequence[Record], paper: Paper | None = None) -> Value:
    """r_L in percent, at the limit of the audit."""
    return at_given_limit(records, records[0].signature.max_steps, paper) if records else None


def at_given_limit(records: Sequence[Record], limit: int, paper: Paper | None = None) -> Value:
    shares = [record.counts.ratio(limit) for record in records]
    return ours([to_percent(share) for share in shares], mean_interval(shares), paper)


def mean_interval(shares: Sequence[Share]) -> tuple[float, float] | None:
    """As wide as one audit's, however many there are: all were tried on the same contexts."""
    if not shares:
        return None
    lows, highs = zip(*map(to_percent_interval, shares), strict=True)
    return fmean(lows), fmean(highs)


def proved(records: Sequence[Record]) -> float | None:
    """Share of the contexts that were proved infinite, in percent; the mean of several initialisations."""
    shares = [100 * record.counts.causes[Cause.PROVED] / record.counts.contexts for record in records]
    return sum(shares) / len(shares) if shares else None


def number(pair: Any) -> Paper | None:
    """Mean and deviation, as an exhibit has them."""
    return None if pair is None else (float(pair[0]), float(pair[1]) if len(pair) > 1 else None)


TOO_FAR = f"by more than our spread, twice its deviation and {ROUNDING:g} (its rounding) added up"
STAR = f"* differs from the paper's {TOO_FAR}."
NO_STAR = "The perplexity of a single initialisation has no spread, so it gets no star."


def ratios(view: View) -> list[Table]:
    """Decoders of each model."""
    tables = [ratios_of(view, shown) for shown in view.exhibit.models]
    return [table for table in tables if table.rows] or tables[:1]


def ratios_of(view: View, shown: Shown) -> Table:
    columns = (
        Column("decoder", left=True),
        our_column("r_L (%)"),
        paper_column("paper"),
        Column("proved (%)", format_two_decimals),
        *LENGTH_COLUMNS,
    )
    rows: list[tuple[Value, ...]] = []
    for decoder in view.exhibit.decoders:
        found, paper = view.of_decoder(shown, decoder), number(shown.paper.get(decoder))
        if found:
            rows.append((decoder, ratio(found, paper), paper, proved(found), *length_cells(found)))
    table = beside_the_paper(view, columns, rows, data_lengths(view))
    return replace(table, title=f"{table.title}, {shown.label}")


# how long completions are, beside how many of them end

LENGTH_COLUMNS = (
    Column("mean length", format_one_decimal),
    Column("median", format_one_decimal),
    Column("loop cut (%)", format_one_decimal),
)
LENGTH_NOTE = 'Lengths are of completions that ended; of these, "loop cut" counts loops that eos cut short.'


def length_cells(records: Sequence[Record]) -> tuple[Value, Value, Value]:
    """Mean and median length of what ended, and how much of it is a loop cut short; means over initialisations."""
    found = [record.counts for record in records if record.counts.lengths]
    if not found:
        return None, None, None
    lengths_found = [counts.lengths for counts in found if counts.lengths]
    cut = [100 * counts.cut / sum(counts.ended.values()) for counts in found if counts.cut is not None]
    return (
        fmean(each.mean for each in lengths_found),
        fmean(each.quantiles[MEDIAN] for each in lengths_found),
        fmean(cut) if len(cut) == len(found) else None,
    )


MEDIAN = 2
"""The place of the median among the quantiles."""


def data_lengths(view: View) -> str:
    """The lengths of the data's own continuations, in words."""
    entries = (corpus_entry(view, shown.model) for shown in view.exhibit.models)
    entry = next(filter(None, entries), None)
    found = summarize_lengths(dict(map(tuple, entry["lengths"]["test"]))) if entry else None
    said = f" The data's continuations: mean {found.mean:.1f}, median {found.quantiles[MEDIAN]}." if found else ""
    return LENGTH_NOTE + said


def heads(view: View) -> list[Table]:
    """Output heads: the ratio of greedy decoding and the perplexity."""
    decoder = view.only_decoder()
    columns = (
        Column("model", left=True),
        Column("head", left=True),
        our_column("r_L (%)"),
        paper_column("paper r_L (%)"),
        our_column("perplexity"),
        paper_column("paper perplexity"),
        *LENGTH_COLUMNS,
    )
    rows: list[tuple[Value, ...]] = []
    for shown in view.exhibit.models:
        papers = number(shown.paper.get("ratio")), number(shown.paper.get("perplexity"))
        measured = ours(test_perplexities(view, shown), None, papers[1])
        records = view.of_decoder(shown, decoder)
        if records or measured:
            found = ratio(records, papers[0])
            rows.append((shown.label, shown.head, found, papers[0], measured, papers[1], *length_cells(records)))
    return [beside_the_paper(view, columns, rows, data_lengths(view), star=f"{STAR} {NO_STAR}")]


def beside_the_paper(
    view: View, columns: Sequence[Column], rows: Sequence[tuple[Value, ...]], *notes: str, star: str = STAR
) -> Table:
    """A table with the columns of the paper's numbers, where the paper has any."""
    notes = (view.at_limit(), *notes)
    if any(shown.paper for shown in view.exhibit.models):
        return view.table(columns, rows, *notes, star)
    own = [place for place, column in enumerate(columns) if column.format is not shown_paper]
    return view.table([columns[i] for i in own], [tuple(row[i] for i in own) for row in rows], *notes)


def compared(table: Table) -> list[bool]:
    """Of each number of ours that is compared with the paper's beside it, whether it differs."""
    pairs = [
        (place, place + 1)
        for place, (left, right) in enumerate(itertools.pairwise(table.columns))
        if (left.format, right.format) == (shown_ours, shown_paper)
    ]
    both = ((row[mine], row[theirs]) for row in table.rows for mine, theirs in pairs)
    found = [mine[-1] for mine, theirs in both if isinstance(mine, tuple) and theirs is not None]
    return [bool(differing) for differing in found if differing is not None]


def test_perplexities(view: View, shown: Shown) -> list[float]:
    """Of each initialisation; that of a floor was measured by its audit."""
    if not shown.floor:
        return [entry["perplexity"]["test"] for entry in view.trainings(shown.model)]
    audits = (view.plan.audit(run, (), floor=shown.floor) for run in view.plan.runs(shown.model))
    entries = (view.results.entries.get(view.results.as_it_stands(audit).name) for audit in audits)
    return [entry["perplexity"]["test"] for entry in entries if entry]


def perplexities(view: View) -> list[Table]:
    columns = (
        Column("model", left=True),
        Column("split", left=True),
        our_column("perplexity"),
        paper_column("paper"),
        Column("best epoch", format_count),
        Column("precision", left=True),
        Column("minutes", format_count),
    )
    rows: list[tuple[Value, ...]] = []
    for shown in view.exhibit.models:
        entries = view.trainings(shown.model)
        for split in ("train", "test"):
            paper = number(shown.paper.get(split))
            found = [entry["perplexity"][split] for entry in entries if split in entry["perplexity"]]
            measured = ours(found, None, paper)
            if measured:
                rows.append((shown.label, split, measured, paper, *how_trained(entries)))
    return [view.table(columns, rows, STAR, NO_STAR)]


def how_trained(entries: Sequence[Entry]) -> tuple[Value, Value, Value]:
    """Mean best epoch, precision and mean minutes."""
    if not entries:
        return None, None, None
    n = len(entries)
    precisions = ", ".join(sorted({entry["precision"] for entry in entries}))
    epochs, seconds = sum(e["best_epoch"] for e in entries) / n, sum(e["training_seconds"] for e in entries) / n
    return epochs, precisions, seconds / 60


COUNTED = {"train": "train", "valid": "valid", "test": "test", "vocabulary": "|V|", "average_length": "avg. len"}


def statistics(view: View) -> list[Table]:
    columns = (Column("type", left=True), *(Column(name, _count) for name in COUNTED.values()))
    rows: list[tuple[Value, ...]] = []
    for shown in view.exhibit.models:
        entry = corpus_entry(view, shown.model)
        if entry is None:
            continue
        rows.append((shown.label, *(entry["statistics"].get(name) for name in COUNTED)))
        rows.append((f"{shown.label}, the paper's", *(shown.paper.get(name) for name in COUNTED)))
    return [view.table(columns, rows)]


def _count(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else format_one_decimal(number)


def corpus_entry(view: View, model: str) -> Entry | None:
    return view.results.entry(view.plan.corpus(model))


def grid(view: View) -> list[Table]:
    """Validation perplexities; the best of each model, and the paper's choice."""
    names, decoders = list(view.exhibit.sweep), view.exhibit.decoders
    columns = (
        Column("model", left=True),
        *(Column(name.split(".")[1], _setting) for name in names),
        our_column("valid perplexity"),
        *(our_column(f"{decoder} r_L (%)") for decoder in decoders),
        Column("best epoch", format_count),
        Column("chosen by", left=True),
    )
    rows: list[tuple[Value, ...]] = []
    for shown in view.exhibit.models:
        tried = [(values, grid_entries(view, shown.model, values)) for values in view.exhibit.combinations]
        means = [mean_valid(entries) for _, entries in tried]
        all_finished = all(entries and all(entry["finished"] for entry in entries) for _, entries in tried)
        best = min(mean for mean in means if mean is not None) if all_finished else None
        for (values, entries), mean in zip(tried, means, strict=True):
            by = ["us"] * (mean is not None and mean == best) + ["the paper"] * (values == shown.paper)
            measured = ours([e["perplexity"]["valid"] for e in entries], None, None)
            settings = (values[name] for name in names)
            found = (ratio(records_tried(view, shown.model, values, decoder)) for decoder in decoders)
            rows.append((shown.label, *settings, measured, *found, how_trained(entries)[0], ", ".join(by)))
    return [view.table(columns, rows, *([view.at_limit()] if decoders else []))]


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def grid_entries(view: View, model: str, values: dict[str, Any]) -> list[Entry]:
    runs = view.plan.runs_tried(view.exhibit, model, values)
    return [entry for run in runs if (entry := view.results.training(run))]


def records_tried(view: View, model: str, values: dict[str, Any], decoder: str) -> list[Record]:
    """Of each initialisation that was trained with these settings and audited."""
    audits = [view.plan.audit(run, ()) for run in view.plan.runs_tried(view.exhibit, model, values)]
    return [found[decoder] for audit in audits if decoder in (found := view.results.records(audit))]


def mean_valid(entries: Sequence[Entry]) -> float | None:
    return sum(entry["perplexity"]["valid"] for entry in entries) / len(entries) if entries else None


def by_lengths(view: View) -> list[Table]:
    """Quantiles of the lengths of what ended, and of the data."""
    columns = (
        Column("lengths of", left=True),
        Column("r_L (%)", format_two_decimals),
        Column("mean", format_one_decimal),
        *(Column(name, format_count) for name in ("5%", "25%", "50%", "75%", "95%")),
    )
    rows = [(label, left, *_summary(ended)) for label, left, ended in length_distributions(view)]
    note = "Quantiles are of what ended; of several initialisations the first. The data are all of test."
    return [view.table(columns, rows, view.at_limit(), note)]


def length_distributions(view: View) -> list[tuple[str, float, dict[int, int]]]:
    """Label, share that did not end in percent, and how many ended at each length; the data first."""
    decoder = view.only_decoder()
    corpus = corpus_entry(view, view.exhibit.models[0].model)
    data = [("the data", 0.0, dict(map(tuple, corpus["lengths"]["test"])))] if corpus else []
    found = [(shown.label, view.of_decoder(shown, decoder)) for shown in view.exhibit.models]
    return data + [
        (label, to_percent(records[0].ratio), dict(records[0].counts.ended)) for label, records in found if records
    ]


def _summary(ended: dict[int, int]) -> tuple[Value, ...]:
    found = summarize_lengths(ended)
    return (None,) * 6 if found is None else (found.mean, *found.quantiles)


def by_contexts(view: View) -> list[Table]:
    columns = [Column("decoder", left=True), Column("contexts", left=True)]
    columns += [our_column(f"{shown.label} r_L (%)") for shown in view.exhibit.models]
    rows = [
        (decoder, contexts, *(ratio(view.of_decoder(shown, decoder, contexts)) for shown in view.exhibit.models))
        for decoder in view.exhibit.decoders
        for contexts in view.exhibit.contexts
    ]
    return [view.table(columns, rows, view.at_limit())]


def by_limits(view: View) -> list[Table]:
    limits = [limit for limit in view.exhibit.limits if limit <= view.plan.preset.max_steps]
    columns = [Column("model", left=True), Column("decoder", left=True)]
    columns += [our_column(f"L = {limit}") for limit in limits]
    rows = [
        (shown.label, decoder, *(at_given_limit(view.of_decoder(shown, decoder), limit) for limit in limits))
        for shown in view.exhibit.models
        for decoder in view.exhibit.decoders
    ]
    return [view.table(columns, rows)]


def by_temperature(view: View) -> list[Table]:
    exhibit = view.exhibit
    columns = [Column("model", left=True), Column("decoder", left=True)]
    columns += [our_column(f"T = {temperature:g}") for temperature in exhibit.temperatures]
    rows = [
        (
            shown.label,
            decoder,
            *(ratio(view.of_decoder(shown, at_temperature(decoder, t))) for t in exhibit.temperatures),
        )
        for shown in exhibit.models
        for decoder in exhibit.decoders
    ]
    return [view.table(columns, rows, view.at_limit())]


def by_survival(view: View) -> list[Table]:
    columns = [Column("model", left=True), Column("decoder", left=True)]
    columns += [our_column("counted r_L (%)"), our_column("estimated r_L (%)")]
    rows = [
        (
            shown.label,
            decoder,
            ratio(view.of_decoder(shown, decoder)),
            ratio(view.of_decoder(shown, decoder, survival=True)),
        )
        for shown in view.exhibit.models
        for decoder in view.exhibit.decoders
    ]
    return [view.table(columns, rows, view.at_limit())]


WORDS = 40
"""Of a completion so many tokens are shown."""


def continuations(view: View) -> list[Table]:
    columns = (
        Column("context", format_count),
        Column("prefix", left=True),
        Column("model", left=True),
        Column("decoder", left=True),
        Column("completion", left=True),
    )
    pieces = [view.plan.examples(pair, view.exhibit.shown) for pair in view.exhibit.pairs]
    rows: list[tuple[Value, ...]] = []
    for piece in pieces:
        found = view.results.examples(piece)
        found.sort(key=lambda each: each["context"])  # a baseline and its remedy side by side
        rows += [(each["context"], each["prefix"], each["run"], each["decoder"], beginning(each)) for each in found]
    return [view.table(columns, rows, *without_examples(view, pieces))]


def without_examples(view: View, pieces: Sequence[Examples]) -> Iterator[str]:
    """Why a pair has no rows, where its runs are there."""
    for piece in pieces:
        entry = view.results.entry(view.results.as_it_stands(piece))
        trained = all(view.results.training(run) for run in piece.looks_at)
        if entry and not entry["contexts"]:
            yield f"{piece.run}, {piece.decoder}: ended on every context."
        elif trained and not entry:
            yield f"Not finished yet: {piece.name}."


def beginning(example: Entry) -> str:
    """The first words of a completion; of one that ends also the last, eos, and when that was."""
    words = [step[0] for step in example["steps"]]
    begun = "".join(words[:WORDS]).strip()
    if len(words) <= WORDS:
        return begun
    return f"{begun} ...{words[-1]} ({len(words)} tokens)" if Cause(example["cause"]).ends else f"{begun} ..."


KINDS: dict[str, Callable[[View], list[Table]]] = {
    "ratios": ratios,
    "heads": heads,
    "perplexities": perplexities,
    "statistics": statistics,
    "grid": grid,
    "lengths": by_lengths,
    "contexts": by_contexts,
    "limits": by_limits,
    "temperature": by_temperature,
    "survival": by_survival,
    "continuations": continuations,
}
