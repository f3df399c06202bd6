"""Charts for the page, as plotly reads them: plain lists and dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eosin.auditing.record import Record
from eosin.report.audits import label, percent, percent_interval, ratio_of, told_apart

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


def named(records: Sequence[Record]) -> list[tuple[str, Record]]:
    names = told_apart([record.signature for record in records])
    return [(as_html(label(record, names)), record) for record in records]


def ratio_chart(records: Sequence[Record]) -> Chart:
    """The non-termination ratios with their intervals, in percent."""
    found = named(records)
    ratios = [ratio_of(record) for _, record in found]
    values = [percent(ratio) for ratio in ratios]
    intervals = [percent_interval(ratio) for ratio in ratios]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": [name for name, _ in found],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, (_, high) in zip(values, intervals, strict=True)],
            "arrayminus": [value - low for value, (low, _) in zip(values, intervals, strict=True)],
        },
        "hovertemplate": "%{y}: %{x:.2f}%<extra></extra>",
    }
    layout = {
        "height": 140 + 22 * len(found),
        "xaxis": {"title": {"text": "r_L (%)"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category"},
    }
    return Chart("How often decoding does not end", [trace], layout, "Bars are 95% intervals.")


def survival_chart(records: Sequence[Record]) -> Chart:
    """The share that has not ended after each step, on logarithmic axes."""
    traces = [curve(name, record) for name, record in named(records)]
    layout = {
        "xaxis": {"type": "log", "title": {"text": "step"}},
        "yaxis": {"type": "log", "title": {"text": "share that has not ended (%)"}},
    }
    return Chart("Survival", traces, layout, "A curve that becomes flat is a decoding that does not end.")


def curve(name: str, record: Record) -> dict[str, Any]:
    limit = record.signature["max_steps"]
    steps = thinned(sorted({1, limit, *(step for step in record.counts.steps if step <= limit)}))
    shares = [percent(record.counts.ratio(step)) for step in steps if record.counts.knows(step)]
    known = [step for step in steps if record.counts.knows(step)]
    # a logarithm has no place for zero
    return {"type": "scatter", "mode": "lines", "name": name, "x": known, "y": [share or None for share in shares]}


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


def price_chart(points: Sequence[tuple[str, str, float, float]]) -> Chart:
    """What a remedy costs. Label, head, perplexity, ratio in percent."""
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "marker": {"size": 10},
            "name": as_html(f"{name}, {head}"),
            "x": [perplexity],
            "y": [ratio],
            "hovertemplate": as_html(f"{name}, {head}") + "<br>perplexity %{x:.2f}, r_L %{y:.2f}%<extra></extra>",
        }
        for name, head, perplexity, ratio in points
    ]
    layout = {
        "xaxis": {"title": {"text": "test perplexity"}},
        "yaxis": {"title": {"text": "greedy r_L (%)"}, "rangemode": "tozero"},
    }
    return Chart("What a remedy costs", traces, layout)
