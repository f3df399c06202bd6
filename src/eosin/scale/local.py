"""Workers in this process, and in processes of their own on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any

import msgspec

from eosin.events import Watch
from eosin.scale.crew import Message, Role, Unit
from eosin.scale.worker import Reporter, Work, attempt, decode, describe_worker, encode, take_role

SECONDS_TO_SAVE = 30.0
"""For work that is cancelled; after that its process is killed."""


class Here:
    """One worker, which is this process: a unit is done when somebody waits. Errors pass through."""

    def __init__(self, work: Work, watch: Watch):
        self.work = work
        self.watch = watch
        self.said: list[Message] = []
        self.unit: Unit | None = None

    def start(self) -> Here:
        self.said.append(Message("ready", describe_worker()))
        return self

    def send(self, worker: Any, unit: Unit) -> None:
        self.unit = unit

    def wait(self, seconds: float) -> list[tuple[Any, Message]]:
        if self.unit is not None:
            unit, self.unit = self.unit, None
            self.said.append(Message("done", self.work(unit, self.watch)))
        said, self.said = self.said, []
        return [(self, message) for message in said]

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(eq=False)
class Process:
    """A worker of its own process, at the other end of a pipe."""

    popen: subprocess.Popen[bytes]
    pipe: Connection
    errors: IO[bytes]
    """What it writes to its standard error."""

    def explain_end(self) -> str:
        """Why the process ended, in a line."""
        code = self.popen.wait()
        with self.errors:
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").strip().splitlines()
        if code == -signal.SIGKILL:
            return "it was killed (signal 9): by somebody, or by the system, which was out of memory"
        return f"it ended with code {code}" + (f": {lines[-1]}" if lines else "")


class Processes:
    """Workers in processes of their own. They hear and say bytes through pipes; when the driver dies, they end."""

    def __init__(self, role: Role):
        self.role = role
        self.by_pipe: dict[Connection, Process] = {}

    def start(self) -> Process:
        mine, its = Pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (it is read when the process has ended)
        popen = subprocess.Popen(
            [sys.executable, "-m", "eosin.scale.local", str(its.fileno())],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": str(self.role.threads)},
        )
        its.close()
        mine.send_bytes(self.role.to_bytes())
        worker = self.by_pipe[mine] = Process(popen, mine, errors)
        return worker

    def send(self, worker: Process, unit: Unit) -> None:
        try:
            worker.pipe.send_bytes(msgspec.msgpack.encode(dict(unit)))
        except OSError:
            return  # it has ended, which `wait` will find

    def wait(self, seconds: float) -> list[tuple[Any, Message]]:
        found = wait(list(self.by_pipe), seconds)
        return [(self.by_pipe[pipe], self._receive(pipe)) for pipe in found if isinstance(pipe, Connection)]

    def _receive(self, pipe: Connection) -> Message:
        try:
            return decode(pipe.recv_bytes())
        except (EOFError, OSError):
            pipe.close()
            return Message("lost", self.by_pipe.pop(pipe).explain_end())

    def close(self) -> None:
        workers = list(self.by_pipe.values())
        for worker in workers:
            worker.popen.terminate()
            worker.pipe.close()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for worker in workers:
            try:
                worker.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.popen.kill()
                worker.popen.wait()
            worker.errors.close()
        self.by_pipe.clear()


def serve(pipe: Connection) -> None:
    """A worker: open the role that comes first, and do the units that follow."""
    stopping: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver says when to stop
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))

    def say(message: Message) -> None:
        pipe.send_bytes(encode(message))

    first, work = take_role(pipe.recv_bytes())
    say(first)
    watch = Reporter(say, lambda: bool(stopping))
    while work is not None and not stopping:
        unit: Mapping[str, Any] = msgspec.msgpack.decode(pipe.recv_bytes())
        say(attempt(lambda unit=unit: work(unit, watch), "done"))  # type: ignore[misc]


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver has ended
        serve(Connection(int(sys.argv[1])))
