"""Completions as JSON lines and for people, and the file of those that an audit made."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from eosin.causes import Cause
from eosin.contracts import Decoder
from eosin.decoding.loops import Tail, tail_of
from eosin.errors import BadInput
from eosin.events import Event, Watch, ignore
from eosin.outcome import Completion, Proof
from eosin.records.record import Record, read_records
from eosin.records.signature import ALL
from eosin.storage.json_lines import read_lines, write_lines


def completion_to_table(completion: Completion, decoder: Decoder, tokenizer: Any) -> dict[str, Any]:
    """A completion for machines."""
    tokens = completion.tokens.tolist()
    tail = tail_of(completion)
    return {
        "decoder": str(decoder),
        "context": completion.index,
        "cause": completion.cause,
        "steps": completion.steps,
        "log_prob": completion.log_prob,
        "cycle": None if completion.proof is None else completion.proof.cycle,
        "loop": None if tail is None else {**vars(tail), "before": tokenizer.decode(tokens[: tail.onset - 1])},
        "text": tokenizer.decode(tokens),
        "tokens": tokens,
    }


def parse_completion(line: str) -> Completion:
    """A completion from its line; how a cycle was proved is not on it."""
    table = json.loads(line)
    proof = None if table["cycle"] is None else Proof(tuple(table["cycle"]), by="")
    tokens = torch.tensor(table["tokens"], dtype=torch.int64, device="cpu")
    return Completion(table["context"], tokens, Cause(table["cause"]), table["steps"], table["log_prob"], proof)


MOST_KEPT = 50
"""Contexts of which an audit keeps the completions, and completions that did not end of each decoder."""


class Examples:
    """Chooses the completions of the first contexts, and of each decoder the first that did not end."""

    def __init__(self) -> None:
        self.unended: Counter[str] = Counter()

    def __call__(self, completion: Completion, decoder: Decoder) -> bool:
        self.unended[str(decoder)] += not completion.cause.ends
        is_early = completion.index < MOST_KEPT
        return is_early or (not completion.cause.ends and self.unended[str(decoder)] <= MOST_KEPT)


def describe_loop(tail: Tail, proof: Proof | None) -> str:
    known = "seen, not proved" if proof is None else f"proved infinite: {proof.by}"
    return f"repeats from step {tail.onset:,} with period {tail.period} ({known})"


@contextmanager
def write_completions(
    path: Path | None,
    records: Path | None,
    tokenizer: Any,
    describe: Callable[[int], dict[str, str]],
    is_chosen: Callable[[Completion, Decoder], bool] | None = None,
) -> Iterator[Watch]:
    """A watch that appends each completion to a file, or each that is chosen; `describe` names model and prefix.

    Completions of finished shards, which are not decoded again, stay in the file; all others will come again.
    """
    if path is None:
        yield ignore
        return
    counted = list_counted(records)
    missing = 0 if is_chosen else len(counted) - len(read_completions(path, counted))
    if missing > 0:
        sys.stderr.write(
            f"eosin audit: {missing:,} completions were counted before and are not in {path}; "
            "to have them all, name another file of records (--out)\n"
        )
    file: IO[str] | None = None

    def watch(event: Event) -> None:
        nonlocal file
        if event.kind != "completion":
            return
        completion, decoder = event.facts["completion"], event.facts["decoder"]
        if is_chosen and not is_chosen(completion, decoder):
            return
        if file is None:  # not before the first completion: until then another audit may be writing
            write_lines(path, read_completions(path, list_counted(records)))
            file = path.open("a", encoding="utf-8", buffering=1)  # a line is there before its shard is recorded
        table = {**describe(completion.index), **completion_to_table(completion, decoder, tokenizer)}
        file.write(json.dumps(table, ensure_ascii=False) + "\n")

    try:
        yield watch
    finally:
        if file:
            file.close()


def read_completions(path: Path, contexts: set[tuple[str, int]]) -> list[str]:
    """The lines of a file that are completions of these contexts."""
    lines = read_lines(path, "completions") if path.exists() else ()
    return [line for line in lines if is_completion_of(line, path, contexts)]


def list_counted(records: Path | None) -> set[tuple[str, int]]:
    """Decoder and number of each context that has been counted."""
    finished = list(read_records(records)) if records and records.exists() else []
    return {(record.signature.decoder, context) for record in finished for context in list_contexts(record)}


def list_contexts(record: Record) -> range:
    if record.signature.shard == ALL:
        return range(record.counts.contexts)
    first, last = map(int, record.signature.shard.split("-"))
    return range(first, last + 1)


def is_completion_of(line: str, path: Path, contexts: set[tuple[str, int]]) -> bool:
    """Whether a line is the completion of one of these contexts."""
    try:
        completion = json.loads(line)
        return (completion["decoder"], completion["context"]) in contexts
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} is not a file of completions, and is left as it is: {error}") from error
