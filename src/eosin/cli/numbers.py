"""Numbers on the command line, checked when they are read."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

DEVICE_HELP = "cpu, or what torch calls an accelerator: cuda, cuda:1, mps, xpu, ... (default: the accelerator, if any)"


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""
    span = f"from {least} to {most}" if most else f"of at least {least}"

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= (most or math.inf):
            raise ArgumentTypeError(f"must be a whole number {span}, got {text!r}")
        return int(text)

    return parse


def real_number(least: float, most: float, allowed: str) -> Callable[[str], float]:
    """A number from `least` to `most`; `allowed` says this in words."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise ArgumentTypeError(f"must be {allowed}, got {text!r}")
        return number

    return parse


def parse_whole_numbers(text: str) -> list[int]:
    """Comma-separated whole numbers from 1, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ArgumentTypeError(f"must be comma-separated whole numbers from 1, as in 100,500; got {text!r}")
    return list(dict.fromkeys(map(int, parts)))
