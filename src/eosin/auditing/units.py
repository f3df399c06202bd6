"""Shards as units of work: plain data, so that they can be counted elsewhere.

Whoever audits hands in what runs the units; the driver alone writes records. A worker makes the same plan of the audit
from the same options and signs its records itself, so a worker with another model or another arithmetic is found out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from eosin.auditing.shards import AuditPlan, CountedShard, name_shard
from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.events import Event, Watch
from eosin.outcome import Completion, Proof
from eosin.proofs.saved_cycles import CertifiedCycle
from eosin.records.record import Record

RunUnits = Callable[[Mapping[str, dict[str, Any]]], Iterator[Event]]
"""Does units elsewhere: yields "done" (key, result), "progress" (key, facts) and other events as they come."""


def count_unit(plan: AuditPlan, unit: Mapping[str, Any], watch: Watch) -> dict[str, Any]:
    """In a worker: count one shard. Returns its record, certificates and completions as plain data."""
    shard = range(*unit["shard"])
    completions: list[dict[str, Any]] = []

    def hear(event: Event) -> None:
        if event.kind == "completion":
            completions.append(completion_to_plain(event.facts["completion"]))
        facts = {"label": "completions", "done": len(completions), "total": len(shard)}
        watch(Event("progress", facts))

    (counted,) = plan.count(unit["decoder"], [shard], hear)
    return {
        "record": counted.record.to_line(),
        "certificates": [each.to_line() for each in counted.certificates],
        "completions": completions,
    }


def count_elsewhere(
    run: RunUnits, plan: AuditPlan, missing: Sequence[tuple[str, range]], watch: Watch
) -> Iterator[CountedShard]:
    """Shards in the order in which they come back. The watch gets their completions when a shard is finished."""
    units = {
        f"shard {name_shard(shard)} of {decoder}": {"decoder": decoder, "shard": [shard.start, shard.stop]}
        for decoder, shard in missing
    }
    under_way: dict[str, int] = {}
    for event in run(units):
        key = event.facts.get("key", "")
        if event.kind == "progress":
            under_way[key] = event.facts["facts"]["done"]
            watch(Event("under way", {"completions": sum(under_way.values())}))
        elif event.kind == "done":
            under_way.pop(key, None)
            yield from take_result(plan, units[key], event.facts["result"], watch)
        else:
            watch(event)


def take_result(
    plan: AuditPlan, unit: Mapping[str, Any], result: Mapping[str, Any], watch: Watch
) -> Iterator[CountedShard]:
    record = Record.from_line(result["record"])
    check_signature(record, {**plan.signatures[unit["decoder"]], "shard": name_shard(range(*unit["shard"]))})
    for completion in map(completion_from_plain, result["completions"]):
        watch(Event("completion", {"completion": completion, "decoder": plan.decoders[unit["decoder"]]}))
    yield CountedShard(record, [CertifiedCycle.from_line(line) for line in result["certificates"]])


def check_signature(record: Record, expected: Mapping[str, Any]) -> None:
    """Raise BadInput if a worker has counted something else."""
    for key, value in json.loads(json.dumps(expected)).items():
        if record.signature.table.get(key) != value:
            raise BadInput(
                f"a worker counts another audit: {key} is {record.signature.table.get(key)!r} there and {value!r} "
                "here; workers need the same files, versions and kind of processor as the machine of the command"
            )


def completion_to_plain(completion: Completion) -> dict[str, Any]:
    proof, survival = completion.proof, completion.survival
    return {
        **{name: getattr(completion, name) for name in ("index", "steps", "log_prob")},
        "tokens": completion.tokens.to("cpu", torch.int32).numpy().tobytes(),
        "cause": str(completion.cause),
        "proof": None if proof is None else [list(proof.cycle), proof.by],
        "survival": None if survival is None else survival.cpu().numpy().tobytes(),
    }


def completion_from_plain(table: Mapping[str, Any]) -> Completion:
    proof, survival = table["proof"], table["survival"]
    return Completion(
        index=table["index"],
        tokens=torch.from_numpy(np.frombuffer(table["tokens"], np.int32).astype(np.int64)),
        cause=Cause(table["cause"]),
        steps=table["steps"],
        log_prob=table["log_prob"],
        proof=None if proof is None else Proof(tuple(proof[0]), proof[1]),
        survival=None if survival is None else torch.from_numpy(np.frombuffer(survival, np.float64).copy()),
    )
