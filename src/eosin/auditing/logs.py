"""Logs of generations: why each ended, as far as the log says, and which of the others are loops.

A log is a file of JSON lines, or one JSON document, or an .eval file of Inspect. Its forms are in FORMS.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from eosin.causes import Cause
from eosin.data.prompts import check_object
from eosin.data.sources import decode_lines
from eosin.decoding.loops import find_tail, name_loop
from eosin.errors import BadInput
from eosin.records.statistics import Ratio
from eosin.report.tables import Column, Table, format_count
from eosin.storage.json_lines import MALFORMED

LOG = "log:"
"""Stands before the name of a file with generations."""
UNIT = re.compile(r" ?\w{1,8}|(\W)\1{0,7}")
"""About a token of a text: up to eight characters of a word, or the same sign up to eight times."""
REASONS = {
    **dict.fromkeys(("stop", "end_turn", "tool_calls", "tool_use", "function_call"), Cause.STOPPED),
    **dict.fromkeys(("eos", "eos_token"), Cause.EOS),
    **dict.fromkeys(("stop_sequence", "stop_string"), Cause.STOP),
    **dict.fromkeys(("length", "max_tokens", "model_length"), Cause.LIMIT),
    **dict.fromkeys(("content_filter", "refusal"), Cause.FILTER),
    "repetition": Cause.LOOPING,
}
"""What servers and harnesses call the reason for which a generation ended. All others are unknown."""
TEXT_FIELDS = ("completion", "generated_text", "generation", "output", "response", "answer", "prediction", "text")
LOOPS = (Cause.LOOPING, Cause.TEMPLATED, Cause.PROVED)
NOT_ENDED = (*LOOPS, Cause.LIMIT)
MOST_LOOPS, LONGEST_END = 10, 60
"""Loops that are shown, and characters of the end of each."""


@dataclass(frozen=True)
class Generation:
    """One generation of a log."""

    text: str
    cause: Cause
    tokens: list[int] | None = None
    model: str = ""
    """What made it, if the log says so."""

    @property
    def units(self) -> Int[np.ndarray, " length"]:
        """The tokens, or numbers for the units of the text but the last, which the limit may have cut."""
        if self.tokens is not None:
            return np.array(self.tokens, dtype=np.int64)
        numbers: dict[str, int] = {}
        units = [found[0] for found in UNIT.finditer(self.text)][:-1]
        return np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.int64)


# forms: each takes an object of the log, and gives its generations


def read_own(table: dict[str, Any]) -> Iterator[Generation]:
    """A completion of `eosin audit` or `eosin decode`."""
    yield Generation(table["text"], Cause(table["cause"]), table["tokens"], table.get("decoder", ""))


def read_response(table: dict[str, Any]) -> Iterator[Generation]:
    """A response of an OpenAI-compatible server."""
    for choice in table["choices"]:
        message = choice.get("message")
        text = choice["text"] if message is None else join_message(message)
        yield Generation(text, read_reason(choice), model=table.get("model") or "")


def read_reason(choice: dict[str, Any]) -> Cause:
    """Only vLLM says what stopped it: null or a number is eos, and a text a stop string."""
    cause = REASONS.get(choice.get("finish_reason") or choice.get("stop_reason") or "", Cause.UNKNOWN)
    if choice.get("finish_reason") != "stop" or "stop_reason" not in choice:
        return cause
    return Cause.STOP if isinstance(choice["stop_reason"], str) else Cause.EOS


def join_message(message: dict[str, Any]) -> str:
    """What was written, thoughts first."""
    content = message.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    said = [part.get("reasoning") or part.get("text") or "" for part in parts]
    return "".join([message.get("reasoning_content") or "", *said])


def read_batch(table: dict[str, Any]) -> Iterator[Generation]:
    """A line of the output of a batch."""
    return read_response(table["response"]["body"])


def read_lm_eval(table: dict[str, Any]) -> Iterator[Generation]:
    """A sample of lm-evaluation-harness, which keeps no reason; a likelihood has no text."""
    texts = (text for answers in table["resps"] for text in answers)
    return (Generation(text, Cause.UNKNOWN) for text in texts if isinstance(text, str))


def read_inspect_sample(table: dict[str, Any]) -> Iterator[Generation]:
    return read_response(table["output"])


def read_inspect(table: dict[str, Any]) -> Iterator[Generation]:
    """A log of Inspect, as one document."""
    return (generation for sample in table["samples"] for generation in read_inspect_sample(sample))


FORMS: dict[str, Callable[[dict[str, Any]], Iterator[Generation]]] = {
    "cycle": read_own,
    "choices": read_response,
    "response.body": read_batch,
    "resps": read_lm_eval,
    "samples": read_inspect,
    "output.choices": read_inspect_sample,
}
"""By a field that tells a form from others."""


def find_field(value: Any, path: str) -> Any:
    """The value under names and places, as in `a.b.0`; None if there is none."""
    for name in path.split("."):
        if isinstance(value, list) and name.isdecimal():
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def read_object(table: dict[str, Any], field: str | None) -> list[Generation]:
    form = next((form for form in FORMS if find_field(table, form) is not None), None)
    if form is None and "cycle" in table:  # null in a completion without a proof
        form = "cycle"
    if field is None and form is not None:
        return list(FORMS[form](table))
    known = next((name for name in TEXT_FIELDS if isinstance(table.get(name), str)), None)
    text = find_field(table, field or known or "")
    if not isinstance(text, str):
        raise ValueError(f"no text is under {field or 'a known name'}; --field names the field with the text")
    return [Generation(text, read_reason(table))]


def read_log(path: Path, field: str | None = None) -> Iterator[tuple[int, Generation]]:
    """The generations of a log, each with the number of its line or document; `field` names the text, as in `a.b.0`."""
    count = 0
    for number, text in read_documents(path):
        try:
            parsed = json.loads(text)
            tables = list(map(check_object, parsed if isinstance(parsed, list) else [parsed]))
            found = [generation for table in tables for generation in read_object(table, field)]
        except (*MALFORMED, AttributeError, IndexError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else error
            raise BadInput(f"line {number} of {path} holds no generation: {said}") from error
        count += len(found)
        yield from ((number, generation) for generation in found)
    if not count:
        raise BadInput(f"{path} has no texts: it is empty, or a log of likelihoods")


def read_documents(path: Path) -> Iterator[tuple[int, str]]:
    """Each JSON document of a log: lines, one document over many lines, or the samples of an .eval file."""
    if path.suffix == ".eval":
        yield from read_archive(path)
        return
    lines = ((number, line) for number, line in enumerate(decode_lines(path), 1) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    if first[1].strip() in ("{", "["):
        yield first[0], "".join([first[1], *(line for _, line in lines)])
        return
    yield first
    yield from lines


def read_archive(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.startswith("samples/")]
            yield from ((number, archive.read(name).decode()) for number, name in enumerate(names, 1))
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); write it as JSON: inspect log convert --to json") from error


# counting


@dataclass(frozen=True)
class LoopSeen:
    """A generation that ends in a loop."""

    line: int
    label: str
    period: int | None
    """Tokens of a turn, or about so many; None if phrases repeat in changing order."""
    text: str
    """Its end."""


@dataclass(frozen=True)
class LogAudit:
    """How the generations of a log ended."""

    causes: dict[str, Counter[str]]
    """By model. A cause that is unknown may be followed by the kind of loop."""
    loops: list[LoopSeen]
    """Some of those that end in a loop."""


def audit_log(path: Path, field: str | None = None) -> LogAudit:
    causes: dict[str, Counter[str]] = defaultdict(Counter)
    loops: list[LoopSeen] = []
    for line, generation in read_log(path, field):
        label = label_generation(generation)
        causes[generation.model][label] += 1
        if label.endswith(LOOPS) and len(loops) < MOST_LOOPS:
            tail = find_tail(generation.units)
            loops.append(LoopSeen(line, label, None if tail is None else tail.period, generation.text[-LONGEST_END:]))
    return LogAudit(causes, loops)


def label_generation(generation: Generation) -> str:
    """The cause, and for what met the limit or has no known cause, the kind of loop in which it ends."""
    cause = generation.cause
    loop = name_loop(generation.units) if cause in (Cause.LIMIT, Cause.UNKNOWN) else None
    if loop is None:
        return str(cause)
    return str(loop) if cause is Cause.LIMIT else f"{cause}, {loop}"


def measure_unended(causes: Counter[str]) -> Ratio | None:
    """The share that did not end, of those that no filter cut; None if the log does not say how each of them ended."""
    uncut = causes.total() - causes[Cause.FILTER]
    if not uncut or any(label.startswith(Cause.UNKNOWN) for label in causes):
        return None
    return Ratio(sum(count for label, count in causes.items() if label in NOT_ENDED), uncut)


def measure_looping(causes: Counter[str]) -> Ratio:
    """The share that ends in a loop, among what met the limit or has no known cause."""
    return Ratio(sum(count for label, count in causes.items() if label.endswith(LOOPS)), causes.total())


def tabulate_log(audit: LogAudit) -> Table:
    """A row for each model."""
    labels = {label for causes in audit.causes.values() for label in causes}
    names = sorted(labels, key=lambda label: ([*Cause].index(Cause(label.partition(",")[0])), label))
    columns = [Column(name, format_count) for name in ("generations", *names)]
    rows = []
    for model, causes in audit.causes.items():
        shares = [format_share(measure_unended(causes)), format_share(measure_looping(causes))]
        rows.append((model or None, *shares, causes.total(), *(causes[name] for name in names)))
    head = [Column("made by", left=True), Column("not ended (%)"), Column("in a loop (%)")]
    return Table((*head, *columns), tuple(rows))


def format_share(share: Ratio | None) -> str | None:
    """In percent, with its 95% interval."""
    if share is None:
        return None
    low, high = share.interval()
    return f"{100 * share.value:.2f} ({100 * low:.2f} to {100 * high:.2f})"


def tabulate_log_loops(audit: LogAudit) -> Table:
    columns = (
        Column("line", format_count),
        Column("kind", left=True),
        Column("period"),
        Column("ends with", left=True),
    )
    rows = tuple((seen.line, seen.label, seen.period, seen.text) for seen in audit.loops)
    return Table(columns, rows, title="loops; a period is counted in tokens, or in words and signs")
