"""The watches of commands. A bar is drawn on terminals only, and only for work of more than two seconds."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

from tqdm import tqdm

from eosin.cli.terminal import format_duration
from eosin.events import Event, Stopped, Watch
from eosin.report.audits import format_row

FORMAT = "{desc} {percentage:3.0f}% {bar:8} {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"

PATIENCE = 2
"""Seconds for which nothing is shown."""


class Bar:
    """A watch that draws one bar for each label of "progress" events."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.label = ""

    def __call__(self, event: Event) -> None:
        if event.kind == "progress":
            self.draw(**event.facts)

    def draw(self, label: str, done: int, total: int, note: str = "") -> None:
        if self.bar is None or self.label != label:
            self.close()
            self.label = label
            self.bar = tqdm(
                total=total,
                initial=done - 1,
                desc=label,
                bar_format=FORMAT,
                disable=None,
                delay=PATIENCE,
                leave=False,
            )
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(done - self.bar.n)
        if done == total:
            self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar = None


@contextmanager
def announce(what: str) -> Iterator[None]:
    """Say on standard error what is being done, if it takes long."""
    error = sys.stderr  # what is done may redirect it
    timer = Timer(PATIENCE, lambda: print(what, file=error, flush=True))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def announce_decoder(event: Event, file: Any) -> None:
    """Print a decoder's row when it is finished, if that took long."""
    if event.kind == "decoder" and event.facts["seconds"] > PATIENCE:
        tqdm.write(f"    {format_row(event.facts['record'])}; {format_duration(event.facts['seconds'])}", file=file)
        file.flush()


@contextmanager
def count_events(kind: str, most: int) -> Iterator[Watch]:
    """A watch that draws how many events of a kind there were, of at most so many, and how many are under way."""
    bar, done = Bar(), 0

    def watch(event: Event) -> None:
        nonlocal done
        if event.kind == kind:
            done += 1
        if event.kind in (kind, "under way"):
            bar.draw(f"{kind}s", done + event.facts.get(f"{kind}s", 0), most)

    try:
        yield watch
    finally:
        bar.close()


@contextmanager
def stop_at_signals(*numbers: int) -> Iterator[Watch]:
    """A watch that draws bars. One of these signals does not end the process: the watch raises `Stopped(number)`."""
    bar, received = Bar(), list[int]()

    def watch(event: Event) -> None:
        bar(event)
        if received:
            raise Stopped(received[0])

    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield watch
    finally:
        bar.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
