"""Progress bars for training and evaluation: one bar for each label of "progress" events, on terminals only."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from eosin.events import Event

FORMAT = "{desc} {percentage:3.0f}% {bar:8} {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


class Bar:
    """A watch."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.label = ""

    def __call__(self, event: Event) -> None:
        if event.kind != "progress":
            return
        facts = event.facts
        if self.bar is None or self.label != facts["label"]:
            self.close()
            self.label = facts["label"]
            start = facts["done"] - 1
            self.bar = tqdm(
                total=facts["total"], initial=start, desc=self.label, bar_format=FORMAT, disable=None, leave=False
            )
        self.bar.set_postfix_str(facts.get("note", ""), refresh=False)
        self.bar.update(facts["done"] - self.bar.n)
        if facts["done"] == facts["total"]:
            self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar = None
