"""The figures of exhibits, drawn by matplotlib as PDF, SVG and PNG."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any

from eosin.errors import BadInput
from eosin.paper.exhibits import ExhibitModel, is_number
from eosin.paper.tables import ExhibitData, list_length_counts
from eosin.records.record import Record
from eosin.report.audits import to_percent
from eosin.storage.files import write_bytes

FORMATS = ("pdf", "svg", "png")
WITHOUT_DATE: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
LINES, MARKERS = ("-", "--", ":", "-."), "osD^v"
STEPS = (1, 2, 3, 5, 8, 12, 18, 26, 40, 60, 90, 130, 200, 300, 450, 700, 1000, 1500)


def import_pyplot() -> Any:
    """matplotlib.pyplot, drawing to files only."""
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("figures need matplotlib: pip install 'eosin[report]', or ask for --tables-only") from error
    matplotlib.use("Agg")
    # the same figure is the same file: no dates, no random names
    matplotlib.rcParams.update({"svg.hashsalt": "eosin", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    from matplotlib import pyplot as plt

    return plt


def list_figure_files(data: ExhibitData, folder: Path) -> list[Path]:
    """The files of an exhibit's figure; empty if its kind has no figure or there is nothing to draw."""
    kind = FIGURES.get(data.exhibit.kind)
    has_points = kind is not None and kind.collect(data)
    return [folder / f"{data.exhibit.name}.{ending}" for ending in FORMATS] if has_points else []


def draw_figure(data: ExhibitData, folder: Path) -> None:
    """Draw the figure in every format."""
    paths = list_figure_files(data, folder)
    if not paths:
        return
    plt, kind = import_pyplot(), FIGURES[data.exhibit.kind]
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    kind.draw(data, kind.collect(data), axes)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    folder.mkdir(parents=True, exist_ok=True)
    for path, ending in zip(paths, FORMATS, strict=True):
        content = BytesIO()  # matplotlib does not report a full disk in the middle of a PDF
        figure.savefig(content, format=ending, dpi=160, metadata=WITHOUT_DATE[ending])
        write_bytes(path, content.getvalue())
    plt.close(figure)


def collect_curves(data: ExhibitData) -> list[tuple[str, str, Record]]:
    """Label, decoder and the record of the first initialisation."""
    return [
        (member.label, decoder, record)
        for member, decoder in itertools.product(data.exhibit.models, data.exhibit.decoders)
        for record in data.list_records(member, decoder)[:1]
    ]


def draw_curves(data: ExhibitData, curves: list[tuple[str, str, Record]], axes: Any) -> None:
    """The share that has not ended, against the number of steps."""
    limit = data.plan.preset.max_steps
    styles = dict(zip((member.label for member in data.exhibit.models), itertools.cycle(LINES), strict=False))
    for label, decoder, record in curves:
        steps = sorted({1, limit, *(step for step in record.counts.ended if step < limit)})
        shares = [to_percent(record.counts.ratio(step)) for step in steps]
        look = {"color": f"C{data.exhibit.decoders.index(decoder)}", "linestyle": styles[label], "linewidth": 1}
        axes.plot(steps, shares, drawstyle="steps-post", label=f"{label}, {decoder}", **look)
    axes.set(xscale="log", xlabel="$L$", ylabel="$r_L$ (%)", ylim=(0, 100))
    axes.set_yscale("symlog", linthresh=0.01)


def draw_lengths(data: ExhibitData, counts: list[tuple[str, float, dict[int, int]]], axes: Any) -> None:
    """The share of contexts by length, and of those that did not end."""
    limit = data.plan.preset.max_steps
    bounds = [*(step for step in STEPS if step <= limit), limit + 1]
    for label, unended, ended in counts:
        total = sum(ended.values()) / (1 - unended / 100) if unended < 100 else 1.0
        bins = [sum(ended[n] for n in ended if low <= n < high) for low, high in itertools.pairwise(bounds)]
        shares = [100 * count / total for count in bins]
        axes.plot(bounds[:-1], shares, drawstyle="steps-post", label=f"{label} ({unended:.2f}% did not end)")
    axes.set(xscale="log", xlabel="length", ylabel="share of the contexts (%)")


def collect_costs(data: ExhibitData) -> list[tuple[ExhibitModel, float, float]]:
    """Model, perplexity and ratio, as means over initialisations."""
    decoder, points = data.exhibit.only_decoder, []
    for member in data.exhibit.models:
        perplexities, records = data.list_perplexities(member), data.list_records(member, decoder)
        if perplexities and records:
            ratio = fmean(to_percent(record.ratio) for record in records)
            points.append((member, fmean(perplexities), ratio))
    return points


def draw_costs(data: ExhibitData, points: list[tuple[ExhibitModel, float, float]], axes: Any) -> None:
    """The ratio against the perplexity: a colour for each head, a marker for each model."""
    labels, heads = (list(dict.fromkeys(names)) for names in zip(*((m.label, m.head) for m in data.exhibit.models)))
    for member, perplexity, ratio in points:
        look = {"marker": MARKERS[labels.index(member.label) % len(MARKERS)], "color": f"C{heads.index(member.head)}"}
        axes.scatter([perplexity], [ratio], label=f"{member.label}, {member.head}", s=24, **look)
    axes.set(xlabel="test perplexity", ylabel=f"{data.exhibit.only_decoder} $r_L$ (%)")
    axes.set_yscale("symlog", linthresh=0.1)


SweepLine = tuple[str, list[tuple[float, list[float]]]]
"""A label, and for each value of a setting the ratios of all initialisations."""


def collect_sweep(data: ExhibitData) -> list[SweepLine]:
    """A line for each model and decoder, if the sweep is of one setting."""
    if len(data.exhibit.sweep) != 1:
        return []
    lines = []
    ((name, values),) = data.exhibit.sweep.items()
    for member, decoder in itertools.product(data.exhibit.models, data.exhibit.decoders):
        runs = [(value, data.find_sweep_runs(member.model, {name: value})) for value in values if is_number(value)]
        found = [(value, data.find_run_records(entries, decoder).values()) for value, entries in runs]
        points = [(value, [to_percent(record.ratio) for record in records]) for value, records in found if records]
        lines.append((f"{member.label}, {decoder}", points))
    return [(label, points) for label, points in lines if points]


def draw_sweep(data: ExhibitData, lines: list[SweepLine], axes: Any) -> None:
    """The ratio against a setting: a point for each initialisation, a line through their means."""
    for place, (label, points) in enumerate(lines):
        for value, ratios in points:
            axes.scatter([value] * len(ratios), ratios, color=f"C{place}", marker=MARKERS[0], s=18)
        values, means = zip(*((value, fmean(ratios)) for value, ratios in points), strict=True)
        axes.plot(values, means, color=f"C{place}", label=f"{label} (mean)", linewidth=1)
    axes.set(xlabel=next(iter(data.exhibit.sweep)).partition(".")[2], ylabel="$r_L$ (%)", ylim=(0, None))


@dataclass(frozen=True)
class Figure:
    """How to collect the points of a figure, and how to draw them."""

    collect: Callable[[ExhibitData], list[Any]]
    draw: Callable[[ExhibitData, list[Any], Any], None]


FIGURES = {
    "limits": Figure(collect_curves, draw_curves),
    "lengths": Figure(list_length_counts, draw_lengths),
    "heads": Figure(collect_costs, draw_costs),
    "grid": Figure(collect_sweep, draw_sweep),
}
