"""Charts for the page, as plotly reads them: plain lists and dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eosin.auditing.record import Record
from eosin.report.audits import facts, percent, percent_interval, ratio_of, told_apart

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
OBVIOUS = ("model", "context set")
"""Facts whose values say what they are."""
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
    decoders = dict.fromkeys(record.signature["decoder"] for record in records)
    layout = {
        "height": 160 + 24 * len(decoders),
        "xaxis": {"title": {"text": "r_L (%)"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category"},
    }
    traces = [ratio_trace(name, group) for name, group in by_subject(records).items()]
    return Chart("How often decoding does not end", traces, layout, "Bars are 95% intervals.")


def ratio_trace(name: str, records: Sequence[Record]) -> dict[str, Any]:
    ratios = [ratio_of(record) for record in records]
    values, intervals = [percent(ratio) for ratio in ratios], [percent_interval(ratio) for ratio in ratios]
    return {
        "type": "scatter",
        "mode": "markers",
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
        "height": 420,
        "xaxis": {"type": "log", "title": {"text": "step"}},
        "yaxis": {"type": "log", "title": {"text": "share that has not ended (%)"}},
    }
    note = "A curve that becomes flat is a decoding that does not end."
    return [
        Chart(f"Survival {name}".strip(), [curve(record) for record in group], layout, note)
        for name, group in by_subject(records).items()
    ]


def curve(record: Record) -> dict[str, Any]:
    """What was counted falls in steps; what was estimated is known here and there."""
    counts, limit = record.counts, record.signature["max_steps"]
    changes = [step for step in counts.steps if step <= limit]
    # a logarithm has no place for zero: a curve that falls to it is drawn to the step before
    steps = sorted({1, limit, *thinned(sorted(changes)), max(max(changes, default=limit) - 1, 1)})
    known = [step for step in steps if counts.knows(step)]
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"shape": "linear" if counts.weights.sums else "hv"},
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
    traces: list[dict[str, Any]] = []
    for number, label in enumerate(dict.fromkeys(name for name, *_ in points)):
        own = [point for point in points if point[0] == label]
        heads, colour = [as_html(head) for _, head, _, _ in own], COLOURS[number % len(COLOURS)]
        ratios: dict[str, Any] = {"type": "bar", "name": f"{as_html(label)}: r_L", "marker": {"color": colour}}
        traces.append({**ratios, "x": heads, "y": [ratio for *_, ratio in own]})
        perplexities = {"type": "scatter", "mode": "markers", "yaxis": "y2", "name": f"{as_html(label)}: perplexity"}
        marker = {"size": 11, "symbol": "diamond-open", "color": colour}
        traces.append({**perplexities, "marker": marker, "x": heads, "y": [measured for _, _, measured, _ in own]})
    layout = {
        "height": 420,
        "barmode": "group",
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": f"{as_html(decoder)} r_L (%)"}, "rangemode": "tozero"},
        "yaxis2": {"title": {"text": "test perplexity"}, "overlaying": "y", "side": "right", "showgrid": False},
        "legend": {"orientation": "h", "y": 1.12},
    }
    return Chart(
        f"What a remedy does, and what it costs. {title}",
        traces,
        layout,
        "Means, where there are several initialisations.",
    )
