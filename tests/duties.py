"""What workers do in tests. Each function is opened by its name, in a process without torch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.events import Event, Watch

Duty = Callable[[Mapping[str, Any], Watch], Any]


def add(more: int = 0) -> Duty:
    """Adds numbers, after telling how far it is."""

    def work(unit: Mapping[str, Any], watch: Watch) -> int:
        watch(Event("progress", {"label": "numbers", "done": 1, "total": 2}))
        return sum(unit["numbers"]) + more

    return work


def sleep(seconds: float) -> Duty:
    def work(unit: Mapping[str, Any], watch: Watch) -> int:
        time.sleep(seconds)
        return unit["number"]

    return work


def die_once(folder: str) -> Duty:
    """The first process that does a unit marked `deadly` is killed in it."""

    def work(unit: Mapping[str, Any], watch: Watch) -> int:
        mark = Path(folder) / "died"
        if unit["deadly"] and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return unit["number"]

    return work


def fail(how: str) -> Duty:
    def work(unit: Mapping[str, Any], watch: Watch) -> int:
        if how == "memory":
            bytearray(2**62)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "refused":
            raise BadInput("three is no number")
        if how == "broken":
            raise KeyError("a mistake in the code")
        return 0

    if how == "opening":
        raise BadInput("there is no model")
    return work


def save_when_stopped(folder: str) -> Duty:
    """Works until it is stopped, and leaves a file then."""

    def work(unit: Mapping[str, Any], watch: Watch) -> int:
        try:
            for step in range(10_000):
                watch(Event("progress", {"label": "steps", "done": step, "total": 10_000}))
                time.sleep(0.01)
        finally:
            (Path(folder) / "saved").touch()
        return 0

    return work
