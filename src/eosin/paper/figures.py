"""Figures for a paper, drawn by matplotlib as PDF, SVG and PNG."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any

from eosin.errors import BadInput
from eosin.paper.exhibits import Shown, is_number
from eosin.paper.tables import View, length_distributions, ratio, records_tried, test_perplexities
from eosin.records.record import Record
from eosin.report.audits import to_percent
from eosin.storage.files import write_bytes

ENDINGS = ("pdf", "svg", "png")
WITHOUT_DATE: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
LINES, MARKERS = ("-", "--", ":", "-."), "osD^v"
STEPS = (1, 2, 3, 5, 8, 12, 18, 26, 40, 60, 90, 130, 200, 300, 450, 700, 1000, 1500)


def pyplot() -> Any:
    """matplotlib, drawing to files only."""
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("figures need matplotlib: pip install 'eosin[report]', or ask for --tables-only") from error
    matplotlib.use("Agg")
    # the same figure is the same file: no dates, no random names
    matplotlib.rcParams.update({"svg.hashsalt": "eosin", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    from matplotlib import pyplot as plt

    return plt


def files_of(view: View, folder: Path) -> list[Path]:
    """Of the figure of an exhibit, if its kind has one and there is something to draw."""
    kind = FIGURES.get(view.exhibit.kind)
    there = kind is not None and kind.found(view)
    return [folder / f"{view.exhibit.name}.{ending}" for ending in ENDINGS] if there else []


def draw(view: View, folder: Path) -> None:
    """The figure in every format."""
    paths = files_of(view, folder)
    if not paths:
        return
    plt, kind = pyplot(), FIGURES[view.exhibit.kind]
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    kind.draw(view, kind.found(view), axes)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    folder.mkdir(parents=True, exist_ok=True)
    for path, ending in zip(paths, ENDINGS, strict=True):
        drawn = BytesIO()  # a full disk in the middle of a PDF is not told as one by matplotlib
        figure.savefig(drawn, format=ending, dpi=160, metadata=WITHOUT_DATE[ending])
        write_bytes(path, drawn.getvalue())
    plt.close(figure)


def decoded(view: View) -> list[tuple[str, str, Record]]:
    """Label, decoder and the record of the first initialisation."""
    return [
        (shown.label, decoder, record)
        for shown in view.exhibit.models
        for decoder in view.exhibit.decoders
        for record in view.of_decoder(shown, decoder)[:1]
    ]


def curves(view: View, found: list[tuple[str, str, Record]], axes: Any) -> None:
    """The share that has not ended, against the number of steps."""
    limit = view.plan.preset.max_steps
    styles = dict(zip((shown.label for shown in view.exhibit.models), itertools.cycle(LINES), strict=False))
    for label, decoder, record in found:
        steps = sorted({1, limit, *(step for step in record.counts.ended if step < limit)})
        shares = [to_percent(record.counts.ratio(step)) for step in steps]
        look = {"color": f"C{view.exhibit.decoders.index(decoder)}", "linestyle": styles[label], "linewidth": 1}
        axes.plot(steps, shares, drawstyle="steps-post", label=f"{label}, {decoder}", **look)
    axes.set(xscale="log", xlabel="$L$", ylabel="$r_L$ (%)", ylim=(0, 100))
    axes.set_yscale("symlog", linthresh=0.01)


def length_shares(view: View, found: list[tuple[str, float, dict[int, int]]], axes: Any) -> None:
    """The share of contexts by length, and of those that did not end."""
    limit = view.plan.preset.max_steps
    bounds = [*(step for step in STEPS if step <= limit), limit + 1]
    for label, unended, ended in found:
        total = sum(ended.values()) / (1 - unended / 100) if unended < 100 else 1.0
        shares = [100 * within(ended, low, high) / total for low, high in itertools.pairwise(bounds)]
        axes.plot(bounds[:-1], shares, drawstyle="steps-post", label=f"{label} ({unended:.2f}% did not end)")
    axes.set(xscale="log", xlabel="length", ylabel="share of the contexts (%)")


def within(ended: dict[int, int], low: int, high: int) -> int:
    return sum(count for length, count in ended.items() if low <= length < high)


def epsilons(view: View, found: list[tuple[Shown, float, float]], axes: Any) -> None:
    """The ratio against the perplexity: a colour for each head, a marker for each model."""
    labels, heads = (list(dict.fromkeys(named)) for named in zip(*((m.label, m.head) for m in view.exhibit.models)))
    for shown, perplexity, share in found:
        look = {"marker": MARKERS[labels.index(shown.label) % len(MARKERS)], "color": f"C{heads.index(shown.head)}"}
        axes.scatter([perplexity], [share], label=f"{shown.label}, {shown.head}", s=24, **look)
    axes.set(xlabel="test perplexity", ylabel=f"{view.only_decoder()} $r_L$ (%)")
    axes.set_yscale("symlog", linthresh=0.1)


def prices(view: View) -> list[tuple[Shown, float, float]]:
    """Model, perplexity and ratio, as means across initialisations."""
    found, decoder = [], view.only_decoder()
    for shown in view.exhibit.models:
        measured, share = test_perplexities(view, shown), ratio(view.of_decoder(shown, decoder))
        if measured and isinstance(share, tuple) and share[0] is not None:
            found.append((shown, sum(measured) / len(measured), share[0]))
    return found


def tried_ratios(view: View) -> list[tuple[str, list[tuple[float, list[float]]]]]:
    """By model and decoder, the ratios of all initialisations at each value of a sweep of one setting."""
    if len(view.exhibit.sweep) != 1:
        return []
    (name, values), pairs = *view.exhibit.sweep.items(), itertools.product(view.exhibit.models, view.exhibit.decoders)
    found = [
        (
            f"{shown.label}, {decoder}",
            [(value, ratios_tried(view, shown, {name: value}, decoder)) for value in values if is_number(value)],
        )
        for shown, decoder in pairs
    ]
    return [(label, points) for label, points in found if any(shares for _, shares in points)]


def ratios_tried(view: View, shown: Shown, values: dict[str, Any], decoder: str) -> list[float]:
    return [to_percent(record.ratio) for record in records_tried(view, shown.model, values, decoder)]


def sweep_points(view: View, found: list[tuple[str, list[tuple[float, list[float]]]]], axes: Any) -> None:
    """The ratio against a setting: a point for each initialisation, a line through their means."""
    for place, (label, points) in enumerate(found):
        measured = [(value, shares) for value, shares in points if shares]
        for value, shares in measured:
            axes.scatter([value] * len(shares), shares, color=f"C{place}", marker=MARKERS[0], s=18)
        values, means = zip(*((value, fmean(shares)) for value, shares in measured), strict=True)
        axes.plot(values, means, color=f"C{place}", label=f"{label} (mean)", linewidth=1)
    axes.set(xlabel=next(iter(view.exhibit.sweep)).partition(".")[2], ylabel="$r_L$ (%)", ylim=(0, None))


@dataclass(frozen=True)
class Figure:
    """What there is to draw, and how."""

    found: Callable[[View], list[Any]]
    draw: Callable[[View, list[Any], Any], None]


FIGURES = {
    "limits": Figure(decoded, curves),
    "lengths": Figure(length_distributions, length_shares),
    "heads": Figure(prices, epsilons),
    "grid": Figure(tried_ratios, sweep_points),
}
