"""Text for the terminal: nothing that it would obey."""

from __future__ import annotations

import sys

from eosin.report import tables


def printable(text: str) -> str:
    """The text with control characters, and letters that the terminal does not have, written as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    return tables.make_printable(text).encode(encoding, "backslashreplace").decode(encoding)


def format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
