"""A sample of completions for the page, out of files of any size."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eosin.report.tables import shorten
from eosin.storage.json_lines import parse_lines

MOST_SHOWN = 100
"""Completions in a sample, for each decoder and each cause of ending."""
MOST_BEFORE, MOST_REPEATED = 2000, 500
"""Characters of a completion on the page: before it repeats, and of what repeats."""


class Sample:
    """Spread evenly over a stream of any length: whenever it is full, every second item is dropped."""

    def __init__(self, most: int = MOST_SHOWN):
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


def sample_completions(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], int]:
    """A sample in the form of the page, and how many completions there are."""
    samples: dict[tuple[str, str], Sample] = defaultdict(Sample)
    for path in paths:
        for completion in parse_lines(path, "completions", "a completion of an audit (--completions)", read_completion):
            samples[completion["by"], completion["cause"]].add(completion)
    chosen = [each for sample in samples.values() for each in sample.kept]
    return chosen, sum(sample.seen for sample in samples.values())


def read_completion(line: str) -> dict[str, Any]:
    """A line of `eosin audit --completions` in the form of the page."""
    table = json.loads(line)
    text, loop = str(table["text"]), table.get("loop")
    before = text if loop is None else str(loop["before"])
    return {
        "by": str(table["decoder"]),
        "context": int(table["context"]),
        "cause": str(table["cause"]),
        "steps": int(table["steps"]),
        "before": shorten(before, MOST_BEFORE),
        "repeated": shorten(text[len(before) :], MOST_REPEATED),
    }
