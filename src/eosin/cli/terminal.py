"""Text for the terminal."""

from __future__ import annotations

import sys

from eosin.report import tables


def escape_for_terminal(text: str) -> str:
    """Escape control characters, and characters that the terminal does not have."""
    encoding = sys.stdout.encoding or "utf-8"
    return tables.escape_controls(text).encode(encoding, "backslashreplace").decode(encoding)


def format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
