"""What is known of an audited run besides its counts. `eosin audit` writes it beside the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from eosin.errors import BadInput
from eosin.records.record import Record
from eosin.storage.files import write_text

SOFTMAX = "softmax"


class Origin(Struct, frozen=True, kw_only=True):
    """A run and some of its contexts."""

    run: str
    contexts_from: str
    head: str = SOFTMAX
    network: str = ""
    """What runs that differ in their head and in nothing else of the model and its text share."""
    text: str = ""
    prefix_length: int | None = None
    """The paper's k."""
    lengths: dict[int, int] = {}
    """How many of the data's continuations have each length."""


Origins = Mapping[tuple[str | None, str | None], Origin]
"""By run and kind of contexts."""


def find_origin(origins: Origins, record: Record) -> Origin | None:
    return origins.get((record.signature.run, record.signature.contexts_from))


def is_twin(origins: Origins, record: Record, failed: Record) -> bool:
    """Whether a record is of the same network as another, with a head that a softmax does not have."""
    one, other = find_origin(origins, record), find_origin(origins, failed)
    return bool(one and other and one.network == other.network and one.head != SOFTMAX and one.run != other.run)


def index_origins(origins: Iterable[Origin]) -> Origins:
    return {(each.run, each.contexts_from): each for each in origins}


def origin_path(records: Path) -> Path:
    return records.with_suffix(".origin")


def save_origin(records: Path, origin: Origin) -> None:
    """Add it to those beside a file of records, which may have records of several runs."""
    known = index_origins([*read_origins([records]), origin])
    write_text(origin_path(records), msgspec.json.encode(list(known.values())).decode())


def read_origins(files: Iterable[Path]) -> list[Origin]:
    """Those beside files of records; records that were moved alone have none."""
    found: list[Origin] = []
    for path in map(origin_path, files):
        try:
            found += msgspec.json.decode(path.read_bytes(), type=list[Origin])
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise BadInput(f"{path} is damaged ({error}); remove it, and audit again") from error
    return found
