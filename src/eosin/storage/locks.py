"""Locks between processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from eosin.errors import BadInput


@contextmanager
def hold_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file, whose folder is created; `busy` is the message if another process holds it.

    The lock ends with the process. The file stays: deleting it would let two processes lock different files.
    """
    lock = FileLock(path, blocking=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise BadInput(busy) from None
    except OSError as error:
        raise BadInput(f"cannot write in {path.parent}: {error.strerror}; name another folder (--out)") from error
    try:
        yield
    finally:
        lock.release()
