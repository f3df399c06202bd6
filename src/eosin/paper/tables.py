"""The tables of exhibits: our numbers beside the paper's, from results alone.

Our number is a mean and deviation over initialisations, as in the paper, or for one initialisation a ratio and its 95%
interval. A star marks a number whose distance from the paper's exceeds the sum of our spread, twice the paper's
deviation and the rounding of the paper's mean. Our spread is the wider of deviation and interval. A number
without either, such as the perplexity of one initialisation, gets no star.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from msgspec.structs import asdict

from eosin.causes import Cause
from eosin.paper.exhibits import Exhibit, ExhibitModel, PaperNumber, PublishedModel, add_temperature
from eosin.paper.measurements import Measurements
from eosin.paper.plan import TraceExamples
from eosin.paper.results import AuditEntry, CorpusEntry, ExamplesEntry, RunEntry
from eosin.records.record import Record
from eosin.records.statistics import LengthSummary, compute_mean_and_deviation, estimate_by_group, summarize_lengths
from eosin.report.audits import QUANTILES, to_percent, to_percent_interval
from eosin.report.tables import Column, Table, Value, format_count, format_one_decimal, format_two_decimals, shorten
from eosin.report.traces import Example

Row = tuple[Value, ...]
Interval = tuple[float, float]


@dataclass(frozen=True)
class ExhibitData(Measurements):
    """An exhibit, and the measurements that it shows."""

    exhibit: Exhibit

    def list_records(
        self, member: ExhibitModel, decoder: str, contexts: str = "test", survival: bool = False
    ) -> list[Record]:
        """A record for each initialisation."""
        how: dict[str, Any] = {"survival": True} if survival else {"floor": member.floor}
        return list(self.find_records(member.model, decoder, contexts, **how).values())

    def list_perplexities(self, member: ExhibitModel) -> list[float]:
        """The test perplexity of each initialisation."""
        return list(self.find_perplexities(member.model, member.floor).values())

    @property
    def data_lengths(self) -> dict[int, int]:
        """How many continuations of test have each length."""
        return self.find_data_lengths(member.model for member in self.exhibit.models)

    def find_sweep_runs(self, model: str, combination: dict[str, Any]) -> dict[int, RunEntry]:
        """The finished runs of one combination of settings."""
        return self.find_finished(self.plan.list_sweep_runs(self.exhibit, model, combination))

    def list_missing_runs(self) -> list[str]:
        """Runs without results, and models that the preset leaves out."""
        pieces = self.plan.select(self.exhibit).trainings
        left_out = (model for model in self.exhibit.trained_models if not self.plan.list_runs(model))
        return [*(piece.run for piece in pieces if not self.results.is_finished(piece)), *left_out]

    def list_unfinished_audits(self) -> list[str]:
        plan = self.plan.select(self.exhibit)
        audits = [audit for audit in plan.audits if self.results.find_run(audit.run)]
        missing = [audit for audit in audits if not set(audit.decoders) <= self.results.find_records(audit).keys()]
        published = [audit for audit in plan.published if not self.results.is_finished(audit)]
        return [audit.name for audit in [*missing, *published]]

    def describe_limit(self) -> str:
        """The limit and the number of contexts, as they were."""
        audits = self.plan.select(self.exhibit).audits
        counts = {record.counts.contexts for audit in audits for record in self.results.find_records(audit).values()}
        contexts = f"; {' or '.join(f'{count:,}' for count in sorted(counts))} contexts." if counts else ""
        return f"L = {self.plan.preset.max_steps:,}{contexts}"

    def build_table(self, columns: Sequence[Column], rows: Sequence[Row], *notes: str) -> Table:
        """A table of the rows that have a number of ours, with its notes and gaps."""
        ours = [place for place, column in enumerate(columns) if column.format is format_ours]
        known = tuple(row for row in rows if not ours or any(row[place] is not None for place in ours))
        note = " ".join(filter(None, [*notes, self.exhibit.note, *describe_gaps([self])]))
        return Table(tuple(columns), known, self.exhibit.title, note)

    def build_comparison(self, columns: Sequence[Column], rows: Sequence[Row], *notes: str) -> Table:
        """A table with the columns of the paper, if the paper has any of the numbers."""
        if any(member.paper for member in self.exhibit.models):
            return self.build_table(columns, rows, *notes, STAR)
        ours = [place for place, column in enumerate(columns) if column.format is not str or column.left]
        return self.build_table([columns[i] for i in ours], [tuple(row[i] for i in ours) for row in rows], *notes)


MOST_LISTED = 12


def describe_gaps(exhibits: Sequence[ExhibitData]) -> Iterator[str]:
    """The runs and audits that are missing in any exhibit, each named once."""
    if runs := dict.fromkeys(run for data in exhibits for run in data.list_missing_runs()):
        yield f"Not run: {list_some(list(runs))}."
    if audits := dict.fromkeys(audit for data in exhibits for audit in data.list_unfinished_audits()):
        yield f"Not finished: {list_some(list(audits))}."


def list_some(names: Sequence[str]) -> str:
    more = len(names) - MOST_LISTED
    return ", ".join([*names[:MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])


# our numbers beside the paper's

OURS = ("ours", "spread low", "spread high", "initialisations", "differs")
ROUNDING = 0.005
"""The paper prints means with two decimals. Deviations are taken as printed: with their rounding, twice, "0.00 ± 0.0"
would reach up to 0.1."""
TOO_FAR = f"by more than our spread, twice its deviation and {ROUNDING:g} (its rounding) added up"
STAR = f"* differs from the paper's {TOO_FAR}."
NO_STAR = "The perplexity of a single initialisation has no spread, so it gets no star."


def compare_with_paper(values: Sequence[float], paper: PaperNumber | None, interval: Interval | None = None) -> Value:
    """The mean, both ends of its spread, the number of initialisations, and whether it differs from the paper's.

    The interval is that of counts; all initialisations count on the same contexts. A number without a spread is not
    compared.
    """
    if not values:
        return None
    mean, deviation = compute_mean_and_deviation(list(values))
    if interval is None and len(values) == 1:
        return mean, mean, mean, 1, None if paper else 0
    counted = interval or (mean, mean)
    spread = (mean - deviation, mean + deviation) if len(values) > 1 else counted
    # initialisations that agree, as on zero, tell no more than the contexts they were tried on
    widest = min(spread[0], counted[0]), max(spread[1], counted[1])
    return mean, *spread, len(values), int(is_far(*widest, paper))


def is_far(low: float, high: float, paper: PaperNumber | None) -> bool:
    if paper is None:
        return False
    room = ROUNDING + 2 * (paper.deviation or 0.0)
    return low > paper.mean + room or high < paper.mean - room


def format_ours(value: tuple[float, float, float, int, int | None]) -> str:
    mean, low, high, initialisations, differs = value
    star = " *" if differs else ""
    if initialisations > 1:
        return f"{mean:.2f} ± {high - mean:.2f}{star}"
    return f"{mean:.2f} ({low:.2f} to {high:.2f}){star}" if high > low else f"{mean:.2f}{star}"


def make_our_column(heading: str) -> Column:
    return Column(heading, format_ours, tuple(f"{heading}: {part}" for part in OURS))


def make_paper_column(heading: str) -> Column:
    return Column(heading, str, (f"{heading}: mean", f"{heading}: deviation"))


def measure_ratio(records: Sequence[Record], paper: PaperNumber | None = None, limit: int | None = None) -> Value:
    """r_L in percent at the limit of the audit, or at another."""
    if not records:
        return None
    shares = [record.counts.ratio(limit or record.signature.max_steps) for record in records]
    lows, highs = zip(*map(to_percent_interval, shares), strict=True)
    # as wide as the interval of one audit, however many there are: all count on the same contexts
    interval = fmean(lows), fmean(highs)
    return compare_with_paper([to_percent(share) for share in shares], paper, interval)


def measure_proved(records: Sequence[Record]) -> float:
    """The mean share of contexts that are proved infinite, in percent."""
    return fmean(100 * record.counts.causes[Cause.PROVED] / record.counts.contexts for record in records)


def count_stars(table: Table) -> tuple[int, int]:
    """How many of our numbers differ from the paper's beside them, and how many are compared."""
    ours = [place for place, column in enumerate(table.columns) if column.format is format_ours]
    pairs = [(row[place], row[place + 1]) for row in table.rows for place in ours if place + 1 < len(row)]
    marks = [mine[-1] for mine, theirs in pairs if isinstance(mine, tuple) and isinstance(theirs, PaperNumber)]
    return sum(mark == 1 for mark in marks), sum(mark is not None for mark in marks)


# the lengths of completions, beside how many of them end

MEDIAN = QUANTILES.index("50%")
LENGTH_COLUMNS = (
    Column("mean length", format_one_decimal),
    Column("median", format_one_decimal),
    Column("loop cut (%)", format_one_decimal),
)
LENGTH_NOTE = 'Lengths are of completions that ended. "loop cut" is the share of them in which eos cut a loop short.'


def measure_lengths(records: Sequence[Record]) -> tuple[Value, Value, Value]:
    """Mean and median length of completions that ended, and how many of them eos cut short in a loop."""
    counts = [record.counts for record in records if record.counts.ended]
    lengths = [summary for each in counts if (summary := each.lengths)]
    if not lengths:
        return None, None, None
    cut = [100 * each.cut / sum(each.ended.values()) for each in counts if each.cut is not None]
    return (
        fmean(each.mean for each in lengths),
        fmean(each.quantiles[MEDIAN] for each in lengths),
        fmean(cut) if len(cut) == len(counts) else None,
    )


def describe_lengths(data: ExhibitData) -> str:
    found = summarize_lengths(data.data_lengths)
    of_data = f" The data's continuations: mean {found.mean:.1f}, median {found.quantiles[MEDIAN]}." if found else ""
    return LENGTH_NOTE + of_data


# the kinds of exhibits


def tabulate_ratios(data: ExhibitData) -> Table:
    """The ratio of each decoder with each model."""
    columns = (
        Column("model", left=True),
        Column("decoder", left=True),
        make_our_column("r_L (%)"),
        make_paper_column("paper"),
        Column("proved (%)", format_two_decimals),
        *LENGTH_COLUMNS,
    )
    rows: list[Row] = []
    for member, decoder in itertools.product(data.exhibit.models, data.exhibit.decoders):
        found, paper = data.list_records(member, decoder), member.find_paper_number(decoder)
        if found:
            cells = measure_ratio(found, paper), paper, measure_proved(found), *measure_lengths(found)
            rows.append((member.label, decoder, *cells))
    return data.build_comparison(columns, rows, data.describe_limit(), describe_lengths(data))


def tabulate_heads(data: ExhibitData) -> Table:
    """Greedy ratio and perplexity of each output head."""
    decoder = data.exhibit.only_decoder
    columns = (
        Column("model", left=True),
        Column("head", left=True),
        make_our_column("r_L (%)"),
        make_paper_column("paper r_L (%)"),
        make_our_column("perplexity"),
        make_paper_column("paper perplexity"),
        *LENGTH_COLUMNS,
    )
    rows: list[Row] = []
    for member in data.exhibit.models:
        records = data.list_records(member, decoder)
        paper_ratio, paper_perplexity = member.find_paper_number("ratio"), member.find_paper_number("perplexity")
        ratio = measure_ratio(records, paper_ratio)
        perplexity = compare_with_paper(data.list_perplexities(member), paper_perplexity)
        cells = ratio, paper_ratio, perplexity, paper_perplexity, *measure_lengths(records)
        rows.append((member.label, member.head, *cells))
    notes = data.describe_limit(), describe_lengths(data), *[NO_STAR] * any(each.paper for each in data.exhibit.models)
    return data.build_comparison(columns, rows, *notes)


def tabulate_perplexities(data: ExhibitData) -> Table:
    columns = (
        Column("model", left=True),
        Column("split", left=True),
        make_our_column("perplexity"),
        make_paper_column("paper"),
        Column("best epoch", format_count),
        Column("precision", left=True),
        Column("minutes", format_count),
    )
    rows: list[Row] = []
    for member in data.exhibit.models:
        entries = list(data.find_runs(member.model).values())
        for split in ("train", "test"):
            paper = member.find_paper_number(split)
            found = [entry.perplexity.test if split == "test" else entry.perplexity.train for entry in entries]
            measured = compare_with_paper([value for value in found if value is not None], paper)
            rows.append((member.label, split, measured, paper, *summarize_training(entries)))
    return data.build_table(columns, rows, STAR, NO_STAR)


def summarize_training(entries: Sequence[RunEntry]) -> tuple[Value, Value, Value]:
    """Mean best epoch, precision and mean minutes."""
    if not entries:
        return None, None, None
    precisions = ", ".join(sorted({entry.precision for entry in entries if entry.precision}))
    seconds = fmean(entry.training_seconds or 0.0 for entry in entries)
    return fmean(entry.best_epoch for entry in entries), precisions, seconds / 60


STATISTICS = {"train": "train", "valid": "valid", "test": "test", "vocabulary": "|V|", "average_length": "avg. len"}


def tabulate_statistics(data: ExhibitData) -> Table:
    columns = (Column("type", left=True), *(Column(heading, format_statistic) for heading in STATISTICS.values()))
    rows: list[Row] = []
    for member in data.exhibit.models:
        if entry := data.results.find(data.plan.plan_corpus(member.model), CorpusEntry):
            counted = asdict(entry.statistics)
            rows.append((member.label, *map(counted.get, STATISTICS)))
            rows.append((f"{member.label}, the paper's", *map(member.paper.get, STATISTICS)))
    return data.build_table(columns, rows)


def format_statistic(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else format_one_decimal(number)


def tabulate_sweep(data: ExhibitData) -> Table:
    """Validation perplexity of each combination; the best of each model, and the paper's choice."""
    exhibit = data.exhibit
    columns = (
        Column("model", left=True),
        *(Column(name.split(".")[1], format_setting) for name in exhibit.sweep),
        make_our_column("valid perplexity"),
        *(make_our_column(f"{decoder} r_L (%)") for decoder in exhibit.decoders),
        Column("best epoch", format_count),
        Column("chosen by", left=True),
    )
    rows: list[Row] = []
    for member in exhibit.models:
        tried = [(each, data.find_sweep_runs(member.model, each)) for each in exhibit.combinations]
        perplexities = [list_valid_perplexities(runs.values()) for _, runs in tried]
        best = min(map(fmean, perplexities)) if all(perplexities) else None
        for (combination, runs), valid in zip(tried, perplexities, strict=True):
            ratios = [measure_ratio(list(data.find_run_records(runs, each).values())) for each in exhibit.decoders]
            chosen = ["us"] * (bool(valid) and fmean(valid) == best) + ["the paper"] * (combination == member.paper)
            measured = compare_with_paper(valid, None), *ratios, summarize_training(list(runs.values()))[0]
            rows.append((member.label, *combination.values(), *measured, ", ".join(chosen)))
    return data.build_table(columns, rows, *[data.describe_limit()] * bool(exhibit.decoders))


def list_valid_perplexities(entries: Iterable[RunEntry]) -> list[float]:
    return [entry.perplexity.valid for entry in entries if entry.perplexity.valid is not None]


def format_setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tabulate_lengths(data: ExhibitData) -> Table:
    """Quantiles of the lengths of completions that ended, and of the data."""
    columns = (
        Column("lengths of", left=True),
        Column("r_L (%)", format_two_decimals),
        Column("mean", format_one_decimal),
        *(Column(name, format_count) for name in QUANTILES),
    )
    rows = [
        (label, unended, *list_length_quantiles(summarize_lengths(ended)))
        for label, unended, ended in list_length_counts(data)
    ]
    note = "Quantiles are of completions that ended, of the first initialisation. The data are all of test."
    return data.build_table(columns, rows, data.describe_limit(), note)


def list_length_quantiles(found: LengthSummary | None) -> Row:
    return (None,) * 6 if found is None else (found.mean, *found.quantiles)


def list_length_counts(data: ExhibitData) -> list[tuple[str, float, dict[int, int]]]:
    """The label, the share that did not end in percent, and how many ended at each length; the data first."""
    lengths, decoder = data.data_lengths, data.exhibit.only_decoder
    found = [(member.label, data.list_records(member, decoder)) for member in data.exhibit.models]
    rows = [(label, to_percent(each[0].ratio), dict(each[0].counts.ended)) for label, each in found if each]
    return [("the data", 0.0, lengths), *rows] if lengths else rows


def tabulate_contexts(data: ExhibitData) -> Table:
    exhibit = data.exhibit
    columns = [Column("decoder", left=True), Column("contexts", left=True)]
    columns += [make_our_column(f"{member.label} r_L (%)") for member in exhibit.models]
    rows = [
        (decoder, contexts, *(measure_ratio(data.list_records(member, decoder, contexts)) for member in exhibit.models))
        for decoder, contexts in itertools.product(exhibit.decoders, exhibit.contexts)
    ]
    return data.build_table(columns, rows, data.describe_limit())


def tabulate_by_decoder(
    data: ExhibitData, columns: Sequence[str], measure: Callable[[ExhibitModel, str], Sequence[Value]], *notes: str
) -> Table:
    """A row for each model and decoder, with several numbers of ours."""
    headings = Column("model", left=True), Column("decoder", left=True), *map(make_our_column, columns)
    pairs = itertools.product(data.exhibit.models, data.exhibit.decoders)
    return data.build_table(headings, [(member.label, each, *measure(member, each)) for member, each in pairs], *notes)


def tabulate_limits(data: ExhibitData) -> Table:
    limits = [limit for limit in data.exhibit.limits if limit <= data.plan.preset.max_steps]
    return tabulate_by_decoder(
        data,
        [f"L = {limit}" for limit in limits],
        lambda member, decoder: [measure_ratio(data.list_records(member, decoder), limit=limit) for limit in limits],
    )


def tabulate_temperatures(data: ExhibitData) -> Table:
    values = data.exhibit.temperatures
    return tabulate_by_decoder(
        data,
        [f"T = {value:g}" for value in values],
        lambda member, decoder: [measure_ratio(data.list_records(member, add_temperature(decoder, t))) for t in values],
        data.describe_limit(),
    )


def tabulate_survival(data: ExhibitData) -> Table:
    return tabulate_by_decoder(
        data,
        ["counted r_L (%)", "estimated r_L (%)"],
        lambda member, decoder: [measure_ratio(data.list_records(member, decoder, survival=s)) for s in (False, True)],
        data.describe_limit(),
    )


MOST_TOKENS = 40
"""Tokens of a completion that a table shows at most."""


def tabulate_continuations(data: ExhibitData) -> Table:
    texts = (Column(name, left=True) for name in ("prefix", "model", "decoder", "completion"))
    columns = Column("context", format_count), *texts
    pieces = [data.plan.plan_examples(pair, data.exhibit.shown) for pair in data.exhibit.pairs]
    rows: list[Row] = []
    for piece in pieces:
        # a baseline and its remedy side by side
        found = sorted(data.results.read_examples(piece), key=lambda each: each.context)
        rows += [(each.context, each.prefix, each.run, each.decoder, shorten_completion(each)) for each in found]
    return data.build_table(columns, rows, *describe_missing_examples(data, pieces))


def describe_missing_examples(data: ExhibitData, pieces: Sequence[TraceExamples]) -> Iterator[str]:
    """Why a pair has no rows, if its runs are there."""
    for piece in pieces:
        entry = data.results.find(piece, ExamplesEntry)
        if entry and not entry.contexts:
            yield f"{piece.run}, {piece.decoder}: ended on every context."
        elif not entry and all(map(data.results.find_run, piece.needed_runs)):
            yield f"Not finished: {piece.name}."


def shorten_completion(example: Example) -> str:
    """The first tokens of a completion; if it ends, also eos and the length."""
    words = [step.text for step in example.steps]
    beginning = "".join(words[:MOST_TOKENS]).strip()
    if len(words) <= MOST_TOKENS:
        return beginning
    return f"{beginning} ...{words[-1]} ({len(words)} tokens)" if example.cause.ends else f"{beginning} ..."


# models that others trained


def find_published_records(data: ExhibitData, model: PublishedModel) -> dict[str, Record]:
    """By decoder; and greedy decoding on the floor, if there is one."""
    plain, *floors = data.plan.plan_published(model)
    found = data.results.find_records(plain)
    on_floor = [record for floor in floors for record in data.results.find_records(floor).values()]
    return {
        **{decoder: found[decoder] for decoder in plain.decoders if decoder in found},
        **dict(zip([FLOORED], on_floor)),
    }


FLOORED = "greedy on a floor"


def measure_by_sequence(record: Record | None, model: PublishedModel) -> Value:
    """r_L in percent, and its interval, for which prefixes of one sequence are not independent."""
    if record is None:
        return None
    size, unended = max(1, len(model.prefixes)), record.counts.unended
    outcomes = [unended[context] for context in sorted(unended)]
    share = estimate_by_group(outcomes, size) if size > 1 else record.ratio
    return compare_with_paper([to_percent(share)], None, to_percent_interval(share))


def tabulate_published(data: ExhibitData) -> Table:
    """Every decoder with every model: the ratio, the lengths, and the most frequent loop."""
    columns = (
        *(Column(name, left=True) for name in ("model", "decoder")),
        make_our_column("r_L (%)"),
        Column("proved (%)", format_two_decimals),
        *LENGTH_COLUMNS,
        Column("most frequent loop", left=True),
    )
    rows: list[Row] = []
    for each in data.exhibit.published:
        records = find_published_records(data, each)
        if real := find_real_lengths(data, each):
            rows.append((each.label, "(the real sequences)", None, None, real.mean, real.quantiles[MEDIAN], None, None))
        for decoder, record in records.items():
            shares = measure_by_sequence(record, each), measure_proved([record])
            rows.append((each.label, decoder, *shares, *measure_lengths([record]), describe_loop(record)))
    notes = LENGTH_NOTE, REAL_NOTE, BY_SEQUENCE, *describe_gaps([data])
    return Table(columns, tuple(rows), data.exhibit.title, " ".join(notes))


def find_real_lengths(data: ExhibitData, model: PublishedModel) -> LengthSummary | None:
    """Of what follows the prefixes in the real sequences."""
    entry = data.results.find(replace(data.plan.plan_published(model)[0], decoders=()), AuditEntry)
    return summarize_lengths(dict(entry.continuations)) if entry else None


REAL_NOTE = "Those of the real sequences are of what follows the prefixes, with eos."
BY_SEQUENCE = "Intervals are by sequence: prefixes of one sequence are not independent."
MOST_LOOP_TEXT = 40
"""Characters of a loop."""


def describe_loop(record: Record) -> str | None:
    """The text of the most frequent loop, and how many contexts fell into it."""
    loops = sorted(record.counts.loops.items(), key=lambda pair: -pair[1].onset.count)
    return next((f"{shorten(loop.text, MOST_LOOP_TEXT)} ({loop.onset.count})" for _, loop in loops), None)


def summarize_published(data: ExhibitData) -> Table:
    """A row for each model, with a few of the decoders."""
    decoders = [*data.exhibit.decoders, FLOORED]
    columns = (
        *(Column(name, left=True) for name in ("model", "what")),
        Column("L", format_count),
        *(Column(name, format_share, (f"{name}: ours", f"{name}: low", f"{name}: high")) for name in decoders),
    )
    rows: list[Row] = []
    for each in data.exhibit.published:
        records = find_published_records(data, each)
        shares = [measure_by_sequence(records.get(decoder), each) for decoder in decoders]
        cells = [share[:3] if isinstance(share, tuple) else None for share in shares]
        rows += [(each.label, each.about, data.plan.plan_published(each)[0].max_steps, *cells)] if any(cells) else []
    return data.build_table(columns, rows)


def format_share(value: tuple[float, float, float]) -> str:
    return format_one_decimal(value[0])


def tabulate_sources(data: ExhibitData) -> Table:
    """What each model is, whose, on which contexts it was audited, and what came of it."""
    names = ("model", "what", "licence of the weights", "sequences")
    columns = (
        *(Column(name, left=True) for name in names),
        Column("contexts", format_count),
        Column("L", format_count),
        Column("verdict", left=True),
    )
    rows: list[Row] = []
    for each in data.exhibit.published:
        audit, records = data.plan.plan_published(each)[0], find_published_records(data, each)
        count = max((record.counts.contexts for record in records.values()), default=0)
        facts = each.label, each.about, each.licence, audit.contexts, count, audit.max_steps
        verdict = " ".join(judge_published(records))
        rows += [(*facts, verdict)] if verdict else []
    return data.build_table(columns, rows)


def judge_published(records: Mapping[str, Record]) -> Iterator[str]:
    """Greedy decoding, the sampler that fails most beside its eos-keeping form, and the floor, each in a sentence."""
    if greedy := records.get("greedy"):
        counts = greedy.counts
        unended, proved = sum(counts.unended.values()), counts.causes[Cause.PROVED]
        how = f"does not end on {unended} of {counts.contexts} contexts" if unended else "ends on every context"
        yield f"Greedy decoding {how}{f', {proved} of them proved infinite' if proved else ''}."
    pairs = [
        (record, records[f"consistent-{name}"]) for name, record in records.items() if f"consistent-{name}" in records
    ]
    if pairs:
        worst, kept = max(pairs, key=lambda pair: pair[0].ratio.value)
        share, remedied = to_percent(worst.ratio), to_percent(kept.ratio)
        failing = f"{worst.signature.decoder} does not end on {share:.1f}%, and with eos kept on {remedied:.1f}%."
        yield failing if share else "So does every truncated sampler."
    if floor := records.get(FLOORED):
        how = f"does not end on {to_percent(floor.ratio):.1f}%" if floor.ratio.value else "always ends"
        yield f"On a floor of {floor.signature.table['floor']:g} greedy decoding {how}."


def split_table(table: Table) -> list[Table]:
    """A table for each value of the first column, for people; the note stands below the last one."""
    groups = [(label, [row[1:] for row in rows]) for label, rows in itertools.groupby(table.rows, lambda row: row[0])]
    if not groups:
        return [table]
    parts = [
        replace(table, columns=table.columns[1:], rows=tuple(rows), title=f"{table.title}, {label}", note="")
        for label, rows in groups
    ]
    return [*parts[:-1], replace(parts[-1], note=table.note)]


KINDS: dict[str, Callable[[ExhibitData], Table]] = {
    "ratios": tabulate_ratios,
    "heads": tabulate_heads,
    "perplexities": tabulate_perplexities,
    "statistics": tabulate_statistics,
    "grid": tabulate_sweep,
    "lengths": tabulate_lengths,
    "contexts": tabulate_contexts,
    "limits": tabulate_limits,
    "temperature": tabulate_temperatures,
    "published": tabulate_published,
    "published-summary": summarize_published,
    "published-sources": tabulate_sources,
    "survival": tabulate_survival,
    "continuations": tabulate_continuations,
}
