"""Models that others published, and real sequences: `examples/published`, which an installed package has too."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from eosin.errors import BadInput
from eosin.storage.json_lines import parse_lines

PACKAGE = Path(str(files("eosin")))
INSTALLED, CHECKED_OUT = PACKAGE / "published_models", PACKAGE.parents[1] / "examples" / "published"
PUBLISHED = CHECKED_OUT if CHECKED_OUT.is_dir() else INSTALLED


class RealSequence(msgspec.Struct, frozen=True):
    """A protein, a molecule, a sentence."""

    name: str
    text: str


def find_published(file: str | Path) -> Path:
    """The file at this path, or else the one of this name in PUBLISHED."""
    return Path(file) if Path(file).is_file() else PUBLISHED / file


def read_sequences(file: str) -> list[RealSequence]:
    """JSON lines such as {"name": "P01308", "text": "MALWMRLLPL"}."""
    path = find_published(file)
    if not path.is_file():
        raise BadInput(f"there is no file {file} of real sequences, here or in {PUBLISHED}")
    found = list(parse_lines(path, "real sequences", "a sequence with a name and a text", parse_sequence))
    if len({each.text for each in found}) < len(found) or not found:
        raise BadInput(f"{path} must have real sequences, each of them once")
    return found


def parse_sequence(line: str) -> RealSequence:
    return msgspec.json.decode(line, type=RealSequence)
