"""`eosin.decode`: prefixes in, completions out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from eosin.contracts import Decoder, Generative, Stop
from eosin.decoding.job import Context, Job, Prefixes
from eosin.decoding.loop import Prove, unroll
from eosin.devices import eval_mode
from eosin.events import Event, Watch, ignore
from eosin.outcome import Completion, Completions


def decode(
    model: Generative,
    prefixes: Prefixes,
    decoder: str | Decoder = "greedy",
    *,
    max_steps: int,
    seed: int = 0,
    pool: int | None = None,
    indices: Sequence[int] | None = None,
    stop: Stop | None = None,
    watch: Watch = ignore,
) -> Completions:
    """Continue every prefix with a decoder until eos, or for `max_steps` tokens.

    model      anything with `vocab_size`, `eos_ids`, `prefill` and `step`, and a state with `select`
    prefixes   a (contexts, length) tensor, or lists of token ids, which may differ in length
    decoder    a specification such as "greedy", "beam:4" or "consistent-nucleus:0.2", or a Decoder
    max_steps  the longest completion, eos included: the paper's L
    seed       decides every draw, with the index of the context and the step. Results do not depend on context order,
               batch composition or pool size.
    pool       how many rows are decoded at a time: contexts, each times the width of its beam; by default the number
               that suits the model
    indices    the numbers of the contexts, where these are some of many; by default 0, 1, 2, ...
    stop       whether the tokens produced so far end there, as `StopStrings` says; asked after every step
    watch      gets the events "step" (contexts, rows) and "completion" (completion, decoder)
    """
    job = Job.create(model, prefixes, max_steps=max_steps, seed=seed, pool=pool, indices=indices, stop=stop)
    by_index = {completion.index: completion for completion in complete(job, decoder, watch=watch)}
    return Completions.pack([by_index[number] for number in job.contexts.numbers])


def complete(
    job: Job,
    decoder: str | Decoder,
    *,
    contexts: Iterable[Context] | None = None,
    watch: Watch = ignore,
    prove: Prove | None = None,
) -> Iterator[Completion]:
    """The completions of a job, or of some of its contexts, in the order in which they end."""
    parsed = job.check_decoder(decoder)
    with eval_mode(job.model):
        for completion in unroll(job, parsed, contexts=contexts, watch=watch, prove=prove):
            watch(Event("completion", {"completion": completion, "decoder": parsed}))
            yield completion
