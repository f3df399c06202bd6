"""Units of work go to workers, and each result comes back once.

A worker opens what its role names (a model, the plan of a reproduction) and then does units, one at a time. Roles,
units and results are plain data. A unit whose worker is lost is given to another worker, so a unit may be done twice;
its result is taken once, by its key.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from graphlib import TopologicalSorter
from typing import Any, Protocol, runtime_checkable

import msgspec

from eosin.errors import BadInput
from eosin.events import Event

Unit = Mapping[str, Any]
OWN = "ray"
"""The address of a Ray cluster on this machine that is started for one command."""
MOST_TRIES = 3
"""Workers that may be lost with the same unit, or one after the other before they are ready."""
PATIENCE = 0.2
"""Seconds for which a crew waits before it lets its caller look around."""


@dataclass(frozen=True)
class Role:
    """What a worker opens before it does units."""

    open: str
    """module:function, called with the settings; returns a function of a unit and a watch."""
    settings: Mapping[str, Any]
    folder: str
    """The working directory, which every machine must have."""
    threads: int = 1

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(asdict(self))


@dataclass(frozen=True)
class Message:
    """What a worker says, or what became of it."""

    kind: str
    """"ready" (facts of the machine), "progress" (facts), "done" (a result), "failed" or "lost" (why)."""
    value: Any = None


@runtime_checkable
class Place(Protocol):
    """Where workers run. `W` below is whatever a place knows a worker by."""

    def start(self) -> Any:
        """Start a worker, which says "ready" when it has opened its role."""

    def send(self, worker: Any, unit: Unit) -> None:
        """Hand a unit to a worker that is ready."""

    def wait(self, seconds: float) -> list[tuple[Any, Message]]:
        """What workers said; waits for the first of them, but not longer than this."""

    def close(self) -> None:
        """Cancel what is under way, let it save, and end all workers."""


@dataclass
class Crew:
    """Some workers at one place: submit units, and hear of results and progress."""

    place: Place
    width: int
    """How many workers there are."""
    units: dict[str, Unit] = field(default_factory=dict)
    """Those without a result, by key."""
    waiting: deque[str] = field(default_factory=deque)
    """The keys of units that no worker has."""
    busy: dict[Any, str | None] = field(default_factory=dict)
    """The key that each worker works on; empty while it opens its role, None while it waits."""
    idle: list[Any] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    """Workers that were lost at work, by the unit they had, or before they were ready."""

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.place.close()

    @property
    def has_room(self) -> bool:
        return len(self.units) < self.width

    def submit(self, key: str, unit: Unit) -> None:
        self.units[key] = unit
        self.waiting.append(key)

    def wait(self, seconds: float = PATIENCE) -> Iterator[Event]:
        """What happens in about so many seconds.

        The events are "worker" (facts of its machine), "begun" (key), "progress" (key, facts), "lost" (key, reason)
        and "done" (key, result).
        """
        while len(self.busy) < self.width:
            self.busy[self.place.start()] = ""
        while self.waiting and self.idle:
            worker, key = self.idle.pop(), self.waiting.popleft()
            self.busy[worker] = key
            self.place.send(worker, self.units[key])
            yield Event("begun", {"key": key})
        for worker, message in self.place.wait(seconds):
            if worker in self.busy:
                yield from getattr(self, f"_hear_{message.kind}")(worker, message.value)

    def _hear_ready(self, worker: Any, facts: Mapping[str, Any]) -> Iterator[Event]:
        self.busy[worker] = None
        self.idle.append(worker)
        self.lost.pop("", None)
        yield Event("worker", facts)

    def _hear_progress(self, worker: Any, facts: Mapping[str, Any]) -> Iterator[Event]:
        if key := self.busy[worker]:
            yield Event("progress", {"key": key, "facts": facts})

    def _hear_done(self, worker: Any, result: Any) -> Iterator[Event]:
        key, self.busy[worker] = self.busy[worker], None
        self.idle.append(worker)
        if key in self.units:
            del self.units[key]
            yield Event("done", {"key": key, "result": result})

    def _hear_failed(self, worker: Any, reason: str) -> Iterator[Event]:
        key = self.busy[worker]
        raise BadInput(f"{key}: {reason}" if key else reason)

    def _hear_lost(self, worker: Any, reason: str) -> Iterator[Event]:
        key = self.busy.pop(worker)
        if key is None:
            self.idle.remove(worker)
        else:
            self.lost[key] += 1
            if self.lost[key] == MOST_TRIES:
                raise BadInput(f"{key or 'before any work'}: {MOST_TRIES} workers were lost, the last because {reason}")
        if key in self.units:
            self.waiting.appendleft(key)
        yield Event("lost", {"key": key or "", "reason": reason})


def run_units(
    crew: Crew, units: Mapping[str, Unit], needs: Mapping[str, Collection[str]] | None = None
) -> Iterator[Event]:
    """Do units in their order, each after those that it needs.

    Yields the events of the crew, and "step" again and again, so that the caller can stop. Needs that are not among
    the units count as done.
    """
    order = {key: number for number, key in enumerate(units)}
    sorter = TopologicalSorter({key: [need for need in (needs or {}).get(key, ()) if need in units] for key in units})
    sorter.prepare()
    ready: list[tuple[int, str]] = []
    while sorter.is_active():
        for key in sorter.get_ready():
            heapq.heappush(ready, (order[key], key))
        while ready and crew.has_room:
            key = heapq.heappop(ready)[1]
            crew.submit(key, units[key])
        for event in crew.wait():
            if event.kind == "done":
                sorter.done(event.facts["key"])
            yield event
        yield Event("step")


def list_stages(needs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Keys in stages: each stage needs only stages before it, so its keys can be done at once."""
    sorter = TopologicalSorter({key: [need for need in found if need in needs] for key, found in needs.items()})
    sorter.prepare()
    stages = []
    while sorter.is_active():
        stages.append(list(sorter.get_ready()))
        sorter.done(*stages[-1])
    return stages
