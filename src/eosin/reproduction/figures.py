"""Figures for a paper, drawn by matplotlib as PDF, SVG and PNG."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.files import write_atomically
from eosin.report.audits import percent
from eosin.reproduction.tables import View, length_distributions, ratio, test_perplexities

ENDINGS = ("pdf", "svg", "png")
WITHOUT_DATE: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
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


def draw(view: View, folder: Path) -> list[Path]:
    """The figure of an exhibit in every format, if its kind has one and there is something to draw."""
    drawing = FIGURES.get(view.exhibit.kind)
    if drawing is None:
        return []
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    drawn = drawing(view, axes)
    if drawn:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
        folder.mkdir(parents=True, exist_ok=True)
        for ending in ENDINGS:
            how = {"format": ending, "dpi": 160, "metadata": WITHOUT_DATE[ending]}
            write_atomically(folder / f"{view.exhibit.name}.{ending}", partial(figure.savefig, **how))
    plt.close(figure)
    return [folder / f"{view.exhibit.name}.{ending}" for ending in ENDINGS] if drawn else []


def curves(view: View, axes: Any) -> bool:
    """The share that has not ended, against the number of steps."""
    limit = view.plan.preset.max_steps
    steps = [*(step for step in STEPS if step < limit), limit]
    drawn = False
    for shown, style in zip(view.exhibit.models, ("-", "--", ":"), strict=False):
        for number, decoder in enumerate(view.exhibit.decoders):
            for record in view.of_decoder(shown, decoder)[:1]:
                shares = [percent(record.counts.ratio(step)) for step in steps]
                axes.plot(steps, shares, style, color=f"C{number}", label=f"{shown.label}, {decoder}", linewidth=1)
                drawn = True
    axes.set(xscale="log", xlabel="$L$", ylabel="$r_L$ (%)", ylim=(0, 100))
    axes.set_yscale("symlog", linthresh=0.01)
    return drawn


def length_shares(view: View, axes: Any) -> bool:
    """The share of contexts by length, and of those that did not end."""
    found = length_distributions(view)
    limit = view.plan.preset.max_steps
    bounds = [*(step for step in STEPS if step <= limit), limit + 1]
    for label, unended, ended in found:
        total = sum(ended.values()) / (1 - unended / 100) if unended < 100 else 1.0
        shares = [100 * within(ended, low, high) / total for low, high in itertools.pairwise(bounds)]
        axes.plot(bounds[:-1], shares, drawstyle="steps-post", label=f"{label} ({unended:.2f}% did not end)")
    axes.set(xscale="log", xlabel="length", ylabel="share of the contexts (%)")
    return bool(found)


def within(ended: dict[int, int], low: int, high: int) -> int:
    return sum(count for length, count in ended.items() if low <= length < high)


def epsilons(view: View, axes: Any) -> bool:
    """The ratio of greedy decoding against the perplexity, for each head."""
    drawn = False
    for shown, perplexity, share in price(view):
        axes.scatter([perplexity], [share], label=f"{shown.label}, {shown.head}", s=18)
        drawn = True
    axes.set(xlabel="test perplexity", ylabel="greedy $r_L$ (%)")
    axes.set_yscale("symlog", linthresh=0.1)
    return drawn


def price(view: View) -> Iterator[tuple[Any, float, float]]:
    """Model, perplexity and ratio, as means across initialisations."""
    decoder = view.only_decoder()
    for shown in view.exhibit.models:
        measured, share = test_perplexities(view, shown), ratio(view.of_decoder(shown, decoder))
        if measured and isinstance(share, tuple) and share[0] is not None:
            yield shown, sum(measured) / len(measured), share[0]


FIGURES: dict[str, Callable[[View, Any], bool]] = {"limits": curves, "lengths": length_shares, "heads": epsilons}
