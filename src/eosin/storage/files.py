"""Files that are whole or not there: written beside their place, and moved there in one step."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import IO

from eosin.errors import BadInput

BUNDLED_RUNS = Path(str(resources.files("eosin") / "bundled" / "runs"))
"""Trained models that come with the package."""
PARTIAL = ".partial"
"""Ending of a file that is being written. One that is found was left by a process that was killed."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file under another name, see it safely on the disk, and only then give it its name."""
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is a folder or a device, where a file should be; move it away, or name another")
    partial = path.with_name(path.name + PARTIAL)
    try:
        write(partial)
        _flush(partial)
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    _flush(path.parent)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    write_atomically(path, lambda partial: partial.write_bytes(content))


def real(path: Path) -> Path:
    """Where it leads; a link that leads round in a circle stays what it is."""
    return Path(os.path.realpath(path))


def locked_file(file: IO[str], otherwise: str) -> None:
    """Let no other process have the file until it is closed; if another one has it, say so."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BadInput(otherwise) from None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of_files(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def set_aside(path: Path) -> Path:
    """Keep a copy of a file beside it, under a name that nothing has yet, which is returned."""
    kept = next(name for n in itertools.count(1) if not (name := path.with_name(f"{path.name}.{n}.kept")).exists())
    write_atomically(kept, lambda partial: shutil.copyfile(path, partial))
    return kept
