"""One HTML page that holds all it needs: it opens offline, and asks nothing of any server.

What a model wrote is data: escaped in the page, and put there as text by its script. The page holds a sample of the
completions and says so; everything else in it is an aggregate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.report.charts import Chart
from eosin.report.tables import Table, Value, printable

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
LONG = 60
"""Letters of a cell from which on it is broken into lines."""


@dataclass(frozen=True)
class Said:
    """A sentence of the verdict."""

    text: str
    tone: str = ""
    """`good`, `bad`, or neither."""


def checked_step(text: Any, prob: Any, eos_prob: Any, eos_rank: Any, kept: Any, removed_by: Any) -> list[Any]:
    """A step of a trace, as the page draws it; what is no number is a ValueError."""
    numbers = float(prob), float(eos_prob), int(eos_rank), int(kept)
    if not all(map(isfinite, numbers)):
        raise ValueError(f"a step should have finite numbers, got {numbers}")
    return [str(text), *numbers, removed_by and str(removed_by)]


@dataclass(frozen=True)
class Page:
    title: str
    verdict: Sequence[Said]
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    examples: Sequence[dict[str, Any]] = ()
    """Traced completions: group, run, decoder, context, prefix, cause, steps, loop."""
    completions: Sequence[dict[str, Any]] = ()
    """by, context, cause, steps, before, repeated."""
    out_of: int = 0
    """How many completions there are."""
    made_of: Sequence[str] = field(default_factory=list)
    """Where the numbers come from."""
    summary: Sequence[Table] = ()
    """Tables that the page begins with."""
    digest: str = ""
    """Of what it was made of, for whoever wants to know whether it has to be made anew."""

    def html(self) -> str:
        parts = [
            *self._head(),
            f"<h1>{escape(self.title)}</h1>",
            *(line for table in self.summary for line in table_html(table)),
            '<div class="verdict">',
            *(f'<p class="{escape(said.tone)}">{escape(said.text)}</p>' for said in self.verdict),
            "</div>",
            *self._contents(),
            *self._charts(),
            *self._traces(),
            *self._tables(),
            *self._completions(),
            *(f'<p class="note">{escape(line)}</p>' for line in self.made_of),
            f'<script type="application/json" id="data">{self._data()}</script>',
            f"<script>{plotly_js()}</script>",
            f"<script>{asset('page.js')}</script>",
            "</body></html>",
        ]
        return "\n".join(parts)

    def _head(self) -> list[str]:
        return [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="made-of" content="{escape(self.digest)}">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{asset('page.css')}</style></head><body>",
        ]

    def _contents(self) -> list[str]:
        there = {
            "charts": self.charts,
            "traces": self.examples,
            "tables": self.tables,
            "completions-all": self.completions,
        }
        names = {"charts": "Charts", "traces": "Traces", "tables": "Tables", "completions-all": "Completions"}
        links = (f'<a href="#{key}">{names[key]}</a>' for key, value in there.items() if value)
        return ["<nav>", *links, "</nav>"]

    def _charts(self) -> Iterable[str]:
        if self.charts:
            yield '<h2 id="charts">Charts</h2>'
        for number, chart in enumerate(self.charts):
            height = chart.layout.get("height")
            style = f' style="height:{int(height)}px"' if height else ""
            yield f"<h3>{escape(chart.title)}</h3>"
            yield f'<div class="chart" data-chart="{number}"{style}></div>'
            if chart.note:
                yield f'<p class="note">{escape(chart.note)}</p>'

    def _traces(self) -> Iterable[str]:
        if not self.examples:
            return
        yield '<h2 id="traces">p(eos) along single completions</h2>'
        yield '<div class="picker"><label>context <select id="context"></select></label></div>'
        yield '<div class="chart" id="trace"></div><div id="traced"></div>'
        yield '<p class="note">Hover over a point for its token and what became of eos. What repeats is marked.'
        yield "Of a completion that does not end the first steps are shown.</p>"

    def _tables(self) -> Iterable[str]:
        if self.tables:
            yield '<h2 id="tables">Tables</h2><p class="note">A click on a heading sorts.</p>'
        for table in self.tables:
            yield from table_html(table)

    def _completions(self) -> Iterable[str]:
        if not self.completions:
            return
        shown, there = len(self.completions), max(self.out_of, len(self.completions))
        sample = f"A sample: {shown:,} of {there:,} completions." if there > shown else f"All {there:,} completions."
        yield '<h2 id="completions-all">Completions</h2>'
        yield f'<p class="note">{sample} What repeats is marked; dots stand for more of it.</p>'
        yield '<div class="picker"><label>decoder <select id="completions-by"></select></label>'
        yield '<label>ending <select id="completions-cause"></select></label><span id="completions-count"></span></div>'
        yield '<div id="completions"></div>'

    def _data(self) -> str:
        """JSON in which no letter can end the element that it is in."""
        held = {
            "charts": [{"traces": chart.traces, "layout": chart.layout} for chart in self.charts],
            "examples": list(self.examples),
            "completions": list(self.completions),
        }
        try:
            written = json.dumps(held, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        except ValueError as error:
            raise BadInput(f"a number that the page should show is none: {error}") from error
        return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table_html(table: Table) -> Iterable[str]:
    yield f"<h3>{escape(printable(table.title))}</h3>"
    yield '<div class="scroll"><table><thead><tr>'
    for column, heading in zip(table.columns, table.headings, strict=True):
        words = ' class="words"' if column.left else ""
        yield f'<th scope="col"{words}><button type="button">{escape(heading)}</button></th>'
    yield "</tr></thead><tbody>"
    for row, cells in zip(table.rows, table.cells, strict=True):
        shown = zip(table.columns, row, cells, strict=True)
        yield "<tr>" + "".join(cell_html(column.left, value, cell) for column, value, cell in shown) + "</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{escape(printable(table.note))}</p>'


def cell_html(left: bool, value: Value, cell: str) -> str:
    number = value[0] if isinstance(value, tuple) and value else value
    sortable = f"{number}" if isinstance(number, (int, float)) else ""
    classes = " ".join(["words"] * left + ["long"] * (len(cell) > LONG))
    return f'<td class="{classes}" data-value="{sortable}">{escape(cell)}</td>'


def asset(name: str) -> str:
    return (files("eosin") / "report" / "assets" / name).read_text(encoding="utf-8")


def plotly_js() -> str:
    """Out of the Python package, which need not be imported for it."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise BadInput("the page needs plotly: pip install 'eosin[report]'")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
