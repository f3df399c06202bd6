"""Shards: the parts in which an audit counts. The record of a shard does not depend on any other shard.

So the same records come from any number of workers, and from an audit that was killed and resumed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

import eosin
from eosin.auditing.identity import hash_behaviour, identify, identify_decoder
from eosin.auditing.tally import Tally
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
from eosin.events import Watch
from eosin.guarantees.certificate import certify
from eosin.outcome import Completion
from eosin.proofs.drift import Looping, measure_drifts
from eosin.proofs.dynamics import dynamics_of
from eosin.proofs.prover import Prover, prover_of
from eosin.proofs.saved_cycles import CertifiedCycle
from eosin.records.record import Record
from eosin.records.signature import Signature
from eosin.states import can_recur

SHARD = 1000
"""Contexts whose counts are written together; fewer if the model decodes fewer at a time."""

FOLLOWED = 3.5
"""By default this number over the root of the number of contexts is the share of loops that are followed."""
FEW = 100
"""Of fewer contexts all loops are followed by default: little would be saved, and the interval would say little."""


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


@dataclass(frozen=True)
class CountedShard:
    """The record of a shard, and the certificates that it counts on."""

    record: Record
    certificates: list[CertifiedCycle]


@dataclass(frozen=True)
class AuditPlan:
    """What an audit counts: a job, its decoders, and what the records of each are signed with."""

    job: Job
    decoders: dict[str, Decoder]
    """By their names."""
    signatures: dict[str, dict[str, Any]]
    """Of each decoder, without the shard."""
    signature: dict[str, Any]
    """What they share."""
    steady: bool
    """Whether the model gives the same bits in batches of all sizes."""
    follow_loops: float = 1.0
    """The share of loops without a proof that are decoded to the limit."""
    text_of: Callable[[list[int]], str] | None = None

    @classmethod
    def create(
        cls,
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
        about: dict[str, Any] | None = None,
        name: str | None = None,
        text_of: Callable[[list[int]], str] | None = None,
        stop: StopStrings | None = None,
    ) -> AuditPlan:
        """The arguments are those of `eosin.audit`."""
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
        with eval_mode(model):
            steady = is_steady_for(job, parsed)
        return cls(
            job=job,
            decoders=index_decoders(parsed),
            signatures={str(each): {**signature, "decoder": str(each), **identify_decoder(each)} for each in parsed},
            signature=signature,
            steady=steady,
            follow_loops=follow_loops,
            text_of=text_of,
        )

    @property
    def shards(self) -> list[range]:
        """The same in any pool."""
        total, size = len(self.job.contexts), size_shards(self.job)
        return [range(start, min(start + size, total)) for start in range(0, total, size)]

    def count(self, decoder: str, shards: Sequence[range], watch: Watch) -> Iterator[CountedShard]:
        """Count shards in the order in which they are finished.

        A proof retires all rows that enter the same loop, so where loops are proved, each shard is decoded by itself
        and finds its own. Otherwise the contexts of all shards share one pool.
        """
        has_prover = self.create_prover(decoder) is not None
        with eval_mode(self.job.model):
            for group in [[shard] for shard in shards] if has_prover else [shards]:
                counter = ShardCounter(self, decoder, self.create_prover(decoder), self.create_sampler(decoder))
                for record in counter.count(group, watch):
                    yield CountedShard(record, counter.list_certificates())

    def create_prover(self, decoder: str) -> Prover | None:
        return prover_of(self.job.model, self.decoders[decoder], self.steady) if self.signature["proofs"] else None

    def create_sampler(self, decoder: str) -> LoopSampler | None:
        samples = self.follow_loops < 1 and may_loop(self.job.model, self.decoders[decoder])
        return LoopSampler(self.follow_loops, self.job.seed) if samples else None


def index_decoders(decoders: Sequence[Decoder]) -> dict[str, Decoder]:
    """By name; a name that stands for two decoders is refused."""
    found: dict[str, Decoder] = {}
    for decoder in decoders:
        known = found.setdefault(str(decoder), decoder)
        if identify_decoder(known) != identify_decoder(decoder):
            raise BadInput(f"{decoder} is the name of two different decoders; rename one")
    return found


def size_shards(job: Job) -> int:
    return min(SHARD, pool_of(job.model))


@dataclass
class ShardCounter:
    """One decoder, counted by shard."""

    plan: AuditPlan
    decoder: str
    prover: Prover | None
    sampler: LoopSampler | None

    def count(self, shards: Sequence[range], watch: Watch) -> Iterator[Record]:
        """A record for each shard, in the order in which they are finished."""
        job, size = self.plan.job, size_shards(self.plan.job)
        share = self.sampler.share if self.sampler else 1.0
        tallies = {shard.start: Tally(shard.start, len(shard), job.max_steps, share) for shard in shards}
        contexts = (job.contexts[place] for shard in shards for place in shard)
        decoder = self.plan.decoders[self.decoder]
        for completion in complete(job, decoder, contexts=contexts, watch=watch, prove=self._retire):
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
        if self.plan.text_of is not None:
            for cycle, loop in tally.loops.items():
                tally.loops[cycle] = structs.replace(loop, text=self.plan.text_of(list(cycle)))
        shard = name_shard(range(tally.start, tally.start + len(tally.unended)))
        signature = {**self.plan.signatures[self.decoder], "shard": shard}
        return Record(Signature.from_table(signature), tally.to_counts())

    def _measure_drifts(self, tally: Tally) -> None:
        """Measure, for some loops without a proof, what changes in the state of an example."""
        job = self.plan.job
        dynamics = dynamics_of(job.model)
        if dynamics is None or not tally.examples:
            return
        loops = [self._find_loop(completion, len(cycle)) for cycle, completion in tally.examples.items()]
        for (cycle, completion), found in zip(tally.examples.items(), measure_drifts(job.model, dynamics, loops)):
            tally.loops[cycle] = structs.replace(tally.loops[cycle], drift=(completion.index, *found))

    def _find_loop(self, completion: Completion, period: int) -> Looping:
        prefix = self.plan.job.contexts[completion.index].prefix
        return Looping(prefix, completion.tokens.to(prefix.device, prefix.dtype), period)

    def list_certificates(self) -> list[CertifiedCycle]:
        """Certificates of all cycles so far; none for a decoder without a specification, which nobody could check."""
        is_checkable = is_specified(self.plan.decoders[self.decoder])
        cycles = self.prover.cycles if self.prover and is_checkable else []
        return [CertifiedCycle(cycle, self.decoder, self.plan.signature["model"]) for cycle in cycles]


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
