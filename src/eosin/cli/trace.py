"""eosin trace"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from eosin.cli.contexts import Opened, add_decoding_options, numbered_context, opened
from eosin.cli.progress import watched
from eosin.cli.terminal import printable
from eosin.data.sources import CONTEXTS
from eosin.decoding.loops import Tail, repeating_tail
from eosin.decoding.trace import Step, Trace, trace
from eosin.errors import BadInput
from eosin.models.checkpoint import TWINS
from eosin.report.tables import Column, Table, render_text

DESCRIPTION = """MODEL is the directory of a trained run, or hf: and a model of Hugging Face. One context is decoded;
for each step there is a line with the chosen token, its probability, the probability of eos and its rank (1 is the
most probable token), how many tokens the decoder could choose from, and whether eos was among them. Probabilities are
the model's, before temperature and truncation. A beam search chooses from the most probable tokens of its hypothesis,
as many as it is wide. `demo` is a small model that comes with Eosin, `demo-st` its self-terminating twin.

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
"""Letters of a token that are shown."""
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


def add_options(verb: argparse.ArgumentParser) -> None:
    add_decoding_options(verb)
    source = verb.add_mutually_exclusive_group()
    source.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"its number, counted from 0 as in audits (default: 0; demo: {DEMO_CONTEXT})",
    )
    source.add_argument("--prompt", metavar="TEXT", help="continue this text")
    verb.add_argument("--contexts", choices=CONTEXTS, help="where the context comes from (default: test)")
    length = verb.add_mutually_exclusive_group()
    length.add_argument("--last", type=int, metavar="N", help="show the last N steps only")
    length.add_argument("--all", action="store_true", help=f"show all steps (default: the first and last {EDGE})")


def run(options: argparse.Namespace) -> None:
    if options.last is not None and options.last < 1:
        raise BadInput(f"--last must be at least 1, got {options.last}")
    if options.context is None and options.prompt is None:
        options.context = DEMO_CONTEXT if options.subject in TWINS["demo"] else 0
    opened_run = opened(options)
    found = traced(options, opened_run, prefix_of(options, opened_run))
    tail = repeating_tail(np.array(found.tokens))
    if options.json:
        print(json.dumps(described(found, tail, opened_run.subject.tokenizer)))
        return
    print(f"prefix: {printable(opened_run.subject.tokenizer.decode(found.prefix))}\ndecoder: {found.decoder}\n")
    print("\n".join(table(found, opened_run.subject.tokenizer, options)))
    print("\n" + "\n".join(verdict(found, tail, opened_run.subject.tokenizer)))


def prefix_of(options: argparse.Namespace, opened_run: Opened) -> Any:
    """One row."""
    if options.prompt is None:
        return numbered_context(opened_run.subject, options.contexts or "test", options.context or 0, options.seed)
    if options.contexts is not None:
        raise BadInput("--contexts names a split to take a context from; with --prompt there is none to take")
    return opened_run.subject.prompts([options.prompt], options)


def traced(options: argparse.Namespace, opened_run: Opened, prefix: Any) -> Trace:
    """Decoding and replaying take up to max_steps steps of the model each."""
    with watched(opened_run.subject.model, 2 * options.max_steps) as model:
        return trace(
            model,
            prefix[0],
            opened_run.decoder,
            max_steps=options.max_steps,
            seed=options.seed,
            index=options.context or 0,
            stop=opened_run.subject.stop,
        )


def described(found: Trace, tail: Tail | None, tokenizer: Any) -> dict[str, Any]:
    """For machines."""
    written = found.as_json()
    for step in written["steps"]:
        step["text"] = tokenizer.spelling(step["token"])
    prefix_text = tokenizer.decode(found.prefix)
    return {**written, "prefix_text": prefix_text, "loop": None if tail is None else vars(tail)}


def table(found: Trace, tokenizer: Any, options: argparse.Namespace) -> list[str]:
    first, last = shares(len(found.steps), options)
    left_out = len(found.steps) - first - last
    steps = (*found.steps[:first], *found.steps[first + left_out :])
    lines = render_text(Table(COLUMNS, tuple(cells(step, tokenizer) for step in steps))).splitlines()
    if left_out:
        lines.insert(first + 1, f"... {left_out:,} steps ... (--all shows them)")
    return lines


def shares(steps: int, options: argparse.Namespace) -> tuple[int, int]:
    """How many steps to show from the beginning and from the end."""
    if options.last is not None:
        return 0, min(steps, options.last)
    return (steps, 0) if options.all or steps <= 2 * EDGE else (EDGE, EDGE)


def cells(step: Step, tokenizer: Any) -> tuple[str, ...]:
    text = printable(tokenizer.spelling(step.token))
    return (
        str(step.number),
        text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}...",
        f"{step.prob:.4g}",
        f"{step.eos_prob:.4g}",
        f"{step.eos_rank:,}",
        f"{step.kept:,}",
        "kept" if step.eos_kept else "removed",
        step.removed_by or "",
    )


def verdict(found: Trace, tail: Tail | None, tokenizer: Any) -> Iterator[str]:
    """Whether it ended, what became of eos on the way, and whether the end repeats itself."""
    shown, removers = len(found.steps), Counter(step.removed_by for step in found.steps)
    kept = removers.pop(None, 0)
    removed = "".join(f", removed by {rule} in {count:,}" for rule, count in removers.items())
    best = min(found.steps, key=lambda step: (step.eos_rank, -step.eos_prob))
    yield f"{outcome(found)}: eos was kept in {kept:,} of {shown:,} steps{removed}"
    yield f"best rank of eos: {best.eos_rank:,}, at step {best.number:,} with p(eos) = {best.eos_prob:.4g}"
    if tail is not None:
        loop = tokenizer.decode(found.tokens[tail.onset - 1 : tail.onset - 1 + tail.period])
        yield f"repeats from step {tail.onset:,} with period {tail.period} (seen, not proved): {printable(loop)}"


def outcome(found: Trace) -> str:
    length = len(found.steps)
    if found.cause.ends:
        later = f" (the search ended at step {found.last_step:,})" if found.last_step > length else ""
        return f"ended with {found.cause} at step {length:,}{later}"
    better = f"; the best finished hypothesis has {length:,}" if length < found.last_step else ""
    return f"did not end in {found.last_step:,} steps ({found.cause}){better}"
