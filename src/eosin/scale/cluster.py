"""Workers on a Ray cluster: actors, each with the CPUs of its threads. Ray is imported here only."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from eosin.errors import BadInput
from eosin.scale.crew import OWN, Message, Role, Unit
from eosin.scale.local import SECONDS_TO_SAVE
from eosin.scale.worker import Reporter, Work, attempt, decode, encode, take_role

# Ray reads these when it is imported. It reports its use to its makers unless it is told not to.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S", "10")
os.environ.setdefault("RAY_worker_niceness", "0")  # or workers of one's own Ray give way to every other process
try:
    import ray
except ImportError as error:
    raise BadInput(f"--on needs Ray ({error}): pip install 'eosin[ray]'") from error

RUNNING, CLIENT = "auto", "ray://"
"""A Ray of one's own on this machine, the one that runs on it, and one elsewhere."""
SECONDS_TO_REACH = 3.0
SECONDS_TO_JOIN = 20.0
SECONDS_BETWEEN = 2.0
"""Progress is asked for no more often than this."""
LOST = (ray.exceptions.RayError, ConnectionError)


class Hands:
    """A worker, as an actor: it works in one thread and answers in another."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self.progress: bytes | None = None
        self.stopping = False

    def open(self, role: bytes) -> bytes:
        message, self.work = take_role(role)
        return encode(message)

    def do(self, unit: bytes) -> bytes:
        work, watch = self.work, Reporter(self.keep, lambda: self.stopping)
        assert work is not None
        return encode(attempt(lambda: work(msgspec.msgpack.decode(unit), watch), "done"))

    def keep(self, message: Message) -> None:
        self.progress = encode(message)

    @ray.method(concurrency_group="talk")
    def tell_progress(self) -> bytes | None:
        said, self.progress = self.progress, None
        return said

    @ray.method(concurrency_group="talk")
    def stop(self) -> None:
        self.stopping = True


@dataclass(eq=False)
class Actor:
    """A worker, and what it was asked and has not answered."""

    handle: Any
    answer: Any = None
    progress: Any = None
    asked: float = field(default_factory=time.monotonic)


class Cluster:
    """Actors on a Ray cluster, as many as are started; one that finds no room waits for it."""

    def __init__(self, address: str, role: Role, *, workers: int | None = None, gpus: float | None = None):
        """`workers` are those that are asked for, `gpus` those of each; by default one where the cluster has any."""
        self.role = role
        self.folder: str | None = None
        self.actors: set[Actor] = set()
        self._connect(address, workers)
        has = ray.cluster_resources()
        self.gpus = float("GPU" in has) if gpus is None else gpus
        self.kind = ray.remote(num_cpus=role.threads, num_gpus=self.gpus, concurrency_groups={"talk": 1})(Hands)
        room = int(min(has.get("CPU", 0) // role.threads, has.get("GPU", 0) // self.gpus if self.gpus else 10**6))
        self.width = min(workers or room, room)
        """How many workers are wanted and fit."""
        if not self.width:
            self.close()
            raise BadInput(
                f"the Ray cluster {address} has no room for a worker with {role.threads} CPU threads and "
                f"{self.gpus:g} GPUs: it has {has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs in all"
            )

    def _connect(self, address: str, workers: int | None) -> None:
        if address != OWN:
            check_address(address)
        quietly: Any = {"log_to_driver": False, "logging_level": "error"}
        try:
            if address == OWN:
                cpus = max(os.cpu_count() or 1, (workers or 1) * self.role.threads)
                self.folder = tempfile.mkdtemp(prefix="eosin-ray-")
                if not any(name.startswith("RAY_AUTH_") for name in os.environ):
                    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # or Ray writes one to the home folder
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=self.folder, **quietly)
            else:
                ray.init(address=address, **quietly)
        except (*LOST, RuntimeError, ValueError) as error:
            self.close()
            raise BadInput(describe_absence(address, list_lines(error)[-1])) from error

    def start(self) -> Actor:
        actor = Actor(self.kind.remote())
        actor.answer = actor.handle.open.remote(self.role.to_bytes())
        self.actors.add(actor)
        return actor

    def send(self, worker: Actor, unit: Unit) -> None:
        content = msgspec.msgpack.encode(dict(unit))
        worker.answer = worker.handle.do.remote(content)
        worker.asked = time.monotonic()

    def wait(self, seconds: float) -> list[tuple[Any, Message]]:
        asked = {actor.answer: actor for actor in self.actors if actor.answer is not None}
        asked |= {actor.progress: actor for actor in self.actors if actor.progress is not None}
        found, _ = ray.wait(list(asked), num_returns=1, timeout=seconds) if asked else ([], [])
        if not found:
            self._ask_for_progress()
        said = [(asked[answer], self._receive(asked[answer], answer)) for answer in found]
        return [(actor, message) for actor, message in said if message is not None]

    def _ask_for_progress(self) -> None:
        now = time.monotonic()
        for actor in self.actors:
            if actor.answer is not None and actor.progress is None and now - actor.asked > SECONDS_BETWEEN:
                actor.progress = actor.handle.tell_progress.remote()
                actor.asked = now

    def _receive(self, actor: Actor, answer: Any) -> Message | None:
        is_progress = answer == actor.progress  # the client answers with copies of references
        actor.progress, actor.answer = (None, actor.answer) if is_progress else (actor.progress, None)
        try:
            said = ray.get(answer)
        except LOST as error:
            if actor not in self.actors:
                return None
            self.actors.remove(actor)
            ray.kill(actor.handle)
            return Message("lost", list_lines(error)[0])
        return None if said is None else decode(said)

    def close(self) -> None:
        """Let the workers save, kill them, and leave the cluster; one of its own ends."""
        if ray.is_initialized():
            busy = [actor.answer for actor in self.actors if actor.answer is not None]
            for actor in self.actors:
                actor.handle.stop.remote()
            if busy:
                ray.wait(busy, num_returns=len(busy), timeout=SECONDS_TO_SAVE)
            for actor in self.actors:
                ray.kill(actor.handle)
            ray.shutdown()
        self.actors.clear()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def check_address(address: str) -> None:
    """Raise BadInput within seconds if no cluster answers. Ray itself waits for minutes."""
    if address == RUNNING:
        command = [sys.executable, "-c", "import ray; ray.init('auto', log_to_driver=False)"]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS_TO_JOIN)
        except subprocess.TimeoutExpired:
            raise BadInput(describe_absence(address, f"it did not answer in {SECONDS_TO_JOIN:.0f} seconds")) from None
        except subprocess.CalledProcessError as error:
            raise BadInput(describe_absence(address, error.stderr.strip().splitlines()[-1])) from None
        return
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not address.startswith(CLIENT) or not host or not port.isdecimal():
        raise BadInput(f"--on must be {OWN}, {RUNNING} or {CLIENT}HOST:PORT, as in {CLIENT}head:10001; got {address!r}")
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_REACH).close()
    except (OSError, OverflowError) as error:
        raise BadInput(describe_absence(address, str(error))) from error


def describe_absence(address: str, why: str) -> str:
    return (
        f"no Ray cluster answers at --on {address} ({why}); `ray start --head` starts one, --on {OWN} one of your own"
    )


def list_lines(error: BaseException) -> list[str]:
    """What an error says; of a connection the last line tells most, of an actor the first."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
