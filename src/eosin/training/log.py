"""The log of a run: events as JSON lines, and the same numbers as curves in TensorBoard."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eosin.events import Event, Watch
from eosin.storage.json_lines import append_lines, read_lines

LOG, CURVES = "log.jsonl", "tensorboard"


class Log:
    """A file of JSON lines. On resuming it is cut to `size`, its length when the state was last saved."""

    def __init__(self, folder: Path, size: int):
        self.path = folder / LOG
        with self.path.open("ab") as file:
            file.truncate(size)

    def write(self, event: Event) -> None:
        facts = {key: _as_json(value) for key, value in event.facts.items()}
        append_lines(self.path, [json.dumps({"event": event.kind, **facts}, allow_nan=False)])

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def read(self) -> Iterator[Event]:
        for line in read_lines(self.path, "events"):
            facts = json.loads(line)
            yield Event(facts.pop("event"), facts)


def _as_json(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def open_tensorboard(folder: Path, log: Log) -> Iterator[list[Watch]]:
    """A watch that draws the numbers of every event as curves; none if TensorBoard is not installed.

    Curves are drawn anew from the log whenever a run resumes.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield []
        return

    def draw(event: Event) -> None:
        for key, value in event.facts.items():
            if isinstance(value, (int, float)) and key != "step":
                writer.add_scalar(f"{event.kind}/{key}", value, event.facts["step"])
        writer.flush()

    shutil.rmtree(folder / CURVES, ignore_errors=True)
    with SummaryWriter(str(folder / CURVES)) as writer:
        for event in log.read():
            draw(event)
        yield [draw]
