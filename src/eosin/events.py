"""Events of long work: a watch gets progress and results, and may stop the work.

Decoding, audits and training call their watch with one event after the other. A watch draws a bar, writes a log or
collects results. It ends the work by raising `Stopped`: everything that is finished by then is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: str
    """"step", "completion", "shard", ...: the function that takes the watch lists the kinds that it sends."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Its details. Their names depend on the kind."""


Watch = Callable[[Event], None]


class Stopped(Exception):  # noqa: N818 (no error: somebody asked for it)
    """A watch raises it to end the work. The work saves what is finished and lets the exception pass."""


def ignore(event: Event) -> None:
    """A watch that ignores every event."""
