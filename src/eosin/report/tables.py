"""Tables, and four ways to render them.

A table holds values, and each column formats its own. Text, Markdown and LaTeX are for people and round the values; CSV
is for machines and has them in full. Every cell is escaped for the format.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Value = str | int | float | tuple[int | float | None, ...] | None
"""None is unknown. A tuple is one cell for people, and a column for each number in CSV."""
WIDTH = 120
"""Characters of a line of prose below a table in a terminal."""

format_count = "{:,.0f}".format
format_one_decimal = "{:.1f}".format
format_two_decimals = "{:.2f}".format
format_three_digits = "{:.3g}".format


@dataclass(frozen=True)
class Column:
    heading: str
    format: Callable[[Any], str] = str
    """Formats a known value for people."""
    parts: tuple[str, ...] = ()
    """Headings of the numbers, if a value is a tuple."""
    left: bool = False
    """Text is aligned to the left, numbers to the right."""


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    note: str = ""
    """A sentence below the table."""

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(escape_controls(column.heading) for column in self.columns)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Row by row the formatted values."""
        return [
            tuple(
                "-" if value is None else escape_controls(column.format(value))
                for column, value in zip(self.columns, row, strict=True)
            )
            for row in self.rows
        ]

    @property
    def flat_headings(self) -> list[str]:
        return [escape_controls(name) for column in self.columns for name in column.parts or (column.heading,)]

    @property
    def flat_rows(self) -> list[list[str | int | float | None]]:
        """Row by row the values themselves, one for each of the flat headings."""
        return [
            [part for column, value in zip(self.columns, row, strict=True) for part in _flatten(column, value)]
            for row in self.rows
        ]


def _flatten(column: Column, value: Value) -> Sequence[str | int | float | None]:
    if value is None:
        return [None] * (len(column.parts) or 1)
    if isinstance(value, tuple):
        return value
    return [escape_controls(value) if isinstance(value, str) else value]


def escape_controls(text: str) -> str:
    """Line breaks, and the characters that control a terminal, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str, most: int) -> str:
    """At most so many characters, with dots in the place of the rest."""
    return text if len(text) <= most else text[: most - 3] + "..."


def render_text(table: Table) -> str:
    title = escape_controls(table.title)
    lines = ["  ".join(row).rstrip() for row in _align(table, [table.headings, *table.cells])]
    note = textwrap.wrap(escape_controls(table.note), WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*([title] if title else []), *lines, *note])


def render_markdown(table: Table) -> str:
    rows = [tuple(map(escape_markdown, row)) for row in [table.headings, *table.cells]]
    head, *body = (f"| {' | '.join(row)} |" for row in _align(table, rows))
    rule = "|" + "|".join(":--" if column.left else "--:" for column in table.columns) + "|"
    title, note = (escape_markdown(escape_controls(text)) for text in (table.title, table.note))
    parts = [title and f"**{title}**", "\n".join([head, rule, *body]), note]
    return "\n\n".join(part for part in parts if part)


def render_latex(table: Table) -> str:
    r"""A tabular for \usepackage{booktabs}, inside a table with a caption if there is a title or a note."""
    headings = [re.sub(r"^r\\_(L|[0-9]+) ", r"$r_{\1}$ ", escape_latex(heading)) for heading in table.headings]
    cells = [list(map(escape_latex, row)) for row in table.cells]
    head, *body = (f"{' & '.join(row)} \\\\" for row in _align(table, [headings, *cells]))
    layout = "".join("l" if column.left else "r" for column in table.columns)
    lines = [
        rf"\begin{{tabular}}{{{layout}}}",
        *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
    ]
    caption = ". ".join(escape_latex(escape_controls(text)) for text in (table.title, table.note) if text)
    if caption:
        lines = [r"\begin{table}", r"\centering", *lines, rf"\caption{{{caption}}}", r"\end{table}"]
    return "\n".join(lines)


def render_csv(table: Table) -> str:
    """Headings and values, without title and note."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([table.flat_headings, *table.flat_rows])
    return file.getvalue().removesuffix("\n")


RENDERINGS: dict[str, Callable[[Table], str]] = {
    "text": render_text,
    "markdown": render_markdown,
    "latex": render_latex,
    "csv": render_csv,
}


def _align(table: Table, rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad every cell to the widest of its column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if column.left else cell.rjust(width)
            for column, cell, width in zip(table.columns, row, widths, strict=True)
        ]
        for row in rows
    ]


MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    # at the start of a row LaTeX would read these as an option of the row before
    "[": "{[}",
    "*": "{*}",
    **{character: f"\\{character}" for character in "{}$&#_%"},
}


def escape_markdown(text: str) -> str:
    return MARKDOWN_SPECIAL.sub(r"\\\1", text)


def escape_latex(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
