"""Charts for the page in the form of plotly: plain lists and dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from eosin.records.record import Record
from eosin.report.audits import to_percent, to_percent_interval
from eosin.report.facts import find_differing_facts, list_facts

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
OBVIOUS = ("model", "context set")
"""Facts whose values need no name."""
COLOURWAY, DASHES = 10, ("solid", "dash", "dot")
"""plotly has ten colours; further curves are dashed or dotted."""
MOST_STEPS = 200
"""Points of a curve at most, so that the page of a long audit stays small."""


@dataclass(frozen=True)
class Chart:
    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""


def escape_html(text: str) -> str:
    """plotly reads names as HTML."""
    return escape(text, quote=False)


def group_by_subject(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each model, context set and limit, under the facts that distinguish these."""
    names = find_differing_facts([record.signature for record in records])
    groups: dict[str, list[Record]] = {}
    for record in records:
        facts = list_facts(record.signature)
        words = (f"{'' if name in OBVIOUS else f'{name} '}{facts[name]}" for name in names if name in facts)
        groups.setdefault(", ".join(words), []).append(record)
    return groups


def chart_ratios(records: Sequence[Record]) -> Chart:
    """The non-termination ratios with their intervals, in percent."""
    decoders, subjects = {record.signature.decoder for record in records}, group_by_subject(records)
    layout = {
        "height": 160 + max(24, 12 * len(subjects)) * len(decoders),
        "xaxis": {"title": {"text": "r_L (%)"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "scattermode": "group",  # models side by side, because equal ratios would hide each other
    }
    traces = [_trace_ratios(name, group) for name, group in subjects.items()]
    return Chart("How often decoding does not end", traces, layout, "Bars are 95% intervals.")


def _trace_ratios(name: str, records: Sequence[Record]) -> dict[str, Any]:
    values = [to_percent(record.ratio) for record in records]
    intervals = [to_percent_interval(record.ratio) for record in records]
    return {
        "type": "scatter",
        "mode": "markers",
        "orientation": "h",
        "name": escape_html(name) or "r_L",
        "x": values,
        "y": [escape_html(record.signature.decoder) for record in records],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, (_, high) in zip(values, intervals, strict=True)],
            "arrayminus": [value - low for value, (low, _) in zip(values, intervals, strict=True)],
        },
        "hovertemplate": "%{y}: %{x:.2f}%",
    }


def chart_survival(records: Sequence[Record]) -> list[Chart]:
    """The share that has not ended after each step, on logarithmic axes; one chart per model."""
    layout = {
        "xaxis": {"type": "log", "title": {"text": "step"}},
        "yaxis": {"type": "log", "title": {"text": "share that has not ended (%)"}},
    }
    note = "A flat curve means that decodings are stuck. Proofs say which of them never end."
    return [
        Chart(
            f"Survival {name}".strip(),
            [trace_survival(record, DASHES[place // COLOURWAY % len(DASHES)]) for place, record in enumerate(group)],
            {"height": max(420, 110 + 20 * len(group)), **layout},
            note,
        )
        for name, group in group_by_subject(records).items()
    ]


def trace_survival(record: Record, dash: str = "solid") -> dict[str, Any]:
    """Counts fall in steps. Estimates, and curves with too many steps, are drawn through some points."""
    counts, limit = record.counts, record.signature.max_steps
    changes = [step for step in counts.steps if step <= limit]
    # zero has no logarithm: a curve that falls to zero is drawn to the step before
    some = _pick_evenly(sorted(changes))
    steps = sorted({1, limit, *some, max(max(changes, default=limit) - 1, 1)})
    known = [step for step in steps if counts.has_ratio_at(step)]
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"shape": "linear" if counts.weights or len(some) < len(changes) else "hv", "dash": dash},
        "name": escape_html(record.signature.decoder),
        "x": known,
        "y": [to_percent(counts.ratio(step)) or None for step in known],
    }


def _pick_evenly(steps: Sequence[int]) -> list[int]:
    """At most MOST_STEPS of the steps, the first and the last among them."""
    if len(steps) <= MOST_STEPS:
        return list(steps)
    return [steps[place * (len(steps) - 1) // (MOST_STEPS - 1)] for place in range(MOST_STEPS)]


def chart_lengths(distributions: Sequence[tuple[str, float, Mapping[int, int]]]) -> Chart:
    """From labels, percentages that did not end, and counts by length."""
    traces = []
    for name, unended, ended in distributions:
        total = sum(ended.values()) / (1 - unended / 100) if ended else 1.0
        lengths = sorted(ended)
        shares = [100 * ended[length] / total for length in lengths]
        label = f"{escape_html(name)} ({unended:.2f}% did not end)"
        traces.append({"type": "scatter", "mode": "lines", "name": label, "x": lengths, "y": shares})
    layout = {
        "xaxis": {"type": "log", "title": {"text": "length"}},
        "yaxis": {"title": {"text": "share of the contexts (%)"}},
    }
    return Chart("Lengths", traces, layout)


def chart_costs(title: str, decoder: str, points: Sequence[tuple[str, str, float, float]]) -> Chart:
    """The effect and the cost of a remedy, from labels, heads, perplexities and ratios in percent."""
    labels = dict.fromkeys(label for label, *_ in points)
    traces = [
        trace
        for label, colour in zip(labels, itertools.cycle(COLOURS), strict=False)
        for trace in _trace_costs(label, colour, [point for point in points if point[0] == label])
    ]
    layout = {
        "height": 420,
        "barmode": "group",
        "scattermode": "group",
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": f"{escape_html(decoder)} r_L (%)"}, "rangemode": "tozero"},
        "yaxis2": {
            "title": {"text": "test perplexity"},
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "tickmode": "auto",
            "range": [0, 1.15 * max(measured for *_, measured, _ in points)],
        },
        "legend": {"orientation": "h", "y": 1.12},
    }
    return Chart(
        f"What a remedy does, and what it costs. {title}",
        traces,
        layout,
        "Bars are the ratio, diamonds the perplexity. Means, where there are several initialisations.",
    )


def _trace_costs(label: str, colour: str, points: Sequence[tuple[str, str, float, float]]) -> list[dict[str, Any]]:
    """The bars and the diamonds of a model."""
    common = {"x": [escape_html(head) for _, head, _, _ in points], "offsetgroup": label}
    ratios = {"type": "bar", "name": f"{escape_html(label)}: r_L", "marker": {"color": colour, "opacity": 0.6}}
    perplexities = {
        "type": "scatter",
        "mode": "markers+text",
        "yaxis": "y2",
        "name": f"{escape_html(label)}: perplexity",
        "marker": {"size": 11, "symbol": "diamond", "color": "#ffffff", "line": {"color": colour, "width": 2}},
        "text": [f"{measured:.1f}" for *_, measured, _ in points],
        "textposition": "top center",
        "textfont": {"size": 10},
    }
    return [
        {**common, **ratios, "y": [ratio for *_, ratio in points]},
        {**common, **perplexities, "y": [measured for *_, measured, _ in points]},
    ]
