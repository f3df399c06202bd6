"""Atomic files: written under another name and moved into place, so that no reader sees half a file."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from eosin.errors import BadInput

HUB = "hf:"
"""Stands before the name of a model of Hugging Face."""
OWN = "py:"
"""Stands before FILE:FUNCTION, a model that a Python file of the user makes."""
PARTIAL = ".partial"
"""Suffix of a file while it is written. A kill can leave such a file behind."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` create the file under another name, flush it to the disk, and then move it into place."""
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


def resolve_path(path: Path) -> Path:
    """Follow links; unlike `Path.resolve`, a circle of links is no error."""
    return Path(os.path.realpath(path))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_files(paths: list[Path]) -> str:
    """SHA-256 of the digests of all files."""
    return hashlib.sha256(b"".join(bytes.fromhex(hash_file(path)) for path in paths)).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of the contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep_copy(path: Path) -> Path:
    """Copy a file to a new name beside it; returns that name."""
    copy = next(name for n in itertools.count(1) if not (name := path.with_name(f"{path.name}.{n}.kept")).exists())
    write_atomically(copy, lambda partial: shutil.copyfile(path, partial))
    return copy
