"""A sample of completions for the page, out of files of any size, with what repeats told apart."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eosin.errors import BadInput

SHOWN = 100
"""Of each decoder and each ending, at most so many completions are shown."""
LETTERS, REPEATED = 2000, 500
"""That are shown of a completion: before it repeats, and of what repeats."""


class Sample:
    """Spread evenly over all that come by, however many these are: when it is full, every second one is let go."""

    def __init__(self, most: int = SHOWN):
        self.most = most
        self.stride = 1
        self.seen = 0
        self.kept: list[Any] = []

    def add(self, item: Any) -> None:
        if self.seen % self.stride == 0:
            self.kept.append(item)
        self.seen += 1
        if len(self.kept) > self.most:
            self.kept = self.kept[::2]
            self.stride *= 2


def sampled(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], int]:
    """Completions as the page shows them, and how many there are in all."""
    samples: dict[tuple[str, str], Sample] = defaultdict(Sample)
    for path in paths:
        for completion in completions_of(path):
            samples[completion["by"], completion["cause"]].add(completion)
    chosen = [each for sample in samples.values() for each in sample.kept]
    return chosen, sum(sample.seen for sample in samples.values())


def completions_of(path: Path) -> Iterator[dict[str, Any]]:
    """One at a time: the file may be larger than memory. What a kill left of a last line is no completion."""
    with path.open(encoding="utf-8") as file:
        lines = (line for line in file if line.endswith("\n"))
        try:
            yield from (shown(line, number, path) for number, line in enumerate(lines, 1))
        except UnicodeDecodeError as error:
            raise BadInput(f"{path} is not a file of completions: it is not UTF-8") from error


def shown(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        table = json.loads(line)
        text, loop = str(table["text"]), table.get("loop")
        before = text if loop is None else str(loop["before"])
        return {
            "by": str(table["decoder"]),
            "context": int(table["context"]),
            "cause": str(table["cause"]),
            "steps": int(table["steps"]),
            "before": shortened(before, LETTERS),
            "repeated": shortened(text[len(before) :], REPEATED),
        }
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadInput(f"line {number} of {path} is not a completion of an audit (--completions): {error}") from error


def shortened(text: str, letters: int) -> str:
    """So that one sees that there is more."""
    return text if len(text) <= letters else text[:letters] + " ..."
