"""Charts for the page, as plotly reads them: plain lists and dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eosin.records.record import Record
from eosin.report.audits import facts, percent, percent_interval, ratio_of, told_apart

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
OBVIOUS = ("model", "context set")
"""Facts whose values say what they are."""
COLOURWAY, DASHES = 10, ("solid", "dash", "dot")
"""plotly has so many colours; what comes after them is told apart by its dashes."""
MOST_STEPS = 200
"""Points of a curve: a page stays small however long an audit was."""


@dataclass(frozen=True)
class Chart:
    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""


def as_html(text: str) -> str:
    """plotly reads names as HTML; ours are none."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def by_subject(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each model, context set and limit, by what tells these apart."""
    names = told_apart([record.signature for record in records])
    groups: dict[str, list[Record]] = {}
    for record in records:
        known = facts(record.signature)
        said = (f"{'' if name in OBVIOUS else f'{name} '}{known[name]}" for name in names if name in known)
        groups.setdefault(", ".join(said), []).append(record)
    return groups


def ratio_chart(records: Sequence[Record]) -> Chart:
    """The non-termination ratios with their intervals, in percent."""
    decoders, subjects = {record.signature["decoder"] for record in records}, by_subject(records)
    layout = {
        "height": 160 + max(24, 12 * len(subjects)) * len(decoders),
        "xaxis": {"title": {"text": "r_L (%)"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "scattermode": "group",  # models beside each other: zeros would hide zeros
    }
    traces = [ratio_trace(name, group) for name, group in subjects.items()]
    return Chart("How often decoding does not end", traces, layout, "Bars are 95% intervals.")


def ratio_trace(name: str, records: Sequence[Record]) -> dict[str, Any]:
    ratios = [ratio_of(record) for record in records]
    values, intervals = [percent(ratio) for ratio in ratios], [percent_interval(ratio) for ratio in ratios]
    return {
        "type": "scatter",
        "mode": "markers",
        "orientation": "h",
        "name": as_html(name) or "r_L",
        "x": values,
        "y": [as_html(record.signature["decoder"]) for record in records],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, (_, high) in zip(values, intervals, strict=True)],
            "arrayminus": [value - low for value, (low, _) in zip(values, intervals, strict=True)],
        },
        "hovertemplate": "%{y}: %{x:.2f}%",
    }


def survival_charts(records: Sequence[Record]) -> list[Chart]:
    """The share that has not ended after each step, on logarithmic axes: a chart for each model."""
    layout = {
        "xaxis": {"type": "log", "title": {"text": "step"}},
        "yaxis": {"type": "log", "title": {"text": "share that has not ended (%)"}},
    }
    note = "A curve that becomes flat is one of decodings that loop; which of them never end is what proofs say."
    return [
        Chart(
            f"Survival {name}".strip(),
            [curve(record, DASHES[place // COLOURWAY % len(DASHES)]) for place, record in enumerate(group)],
            {"height": max(420, 110 + 20 * len(group)), **layout},
            note,
        )
        for name, group in by_subject(records).items()
    ]


def curve(record: Record, dash: str = "solid") -> dict[str, Any]:
    """What was counted falls in steps; what was estimated, or has too many of them, is drawn here and there."""
    counts, limit = record.counts, record.signature["max_steps"]
    changes = [step for step in counts.steps if step <= limit]
    # a logarithm has no place for zero: a curve that falls to it is drawn to the step before
    some = thinned(sorted(changes))
    steps = sorted({1, limit, *some, max(max(changes, default=limit) - 1, 1)})
    known = [step for step in steps if counts.knows(step)]
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"shape": "linear" if counts.weights.sums or len(some) < len(changes) else "hv", "dash": dash},
        "name": as_html(record.signature["decoder"]),
        "x": known,
        "y": [percent(counts.ratio(step)) or None for step in known],
    }


def thinned(steps: Sequence[int]) -> list[int]:
    if len(steps) <= MOST_STEPS:
        return list(steps)
    return [steps[place * (len(steps) - 1) // (MOST_STEPS - 1)] for place in range(MOST_STEPS)]


def length_chart(distributions: Sequence[tuple[str, float, Mapping[int, int]]]) -> Chart:
    """Label, share that did not end in percent, how many ended at each length."""
    traces = []
    for name, unended, ended in distributions:
        total = sum(ended.values()) / (1 - unended / 100) if ended else 1.0
        lengths = sorted(ended)
        shares = [100 * ended[length] / total for length in lengths]
        called = f"{as_html(name)} ({unended:.2f}% did not end)"
        traces.append({"type": "scatter", "mode": "lines", "name": called, "x": lengths, "y": shares})
    layout = {
        "xaxis": {"type": "log", "title": {"text": "length"}},
        "yaxis": {"title": {"text": "share of the contexts (%)"}},
    }
    return Chart("Lengths", traces, layout)


def price_chart(title: str, decoder: str, points: Sequence[tuple[str, str, float, float]]) -> Chart:
    """What a remedy does and costs. Label, head, perplexity, ratio in percent."""
    labels = dict.fromkeys(label for label, *_ in points)
    traces = [
        trace
        for label, colour in zip(labels, itertools.cycle(COLOURS), strict=False)
        for trace in priced(label, colour, [point for point in points if point[0] == label])
    ]
    layout = {
        "height": 420,
        "barmode": "group",
        "scattermode": "group",
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": f"{as_html(decoder)} r_L (%)"}, "rangemode": "tozero"},
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


def priced(label: str, colour: str, points: Sequence[tuple[str, str, float, float]]) -> list[dict[str, Any]]:
    """The bars of a model, and on them its diamonds."""
    common = {"x": [as_html(head) for _, head, _, _ in points], "offsetgroup": label}
    ratios = {"type": "bar", "name": f"{as_html(label)}: r_L", "marker": {"color": colour, "opacity": 0.6}}
    perplexities = {
        "type": "scatter",
        "mode": "markers+text",
        "yaxis": "y2",
        "name": f"{as_html(label)}: perplexity",
        "marker": {"size": 11, "symbol": "diamond", "color": "#ffffff", "line": {"color": colour, "width": 2}},
        "text": [f"{measured:.1f}" for *_, measured, _ in points],
        "textposition": "top center",
        "textfont": {"size": 10},
    }
    return [
        {**common, **ratios, "y": [ratio for *_, ratio in points]},
        {**common, **perplexities, "y": [measured for *_, measured, _ in points]},
    ]
