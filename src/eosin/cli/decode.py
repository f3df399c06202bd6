"""eosin decode"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eosin.bundled_runs import TWINS
from eosin.cli.completions import completion_to_table, describe_loop
from eosin.cli.model import (
    LoadedModel,
    add_decoder_option,
    add_decoding_options,
    choose_prefixes,
    create_prover,
    open_model,
    parse_one_decoder,
)
from eosin.cli.numbers import whole_number
from eosin.cli.progress import count_events
from eosin.cli.terminal import escape_for_terminal
from eosin.contracts import Decoder
from eosin.decoding.decode import complete
from eosin.decoding.job import Job
from eosin.decoding.loops import extend, tail_of
from eosin.errors import BadInput
from eosin.outcome import Completion
from eosin.storage.json_lines import write_lines

DESCRIPTION = """MODEL is the directory of a trained run, hf: and a model of Hugging Face, or py:FILE:FUNCTION. For
a run, a prompt becomes a context like those of the corpus: <bos> and its last k tokens. A loop is shown once, in
brackets. Decoding stops as soon as a loop is proved never to end. `demo` and `demo-lstm` are small models that come
with Eosin; each is followed by its self-terminating twin on the same contexts.

examples:
  eosin decode demo
  eosin decode runs/lstm --decoder nucleus:0.4 --count 10
  eosin decode runs/lstm --decoder nucleus:0.4 --context 17
  eosin decode runs/lstm --prompt "The city was founded in" --decoder beam:4
  eosin decode runs/lstm --prompts mine.txt --decoder ancestral --seed 3 --out completions.jsonl
  eosin decode hf:my-model --prompts mine.txt --chat --max-steps 500"""

COUNT = 5
FIRST, LAST = 60, 20
"""Tokens that are shown of a long completion."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_decoding_options(parser, "context", "prompt", "prompts")
    add_decoder_option(parser)
    add("--count", type=whole_number(1), metavar="N", help=f"how many contexts (default: {COUNT}) or prompts (all)")
    add("--full", action="store_true", help="show every token of every completion")
    add("--out", type=Path, metavar="FILE", help="write completions there, one JSON line each")


def run(options: argparse.Namespace) -> None:
    if options.out is not None and (options.out.is_dir() or not options.out.parent.is_dir()):
        raise BadInput(f"{options.out} cannot be written: name a file in a folder that is there")
    if options.count is not None and (options.prompt is not None or options.context is not None):
        raise BadInput("--count is for contexts of the corpus and for --prompts; leave it out")
    if options.json or options.out is not None:
        write_json(decode_model(options.model, options), options)
        return
    names = TWINS.get(options.model, (options.model,))
    for name in names:
        decoding = decode_model(name, options)
        if len(names) > 1:
            print(f"{name}\n")
        for completion in decoding.completions:
            print("\n".join(format_completion(completion, decoding, options.full)))
    if len(names) > 1:
        print(f"`eosin audit {options.model}` counts how often decoding does not end")


@dataclass(frozen=True)
class Decoding:
    """What a decoder made of the contexts of one model."""

    loaded: LoadedModel
    decoder: Decoder
    prefixes: dict[int, list[int]]
    """By the number of the context."""
    completions: list[Completion]
    """In the order of the contexts."""


def decode_model(name: str, options: argparse.Namespace) -> Decoding:
    decoder = parse_one_decoder(options.decoder)
    loaded = open_model(name, options)
    in_corpus = options.prompt is None and options.prompts is None
    prefixes = choose_prefixes(loaded, options, COUNT if options.count is None and in_corpus else options.count)
    numbers = None if options.context is None else [options.context]
    how: dict[str, Any] = {"max_steps": options.max_steps, "seed": options.seed, "stop": loaded.stop}
    job = Job.create(loaded.model, prefixes, indices=numbers, **how)
    job.check_decoder(decoder)
    pools = math.ceil(len(job.contexts) * decoder.rows_per_context / job.pool)
    with count_events("step", pools * job.max_steps) as watch:
        completions = list(complete(job, decoder, watch=watch, prove=create_prover(job, decoder, options)))
    return Decoding(
        loaded=loaded,
        decoder=decoder,
        prefixes={context.index: context.prefix.tolist() for context in job.contexts},
        completions=sorted(completions, key=lambda completion: completion.index),
    )


def write_json(decoding: Decoding, options: argparse.Namespace) -> None:
    """For machines: a JSON line for each completion."""
    lines = [json.dumps(to_json(completion, decoding)) for completion in decoding.completions]
    if options.out is not None:
        write_lines(options.out, lines)
    if options.json:
        print("\n".join(lines))
    else:
        ended = sum(each.terminated for each in decoding.completions)
        print(f"{ended:,} of {len(lines):,} completions ended; all of them: {options.out}")


def to_json(completion: Completion, decoding: Decoding) -> dict[str, Any]:
    prefix = decoding.prefixes[completion.index]
    table = completion_to_table(completion, decoding.decoder, decoding.loaded.tokenizer)
    return table | {"prefix": decoding.loaded.decode_prefix(prefix), "prefix_tokens": prefix}


def format_completion(completion: Completion, decoding: Decoding, full: bool) -> Iterator[str]:
    """For people: the context, how it continues, and how that ended."""
    tokenizer = decoding.loaded.tokenizer
    text = tokenizer.decode(completion.tokens.tolist()) if full else abridge(completion, tokenizer)
    tail = tail_of(completion)
    loop = "" if tail is None else f"; {describe_loop(tail, completion.proof)}"
    prefix = decoding.loaded.decode_prefix(decoding.prefixes[completion.index])
    yield f"[{completion.index}] {escape_for_terminal(prefix)}"
    yield f"    {escape_for_terminal(text)}"
    yield f"    {completion.cause} at step {completion.steps}, log-probability {completion.log_prob:.2f}{loop}\n"


def abridge(completion: Completion, tokenizer: Any) -> str:
    """The beginning and the end of a long completion; a loop once, in brackets."""
    tail = tail_of(completion)
    if tail is None:
        return shorten_tokens(completion.tokens.tolist(), tokenizer)
    tokens = extend(completion.tokens.numpy(), completion.proof).tolist()
    start = tail.onset - 1
    loop = f"[{shorten_tokens(tokens[start : start + tail.period], tokenizer)}] ..."
    return f"{shorten_tokens(tokens[:start], tokenizer)} {loop}".strip()


def shorten_tokens(tokens: Sequence[int], tokenizer: Any) -> str:
    left_out = len(tokens) - FIRST - LAST
    if left_out <= 0:
        return tokenizer.decode(tokens)
    return f"{tokenizer.decode(tokens[:FIRST])} ... ({left_out:,} tokens) ... {tokenizer.decode(tokens[-LAST:])}"
