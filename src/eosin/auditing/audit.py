"""Audits: model x decoder x contexts x seed -> records.

Contexts stream through the pool of `decoding.loop`, and each completion is counted as it ends. Counts are kept by shard
of contexts, which may be counted elsewhere. A shard's record is written when its last context is done, so a kill loses
only unfinished shards: the same audit finds the existing records and continues with the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import eosin
from eosin.auditing.shards import AuditPlan, CountedShard, name_shard
from eosin.auditing.units import RunUnits, count_elsewhere
from eosin.contracts import Decoder, Generative
from eosin.decoding.job import Prefixes
from eosin.decoding.stopping import StopStrings
from eosin.errors import BadInput
from eosin.events import Event, Watch, ignore
from eosin.proofs.saved_cycles import (
    CertifiedCycle,
    append_certificates,
    cycles_path,
    read_certificates,
)
from eosin.records.record import Record, add_shards, read_records
from eosin.records.signature import ALL
from eosin.report.audits import tabulate_audit
from eosin.report.tables import render_text
from eosin.storage.files import keep_copy, write_text
from eosin.storage.json_lines import append_lines, read_lines, write_lines
from eosin.storage.locks import hold_lock

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Audit:
    """Records of one model on one set of contexts, decoder by decoder."""

    records: list[Record]
    steady: bool = True
    """Whether the model gave the same bits in batches of all sizes. If not, near-ties may fall differently in another
    pool."""

    @property
    def by_decoder(self) -> dict[str, Record]:
        return {record.signature.decoder: record for record in add_shards(self.records)}

    def save(self, path: Path | str) -> None:
        """One JSON line per record."""
        write_text(Path(path), "".join(record.to_line() + "\n" for record in self.records))

    def __str__(self) -> str:
        return "\n\n".join(render_text(table) for table in tabulate_audit(list(self.by_decoder.values())))


def audit(
    model: Generative,
    prefixes: Prefixes,
    decoders: Sequence[str | Decoder],
    *,
    max_steps: int,
    seed: int = 0,
    pool: int | None = None,
    proofs: bool = True,
    survival: bool = False,
    follow_loops: float = 1.0,
    out: Path | str | None = None,
    about: dict[str, Any] | None = None,
    name: str | None = None,
    text_of: Callable[[list[int]], str] | None = None,
    stop: StopStrings | None = None,
    watch: Watch = ignore,
    run: RunUnits | None = None,
) -> Audit:
    """Decode every prefix with every decoder and count how it ends.

    proofs    look for loops and prove that they never end; a proved completion is not decoded any further
    survival  estimate how probable it is not to have ended, instead of counting; for samplers
    follow_loops
              the share of loops, chosen by seed and context, that go on to the limit; the others are left and count as
              not ended, and the followed ones correct the count. Only loops that nothing is known about are left: not
              those of beams, and not those of a model and a decoder that must end.
    out       a file of records: existing records are reused, and new ones are appended as shards finish
    about     more for the signature: names of the model and of the contexts
    name      a name for a model whose parts and behaviour do not distinguish it from others, such as one that holds a
              random generator; its records are reused only under the same name
    text_of   decodes tokens to text, so that records can show loops
    stop      strings that end a completion; with them nothing is proved
    watch     gets the events "step" (contexts, rows), "completion" (completion, decoder), "shard" (record) and
              "decoder" (record, seconds), when all contexts of a decoder are counted; if it raises `Stopped`, the audit
              ends, and finished shards are in `out`
    run       does shards elsewhere (`auditing.units`); by default they are counted in this process

    The other arguments are those of `eosin.decode`.
    """
    plan = AuditPlan.create(
        model,
        prefixes,
        decoders,
        max_steps=max_steps,
        seed=seed,
        pool=pool,
        proofs=proofs,
        survival=survival,
        follow_loops=follow_loops,
        about=about,
        name=name,
        text_of=text_of,
        stop=stop,
    )
    with open_records(out) as (there, write):
        done = check_records(there, out, plan.signature)
        check_same_decoders(done, plan, out)
        check_certificates(out, plan.signature["model"])
        missing = list_missing(plan, done)
        counted = count_here(plan, missing, watch) if run is None else count_elsewhere(run, plan, missing, watch)
        started = time.monotonic()
        for shard in counted:
            save_certificates(out, shard.certificates)
            write(shard.record)
            done.append(shard.record)
            watch(Event("shard", {"record": shard.record}))
            records = [each for each in done if each.signature.decoder == shard.record.signature.decoder]
            if len(records) == len(plan.shards):
                watch(Event("decoder", {"record": add_shards(records)[0], "seconds": time.monotonic() - started}))
                started = time.monotonic()
        if missing:
            done = sort_records(done, list(plan.decoders))
            rewrite_records(out, done)
    return Audit([record for record in done if record.signature.decoder in plan.decoders], plan.steady)


def list_missing(plan: AuditPlan, done: list[Record]) -> list[tuple[str, range]]:
    """The decoder and the contexts of each shard that is not recorded."""
    there = {(record.signature.decoder, record.signature.shard) for record in done}
    return [
        (decoder, shard)
        for decoder in plan.decoders
        for shard in plan.shards
        if not {(decoder, ALL), (decoder, name_shard(shard))} & there
    ]


def count_here(plan: AuditPlan, missing: list[tuple[str, range]], watch: Watch) -> Iterator[CountedShard]:
    for decoder, group in groupby(missing, key=itemgetter(0)):
        yield from plan.count(decoder, [shard for _, shard in group], watch)


def sort_records(records: list[Record], decoders: list[str]) -> list[Record]:
    """Records of other decoders, then decoder by decoder, the shards in order: sums of floats depend on it."""
    places = {decoder: place for place, decoder in enumerate(decoders)}

    def find_place(record: Record) -> tuple[int, int]:
        place, shard = places.get(record.signature.decoder, -1), record.signature.shard
        return place, 0 if place < 0 or shard == ALL else int(shard.partition("-")[0])

    return sorted(records, key=find_place)


def rewrite_records(out: Path | str | None, records: list[Record]) -> None:
    """Put a finished file in order, if it is not: whoever finished first, the file is the same."""
    lines = [record.to_line() for record in records]
    if out is not None and list(read_lines(Path(out), "records")) != lines:
        write_lines(Path(out), lines)


def save_certificates(out: Path | str | None, certificates: list[CertifiedCycle]) -> None:
    """Before the records that count on them."""
    if out is not None and certificates:
        append_certificates(cycles_path(Path(out)), certificates)


def check_same_decoders(done: list[Record], plan: AuditPlan, out: Path | str | None) -> None:
    """Raise BadInput if the records of a decoder are of another one: the caller's code may have changed."""
    there: dict[str, Any] = {record.signature.decoder: record.signature.table.get("made_of") for record in done}
    for name, signature in plan.signatures.items():
        made_of = signature.get("made_of")
        if there.get(name, made_of) != made_of:
            raise BadInput(
                f"the code of {name} has changed since the records in {out} were made; name another file (--out), or "
                "delete that one"
            )
        if made_of and len(made_of) > 1 and name in there:
            raise BadInput(
                f"{out} holds records of {name} already, and it cannot be distinguished from others: "
                f"{', '.join(made_of[1:])} cannot be read; name another file (--out)"
            )


def check_certificates(out: Path | str | None, model: dict[str, Any]) -> None:
    """Raise BadInput unless the certificates beside the records are of this model."""
    if out is None or not cycles_path(Path(out)).exists():
        return
    for certificate in read_certificates(cycles_path(Path(out))):
        if certificate.model != model:
            raise BadInput(f"{cycles_path(Path(out))} holds certificates of another model; name another file (--out)")


def is_of_another_version(path: Path, there: Sequence[Record]) -> bool:
    """Whether records or certificates are of a version that may count, or identify models, differently."""
    certificates = list(read_certificates(cycles_path(path))) if cycles_path(path).exists() else []
    models = [*(record.signature.table.get("model", {}) for record in there), *(each.model for each in certificates)]
    versions = {drop_patch(record.signature.eosin) for record in there}
    return bool(versions - {drop_patch(eosin.__version__)}) or not all("parts" in model for model in models)


def drop_patch(version: str | None) -> str:
    """MAJOR.MINOR: PATCH versions change no counts."""
    return ".".join((version or "").split(".")[:2])


def start_over(path: Path) -> None:
    """Set aside records and certificates of another version, which can still be reported."""
    kept = [keep_copy(each) for each in (path, cycles_path(path)) if each.exists()]
    for each in (path, cycles_path(path)):
        each.unlink(missing_ok=True)
    logger.warning(
        "%s holds records of another version of eosin: this audit starts over, and they are kept as %s",
        path,
        " and ".join(map(str, kept)),
    )


def check_records(there: list[Record], out: Path | str | None, signature: dict[str, Any]) -> list[Record]:
    """The records of a file, each shard once, if all of them are of this audit."""
    model = signature["model"]
    unreadable, is_named = model.get("unreadable"), "name" in model or "digest" in model
    if there and unreadable and not is_named:
        raise BadInput(
            f"{out} holds records already, and this model cannot be distinguished from others: "
            f"{', '.join(unreadable)} cannot be read; give the model a name (name=...), always the same one, or name "
            "another file (--out)"
        )
    records = list({(record.signature.decoder, record.signature.shard): record for record in there}.values())
    for record in records:
        for key, value in {"follow_loops": None, **signature}.items():
            if key != "eosin" and record.signature.table.get(key) != value:
                raise BadInput(
                    f"{out} holds records of another audit: {key} is {record.signature.table.get(key)!r} there and "
                    f"{value!r} here; use the same settings, move that file away, or name another (--out)"
                )
    return records


@contextmanager
def open_records(out: Path | str | None) -> Iterator[tuple[list[Record], Callable[[Record], None]]]:
    """The records of a file, and a function that appends one more. A line that a kill cut off is removed first."""
    if out is None:
        yield [], lambda record: None
        return
    path = Path(out)
    if path == cycles_path(path):
        raise BadInput(f"{path}: this ending is that of the certificates beside the records; name another file (--out)")
    if path.exists():
        list(read_records(path))  # refuse another file before a lock is put beside it
    lock = path.with_name(path.name + ".lock")
    with hold_lock(lock, f"another audit is writing to {path}; wait for it, or name another file (--out)"):
        there = list(read_records(path)) if path.exists() else []
        if is_of_another_version(path, there):
            start_over(path)
            there = []
        yield there, lambda record: append_lines(path, [record.to_line()])
