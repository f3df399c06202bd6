"""Audits: model x decoder x contexts x seed -> records.

Contexts stream through the pool of `decoding.loop`; every completion is counted as it ends. Counts are kept by
shards of contexts, and a shard's record is written as soon as its last context is done, so a kill loses unfinished
shards only: the same audit again finds the records that are there and goes on with the rest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

import eosin
from eosin.auditing.identity import hash_behaviour, identify, identify_decoder
from eosin.auditing.tally import MOST_EXAMPLES, Tally
from eosin.contracts import Decoder, Generative
from eosin.decoding.batch_invariance import is_steady
from eosin.decoding.decode import (
    Contexts,
    as_decoder,
    check_model,
    check_room,
    check_stop,
    checked_contexts,
    chosen_pool,
    device_of,
    evaluating,
    whole,
)
from eosin.decoding.loop import SMALLEST_BATCH, Cohort, unroll, usual_pool
from eosin.decoding.spec import is_specified
from eosin.decoding.stopping import StopStrings
from eosin.decoding.survival import survival_of
from eosin.errors import BadInput
from eosin.outcome import Completion
from eosin.proofs.drift import drift
from eosin.proofs.dynamics import dynamics_of
from eosin.proofs.prover import prover_of
from eosin.proofs.saved_cycles import CertifiedCycle, append_certificates, certificates_path, read_certificates
from eosin.records.record import Record, add_shards, read_records
from eosin.records.signature import ALL, Signature
from eosin.report.audits import tabulate_decoders
from eosin.report.tables import render_text
from eosin.storage.files import keep_copy, write_text
from eosin.storage.json_lines import append_lines
from eosin.storage.locks import hold_lock

logger = logging.getLogger(__name__)
SHARD = 1000
"""Contexts whose counts are written together; fewer where a model decodes fewer at a time."""


@dataclass(frozen=True)
class Audit:
    """Records of one model on one set of contexts, decoder by decoder."""

    records: list[Record]
    steady: bool = True
    """Whether the model gave the same bits in batches of all sizes; if not, near-ties may fall otherwise in another
    pool."""

    @property
    def by_decoder(self) -> dict[str, Record]:
        return {record.signature.decoder: record for record in add_shards(self.records)}

    def save(self, path: Path | str) -> None:
        """One JSON line a record."""
        write_text(Path(path), "".join(record.to_line() + "\n" for record in self.records))

    def __str__(self) -> str:
        return render_text(replace(tabulate_decoders(self.by_decoder.values()), title=""))


def audit(
    model: Generative,
    prefixes: Tensor | Sequence[Sequence[int]],
    decoders: Sequence[str | Decoder],
    *,
    max_steps: int,
    seed: int = 0,
    pool: int | None = None,
    proofs: bool = True,
    survival: bool = False,
    out: Path | str | None = None,
    about: dict[str, Any] | None = None,
    name: str | None = None,
    watch: Callable[[Completion, Decoder], None] | None = None,
    text_of: Callable[[list[int]], str] | None = None,
    stop: StopStrings | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Audit:
    """Decode every prefix with every decoder and count how it ends.

    proofs    look for loops and prove that they never end; what is proved is not decoded any further
    survival  estimate how probable it is not to have ended, instead of counting; for samplers
    out       a file of records: what it has is not done again, what is finished is appended at once
    about     what else belongs into the signature: names of the model and of the contexts
    name      what to call a model that cannot be told from another by what it is made of and does, such as one that
              holds a random generator; its records are used again only under the same name
    watch     is told of every completion as it ends, with its decoder
    text_of   tokens in words, so that records can show loops
    stop      strings that end a completion; with them nothing is proved
    tick      is called after every step; what it raises ends the audit
    """
    check_model(model)
    parsed = checked_decoders(decoders, model.vocab_size, survival, stop)
    max_steps, pool = whole("max_steps", max_steps, 1, 2**31), chosen_pool(pool, model)
    contexts = checked_contexts(prefixes, None, model)
    check_room(model, prefixes, max_steps)
    common = {
        **signature(model, contexts, max_steps, whole("seed", seed, 0, 2**64), name),
        "estimator": "survival" if survival else "count",
        "proofs": proofs and not survival and stop is None,
        **({"stop": list(stop.strings)} if stop else {}),
        **(about or {}),
    }
    wanted = {str(decoder): {**common, "decoder": str(decoder), **identify_decoder(decoder)} for decoder in parsed}
    with appending(out) as (there, write), evaluating(model):
        done = finished(there, out, common)
        check_same_decoders(done, parsed, out)
        check_certificates(out, common["model"])
        steady = steadiness(model, contexts, pool, max(decoder.rows_per_context for decoder in parsed))
        for decoder in parsed:
            shards = {record.signature.shard for record in done if record.signature.decoder == str(decoder)}
            if ALL in shards:
                continue
            work = Work(model, contexts, decoder, wanted[str(decoder)], pool, steady, watch, stop, tick)
            for record in work.records(without=shards):
                keep_certificates(out, work.certificates())
                record = spelt(record, text_of)
                write(record)
                done.append(record)
    return Audit([record for record in done if record.signature.decoder in wanted], steady)


def checked_decoders(
    decoders: Sequence[str | Decoder], vocab_size: int, survival: bool, stop: StopStrings | None
) -> list[Decoder]:
    if isinstance(decoders, str) or not hasattr(decoders, "__iter__"):
        raise BadInput(f"decoders must be a list, as in ['greedy', 'nucleus:0.2'], got {decoders!r}")
    parsed = [as_decoder(decoder) for decoder in decoders]
    if not parsed:
        raise BadInput("name at least one decoder, as in 'greedy'")
    for decoder in parsed:
        decoder.check(vocab_size)
        check_stop(stop, decoder)
    if survival and stop is not None:
        raise BadInput("survival is estimated along paths that nothing but eos ends; leave out the stop strings")
    return [survival_of(decoder) for decoder in parsed] if survival else parsed


def steadiness(model: Generative, contexts: Contexts, pool: int, rows_per_context: int) -> bool:
    """Tried on the first contexts of one length, in batches as large as there will be."""
    return is_steady(model, first_prefixes(contexts), min(pool, len(contexts) * rows_per_context))


def first_prefixes(contexts: Contexts) -> Tensor:
    """Of the first contexts those that are as long as the first."""
    some = [contexts.at(place).prefix for place in range(min(len(contexts), SMALLEST_BATCH))]
    return torch.stack([prefix for prefix in some if len(prefix) == len(some[0])])


class Work:
    """One decoder on all contexts."""

    def __init__(
        self,
        model: Generative,
        contexts: Contexts,
        decoder: Decoder,
        signature: dict[str, Any],
        pool: int,
        steady: bool,
        watch: Callable[[Completion, Decoder], None] | None,
        stop: StopStrings | None = None,
        tick: Callable[[], None] = lambda: None,
    ):
        self.model = model
        self.contexts = contexts
        self.decoder = decoder
        self.signature = signature
        self.pool = pool
        self.shard = min(SHARD, usual_pool(model))  # whatever the pool is this time
        self.watch = watch
        self.stop = stop
        self.tick = tick
        self.prover = prover_of(model, decoder, steady) if signature["proofs"] else None
        self.looked_at: dict[tuple[int, ...], tuple[int, int, int, float]] = {}

    def records(self, without: set[str]) -> Iterator[Record]:
        """A record for each shard that is not there yet, in the order in which they are finished."""
        max_steps, size, shard = self.signature["max_steps"], len(self.contexts), self.shard
        ranges = [(start, min(shard, size - start)) for start in range(0, size, shard)]
        tallies = {start: Tally(start, n, max_steps) for start, n in ranges if shard_name(start, n) not in without}
        for completion in self._completions(tallies):
            start = completion.index // shard * shard
            tallies[start].add(completion)
            if self.watch:
                self.watch(completion, self.decoder)
            if tallies[start].full:
                yield self._record(tallies.pop(start))

    def _completions(self, tallies: Mapping[int, Tally]) -> Iterator[Completion]:
        places = (place for start in sorted(tallies) for place in range(start, start + len(tallies[start].unended)))
        return unroll(
            self.model,
            map(self.contexts.at, places),
            self.decoder,
            max_steps=self.signature["max_steps"],
            seed=self.signature["seed"],
            pool=self.pool,
            observer=self._observed,
            stop=self.stop,
        )

    def _observed(self, cohort: Cohort) -> Cohort:
        self.tick()
        return self.prover(cohort) if self.prover else cohort

    def _record(self, tally: Tally) -> Record:
        self._look_at(tally)
        signature = {**self.signature, "shard": shard_name(tally.start, len(tally.unended))}
        return Record(Signature.from_table(signature), tally.counts())

    def _look_at(self, tally: Tally) -> None:
        """What moves in the loops of which nothing was proved; each loop is looked at once."""
        dynamics = dynamics_of(self.model)
        if dynamics is None:
            return
        room = MOST_EXAMPLES - len(self.looked_at)
        new = {cycle: c for cycle, c in tally.examples.items() if cycle not in self.looked_at}
        for cycle, completion in list(new.items())[:room]:
            prefix = self.contexts.at(completion.index).prefix
            tokens = completion.tokens.to(prefix.device)
            self.looked_at[cycle] = completion.index, *drift(self.model, dynamics, prefix, tokens, len(cycle))
        for cycle in tally.examples.keys() & self.looked_at.keys():
            tally.loops[cycle] = structs.replace(tally.loops[cycle], drift=self.looked_at[cycle])

    def certificates(self) -> list[CertifiedCycle]:
        """None of a decoder that no specification makes: nobody could check them again."""
        cycles = self.prover.cycles if self.prover and is_specified(self.decoder) else []
        return [CertifiedCycle(cycle, str(self.decoder), self.signature["model"]) for cycle in cycles]


def spelt(record: Record, text_of: Callable[[list[int]], str] | None) -> Record:
    """With the tokens of its loops in words."""
    if text_of is None:
        return record
    loops = {cycle: structs.replace(loop, text=text_of(list(cycle))) for cycle, loop in record.counts.loops.items()}
    return structs.replace(record, counts=structs.replace(record.counts, loops=loops))


def check_same_decoders(done: list[Record], decoders: Sequence[Decoder], out: Path | str | None) -> None:
    """A rule of one's own may have changed, and have the name that it had."""
    told: dict[str, Any] = {record.signature.decoder: record.signature.table.get("made_of") for record in done}
    for decoder in decoders:
        name, made_of = str(decoder), identify_decoder(decoder).get("made_of")
        if told.setdefault(name, made_of) != made_of:
            raise BadInput(f"{name} is the name of two different decoders; rename one, or name another file (--out)")
        if made_of and len(made_of) > 1 and any(record.signature.decoder == name for record in done):
            raise BadInput(
                f"{out} holds records of {name} already, and it cannot be told from others: {', '.join(made_of[1:])} "
                "cannot be read; name another file (--out)"
            )


def check_certificates(out: Path | str | None, model: dict[str, Any]) -> None:
    """What is there must be of this model."""
    if out is None or not certificates_path(Path(out)).exists():
        return
    path = certificates_path(Path(out))
    for certificate in read_certificates(path):
        if certificate.model != model:
            raise BadInput(f"{path} holds certificates of another model; name another file (--out)")


def keep_certificates(out: Path | str | None, certificates: list[CertifiedCycle]) -> None:
    if out is not None and certificates:
        append_certificates(certificates_path(Path(out)), certificates)


def shard_name(start: int, size: int) -> str:
    return f"{start}-{start + size - 1}"


def signature(
    model: Generative, contexts: Contexts, max_steps: int, seed: int, name: str | None = None
) -> dict[str, Any]:
    """Everything that decides the counts."""
    prefixes = sha256()
    for context in contexts:
        prefixes.update(json.dumps(context.prefix.tolist()).encode())
    with evaluating(model):
        does = {"behaviour": hash_behaviour(model, first_prefixes(contexts), max_steps)}
    return {
        "eosin": eosin.__version__,
        "torch": torch.__version__,
        "device": str(device_of(model) or "cpu"),
        "threads": torch.get_num_threads(),
        "model": {**identify(model), **does, **({} if name is None else {"name": name})},
        "contexts": {"count": len(contexts), "digest": prefixes.hexdigest()[:16]},
        "max_steps": max_steps,
        "seed": seed,
    }


def is_of_another_version(path: Path, there: Sequence[Record]) -> bool:
    """Whether nothing can be added to what a file holds: another version may count otherwise, or mistake a model."""
    certificates = list(read_certificates(certificates_path(path))) if certificates_path(path).exists() else []
    models = [*(record.signature.table.get("model", {}) for record in there), *(each.model for each in certificates)]
    versions = {release_line(record.signature.eosin) for record in there}
    return bool(versions - {release_line(eosin.__version__)}) or not all("parts" in model for model in models)


def release_line(version: str | None) -> str:
    """MAJOR.MINOR: what PATCH versions leave as it is."""
    return ".".join((version or "").split(".")[:2])


def begin_anew(path: Path) -> None:
    """Records and certificates of another version are kept, and can be reported, but nothing is added to them."""
    kept = [keep_copy(each) for each in (path, certificates_path(path)) if each.exists()]
    for each in (path, certificates_path(path)):
        each.unlink(missing_ok=True)
    logger.warning(
        "%s holds records of another version of eosin: this audit begins anew, and they are kept as %s",
        path,
        " and ".join(map(str, kept)),
    )


def finished(there: list[Record], out: Path | str | None, common: dict[str, Any]) -> list[Record]:
    """The records that a file has; all of them must be of this audit."""
    unreadable, name = common["model"].get("unreadable"), common["model"].get("name")
    if there and unreadable and name is None:
        raise BadInput(
            f"{out} holds records already, and this model cannot be told from others: {', '.join(unreadable)} cannot "
            "be read; give the model a name (name=...), always the same one, or name another file (--out)"
        )
    # a shard that is there twice counts once
    records = list({(record.signature.decoder, record.signature.shard): record for record in there}.values())
    for record in records:
        for key, value in common.items():
            if key != "eosin" and record.signature.table.get(key) != value:
                raise BadInput(
                    f"{out} holds records of another audit: {key} is {record.signature.table.get(key)!r} there and "
                    f"{value!r} here; say what was said then, move that file away, or name another (--out)"
                )
    return records


@contextmanager
def appending(out: Path | str | None) -> Iterator[tuple[list[Record], Callable[[Record], None]]]:
    """The records of a file, and a function that appends more, a whole line at a time.

    A line that a kill cut off is removed first.
    """
    if out is None:
        yield [], lambda record: None
        return
    path = Path(out)
    if path == certificates_path(path):
        raise BadInput(f"{path}: this ending is that of the certificates beside the records; name another file (--out)")
    if path.exists():
        list(read_records(path))  # refuse another file before a lock is put beside it
    lock = path.with_name(path.name + ".lock")
    with hold_lock(lock, f"another audit is writing to {path}; wait for it, or name another file (--out)"):
        there = list(read_records(path)) if path.exists() else []
        if is_of_another_version(path, there):
            begin_anew(path)
            there = []
        yield there, lambda record: append_lines(path, [record.to_line()])
