"""The page that `eosin report --html` makes of records, completions and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.records.record import LoopCount, Record
from eosin.report.audits import tabulate_decoders, tabulate_loops, tabulate_quantiles
from eosin.report.charts import (
    Chart,
    chart_lengths,
    chart_ratios,
    chart_survival,
    group_by_subject,
    list_record_lengths,
    pair_decoders,
)
from eosin.report.completions import HERO_PAIRS, Card, choose_pairs, clean_prefix, find_pairs, sample_completions
from eosin.report.initialisations import has_several_initialisations, tabulate_models
from eosin.report.page import Page
from eosin.report.tables import shorten
from eosin.report.traces import Example, ExampleStep
from eosin.report.verdict import (
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
    records: Sequence[Record], completions: Sequence[Path] = (), traces: Sequence[Path] = (), command: str = ""
) -> Page:
    if not records:
        raise BadInput("a page needs records: name files of records, run directories or folders")
    sample, total = sample_completions(completions)
    looping = any(record.counts.loops for record in records)
    return Page(
        title=f"Does it stop? {shorten(', '.join(group_by_model(records)), LONGEST_TITLE)}",
        verdict=list(write_verdict(records)),
        fix=propose_fix(records),
        overview=chart_overview(records),
        pairs=pair_completions(records, sample, completions),
        charts=[chart_ratios(records), *chart_survival(records), *chart_record_lengths(records)],
        tables=[
            tabulate_decoders(records),
            *([tabulate_models(records)] if has_several_initialisations(records) else []),
            tabulate_quantiles(records),
            *([tabulate_loops(records)] if looping else []),
        ],
        examples=group_examples([read_trace(path) for path in traces]),
        completions=sorted(sample, key=lambda card: card.ends),
        total=max(total, sum(record.counts.contexts for record in records) if sample else 0),
        facts=describe_records(records, command),
    )


def describe_records(records: Sequence[Record], command: str = "") -> list[tuple[str, str]]:
    """The models, the contexts, the limit and the seed; what differs is listed."""
    tables = [record.signature.table for record in records]

    def list_values(key: str) -> str:
        return ", ".join(dict.fromkeys(str(table[key]) for table in tables if key in table))

    known = {"model": "run", "contexts": "contexts_from", "L": "max_steps", "seed": "seed"}
    found = [(name, list_values(key)) for name, key in known.items()]
    return [(name, value) for name, value in [*found, ("command", command)] if value]


def chart_overview(records: Sequence[Record]) -> Chart:
    """The ratios of the model that fails most, of its remedies, and of other models while there is room."""
    groups, worst = list(group_by_model(records).values()), find_worst(records)
    remedies = {name_model(each.records[0]) for each in find_remedies(worst, records)} if worst else set()
    groups.sort(key=lambda group: -max(record.ratio.value for record in group))
    order = [group for group in groups[1:] if name_model(group[0]) in remedies]
    first, *others = [groups[0], *order, *(group for group in groups[1:] if group not in order)][:MOST_SUBJECTS]
    rows = [record for group in others for record in choose_rows(group, ROWS_OF_OTHERS)]
    return chart_ratios([*choose_rows(first, max(ROWS_OF_OTHERS, MOST_ROWS - len(rows))), *rows])


def choose_rows(records: Sequence[Record], most: int) -> list[Record]:
    """Decoders that failed first, each with its eos-keeping form; in the paper's order."""
    rows = pair_decoders(records)
    failing = [row for row in rows if any(record and not record.all_ended for record in row.records)]
    chosen = [*failing, *(row for row in rows if row not in failing)][:most]
    return [record for row in rows if row in chosen for record in row.records if record]


def chart_record_lengths(records: Sequence[Record]) -> list[Chart]:
    counted = [record for record in records if not record.counts.weights]
    charts = []
    for name, group in group_by_subject(counted).items():
        lengths = list(map(list_record_lengths, group))
        for first in range(0, len(lengths), MOST_PANELS):
            chart = chart_lengths(lengths[first : first + MOST_PANELS], f"Lengths{': ' if name else ''}{name}")
            charts.append(replace(chart, more=first > 0))
    return charts


def pair_completions(
    records: Sequence[Record], sample: Sequence[Card], paths: Sequence[Path]
) -> list[tuple[Card, Card | None]]:
    """Completions of the worst decoding, and what a remedy made of the same contexts; or else loops."""
    worst = find_worst(records)
    if worst is None:
        return []
    names = [
        (each.records[0].signature.run or "", each.records[0].signature.decoder)
        for each in find_remedies(worst, records)
    ]
    before = worst.signature.run or "", worst.signature.decoder
    afters = find_pairs(paths, {card.context for card in sample}, names)
    return choose_pairs([*sample, *afters], before, names) or show_loops(worst)


def show_loops(record: Record) -> list[tuple[Card, Card | None]]:
    """The loops that most contexts fell into, where no completions are at hand."""
    loops = sorted(record.counts.loops.values(), key=lambda loop: -loop.onset.count)
    place = record.signature.run or "", record.signature.decoder
    return [
        (
            Card(
                *place, loop.example, Cause.LOOPING, record.signature.max_steps, "", [(loop.text, say_how_often(loop))]
            ),
            None,
        )
        for loop in loops[:HERO_PAIRS]
        if loop.text
    ]


def say_how_often(loop: LoopCount) -> str:
    proved = f", {loop.proved.count:,} proved to be endless" if loop.proved.count else ""
    count = loop.onset.count
    return f"over and over on {count:,} context{'s' * (count > 1)}{proved}"


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
        groups.setdefault(f"context {example.context}: {clean_prefix(example.prefix)}", []).append(example)
    return list(groups.items())
