"""Watches for tests."""

from __future__ import annotations

from eosin.events import Event, Stopped, Watch


def stop_after(batches: int) -> Watch:
    """Stop after so many batches, those of evaluations included."""
    left = iter(range(batches))

    def watch(event: Event) -> None:
        if event.kind == "progress" and next(left, None) is None:
            raise Stopped

    return watch


def stop_now(event: Event) -> None:
    raise Stopped
