"""Do the pieces of a plan: prepare, train, audit, trace. A piece that was killed resumes the next time."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import to_builtins
from torch import Tensor
from tqdm import tqdm

import eosin
from eosin.auditing.audit import audit
from eosin.auditing.shards import choose_share
from eosin.bundled_runs import BUNDLED_RUNS
from eosin.causes import Cause
from eosin.contracts import Generative, LanguageModel, Movable, Traceable
from eosin.data.corpus import Corpus
from eosin.data.sources import SPLITS
from eosin.data.tokenizer import Tokenizer
from eosin.decoding.decode import complete
from eosin.decoding.floor import Floor
from eosin.decoding.job import Job, Prefixes
from eosin.decoding.loop import unroll
from eosin.decoding.loops import Tail, tail_of
from eosin.decoding.spec import parse_decoder
from eosin.decoding.trace import Replay, Step
from eosin.devices import choose_device, choose_precision, device_of, eval_mode, use_threads
from eosin.errors import BadInput
from eosin.events import Event, Watch, ignore
from eosin.loading import open_run, parse_settings
from eosin.models.checkpoint import WEIGHTS
from eosin.outcome import Completion
from eosin.own_models import encode_text, open_own_model
from eosin.paper.exhibits import find_model
from eosin.paper.plan import (
    AuditPublished,
    AuditRun,
    Changes,
    MeasureBundled,
    Piece,
    Plan,
    PrepareCorpus,
    TraceExamples,
    TrainRun,
)
from eosin.paper.results import Machine, Results, read_finished_records
from eosin.processor import find_processor
from eosin.published import read_sequences
from eosin.records.record import Record, read_records
from eosin.report.traces import Example, ExampleLoop, ExampleStep
from eosin.storage.files import hash_files
from eosin.storage.json_lines import append_lines, read_lines, write_lines
from eosin.storage.tensors import load_tensors
from eosin.training.config import merge_settings, read_settings
from eosin.training.evaluation import evaluate
from eosin.training.log import LOG
from eosin.training.loop import train
from eosin.training.run import RESUME, Run, RunSettings

TRACED_STEPS, TRACED_TURNS = 60, 3
"""A completion that does not end is traced to this step of its loop, and at least for so many turns of it."""
EntryFields = dict[str, Any]


@dataclass
class Runner:
    """Does pieces of work, one after the other."""

    results: Results
    runs: Path
    """The folder of trained runs and corpora."""
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    watch: Watch = ignore
    """Gets the events of trainings, perplexities and audits; raises `Stopped` to end the work."""
    as_is: bool = False
    """Train nothing; skip runs that are not finished."""
    bundled: frozenset[str] = frozenset()
    """The names of bundled runs."""

    def do(self, piece: Piece) -> EntryFields | None:
        """Do a piece. Returns its outcome, to be added to the results; None if it is skipped."""
        before, started = self.results.entries.get(piece.name), time.monotonic()
        outcome = WORK[type(piece)](self, piece)
        if outcome is None:
            return None
        seconds = time.monotonic() - started + (before.seconds if before and before.key == piece.key else 0.0)
        seconds = outcome.pop("seconds", seconds)
        measured = {"seconds": round(seconds, 1), "machine": to_builtins(describe_machine())}
        return {**outcome, **measured}

    def find_folder(self, run: str) -> Path:
        return BUNDLED_RUNS / run if run in self.bundled else self.runs / run

    def open_run(self, name: str) -> Run:
        """A finished run, if its weights are those that the results are of."""
        folder, entry = self.find_folder(name), self.results.find_run(name)
        if not (folder / WEIGHTS).is_file():
            raise BadInput(f"{name} is finished, but it is not in {self.runs}; name the folder that it is in (--runs)")
        if entry and entry.weights not in (None, hash_files([folder / WEIGHTS])):
            raise BadInput(
                f"{folder} has other weights than the {name} that {self.results.folder} has results of; "
                "name the folder of that run (--runs), or another for the results (--out)"
            )
        return open_run(folder)

    def load_model(self, run: Run, floor: float = 0.0) -> LanguageModel:
        model = run.model.to(choose_device(self.device))
        return Floor(model, floor) if floor else model

    def measure_perplexity(self, model: LanguageModel, corpus: Corpus, lines: int | None = None) -> float:
        """The perplexity of test, or of its first lines."""
        device = device_of(model) or torch.device("cpu")
        return evaluate(model, corpus.splits["test"], device, self.watch, lines, "perplexity of test").perplexity

    def check_stop(self) -> None:
        self.watch(Event("step"))


def check_plan(plan: Plan, device: str, precision: str) -> None:
    """Raise BadInput for mistakes that would otherwise show in the middle of the work."""
    choose_precision(precision, choose_device(device))
    traced = [decoder for piece in plan.examples for _, decoder in piece.decodings]
    for specification in {*traced, *(spec for piece in [*plan.audits, *plan.published] for spec in piece.decoders)}:
        parse_decoder(specification)
    for training in plan.trainings:
        load_settings(training.model, training.changes, training.seed)
    for corpus in plan.corpora:
        load_settings(corpus.model, corpus.changes)


def load_settings(model: str, changes: Changes, seed: int = 0) -> RunSettings:
    """The settings of a model with the changes of a preset or a sweep."""
    table = merge_settings(read_settings(find_model(model)), changes, {"training": {"seed": seed}})
    return parse_settings(table)


def describe_machine() -> Machine:
    return Machine(
        processor=find_processor(),
        torch=str(torch.__version__),
        eosin=eosin.__version__,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
    )


# corpora and trainings


def prepare_corpus(runner: Runner, piece: PrepareCorpus) -> EntryFields:
    if piece.bundled:
        corpus = open_run(BUNDLED_RUNS / piece.bundled).corpus
    else:
        corpus = load_settings(piece.model, piece.changes).open_corpus(runner.runs)
    lengths = {split: np.unique(corpus.count_after_context(split).numpy(), return_counts=True) for split in SPLITS}
    return {
        "tokenization": corpus.recipe.tokenization,
        "statistics": corpus.statistics,
        "lengths": {split: [tuple(map(int, pair)) for pair in zip(*found)] for split, found in lengths.items()},
    }


def train_run(runner: Runner, piece: TrainRun) -> EntryFields | None:
    folder = runner.find_folder(piece.run)
    if runner.as_is and not is_trained(folder):
        return None
    settings = load_settings(piece.model, piece.changes, piece.seed)
    result = train(
        settings,
        settings.open_corpus(runner.runs),
        folder,
        device=runner.device,
        precision=runner.precision,
        threads=runner.threads,
        watch=runner.watch,
    )
    return {
        "run": piece.run,
        "model": piece.model,
        "initialisation": piece.seed,
        "perplexity": {split: result[key] for split in SPLITS if (key := f"{split}_perplexity") in result},
        **read_progress(folder),
    }


def is_trained(folder: Path) -> bool:
    return (folder / RESUME).is_file() and "result" in load_tensors(folder / RESUME)[1]


def read_progress(folder: Path) -> EntryFields:
    """The epochs of a finished run, how long they took, and under what conditions."""
    notes = load_tensors(folder / RESUME)[1]
    log = [json.loads(line) for line in read_lines(folder / LOG, "events")]
    epochs = [event for event in log if event["event"] == "epoch"]
    return {
        **describe_weights(open_run(folder)),
        "epochs": len(epochs),
        "valid_perplexities": [event["valid_perplexity"] for event in epochs],
        "training_seconds": round(notes["progress"]["seconds"]),
        "precision": notes.get("precision", "float32"),
        "device": notes.get("device", "cpu"),
    }


def describe_weights(run: Run) -> EntryFields:
    weights = run.folder / WEIGHTS
    return {
        "weights": hash_files([weights]),
        "settings": run.origin["settings"],
        "best_epoch": int(load_tensors(weights)[1]["epoch"]),
    }


def measure_bundled(runner: Runner, piece: MeasureBundled) -> EntryFields:
    run = runner.open_run(piece.run)
    return {
        "run": piece.run,
        "model": piece.model,
        "perplexity": {"test": runner.measure_perplexity(runner.load_model(run), run.corpus)},
        **describe_weights(run),
        "epochs": run.settings.training.epochs,
    }


# audits


def audit_run(runner: Runner, piece: AuditRun) -> EntryFields:
    run = runner.open_run(piece.run)
    model, prefixes = runner.load_model(run, piece.floor), run.corpus.take_contexts(piece.contexts, piece.count or None)
    count_decoders(runner, piece, model, prefixes, {**run.origin, "dtype": "float32"}, run.tokenizer.decode)
    if not piece.floor:
        return {}
    return {"perplexity": {"test": runner.measure_perplexity(model, run.corpus, run.settings.measured_lines)}}


def audit_published(runner: Runner, piece: AuditPublished) -> EntryFields:
    own, texts = open_own_model(piece.model), read_sequences(piece.sequences)
    if own.words is None:
        raise BadInput(f"{piece.model} must return words too, which read real sequences as tokens")
    rows = [encode_text(own.words, each.text) for each in texts[: piece.count or None]]
    if min(map(len, rows)) < max(piece.prefixes, default=0):
        raise BadInput(
            f"{piece.sequences} has a sequence of {min(map(len, rows))} tokens, and a prefix should have more"
        )
    prefixes = [row[:length] for row in rows for length in piece.prefixes or (len(row),)]
    device = choose_device(runner.device)
    model: Any = own.model.to(device) if isinstance(own.model, Movable) else own.model
    model = Floor(model, piece.floor) if piece.floor else model
    share = 1.0 if piece.prefixes else choose_share(model, prefixes)  # intervals by sequence need every outcome
    count_decoders(runner, piece, model, prefixes, {"model_from": piece.model}, own.words.decode, share)
    rest = Counter(len(row) + 1 - length for row in rows for length in piece.prefixes)  # with eos
    return {"continuations": sorted(rest.items()), "seconds": read_seconds(runner.results.folder / piece.timings)}


def count_decoders(
    runner: Runner,
    piece: AuditRun,
    model: Generative,
    prefixes: Prefixes,
    about: dict[str, Any],
    text_of: Callable[[list[int]], str],
    follow_loops: float = 1.0,
) -> None:
    """Write the records of an audit."""
    out = runner.results.folder / piece.file
    about = {**about, "run": piece.run, "contexts_from": piece.contexts}
    bar = tqdm(total=len(prefixes) * len(piece.decoders), desc=piece.name, disable=None, delay=2, leave=False)
    with bar, use_threads(runner.threads or read_threads(out)):

        def watch(event: Event) -> None:
            runner.watch(event)
            bar.update(event.kind == "completion")
            if event.kind == "decoder":
                took = {"decoder": event.facts["record"].signature.decoder, "seconds": round(event.facts["seconds"], 1)}
                append_lines(runner.results.folder / piece.timings, [json.dumps(took)])

        audit(
            model,
            prefixes,
            list(piece.decoders),
            max_steps=piece.max_steps,
            survival=piece.survival,
            follow_loops=follow_loops,
            out=out,
            about={**about, **({"floor": piece.floor} if piece.floor else {})},
            watch=watch,
            text_of=text_of,
        )
    merge_shards(out, piece.decoders, len(prefixes))


def read_seconds(path: Path) -> float:
    """How long all decoders took, each in one or several processes."""
    return sum(json.loads(line)["seconds"] for line in read_lines(path, "seconds")) if path.is_file() else 0.0


def read_threads(out: Path) -> int | None:
    """The number of threads that began an audit. Rounding depends on it, so the audit resumes with the same."""
    return next((record.signature.threads for record in read_records(out)), None) if out.is_file() else None


def merge_shards(out: Path, decoders: Sequence[str], contexts: int) -> None:
    """Rewrite a file of records: one record for each decoder that is finished, and the shards of all others."""
    finished = read_finished_records(out)
    if wrong := [decoder for decoder in decoders if decoder not in finished]:
        raise BadInput(
            f"{out} does not add up: the counts of {wrong[0]} are not those of {contexts} contexts; "
            "remove that file, and it is made again"
        )
    shards: list[Record] = [record for record in read_records(out) if record.signature.decoder not in finished]
    write_lines(out, (record.to_line() for record in [*finished.values(), *shards]))


# examples


def trace_examples(runner: Runner, piece: TraceExamples) -> EntryFields:
    unended = runner.results.find_records(piece.baseline)[piece.decoder].counts.unended
    chosen = [context for context, is_unended in sorted(unended.items()) if is_unended][: piece.shown]
    examples: list[Example] = []
    for name, decoder in piece.decodings:
        run = runner.open_run(name)
        model, prefixes = runner.load_model(run), run.corpus.take_contexts("test")[chosen]
        with use_threads(runner.threads or 1):  # for so few rows a second thread only waits
            traced = list(trace_completions(model, prefixes, decoder, chosen, piece.max_steps, runner.watch))
        for prefix, (completion, steps) in zip(prefixes.tolist(), traced, strict=True):
            text = run.tokenizer.decode(prefix)
            examples.append(build_example(name, decoder, text, completion, steps, run.tokenizer))
    path = runner.results.folder / piece.file
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, (json.dumps(to_builtins(example), ensure_ascii=False) for example in examples))
    return {"contexts": chosen}


def trace_completions(
    model: LanguageModel, prefixes: Tensor, decoder: str, indices: Sequence[int], max_steps: int, watch: Watch
) -> Iterator[tuple[Completion, list[Step]]]:
    """Decode contexts, and trace each completion as far as it is shown."""
    if not indices:
        return
    job = Job.create(model, prefixes, max_steps=max_steps, indices=indices)
    for completion in sorted(complete(job, decoder, watch=watch), key=lambda each: each.index):
        prefix = prefixes[indices.index(completion.index)]
        yield completion, replay(model, prefix, completion, decoder, watch)


def replay(model: LanguageModel, prefix: Tensor, completion: Completion, decoder: str, watch: Watch) -> list[Step]:
    """What happened to eos at the first steps of a completion, as many as are shown."""
    tokens = completion.tokens[: count_shown_steps(completion)].tolist()
    traceable = parse_decoder(decoder)
    if not isinstance(traceable, Traceable):
        raise BadInput(f"decoder must have `kept` and `rule` to be traced; {decoder} has not")
    replayed = Replay(traceable, tokens)
    job = Job.create(model, [prefix], max_steps=len(tokens), indices=[completion.index])
    with eval_mode(model):
        list(unroll(job, replayed, watch=watch))
    return replayed.steps


def count_shown_steps(completion: Completion) -> int:
    """All steps of a completion that ends; of any other the first turns of its loop, or its first steps."""
    if completion.cause.ends:
        return len(completion.tokens)
    tail = tail_of(completion) or Tail(onset=1, period=0)
    return tail.onset - 1 + max(TRACED_STEPS, TRACED_TURNS * tail.period)


def build_example(
    run: str, decoder: str, prefix: str, completion: Completion, steps: Sequence[Step], tokenizer: Tokenizer
) -> Example:
    tail = tail_of(completion)
    texts = spell_tokens(tokenizer, [step.token for step in steps])
    return Example(
        run=run,
        decoder=decoder,
        context=completion.index,
        prefix=prefix,
        cause=Cause.LOOPING if tail else completion.cause,
        steps=[
            ExampleStep(text, step.prob, step.eos_prob, step.eos_rank, step.kept, step.removed_by)
            for text, step in zip(texts, steps, strict=True)
        ],
        loop=ExampleLoop(tail.onset, tail.period) if tail else None,
    )


def spell_tokens(tokenizer: Tokenizer, tokens: list[int]) -> Iterator[str]:
    """The text that each token adds, its space included."""
    before = ""
    for place, token in enumerate(tokens, 1):
        text = tokenizer.decode(tokens[:place])
        # a token may complete a letter that others began
        yield text[len(before) :] if text.startswith(before) else tokenizer.spell(token)
        before = text


WORK: dict[type[Piece], Callable[[Runner, Any], EntryFields | None]] = {
    PrepareCorpus: prepare_corpus,
    TrainRun: train_run,
    MeasureBundled: measure_bundled,
    AuditRun: audit_run,
    AuditPublished: audit_published,
    TraceExamples: trace_examples,
}
