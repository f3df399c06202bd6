"""What happens in a worker, wherever it runs. Nothing here imports torch: a role does, if it needs it."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

import eosin
from eosin.errors import BadInput
from eosin.events import Event, Stopped, Watch
from eosin.processor import find_processor
from eosin.scale.crew import Message, Role, Unit

Work = Callable[[Unit, Watch], Any]
"""Does a unit. Its watch is told of "progress", and raises `Stopped` when the work is cancelled."""
SECONDS_BETWEEN = 0.5
"""Progress is told no more often than this."""
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Unable to allocate")
"""What torch and NumPy say."""


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode((message.kind, message.value))


def decode(content: bytes) -> Message:
    return Message(*msgspec.msgpack.decode(content))


def describe_worker() -> dict[str, str]:
    return {"host": platform.node(), "processor": find_processor(), "eosin": eosin.__version__}


def take_role(content: bytes) -> tuple[Message, Work | None]:
    """Open a role, and say on what machine; or why it cannot be opened."""
    role = msgspec.convert(msgspec.msgpack.decode(content), Role)
    os.environ["OMP_NUM_THREADS"] = str(role.threads)  # read when torch is imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    found: list[Work] = []

    def open_role() -> dict[str, str]:
        if not os.path.isdir(role.folder):
            raise BadInput(f"there is no folder {role.folder}: workers need the folder in which the command was given")
        os.chdir(role.folder)
        module, _, function = role.open.partition(":")
        found.append(getattr(import_module(module), function)(**role.settings))
        return describe_worker()

    message = attempt(open_role, "ready")
    if message.kind == "failed":
        message = Message("failed", f"a worker on {platform.node()} cannot begin: {message.value}")
    return message, found[0] if found else None


def attempt(function: Callable[[], Any], success: str) -> Message:
    """The result of a function as a message, or what went wrong."""
    try:
        return Message(success, function())
    except Stopped:
        return Message("stopped")
    except BadInput as error:
        return Message("failed", str(error))
    except Exception as error:
        if isinstance(error, MemoryError) or any(said in str(error) for said in OUT_OF_MEMORY):
            why = str(error).partition("\n")[0]
            return Message("failed", f"a worker on {platform.node()} ran out of memory ({why})")
        return Message("failed", "".join(traceback.format_exception(error)).rstrip())


class Reporter:
    """The watch of a worker: passes progress on, and stops the work when that is asked."""

    def __init__(self, say: Callable[[Message], None], is_stopping: Callable[[], bool]):
        self.say = say
        self.is_stopping = is_stopping
        self.last = 0.0

    def __call__(self, event: Event) -> None:
        if self.is_stopping():
            raise Stopped
        if event.kind == "progress" and time.monotonic() - self.last > SECONDS_BETWEEN:
            self.last = time.monotonic()
            try:
                self.say(Message("progress", dict(event.facts)))
            except OSError:
                raise Stopped from None  # the driver has ended
