"""Files of JSON lines: only whole lines count, and each line is on the disk before the next one is written."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from eosin.errors import BadInput
from eosin.storage.files import write_text

Parsed = TypeVar("Parsed")
MALFORMED = (ValueError, KeyError, TypeError, ArithmeticError, RecursionError, zlib.error)
"""What parsing raises if a line has another form than it should have."""


def read_lines(path: Path, content: str) -> Iterator[str]:
    """Read the whole lines of a file of `content`, one at a time. A last line that a kill cut off is skipped."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if _is_whole(line, path, content):
                    yield line[:-1]
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a file of {content}: it is not UTF-8") from error


def _is_whole(line: str, path: Path, content: str) -> bool:
    """Whether a line ends. One that does not must at least begin as a line of JSON does, or the file is another's."""
    if not line.endswith("\n") and not line.startswith("{"):
        raise BadInput(f"{path} is not a file of {content}, and is left as it is: it ends with {line[:40]!r}")
    return line.endswith("\n")


def parse_lines(
    path: Path, content: str, what: str, parse: Callable[[str], Parsed], remedy: str = ""
) -> Iterator[Parsed]:
    """Parse the whole lines of a file of `content`, one at a time; the error names the first that is not `what`."""
    for number, line in enumerate(read_lines(path, content), 1):
        try:
            yield parse(line)
        except MALFORMED as error:
            raise BadInput(f"line {number} of {path} is not {what}: {error}{remedy}") from error


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a whole file, which takes the place of an older one."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append whole lines and wait until they are on the disk. A line that a kill cut off is removed first."""
    with path.open("a+b") as file:
        file.truncate(_find_end(file))
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())


def _find_end(file: BinaryIO) -> int:
    """The place after the last whole line."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    if file.read(1) in (b"\n", b""):
        return size
    file.seek(0)
    return file.read().rfind(b"\n") + 1
