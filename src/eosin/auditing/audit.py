"""Audits: model x decoder x contexts x seed -> records.

Contexts stream through the pool of `decoding.loop`, and each completion is counted as it ends. Counts are kept by shard
of contexts. A shard's record is written when its last context is done, so a kill loses only unfinished shards: the same
audit finds the existing records and continues with the rest.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from eosin.decoding.decode import complete
from eosin.decoding.job import Contexts, Job, Prefixes, pool_of
from eosin.decoding.loop import SMALLEST_BATCH, Cohort, Loop
from eosin.decoding.loop_sampling import REPEATING, LoopSampler
from eosin.decoding.spec import is_specified
from eosin.decoding.stopping import StopStrings
from eosin.decoding.survival import survival_of
from eosin.devices import device_of, eval_mode
from eosin.errors import BadInput
from eosin.events import Event, Watch, ignore
from eosin.guarantees.certificate import certify
from eosin.outcome import Completion
from eosin.proofs.drift import Looping, measure_drifts
from eosin.proofs.dynamics import dynamics_of
from eosin.proofs.prover import Prover, prover_of
from eosin.proofs.saved_cycles import (
    CertifiedCycle,
    append_certificates,
    cycles_path,
    read_certificates,
)
from eosin.records.record import Record, add_shards, read_records
from eosin.records.signature import ALL, Signature
from eosin.report.audits import tabulate_audit
from eosin.report.tables import render_text
from eosin.states import can_recur
from eosin.storage.files import keep_copy, write_text
from eosin.storage.json_lines import append_lines
from eosin.storage.locks import hold_lock

logger = logging.getLogger(__name__)
SHARD = 1000
"""Contexts whose counts are written together; fewer if the model decodes fewer at a time."""
FOLLOWED = 3.5
"""By default this number over the root of the number of contexts is the share of loops that are followed."""
FEW = 100
"""Of fewer contexts all loops are followed by default: little would be saved, and the interval would say little."""


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

    The other arguments are those of `eosin.decode`.
    """
    job = Job.create(model, prefixes, max_steps=max_steps, seed=seed, pool=pool, stop=stop)
    parsed = check_decoders(decoders, job, survival)
    check_share(follow_loops, survival)
    signature = {
        **describe_job(job, name),
        "estimator": "survival" if survival else "count",
        "proofs": proofs and not survival and stop is None,
        **({"stop": list(stop.strings)} if stop else {}),
        **({"follow_loops": follow_loops, "loop_tokens": REPEATING} if follow_loops < 1 else {}),
        **(about or {}),
    }
    wanted = {str(each): {**signature, "decoder": str(each), **identify_decoder(each)} for each in parsed}
    with open_records(out) as (there, write), eval_mode(model):
        done = check_records(there, out, signature)
        check_same_decoders(done, parsed, out)
        check_certificates(out, signature["model"])
        steady = is_steady_for(job, parsed)
        for decoder in parsed:
            shards = {record.signature.shard for record in done if record.signature.decoder == str(decoder)}
            if ALL in shards:
                continue
            started = time.monotonic()
            prover = prover_of(model, decoder, steady) if signature["proofs"] else None
            sampler = LoopSampler(follow_loops, job.seed) if follow_loops < 1 and may_loop(model, decoder) else None
            counter = ShardCounter(job, decoder, wanted[str(decoder)], prover, sampler, text_of)
            for record in counter.count(shards, watch):
                save_certificates(out, counter)
                write(record)
                done.append(record)
                watch(Event("shard", {"record": record}))
            found = [record for record in done if record.signature.decoder == str(decoder)]
            watch(Event("decoder", {"record": add_shards(found)[0], "seconds": time.monotonic() - started}))
    return Audit([record for record in done if record.signature.decoder in wanted], steady)


def save_certificates(out: Path | str | None, counter: ShardCounter) -> None:
    """Before the records that count on them."""
    if out is not None and (certificates := counter.list_certificates()):
        append_certificates(cycles_path(Path(out)), certificates)


def check_decoders(decoders: Sequence[str | Decoder], job: Job, survival: bool) -> list[Decoder]:
    if isinstance(decoders, str) or not isinstance(decoders, Sequence):
        raise BadInput(f"decoders must be a list, as in ['greedy', 'nucleus:0.2'], got {decoders!r}")
    parsed = [job.check_decoder(decoder) for decoder in decoders]
    if not parsed:
        raise BadInput("name at least one decoder, as in 'greedy'")
    if survival and job.stop is not None:
        raise BadInput("survival is estimated along paths that nothing but eos ends; leave out the stop strings")
    return [survival_of(decoder) for decoder in parsed] if survival else parsed


def check_share(share: float, survival: bool) -> None:
    if not 0 < share <= 1:
        raise BadInput(f"follow_loops must be a share above 0 and at most 1, as in 0.1, got {share!r}")
    if survival and share < 1:
        raise BadInput("survival is estimated along whole paths; leave out follow_loops (--follow-loops)")


def may_loop(model: Generative, decoder: Decoder) -> bool:
    """Whether a loop says that a context may not end: nothing guarantees an end, and the decoder has one row."""
    return decoder.rows_per_context == 1 and not decoder.keeps_eos and certify(model, decoder).consistent is None


def choose_share(model: Generative, prefixes: Prefixes) -> float:
    """The usual share of loops to follow: all, where loops can be proved infinite, and of few contexts.

    Else it falls with the root of the number of contexts. Then the error from loops that are left falls as that from
    the contexts, and the interval is about 1.5 times as wide as that of a full count (docs/speed.md).
    """
    job = Job.create(model, prefixes, max_steps=1)
    with eval_mode(model):
        state = Loop(job, job.check_decoder("greedy")).enter([job.contexts[0]]).state
    count = len(job.contexts)
    return 1.0 if count < FEW or can_recur(state) else round(FOLLOWED / math.sqrt(count), 3)


def is_steady_for(job: Job, decoders: Sequence[Decoder]) -> bool:
    """Whether the model gives the same bits in all batches in which these decoders may call it."""
    largest = min(job.pool, len(job.contexts) * max(decoder.rows_per_context for decoder in decoders))
    return is_steady(job.model, take_first_prefixes(job.contexts), largest)


def take_first_prefixes(contexts: Contexts) -> Tensor:
    """Of the first contexts, those that are as long as the first."""
    first = [contexts[place].prefix for place in range(min(len(contexts), SMALLEST_BATCH))]
    return torch.stack([prefix for prefix in first if len(prefix) == len(first[0])])


@dataclass
class ShardCounter:
    """One decoder on all contexts of a job, counted by shard."""

    job: Job
    decoder: Decoder
    signature: dict[str, Any]
    prover: Prover | None
    sampler: LoopSampler | None
    text_of: Callable[[list[int]], str] | None
    drifts: dict[tuple[int, ...], tuple[int, int, int, float]] = field(default_factory=dict)
    """For each cycle, the context of an example and what changes in its state."""

    def count(self, done: set[str], watch: Watch) -> Iterator[Record]:
        """A record for each shard that is not done yet, in the order in which they are finished."""
        job, size = self.job, min(SHARD, pool_of(self.job.model))  # the same shards in any pool
        total = len(job.contexts)
        shards = [range(start, min(start + size, total)) for start in range(0, total, size)]
        missing = [shard for shard in shards if name_shard(shard) not in done]
        share = self.sampler.share if self.sampler else 1.0
        tallies = {shard.start: Tally(shard.start, len(shard), job.max_steps, share) for shard in missing}
        contexts = (job.contexts[place] for shard in missing for place in shard)
        for completion in complete(job, self.decoder, contexts=contexts, watch=watch, prove=self._retire):
            start = completion.index // size * size
            followed = self.sampler.followed.pop(completion.index, None) if self.sampler else None
            tallies[start].add(completion, followed)
            if tallies[start].is_full:
                yield self._record(tallies.pop(start))

    def _retire(self, cohort: Cohort) -> Cohort:
        """The cohort without rows that are proved infinite, and without loops that are not followed."""
        cohort = self.prover(cohort) if self.prover else cohort
        return self.sampler(cohort) if self.sampler else cohort

    def _record(self, tally: Tally) -> Record:
        self._measure_drifts(tally)
        if self.text_of is not None:
            for cycle, loop in tally.loops.items():
                tally.loops[cycle] = structs.replace(loop, text=self.text_of(list(cycle)))
        shard = name_shard(range(tally.start, tally.start + len(tally.unended)))
        return Record(Signature.from_table({**self.signature, "shard": shard}), tally.to_counts())

    def _measure_drifts(self, tally: Tally) -> None:
        """Measure, once for each loop without a proof, what changes in the state of an example."""
        dynamics = dynamics_of(self.job.model)
        if dynamics is None:
            return
        new = {cycle: completion for cycle, completion in tally.examples.items() if cycle not in self.drifts}
        new = dict(list(new.items())[: MOST_EXAMPLES - len(self.drifts)])
        if new:
            loops = [self._find_loop(completion, len(cycle)) for cycle, completion in new.items()]
            drifts = measure_drifts(self.job.model, dynamics, loops)
            for (cycle, completion), drift in zip(new.items(), drifts, strict=True):
                self.drifts[cycle] = completion.index, *drift
        for cycle in tally.examples.keys() & self.drifts.keys():
            tally.loops[cycle] = structs.replace(tally.loops[cycle], drift=self.drifts[cycle])

    def _find_loop(self, completion: Completion, period: int) -> Looping:
        prefix = self.job.contexts[completion.index].prefix
        return Looping(prefix, completion.tokens.to(prefix.device, prefix.dtype), period)

    def list_certificates(self) -> list[CertifiedCycle]:
        """Certificates of all cycles so far; none for a decoder without a specification, which nobody could check."""
        cycles = self.prover.cycles if self.prover and is_specified(self.decoder) else []
        return [CertifiedCycle(cycle, str(self.decoder), self.signature["model"]) for cycle in cycles]


def check_same_decoders(done: list[Record], decoders: Sequence[Decoder], out: Path | str | None) -> None:
    """Raise BadInput if one name stands for two decoders: the caller's code may have changed."""
    there: dict[str, Any] = {record.signature.decoder: record.signature.table.get("made_of") for record in done}
    known: dict[str, Any] = {}
    for decoder in decoders:
        name, made_of = str(decoder), identify_decoder(decoder).get("made_of")
        if known.setdefault(name, made_of) != made_of:
            raise BadInput(f"{name} is the name of two different decoders; rename one")
        if there.get(name, made_of) != made_of:
            raise BadInput(
                f"the code of {name} has changed since the records in {out} were made; name another file (--out), or "
                "delete that one"
            )
        if made_of and len(made_of) > 1 and any(record.signature.decoder == name for record in done):
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


def name_shard(shard: range) -> str:
    return f"{shard.start}-{shard.stop - 1}"


def describe_job(job: Job, name: str | None = None) -> dict[str, Any]:
    """The part of a signature that does not depend on the decoder: everything in the job that decides the counts."""
    prefixes = sha256()
    for context in job.contexts:
        prefixes.update(json.dumps(context.prefix.tolist()).encode())
    model = {
        **identify(job.model),
        "behaviour": hash_behaviour(job.model, take_first_prefixes(job.contexts), job.max_steps),
    }
    return {
        "eosin": eosin.__version__,
        "torch": torch.__version__,
        "device": str(device_of(job.model) or "cpu"),
        "threads": torch.get_num_threads(),
        "model": model if name is None else {**model, "name": name},
        "contexts": {"count": len(job.contexts), "digest": prefixes.hexdigest()[:16]},
        "max_steps": job.max_steps,
        "seed": job.seed,
    }


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
