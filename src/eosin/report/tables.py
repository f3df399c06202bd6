"""Tables: what one contains, and four ways of writing it down.

A table holds values, and a column knows how they are shown. Text, Markdown and LaTeX are for people and show rounded
values; CSV is for machines and has the values themselves. What is in a cell is data: it is escaped, never obeyed.
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
"""None is unknown. Several numbers are shown in one cell, and have a column each in CSV."""
WIDTH = 120
"""Of a line of prose below a table in a terminal."""


def whole(number: float) -> str:
    return f"{number:,.0f}"


def one_decimal(number: float) -> str:
    return f"{number:.1f}"


def two_decimals(number: float) -> str:
    return f"{number:.2f}"


def three_digits(number: float) -> str:
    return f"{number:.3g}"


@dataclass(frozen=True)
class Column:
    heading: str
    shown: Callable[[Any], str] = str
    """What people see of a value that is known."""
    parts: tuple[str, ...] = ()
    """Headings of the numbers, where a value is several."""
    left: bool = False
    """Words are set on the left, numbers on the right."""


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    note: str = ""
    """What is to be said below it."""

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(printable(column.heading) for column in self.columns)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Row by row what people see."""
        return [
            tuple(
                "-" if value is None else printable(column.shown(value))
                for column, value in zip(self.columns, row, strict=True)
            )
            for row in self.rows
        ]

    @property
    def flat_headings(self) -> list[str]:
        return [printable(name) for column in self.columns for name in column.parts or (column.heading,)]

    @property
    def flat_rows(self) -> list[list[str | int | float | None]]:
        """Row by row the values themselves, one for each of the flat headings."""
        return [
            [part for column, value in zip(self.columns, row, strict=True) for part in _flat(column, value)]
            for row in self.rows
        ]


def _flat(column: Column, value: Value) -> Sequence[str | int | float | None]:
    if value is None:
        return [None] * (len(column.parts) or 1)
    if isinstance(value, tuple):
        return value
    return [printable(value) if isinstance(value, str) else value]


def printable(text: str) -> str:
    """A line break or a terminal's control character in a name must not change what stands around it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_text(table: Table) -> str:
    lines = ["  ".join(row).rstrip() for row in _aligned(table, [table.headings, *table.cells])]
    note = textwrap.wrap(printable(table.note), WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*_unless_empty(printable(table.title)), *lines, *note])


def as_markdown(table: Table) -> str:
    rows = [tuple(map(markdown, row)) for row in [table.headings, *table.cells]]
    head, *body = (f"| {' | '.join(row)} |" for row in _aligned(table, rows))
    rule = "|" + "|".join(":--" if column.left else "--:" for column in table.columns) + "|"
    title = [f"**{markdown(printable(table.title))}**"] if table.title else []
    return "\n\n".join([*title, "\n".join([head, rule, *body]), *_unless_empty(markdown(printable(table.note)))])


def as_latex(table: Table) -> str:
    r"""A tabular for \usepackage{booktabs}; in a table with a caption if there is something to say."""
    head, *body = (f"{' & '.join(row)} \\\\" for row in _aligned(table, [_latex_headings(table), *_latex_cells(table)]))
    layout = "".join("l" if column.left else "r" for column in table.columns)
    lines = [
        rf"\begin{{tabular}}{{{layout}}}",
        *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
    ]
    caption = ". ".join(latex(printable(said)) for said in (table.title, table.note) if said)
    if caption:
        lines = [r"\begin{table}", r"\centering", *lines, rf"\caption{{{caption}}}", r"\end{table}"]
    return "\n".join(lines)


def _latex_headings(table: Table) -> tuple[str, ...]:
    return tuple(re.sub(r"^r\\_(L|[0-9]+) ", r"$r_{\1}$ ", latex(heading)) for heading in table.headings)


def _latex_cells(table: Table) -> list[tuple[str, ...]]:
    return [tuple(map(latex, row)) for row in table.cells]


def as_csv(table: Table) -> str:
    """Without title and note: a heading and values."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([table.flat_headings, *table.flat_rows])
    return file.getvalue().removesuffix("\n")


RENDERINGS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def _aligned(table: Table, rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Every cell as wide as the widest of its column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if column.left else cell.rjust(width)
            for column, cell, width in zip(table.columns, row, widths, strict=True)
        ]
        for row in rows
    ]


def _unless_empty(text: str) -> list[str]:
    return [text] if text else []


MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    # after the end of a row these would be an option of it
    "[": "{[}",
    "*": "{*}",
    **{character: f"\\{character}" for character in "{}$&#_%"},
}


def markdown(text: str) -> str:
    """The text as it is, whatever of it Markdown would take for a mark."""
    return MARKDOWN_SPECIAL.sub(r"\\\1", text)


def latex(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
