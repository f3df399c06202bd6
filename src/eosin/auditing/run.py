"""Audits: model x decoder x contexts x seed -> records.

Contexts stream through the pool of `decoding.unroll`; every completion is counted as it ends. Counts are kept by
shards of contexts, and a shard's record is written as soon as its last context is done, so a kill loses unfinished
shards only: the same audit again finds the records that are there and goes on with the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eosin
from eosin.auditing.record import Record, pooled, read_records
from eosin.auditing.tally import Tally
from eosin.decoding.decode import as_decoder, check_model, checked_contexts, device_of, evaluating, whole
from eosin.decoding.unroll import Context, unroll
from eosin.errors import BadInput
from eosin.files import digest_of
from eosin.interfaces import Completion, Decoder, Generative
from eosin.report.audits import by_decoder
from eosin.report.tables import as_text

SHARD = 1000
"""Contexts whose counts are written together."""


@dataclass(frozen=True)
class Audit:
    """Records of one model on one set of contexts, decoder by decoder."""

    records: list[Record]

    @property
    def by_decoder(self) -> dict[str, Record]:
        return {record.signature["decoder"]: record for record in pooled(self.records)}

    def save(self, path: Path | str) -> None:
        """One JSON line a record."""
        Path(path).write_text("".join(record.written() + "\n" for record in self.records), encoding="utf-8")

    def __str__(self) -> str:
        return as_text(replace(by_decoder(self.by_decoder.values()), title=""))


def audit(
    model: Generative,
    prefixes: Tensor | Sequence[Sequence[int]],
    decoders: Sequence[str | Decoder],
    *,
    max_steps: int,
    seed: int = 0,
    pool: int = 1024,
    out: Path | str | None = None,
    about: dict[str, Any] | None = None,
    watch: Callable[[Completion, Decoder], None] | None = None,
) -> Audit:
    """Decode every prefix with every decoder and count how it ends.

    out     a file of records: what it has is not done again, what is finished is appended at once
    about   what else belongs into the signature: names of the model and of the contexts
    watch   is told of every completion as it ends, with its decoder
    """
    parsed = [as_decoder(decoder) for decoder in decoders]
    if not parsed:
        raise BadInput("name at least one decoder, as in 'greedy'")
    check_model(model)
    for decoder in parsed:
        decoder.check(model.vocab_size)
    max_steps = whole("max_steps", max_steps, 1, 2**31)
    contexts = checked_contexts(prefixes, None, model)
    common = {**signature(model, contexts, max_steps, whole("seed", seed, 0, 2**64)), **(about or {})}
    done = finished(out, common)
    with appending(out) as write, evaluating(model):
        for decoder in parsed:
            mine = {**common, "decoder": str(decoder)}
            there = {record.signature["shard"] for record in done if record.signature["decoder"] == str(decoder)}
            for record in _shards(model, contexts, decoder, mine, there, pool, watch):
                write(record)
                done.append(record)
    wanted = {str(decoder) for decoder in parsed}
    return Audit([record for record in done if record.signature["decoder"] in wanted])


def _shards(
    model: Generative,
    contexts: list[Context],
    decoder: Decoder,
    common: dict[str, Any],
    there: set[str],
    pool: int,
    watch: Callable[[Completion, Decoder], None] | None,
) -> Iterator[Record]:
    """A record for each shard that is not there yet, in the order in which they are finished."""
    ranges = [(start, min(SHARD, len(contexts) - start)) for start in range(0, len(contexts), SHARD)]
    tallies = {start: Tally(start, size) for start, size in ranges if shard_name(start, size) not in there}
    waiting = (context for context in contexts if context.index // SHARD * SHARD in tallies)
    max_steps, seed = common["max_steps"], common["seed"]
    for completion in unroll(model, waiting, decoder, max_steps=max_steps, seed=seed, pool=pool) if tallies else ():
        start = completion.index // SHARD * SHARD
        tally = tallies[start]
        tally.add(completion)
        if watch:
            watch(completion, decoder)
        if tally.full:
            yield Record({**common, "shard": shard_name(start, len(tally.unended))}, tally.counts())
            del tallies[start]


def shard_name(start: int, size: int) -> str:
    return f"{start}-{start + size - 1}"


def signature(model: Generative, contexts: list[Context], max_steps: int, seed: int) -> dict[str, Any]:
    """Everything that decides the counts."""
    prefixes = sha256(json.dumps([context.prefix.tolist() for context in contexts]).encode()).hexdigest()
    parameters = dict(getattr(model, "named_parameters", list)())
    weights = digest_of({name: p.detach().cpu().contiguous() for name, p in parameters.items()})
    return {
        "eosin": eosin.__version__,
        "torch": torch.__version__,
        "device": str(device_of(model) or "cpu"),
        "threads": torch.get_num_threads(),
        "model": {"kind": type(model).__name__, "vocab_size": model.vocab_size, "weights": weights[:16]},
        "contexts": {"count": len(contexts), "digest": prefixes[:16]},
        "max_steps": max_steps,
        "seed": seed,
    }


def finished(out: Path | str | None, common: dict[str, Any]) -> list[Record]:
    """The records that a file has; all of them must be of this audit."""
    if out is None or not Path(out).exists():
        return []
    records = list(read_records(Path(out)))
    for record in records:
        for key, value in common.items():
            if record.signature.get(key) != value:
                raise BadInput(
                    f"{out} holds records of another audit: {key} is {record.signature.get(key)!r} there and {value!r} "
                    "here; name another file (--out)"
                )
    return records


@contextmanager
def appending(out: Path | str | None) -> Iterator[Callable[[Record], None]]:
    """Appends records to a file, a whole line at a time; a line that a kill cut off is removed first."""
    if out is None:
        yield lambda record: None
        return
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)

        def write(record: Record) -> None:
            file.write(record.written() + "\n")
            file.flush()
            os.fsync(file.fileno())

        yield write
