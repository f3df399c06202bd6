"""eosin decode"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eosin.cli.audit import shown
from eosin.cli.contexts import Opened, add_decoding_options, opened
from eosin.cli.progress import watched
from eosin.cli.terminal import printable
from eosin.data.prompts import read_prompts
from eosin.data.sources import CONTEXTS
from eosin.decoding.decode import as_list, completed
from eosin.decoding.loop import usual_pool
from eosin.decoding.loops import Tail, repeating_tail
from eosin.errors import BadInput
from eosin.models.checkpoint import TWINS
from eosin.outcome import Completion
from eosin.storage.files import write_text

DESCRIPTION = """MODEL is the directory of a trained run, or hf: and a model of Hugging Face. A prompt for a run becomes
a context as those of the corpus are: <bos> and its last k tokens, padded on the left where it is shorter. A tail that
repeats is shown once, in brackets. `demo` and `demo-lstm` are small models that come with Eosin; each is followed by
its self-terminating twin on the same contexts.

examples:
  eosin decode demo
  eosin decode runs/lstm --decoder nucleus:0.4 --count 10
  eosin decode runs/lstm --prompt "The city was founded in" --decoder beam:4
  eosin decode runs/lstm --prompts mine.txt --decoder ancestral --seed 3 --out completions.jsonl
  eosin decode hf:my-model --prompts mine.txt --chat --max-steps 500"""

COUNT = 5
FIRST, LAST = 60, 20
"""Tokens that are shown of a long completion."""


def add_options(verb: argparse.ArgumentParser) -> None:
    add_decoding_options(verb)
    source = verb.add_mutually_exclusive_group()
    source.add_argument("--contexts", choices=CONTEXTS, default="test", help="where contexts come from (default: test)")
    source.add_argument("--prompt", metavar="TEXT", help="continue this text")
    source.add_argument("--prompts", type=Path, metavar="FILE", help="continue every line of a UTF-8 text file")
    verb.add_argument("--count", type=int, metavar="N", help=f"how many contexts (default: {COUNT})")
    verb.add_argument("--full", action="store_true", help="show every token of every completion")
    verb.add_argument("--out", type=Path, metavar="FILE", help="write completions there, one JSON line each")


def run(options: argparse.Namespace) -> None:
    if options.out is not None and (options.out.is_dir() or not options.out.parent.is_dir()):
        raise BadInput(f"{options.out} cannot be written: name a file in a folder that is there")
    machine_readable = options.json or options.out is not None
    names = (options.subject,) if machine_readable else TWINS.get(options.subject, (options.subject,))
    for name in names:
        if len(names) > 1:
            print(f"{name}\n")
        decode_model(argparse.Namespace(**{**vars(options), "subject": name}))
    if len(names) > 1:
        print(f"eosin audit {options.subject} counts what does not end, and proves which loops never end")


def decode_model(options: argparse.Namespace) -> None:
    """Decode with one model, and print or write its completions."""
    opened_run = opened(options)
    prefixes = prefixes_of(options, opened_run)
    completions = completions_of(options, opened_run, prefixes)
    lines = [json.dumps(described(each, as_list(prefixes[each.index]), opened_run)) for each in completions]
    if options.out is not None:
        write_text(options.out, "".join(line + "\n" for line in lines))
    if options.json:
        print("\n".join(lines))
    elif options.out is not None:
        ended = sum(each.terminated for each in completions)
        print(f"{ended:,} of {len(completions):,} completions ended; all of them: {options.out}")
    else:
        for each in completions:
            prefix = as_list(prefixes[each.index])
            print("\n".join(displayed(each, prefix, opened_run.subject.tokenizer, options.full)))


def prefixes_of(options: argparse.Namespace, opened_run: Opened) -> Sequence[Sequence[int]] | Tensor:
    prompts = prompts_of(options)
    if prompts:
        if options.count is not None:
            raise BadInput("--count is for contexts of the corpus; every prompt that is given is continued")
        return opened_run.subject.prompts(prompts, options)
    count = COUNT if options.count is None else options.count
    if count < 1:
        raise BadInput(f"--count must be at least 1, got {count}")
    return opened_run.subject.contexts(options.contexts, count, options.seed)


def prompts_of(options: argparse.Namespace) -> list[str]:
    if options.prompt is not None:
        return [options.prompt]
    return read_prompts(options.prompts) if options.prompts is not None else []


def completions_of(options: argparse.Namespace, opened_run: Opened, prefixes: Any) -> list[Completion]:
    """In the order of the contexts."""
    decoder = opened_run.decoder
    pools = math.ceil(len(prefixes) * decoder.rows_per_context / usual_pool(opened_run.subject.model))
    with watched(opened_run.subject.model, pools * options.max_steps) as model:
        made = list(
            completed(
                model, prefixes, decoder, max_steps=options.max_steps, seed=options.seed, stop=opened_run.subject.stop
            )
        )
    return sorted(made, key=lambda completion: completion.index)


def described(completion: Completion, prefix: list[int], opened_run: Opened) -> dict[str, Any]:
    """For machines."""
    tail = repeating_tail(completion.tokens.numpy())
    return {
        **shown(completion, opened_run.decoder, opened_run.subject.tokenizer),
        "prefix": opened_run.subject.tokenizer.decode(prefix),
        "prefix_tokens": prefix,
        "loop": None if tail is None else vars(tail),
    }


def displayed(completion: Completion, prefix: list[int], tokenizer: Any, full: bool) -> Iterator[str]:
    """For people: the context, how it goes on, and how that ended."""
    tail = repeating_tail(completion.tokens.numpy())
    tokens = completion.tokens.tolist()
    yield f"[{completion.index}] {printable(tokenizer.decode(prefix))}"
    yield f"    {printable(tokenizer.decode(tokens) if full else abridged(tokens, tail, tokenizer))}"
    loop = "" if tail is None else f"; repeats from step {tail.onset} with period {tail.period} (seen, not proved)"
    yield f"    {completion.cause} at step {completion.steps}, log-probability {completion.log_prob:.2f}{loop}\n"


def abridged(tokens: list[int], tail: Tail | None, tokenizer: Any) -> str:
    """A tail that repeats once, in brackets; of what is long the beginning and the end."""
    if tail is None:
        return shortened(tokens, tokenizer)
    start = tail.onset - 1
    loop = f"[{shortened(tokens[start : start + tail.period], tokenizer)}] ..."
    return f"{shortened(tokens[:start], tokenizer)} {loop}".strip()


def shortened(tokens: Sequence[int], tokenizer: Any) -> str:
    left_out = len(tokens) - FIRST - LAST
    if left_out <= 0:
        return tokenizer.decode(tokens)
    return f"{tokenizer.decode(tokens[:FIRST])} ... ({left_out:,} tokens) ... {tokenizer.decode(tokens[-LAST:])}"
