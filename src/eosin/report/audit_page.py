"""The page that `eosin report --html` makes of records, completions and traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.records.record import LoopCount, Record
from eosin.report.audits import tabulate_decoders, tabulate_loops, tabulate_quantiles
from eosin.report.charts import (
    DATA,
    Chart,
    LengthCounts,
    chart_lengths,
    chart_ratios,
    chart_survival,
    group_by_subject,
    list_record_lengths,
    pair_decoders,
)
from eosin.report.completions import (
    HERO_PAIRS,
    NAME_CHARACTERS,
    Card,
    choose_pairs,
    clean_prefix,
    find_pairs,
    sample_completions,
)
from eosin.report.initialisations import has_several_initialisations, tabulate_models
from eosin.report.origin import Origin, Origins, find_origin
from eosin.report.page import Page
from eosin.report.tables import Table, shorten
from eosin.report.traces import Example, ExampleStep
from eosin.report.verdict import (
    NOTHING_KNOWN,
    find_remedies,
    find_worst,
    group_by_model,
    name_model,
    propose_fix,
    write_verdict,
)

MOST_PANELS = 6
"""Decoders whose lengths are shown, of each model."""
LONGEST_TITLE = 80
"""Characters of the models in the title."""
MOST_SUBJECTS, MOST_ROWS, ROWS_OF_OTHERS = 4, 16, 5
"""Models in the chart of the first screen."""


def build_audit_page(
    records: Sequence[Record],
    completions: Sequence[Path] = (),
    traces: Sequence[Path] = (),
    command: str = "",
    origins: Origins = NOTHING_KNOWN,
) -> Page:
    if not records:
        raise BadInput("a page needs records: name files of records, run directories or folders")
    sample, total = sample_completions(completions)
    looping = any(record.counts.loops for record in records)
    return Page(
        title=f"Does it stop? {shorten(', '.join(group_by_model(records)), LONGEST_TITLE)}",
        verdict=list(write_verdict(records, origins=origins)),
        fix=propose_fix(records, origins=origins),
        overview=chart_overview(records, origins),
        pairs=pair_completions(records, sample, completions, origins),
        charts=[*chart_other_ratios(records), *chart_survival(records), *chart_record_lengths(records, origins)],
        tables=[
            name_table("ratios by decoder", tabulate_decoders(records)),
            *([tabulate_models(records)] if has_several_initialisations(records) else []),
            tabulate_quantiles(records),
            *([tabulate_loops(records)] if looping else []),
        ],
        examples=group_examples([read_trace(path) for path in traces]),
        completions=sorted(sample, key=lambda card: card.ends),
        total=max(total, sum(record.counts.contexts for record in records) if sample else 0),
        facts=[*describe_records(records, command), *describe_texts(origins.values())],
    )


def name_table(name: str, table: Table) -> Table:
    return replace(table, title=f"{name}: {table.title}")


def describe_texts(origins: Iterable[Origin]) -> list[tuple[str, str]]:
    """The texts that contexts are of, and the paper's k."""
    pairs = [each for origin in origins for each in (("text", origin.text), ("prefix length k", origin.prefix_length))]
    names = dict.fromkeys(name for name, value in pairs if value)
    return [(name, ", ".join(dict.fromkeys(str(value) for each, value in pairs if each == name))) for name in names]


def describe_records(records: Sequence[Record], command: str = "") -> list[tuple[str, str]]:
    """The models, the contexts, the limit and the seed; what differs is listed."""
    tables = [record.signature.table for record in records]

    def list_values(key: str) -> str:
        return ", ".join(dict.fromkeys(str(table[key]) for table in tables if key in table))

    known = {"model": "run", "contexts": "contexts_from", "L": "max_steps", "seed": "seed"}
    found = [(name, list_values(key)) for name, key in known.items()]
    return [(name, value) for name, value in [*found, ("command", command)] if value]


def chart_other_ratios(records: Sequence[Record]) -> list[Chart]:
    """The ratios of all records, unless the first screen has them."""
    return [chart_ratios(records)] if len(choose_overview(records)) < len(records) else []


def chart_overview(records: Sequence[Record], origins: Origins) -> Chart:
    return chart_ratios(choose_overview(records, origins))


def choose_overview(records: Sequence[Record], origins: Origins = NOTHING_KNOWN) -> list[Record]:
    """Those of the model that fails most, of its remedies, and of other models while there is room."""
    groups, worst = list(group_by_model(records).values()), find_worst(records)
    found = find_remedies(worst, records, origins=origins) if worst else []
    remedies = {name_model(each.records[0]) for each in found}
    groups.sort(key=lambda group: -max(record.ratio.value for record in group))
    order = [group for group in groups[1:] if name_model(group[0]) in remedies]
    first, *others = [groups[0], *order, *(group for group in groups[1:] if group not in order)][:MOST_SUBJECTS]
    rows = [record for group in others for record in choose_rows(group, ROWS_OF_OTHERS)]
    return [*choose_rows(first, max(ROWS_OF_OTHERS, MOST_ROWS - len(rows))), *rows]


def choose_rows(records: Sequence[Record], most: int) -> list[Record]:
    """Decoders that failed first, each with its eos-keeping form; in the paper's order."""
    rows = pair_decoders(records)
    failing = [row for row in rows if any(record and not record.all_ended for record in row.records)]
    chosen = [*failing, *(row for row in rows if row not in failing)][:most]
    return [record for row in rows if row in chosen for record in row.records if record]


def chart_record_lengths(records: Sequence[Record], origins: Origins) -> list[Chart]:
    counted = [record for record in records if not record.counts.weights]
    charts = []
    for name, group in group_by_subject(counted).items():
        lengths, origin = list(map(list_record_lengths, group)), find_origin(origins, group[0])
        data: list[LengthCounts] = [(DATA, 0.0, origin.lengths)] if origin and origin.lengths else []
        for first in range(0, len(lengths), MOST_PANELS):
            shown = [*data, *lengths[first : first + MOST_PANELS]]
            chart = chart_lengths(shown, f"Lengths{': ' if name else ''}{name}")
            charts.append(replace(chart, more=first > 0))
    return charts


def pair_completions(
    records: Sequence[Record], sample: Sequence[Card], paths: Sequence[Path], origins: Origins
) -> list[tuple[Card, Card | None]]:
    """Completions of the worst decoding, and what a remedy made of the same contexts; or else loops."""
    worst = find_worst(records)
    if worst is None:
        return []
    names = [
        (each.records[0].signature.run or "", each.records[0].signature.decoder)
        for each in find_remedies(worst, records, origins=origins)
    ]
    before = worst.signature.run or "", worst.signature.decoder
    afters = find_pairs(paths, {card.context for card in sample}, names)
    return choose_pairs([*sample, *afters], before, names) or show_loops(worst)


def show_loops(record: Record) -> list[tuple[Card, Card | None]]:
    """The loops that most contexts fell into, where no completions are at hand."""
    loops = sorted(record.counts.loops.values(), key=lambda loop: -loop.onset.count)
    return [(show_loop(loop, record), None) for loop in loops[:HERO_PAIRS] if loop.text]


def show_loop(loop: LoopCount, record: Record) -> Card:
    signature, count, proved = record.signature, loop.onset.count, loop.proved.count
    unended = record.counts.contexts - sum(record.counts.ended.values())
    cause = Cause.PROVED if proved == count else Cause.LOOPING
    some = f", {proved:,} of them proved infinite" if 0 < proved < count else ""
    times = f"over and over on {count:,} of the {unended:,} contexts that had not ended{some}"
    place = signature.run or "", signature.decoder, loop.example, cause, signature.max_steps
    return Card(*place, "", [(loop.text, times)])


def read_trace(path: Path) -> Example:
    """A file of `eosin trace --json` as an example of the page."""
    try:
        trace = msgspec.json.decode(path.read_bytes())
        steps = [[step[name] for name in ExampleStep.__struct_fields__] for step in trace["steps"]]
        renamed = {"run": path.stem, "context": trace["index"], "prefix": trace["prefix_text"], "steps": steps}
        return msgspec.convert({**trace, **renamed}, Example)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} is not a trace (eosin trace --json): {type(error).__name__}, {error}") from error


def group_examples(examples: Sequence[Example]) -> list[tuple[str, list[Example]]]:
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(f"context {example.context}: {clean_prefix(example.prefix, NAME_CHARACTERS)}", []).append(
            example
        )
    return list(groups.items())
