"""What happens during training, told to whoever listens: the log file, TensorBoard, the terminal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

LOG = "log.jsonl"
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
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def size(self) -> int:
        return self.path.stat().st_size


class TensorBoard:
    """The numbers of every event as curves."""

    def __init__(self, folder: Path, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def hear(self, event: Event) -> None:
        for key, value in event.items():
            if isinstance(value, (int, float)) and key != "step":
                self.writer.add_scalar(f"{event['event']}/{key}", value, event["step"])
        self.writer.flush()


def tensorboard_if_installed(folder: Path, step: int) -> list[Listener]:
    try:
        return [TensorBoard(folder, step)]
    except ImportError:
        return []
