"""Text for the terminal: nothing that it would obey, and columns that stand in line."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def printable(text: str) -> str:
    """The text with control characters, and letters that the terminal does not have, written as escapes."""
    escaped = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    encoding = sys.stdout.encoding or "utf-8"
    return escaped.encode(encoding, "backslashreplace").decode(encoding)


def in_columns(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Lines of cells, each as wide as its column; the columns named in `left` are flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(row, widths, left)).rstrip() for row in rows]


def _padded(row: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if place in left else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
