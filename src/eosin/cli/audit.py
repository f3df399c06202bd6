"""eosin audit"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from eosin.auditing.audit import Audit, audit
from eosin.cli.subjects import Subject, add_subject_options, open_subject
from eosin.contracts import Decoder
from eosin.data.prompts import read_prompts
from eosin.data.sources import CONTEXTS
from eosin.decoding.loops import tail_of
from eosin.decoding.spec import parse_decoder
from eosin.errors import BadInput
from eosin.events import Event, Watch
from eosin.models.checkpoint import TWINS
from eosin.outcome import Completion
from eosin.proofs.saved_cycles import cycles_path
from eosin.records.record import Record, read_records
from eosin.records.signature import ALL
from eosin.report.audits import tabulate_decoders, tabulate_loops
from eosin.report.tables import render_text
from eosin.storage.files import resolve_path, write_text
from eosin.storage.json_lines import read_lines

DESCRIPTION = """MODEL is the directory of a trained run, or hf: and a model of Hugging Face. Records go to a file as
shards of contexts are finished; the same command again shows them, and goes on with what is missing. `demo` (a
tanh-RNN) and `demo-lstm` are small models that come with Eosin. Each is audited with its self-terminating twin.

examples:
  eosin audit demo
  eosin audit runs/lstm --decoders greedy,beam:4,nucleus:0.2,consistent-nucleus:0.2
  eosin audit runs/lstm --decoders greedy --contexts random --count 2000 --max-steps 500
  eosin audit runs/lstm --decoders nucleus:0.9 --fail-above 0.01
  eosin audit hf:my-model --prompts prompts.txt --decoders greedy,nucleus:0.9 --max-steps 500
  eosin audit runs/lstm --decoders ancestral,consistent-nucleus:0.9 --survival"""

PAPER = "ancestral,greedy,beam:2,beam:4,top-k:2,top-k:4,nucleus:0.2,nucleus:0.4"
DEMO, DEMO_COUNT = "ancestral,greedy,beam:2,stop=first,nucleus:0.2,consistent-nucleus:0.2", 300
"""What is audited of a model that comes with the package, unless the options say otherwise: seconds, not minutes."""


def add_options(verb: argparse.ArgumentParser) -> None:
    add_subject_options(verb)
    verb.add_argument(
        "--decoders", metavar="LIST", help=f"comma-separated specifications (default: {PAPER}; demo: {DEMO})"
    )
    verb.add_argument("--contexts", choices=CONTEXTS, default="test", help="where contexts come from (default: test)")
    verb.add_argument("--prompts", type=Path, metavar="FILE", help="contexts are the lines of a text file instead")
    verb.add_argument("--count", type=int, metavar="N", help=f"how many contexts (default: all; demo: {DEMO_COUNT})")
    verb.add_argument("--max-steps", type=int, default=1500, metavar="L", help="the paper's L (default: 1500)")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="decides every draw (default: 0)")
    verb.add_argument("--pool", type=int, metavar="N", help="rows decoded at a time (default: 1024; hf: models 64)")
    verb.add_argument("--out", type=Path, metavar="FILE", help="file of records (default: a name in audits/)")
    verb.add_argument(
        "--completions",
        type=Path,
        metavar="FILE",
        help="write every completion there, a JSON line each; of one proved infinite what was decoded, and its cycle",
    )
    verb.add_argument(
        "--no-proofs", action="store_true", help="run loops to the limit instead of proving that they never end"
    )
    verb.add_argument(
        "--survival",
        action="store_true",
        help="estimate the ratio along paths without eos instead of counting: for samplers, where it is small",
    )
    verb.add_argument("--fail-above", type=ratio, metavar="RATIO", help="exit with 1 if a ratio is above this")


FILES = ("out", "completions")


def ratio(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be a ratio from 0 to 1, as in 0.01; got {text!r}")
    return number


def run(options: argparse.Namespace) -> None:
    if options.count is not None and options.count < 1:
        raise BadInput(f"--count must be at least 1, got {options.count}")
    check_files(options)
    twins = TWINS.get(options.subject, (options.subject,))
    if options.decoders is None:
        options.decoders = DEMO if options.subject in TWINS else PAPER
    if options.count is None and options.subject in TWINS and options.prompts is None:
        options.count = DEMO_COUNT
    found = {name: audited(name, own(options, name) if len(twins) > 1 else options) for name in twins}
    if options.json:
        told = {name: summary(result) for name, (result, _) in found.items()}
        print(json.dumps(told if len(told) > 1 else told[twins[0]]))
    else:
        print(described(list(found.values())))
    ratios = [each["ratio"] for result, _ in found.values() for each in summary(result).values()]
    if options.fail_above is not None and max(ratios) > options.fail_above:
        sys.exit(1)


def own(options: argparse.Namespace, name: str) -> argparse.Namespace:
    """The options with files of its own for one of several runs."""
    files = {key: vars(options)[key] for key in FILES}
    renamed = {key: path and path.with_name(f"{path.stem}-{name}{path.suffix}") for key, path in files.items()}
    return argparse.Namespace(**{**vars(options), **renamed})


def check_files(options: argparse.Namespace) -> None:
    for key in FILES:
        path = vars(options)[key]
        if path is not None and (not path.name or (path.exists() and not path.is_file())):
            raise BadInput(f"--{key} names a file, as in {key}.jsonl; got {str(path)!r}, a folder or a device")


def audited(name: str, options: argparse.Namespace) -> tuple[Audit, Path | None]:
    """An audit of a model, and the file of its records; beside a bundled run none is made."""
    subject = open_subject(name, options)
    decoders = decoders_of(options.decoders)
    prefixes = prefixes_of(subject, options)
    out = options.out
    if out is None and subject.audits is not None:
        out = subject.audits / default_name(options, len(prefixes))
    written = [resolve_path(path) for path in (out, cycles_path(out))] if out else []
    if options.completions and resolve_path(options.completions) in written:
        raise BadInput(f"--completions and --out are one file, {options.completions}; name two")
    about = {**subject.describe(), "contexts_from": origin_of(options), "dtype": options.dtype}
    try:
        with watching(options, out, len(prefixes) * len(decoders), subject.tokenizer) as watch:
            return audit(
                subject.model,
                prefixes,
                decoders,
                max_steps=options.max_steps,
                seed=options.seed,
                pool=options.pool,
                proofs=not options.no_proofs,
                survival=options.survival,
                out=out,
                about=about,
                watch=watch,
                text_of=subject.tokenizer.decode,
                stop=subject.stop,
            ), out
    except KeyboardInterrupt:
        if out is None:
            raise
        raise KeyboardInterrupt(f"what is finished is in {out}; the same command goes on") from None


def prefixes_of(subject: Subject, options: argparse.Namespace) -> Any:
    if options.prompts is None:
        return subject.contexts(options.contexts, options.count, options.seed)
    return subject.prompts(read_prompts(options.prompts)[: options.count], options)


def origin_of(options: argparse.Namespace) -> str:
    """Where the contexts come from, in a word."""
    if options.prompts is None:
        return options.contexts
    return re.sub(r"[^\w.+]+", "_", options.prompts.stem) + ("_chat" if options.chat else "")


def default_name(options: argparse.Namespace, count: int) -> str:
    parts = [origin_of(options), count, options.max_steps, options.seed, options.dtype]
    how = ["survival"] * options.survival + ["no-proofs"] * (options.no_proofs and not options.survival)
    return "-".join(map(str, [*parts, *how])) + ".jsonl"


def described(found: list[tuple[Audit, Path | None]]) -> str:
    """For people: the table, the loops, and where all of it is."""
    records = [record for result, _ in found for record in result.by_decoder.values()]
    parts = [render_text(replace(tabulate_decoders(records), title=""))]
    if any(record.counts.loops for record in records):
        parts += ["", render_text(replace(tabulate_loops(records), title="loops"))]
    if not all(result.steady for result, _ in found):
        parts += ["", "the bits of this model depend on the batch: near-ties may fall otherwise with another --pool"]
    for out in (out for _, out in found if out):
        parts += ["", f"records: {out}"]
        if cycles_path(out).exists():
            parts += [f"certificates: {cycles_path(out)} (eosin certify --check)"]
    return "\n".join(parts)


def decoders_of(text: str) -> list[Decoder]:
    """Specifications parted by commas; a comma before `name=value` belongs to the specification."""
    return [parse_decoder(spec.strip()) for spec in re.split(r",(?!\s*[a-z]+=)", text) if spec.strip()]


@contextmanager
def watching(options: argparse.Namespace, out: Path | None, total: int, tokenizer: Any) -> Iterator[Watch]:
    """A progress bar, and a file of completions if one was asked for."""
    if options.completions:
        tell_missing(options.completions, out)
    bar = tqdm(total=total, desc="contexts", unit="", disable=None, delay=2, leave=False)
    file: IO[str] | None = None

    def watch(event: Event) -> None:
        nonlocal file
        if event.kind != "completion":
            return
        bar.update()
        if options.completions:
            # not before the first completion: by then nobody else is writing
            file = file or going_on(options.completions, out)
            file.write(json.dumps(shown(**event.facts, tokenizer=tokenizer), ensure_ascii=False) + "\n")

    try:
        yield watch
    finally:
        bar.close()
        if file:
            file.close()


def tell_missing(path: Path, records: Path | None) -> None:
    """Say how many completions will not be in the file, since they were counted before."""
    missing = len(counted(records)) - len(kept_completions(path, records))
    if missing > 0:
        sys.stderr.write(
            f"eosin audit: {missing:,} completions were counted before and are not in {path}; "
            "to have them all, name another file of records (--out)\n"
        )


def going_on(path: Path, records: Path | None) -> IO[str]:
    """The file of completions with those of finished shards, which are not decoded again; the others will come anew."""
    write_text(path, "".join(line + "\n" for line in kept_completions(path, records)))
    return path.open("a", encoding="utf-8", buffering=1)  # a line is there before its shard is recorded


def kept_completions(path: Path, records: Path | None) -> list[str]:
    finished = counted(records)
    lines = read_lines(path, "completions") if path.exists() else []
    return [line for line in lines if of_shard(line, path, finished)]


def counted(records: Path | None) -> set[tuple[str, int]]:
    """Decoder and number of every context that has been counted."""
    finished = list(read_records(records)) if records and records.exists() else []
    return {(record.signature.decoder, context) for record in finished for context in contexts_of(record)}


def contexts_of(record: Record) -> range:
    if record.signature.shard == ALL:
        return range(record.counts.contexts)
    first, last = map(int, record.signature.shard.split("-"))
    return range(first, last + 1)


def of_shard(line: str, path: Path, shards: set[tuple[str, int]]) -> bool:
    try:
        completion = json.loads(line)
        return (completion["decoder"], completion["context"]) in shards
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} is not a file of completions, and is left as it is: {error}") from error


def shown(completion: Completion, decoder: Decoder, tokenizer: Any) -> dict[str, Any]:
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


def summary(result: Audit) -> dict[str, dict[str, Any]]:
    """For machines."""
    found = {}
    for decoder, record in result.by_decoder.items():
        ratio = record.ratio
        found[decoder] = {
            "ratio": ratio.value,
            "interval": ratio.interval(),
            "contexts": record.counts.contexts,
            "causes": record.counts.causes,
            "tokens": record.counts.tokens,
            "loops": [{"tokens": tokens, **loop.to_table()} for tokens, loop in record.counts.loops.items()],
        }
    return found
