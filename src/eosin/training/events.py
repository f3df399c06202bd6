"""What happens during training, told to whoever listens: the log file, TensorBoard, the terminal."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from eosin.storage.json_lines import append_lines, read_lines

LOG, CURVES = "log.jsonl", "tensorboard"
Event = dict[str, Any]


@runtime_checkable
class Listener(Protocol):
    """Whoever wants to know."""

    def hear(self, event: Event) -> None:
        """An event: its name, the step, and numbers."""


class Log:
    """One JSON object a line. What was written after the last saved state is taken back when a run goes on from it."""

    def __init__(self, folder: Path, size: int):
        self.path = folder / LOG
        with self.path.open("ab") as file:
            file.truncate(size)

    def hear(self, event: Event) -> None:
        line = json.dumps({key: _number(value) for key, value in event.items()}, allow_nan=False)
        append_lines(self.path, [line])

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def events(self) -> Iterator[Event]:
        yield from map(json.loads, read_lines(self.path, "events"))


def _number(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoard:
    """The numbers of every event as curves: a view of the log, drawn anew whenever a run goes on."""

    def __init__(self, folder: Path, log: Log):
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(folder / CURVES, ignore_errors=True)
        self.writer = SummaryWriter(str(folder / CURVES))
        for event in log.events():
            self.hear(event)

    def hear(self, event: Event) -> None:
        for key, value in event.items():
            if isinstance(value, (int, float)) and key != "step":
                self.writer.add_scalar(f"{event['event']}/{key}", value, event["step"])
        self.writer.flush()


@contextmanager
def tensorboard_if_installed(folder: Path, log: Log) -> Iterator[list[Listener]]:
    try:
        curves = TensorBoard(folder, log)
    except ImportError:
        yield []
        return
    try:
        yield [curves]
    finally:
        curves.writer.close()
