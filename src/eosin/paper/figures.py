"""The figures of exhibits as PDF, SVG and PNG: the drawings of the page, written by matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any

from eosin.errors import BadInput
from eosin.paper.exhibits import is_number
from eosin.paper.tables import ExhibitData, list_length_counts
from eosin.report.audits import to_percent
from eosin.report.charts import (
    MOST_CURVES,
    Chart,
    Curve,
    HeadPoint,
    SweepLine,
    chart_heads,
    chart_lengths,
    draw_curves,
    draw_sweep,
    trace_survival,
)
from eosin.report.drawing import SIZE, Bar, Dot, Label, Line, Mark
from eosin.storage.files import write_bytes

FORMATS = ("pdf", "svg", "png")
WITHOUT_DATE: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
COLOURS = {
    "ink": "#24161d",
    "soft": "#6d5a64",
    "line": "#e4d9df",
    "grey": "#d3c8ce",
    "bad": "#a3203f",
    "good": "#1d7a4f",
    **dict(
        zip(("c0", "c1", "c2", "c3", "c4", "c5"), ("#1f5fa8", "#a85400", "#1d7a4f", "#b8336a", "#6a4fb3", "#5d6b1a"))
    ),
}
"""Those of the page's style sheet."""
WIDTH, INCH = 640.0, 96.0
"""In pixels, of which matplotlib makes inches and points."""


def import_pyplot() -> Any:
    """matplotlib.pyplot, drawing to files only."""
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("figures need matplotlib: pip install 'eosin[report]', or ask for --tables-only") from error
    matplotlib.use("Agg")
    # the same figure is the same file: no dates, no random names
    matplotlib.rcParams.update({"svg.hashsalt": "eosin", "font.size": SIZE * 72 / INCH})
    from matplotlib import pyplot as plt

    return plt


def list_figure_files(data: ExhibitData, folder: Path) -> list[Path]:
    """The files of an exhibit's figure; empty if its kind has no figure or there is nothing to draw."""
    is_drawn = find_chart(data) is not None
    return [folder / f"{data.exhibit.name}.{ending}" for ending in FORMATS] if is_drawn else []


def draw_figure(data: ExhibitData, folder: Path) -> None:
    """Draw the figure in every format."""
    chart = find_chart(data)
    if chart is None:
        return
    plt, drawing = import_pyplot(), chart.draw(WIDTH)
    figure = plt.figure(figsize=(drawing.width / INCH, drawing.height / INCH))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.axis("off")
    for mark in drawing.marks:
        draw_mark(axes, mark)
    folder.mkdir(parents=True, exist_ok=True)
    for path, ending in zip(list_figure_files(data, folder), FORMATS, strict=True):
        content = BytesIO()  # matplotlib does not report a full disk in the middle of a PDF
        figure.savefig(content, format=ending, dpi=2 * INCH, metadata=WITHOUT_DATE[ending])
        write_bytes(path, content.getvalue())
    plt.close(figure)


def draw_mark(axes: Any, mark: Mark) -> None:
    colour, points = COLOURS[mark.colour], 72 / INCH
    match mark:
        case Line():
            x, y = zip(*mark.points, strict=True)
            style = (0, (4, 3)) if mark.dashed else "-"
            axes.plot(x, y, color=colour, linewidth=mark.width * points, linestyle=style, solid_joinstyle="round")
        case Bar():
            axes.bar(
                mark.x, mark.height, mark.width, mark.y, align="edge", color=colour, alpha=0.14 if mark.faint else 1
            )
        case Dot():
            face, size = colour if mark.filled else "white", 2 * mark.radius * points
            axes.plot([mark.x], [mark.y], "o", color=colour, markersize=size, markerfacecolor=face)
        case Label():
            anchor = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            how = {"ha": anchor, "va": "center", "parse_math": False, "weight": "bold" if mark.bold else "normal"}
            axes.text(mark.x, mark.y, mark.text, color=colour, **how)


# what each kind of exhibit draws; the page has the same charts


def find_chart(data: ExhibitData) -> Chart | None:
    """The chart of an exhibit; None if its kind has none or there is nothing to draw."""
    build = CHARTS.get(data.exhibit.kind)
    return build(data) if build else None


def chart_limits(data: ExhibitData) -> Chart | None:
    """The share that has not ended, of the first initialisations: the curves that are highest at the limit."""
    curves: list[Curve] = []
    for member, decoder in itertools.product(data.exhibit.models, data.exhibit.decoders):
        for record in data.list_records(member, decoder)[:1]:
            curves.append(trace_survival(record, f"{member.label}, {decoder}"))
    curves.sort(key=lambda curve: -curve.points[-1][1])
    note = f"The {MOST_CURVES} curves that are highest at the limit." if len(curves) > MOST_CURVES else ""
    chosen = curves[:MOST_CURVES]
    return Chart(data.exhibit.title, lambda width: draw_curves(chosen, width), note) if curves else None


def chart_length_counts(data: ExhibitData) -> Chart | None:
    found = list_length_counts(data)
    return chart_lengths(found, data.exhibit.title) if found else None


def collect_heads(data: ExhibitData) -> list[HeadPoint]:
    """Perplexity and ratio of each head, as means over initialisations."""
    decoder, points = data.exhibit.only_decoder, []
    for member in data.exhibit.models:
        perplexities, records = data.list_perplexities(member), data.list_records(member, decoder)
        if perplexities and records:
            ratio = fmean(to_percent(record.ratio) for record in records)
            points.append(HeadPoint(member.label, member.head, fmean(perplexities), ratio))
    return points


def chart_head_points(data: ExhibitData) -> Chart | None:
    points = collect_heads(data)
    return chart_heads(data.exhibit.title, data.exhibit.only_decoder, points) if points else None


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
    return [(label, points) for label, points in lines if len(points) > 1]  # one value is no sweep


def chart_sweep(data: ExhibitData) -> Chart | None:
    lines = collect_sweep(data)
    name = next(iter(data.exhibit.sweep), "").partition(".")[2]
    note = "A dot is an initialisation; the line goes through their means."
    return Chart(data.exhibit.title, lambda width: draw_sweep(name, lines, width), note) if lines else None


CHARTS: dict[str, Callable[[ExhibitData], Chart | None]] = {
    "limits": chart_limits,
    "lengths": chart_length_counts,
    "heads": chart_head_points,
    "grid": chart_sweep,
}
