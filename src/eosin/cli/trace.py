"""eosin trace"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

import eosin
from eosin.bundled_runs import TWINS
from eosin.cli.completions import describe_loop
from eosin.cli.model import (
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
from eosin.decoding.job import Job
from eosin.decoding.loops import Tail, extend, find_loop
from eosin.decoding.trace import Step, Trace
from eosin.report.tables import Column, Table, render_text, shorten

DESCRIPTION = """MODEL is the directory of a trained run, hf: and a model of Hugging Face, or py:FILE:FUNCTION. One
context is decoded. Each step is a line: the chosen token, its probability, the probability of eos and its rank (1 is
the most probable token), how many tokens the decoder could choose from, and whether eos was among them.
Probabilities are the model's, before temperature and truncation. A beam search of width k chooses from the k most
probable tokens of its hypothesis. `demo` is a small model that comes with Eosin, `demo-st` its self-terminating
twin.

examples:
  eosin trace demo
  eosin trace demo-st
  eosin trace runs/lstm --decoder nucleus:0.2
  eosin trace runs/lstm --decoder top-k:4 --context 17 --contexts valid --seed 3
  eosin trace runs/lstm --prompt "The city was founded in" --last 30
  eosin trace hf:my-model --prompt "The city was founded in" --decoder nucleus:0.9 --max-steps 200"""

EDGE = 20
"""Steps that are shown at the beginning and at the end of a long trace."""
DEMO_CONTEXT = 3
"""A context on which greedy decoding of the bundled demo loops, and that of its self-terminating twin ends."""
WIDEST = 24
"""Characters of a token that are shown."""
COLUMNS = (
    Column("step"),
    Column("token", left=True),
    Column("p(token)"),
    Column("p(eos)"),
    Column("rank"),
    Column("kept"),
    Column("eos", left=True),
    Column("removed by", left=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_decoding_options(parser, "context", "prompt")
    add_decoder_option(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--last", type=whole_number(1), metavar="N", help="show the last N steps only")
    length.add_argument("--all", action="store_true", help=f"show all steps (default: the first and last {EDGE})")


def run(options: argparse.Namespace) -> None:
    if options.context is None and options.prompt is None:
        options.context = DEMO_CONTEXT if options.model in TWINS["demo"] else 0
    decoder = parse_one_decoder(options.decoder)
    loaded = open_model(options.model, options)
    decoder.check(loaded.model.vocab_size)
    prefixes = choose_prefixes(loaded, options, None)
    how: dict[str, Any] = {"max_steps": options.max_steps, "seed": options.seed, "stop": loaded.stop}
    job = Job.create(loaded.model, prefixes, **how)
    with count_events("step", 2 * options.max_steps) as watch:  # the context is decoded, and then replayed
        found = eosin.trace(
            loaded.model,
            prefixes[0],
            decoder,
            **how,
            index=options.context or 0,
            prove=create_prover(job, decoder, options),
            watch=watch,
        )
    tail = None if found.cause.ends else find_loop(np.array(found.tokens), found.proof)
    prefix_text = loaded.decode_prefix(found.prefix)
    if options.json:
        print(json.dumps(to_json(found, tail, prefix_text, loaded.tokenizer)))
        return
    print(f"prefix: {escape_for_terminal(prefix_text)}\ndecoder: {found.decoder}\n")
    print("\n".join(format_steps(found, loaded.tokenizer, options)))
    print("\n" + "\n".join(describe_trace(found, tail, loaded.tokenizer)))


def to_json(found: Trace, tail: Tail | None, prefix_text: str, tokenizer: Any) -> dict[str, Any]:
    """For machines."""
    table = found.as_json()
    for step in table["steps"]:
        step["text"] = tokenizer.spell(step["token"])
    return {**table, "prefix_text": prefix_text, "loop": None if tail is None else vars(tail)}


def format_steps(found: Trace, tokenizer: Any, options: argparse.Namespace) -> list[str]:
    first, last = count_shown_steps(len(found.steps), options)
    left_out = len(found.steps) - first - last
    steps = (*found.steps[:first], *found.steps[first + left_out :])
    lines = render_text(Table(COLUMNS, tuple(format_cells(step, tokenizer) for step in steps))).splitlines()
    if left_out:
        lines.insert(first + 1, f"... {left_out:,} steps ... (--all shows them)")
    return lines


def count_shown_steps(steps: int, options: argparse.Namespace) -> tuple[int, int]:
    """How many steps to show from the beginning and from the end."""
    if options.last is not None:
        return 0, min(steps, options.last)
    return (steps, 0) if options.all or steps <= 2 * EDGE else (EDGE, EDGE)


def format_cells(step: Step, tokenizer: Any) -> tuple[str, ...]:
    return (
        str(step.number),
        shorten(escape_for_terminal(tokenizer.spell(step.token)), WIDEST),
        f"{step.prob:.4g}",
        f"{step.eos_prob:.4g}",
        f"{step.eos_rank:,}",
        f"{step.kept:,}",
        "kept" if step.eos_kept else "removed",
        step.removed_by or "",
    )


def describe_trace(found: Trace, tail: Tail | None, tokenizer: Any) -> Iterator[str]:
    """Whether it ended, what became of eos on the way, and whether the end repeats itself."""
    removers = Counter(step.removed_by for step in found.steps)
    kept = removers.pop(None, 0)
    removed = "".join(f", removed by {rule} in {count:,}" for rule, count in removers.items())
    best = min(found.steps, key=lambda step: (step.eos_rank, -step.eos_prob))
    yield f"{describe_outcome(found)}: eos was kept in {kept:,} of {len(found.steps):,} steps{removed}"
    yield f"best rank of eos: {best.eos_rank:,}, at step {best.number:,} with p(eos) = {best.eos_prob:.4g}"
    if tail is not None:
        tokens = extend(np.array(found.tokens), found.proof).tolist()
        loop = tokenizer.decode(tokens[tail.onset - 1 : tail.onset - 1 + tail.period])
        yield f"{describe_loop(tail, found.proof)}: {escape_for_terminal(loop)}"


def describe_outcome(found: Trace) -> str:
    length = len(found.steps)
    if found.cause.ends:
        later = f" (the search ended at step {found.last_step:,})" if found.last_step > length else ""
        return f"ended with {found.cause} at step {length:,}{later}"
    if found.proof is not None:
        return f"never ends, as was proved at step {found.last_step:,}"
    better = f"; the best finished hypothesis has {length:,}" if length < found.last_step else ""
    return f"did not end in {found.last_step:,} steps ({found.cause}){better}"
