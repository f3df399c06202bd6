"""Doing the pieces: preparing, training, auditing, tracing. A piece that was killed goes on the next time."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import eosin
from eosin.auditing.audit import audit
from eosin.causes import Cause
from eosin.contracts import Decoder, LanguageModel
from eosin.data.batches import Batch
from eosin.data.corpus import Corpus as TokenizedCorpus
from eosin.data.sources import SPLITS
from eosin.data.tokenizer import Tokenizer
from eosin.decoding.decode import device_of
from eosin.decoding.floor import Floor
from eosin.decoding.loops import repeating_tail
from eosin.decoding.spec import parse_decoder
from eosin.decoding.trace import Trace, trace
from eosin.devices import choose_device, choose_precision, use_threads
from eosin.errors import BadInput
from eosin.loading import load, settings_of
from eosin.models.checkpoint import CONFIG, WEIGHTS
from eosin.outcome import Completion
from eosin.paper.exhibits import model_file
from eosin.paper.plan import TRACED, Audit, Bundled, Corpus, Examples, Piece, Plan, Training
from eosin.paper.results import Entry, Results, whole_records
from eosin.records.record import Record, read_records
from eosin.settings import read_toml
from eosin.storage.files import BUNDLED_RUNS, hash_files, write_text
from eosin.storage.json_lines import read_lines
from eosin.storage.tensors import load_tensors
from eosin.training.config import merged, read_settings
from eosin.training.evaluation import evaluate
from eosin.training.events import LOG, Listener
from eosin.training.loop import Stopped, train
from eosin.training.run import RESUME, check_same, corpus_of, origin


@dataclass
class Workshop:
    """Where runs lie, where results go, and on what they are made."""

    results: Results
    runs: Path
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    stopping: Callable[[], bool] = lambda: False
    listeners: tuple[Listener, ...] = ()
    as_is: bool = False
    """Whether nothing is trained: runs are looked at as far as they are."""
    bundled: frozenset[str] = frozenset()
    """Runs that come with the package."""

    def do(self, piece: Piece) -> Entry | None:
        """Do a piece and remember it; None if its run has not been trained for an epoch yet."""
        before, started = self.results.entries.get(piece.name, {}), time.monotonic()
        result = WORK[piece.what](self, piece)
        if result is None:
            return None
        seconds = time.monotonic() - started + (before["seconds"] if before.get("key") == piece.key else 0.0)
        self.results.add(piece, {"seconds": round(seconds, 1), **result, "machine": machine()})
        return self.results.entries[piece.name]

    def folder(self, run: str) -> Path:
        """Of a run, whatever it is called in records."""
        return BUNDLED_RUNS / run if run in self.bundled else self.runs / run.partition("@")[0]

    def has(self, run: str) -> bool:
        """Whether there are weights; a run that is finished must have some."""
        folder, entry = self.folder(run), self.results.training(run)
        if (folder / WEIGHTS).is_file():
            return True
        if entry and entry["finished"]:
            raise BadInput(f"{run} is finished, but it is not in {self.runs}; name the folder that it is in (--runs)")
        return False

    def model(self, run: str, floor: float = 0.0) -> LanguageModel:
        """As it was when the run got its name in records."""
        folder, epoch = self.folder(run), run.partition("@epoch-")[2]
        if epoch and best_epoch(folder) != int(epoch):
            raise BadInput(f"{folder} has been trained on since epoch {epoch}; the same command looks at it anew")
        self._check_weights(run)
        model = load(folder).to(choose_device(self.device))
        return Floor(model, floor) if floor else model

    def _check_weights(self, run: str) -> None:
        """They must be those that the results are of."""
        name, folder = run.partition("@")[0], self.folder(run)
        entry = self.results.training(name)
        known = entry.get("weights") if entry and self.results.standing(name) == run else None
        if known not in (None, hash_files([folder / WEIGHTS])):
            raise BadInput(
                f"{folder} has other weights than the {name} that {self.results.folder} has results of; "
                "name the folder of that run (--runs), or another for the results (--out)"
            )

    def perplexity(self, model: LanguageModel, corpus: TokenizedCorpus, split: str, lines: int | None) -> float:
        """Of a split, or of its first lines."""

        def watched(batches: Iterable[Batch]) -> Iterator[Batch]:
            for batch in tqdm(batches, desc=f"perplexity on {split}", disable=None, delay=2, leave=False):
                self.check_stop()
                yield batch

        return evaluate(model, corpus.splits[split], where(model), watched, lines).perplexity

    def check_stop(self) -> None:
        if self.stopping():
            raise Stopped


def check_work(plan: Plan, device: str, precision: str) -> None:
    """What would be refused in the middle of it, before anything is trained."""
    choose_precision(precision, choose_device(device))
    examples = [spec for piece in plan.all_examples for spec in (piece.decoder, piece.remedy_decoder)]
    for specification in {*examples, *(spec for piece in plan.audits for spec in piece.decoders)}:
        parse_decoder(specification)
    for piece in plan.trainings:
        configured(piece.model, piece.changes, piece.seed)
    for counted in plan.corpora:
        configured(counted.model, counted.changes)


def machine() -> Entry:
    """What decides how long something takes."""
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "eosin": eosin.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def configured(model: str, changes: dict[str, dict[str, Any]], seed: int = 0) -> Any:
    """The settings of a model with the changes of a preset or a sweep."""
    table = merged(read_settings(model_file(model)), changes)
    return settings_of(merged(table, {"training": {"seed": seed}}))


def count_corpus(shop: Workshop, piece: Corpus) -> Entry:
    config = configured(piece.model, piece.changes)
    corpus = corpus_of(BUNDLED_RUNS / piece.bundled) if piece.bundled else config.corpus(shop.runs)
    lengths = {split: np.unique(corpus.continuation_lengths(split).numpy(), return_counts=True) for split in SPLITS}
    return {
        "tokenization": corpus.recipe.tokenization,
        "statistics": corpus.statistics,
        "lengths": {split: [list(map(int, pair)) for pair in zip(*found)] for split, found in lengths.items()},
    }


def train_run(shop: Workshop, piece: Training) -> Entry | None:
    config = configured(piece.model, piece.changes, piece.seed)
    folder = shop.folder(piece.run)
    if shop.as_is and not is_finished(folder):
        return look_at(folder, piece, shop)
    result = train(
        config,
        config.corpus(shop.runs),
        folder,
        device=shop.device,
        precision=shop.precision,
        threads=shop.threads,
        listeners=shop.listeners,
        stopping=shop.stopping,
        show=True,
    )
    return {"finished": True, "perplexity": by_split(result), **progress_of(folder), **about(piece)}


def measure_bundled(shop: Workshop, piece: Bundled) -> Entry:
    """The test perplexity of a model that comes with the package."""
    folder = shop.folder(piece.run)
    model, corpus = shop.model(piece.run), corpus_of(folder)
    return {
        "finished": True,
        "perplexity": {"test": shop.perplexity(model, corpus, "test", None)},
        "weights": hash_files([folder / WEIGHTS]),
        "settings": origin(folder, corpus)["settings"],
        "best_epoch": best_epoch(folder),
        "epochs": settings_of(read_toml(folder / CONFIG)).training.epochs,
        "run": piece.run,
        "model": piece.model,
    }


def by_split(result: dict[str, Any]) -> dict[str, float]:
    return {split: result[key] for split in SPLITS if (key := f"{split}_perplexity") in result}


def about(piece: Training) -> Entry:
    return {"run": piece.run, "model": piece.model, "initialisation": piece.seed}


def is_finished(folder: Path) -> bool:
    return (folder / RESUME).is_file() and "result" in load_tensors(folder / RESUME)[1]


def best_epoch(folder: Path) -> int:
    """Of the weights that are there."""
    return int(load_tensors(folder / WEIGHTS)[1]["epoch"])


def progress_of(folder: Path) -> Entry:
    """How a run went: its epochs, how long they took, and under what conditions."""
    notes = load_tensors(folder / RESUME)[1]
    log = [json.loads(line) for line in read_lines(folder / LOG, "events")]
    epochs = [event for event in log if event["event"] == "epoch"]
    return {
        "weights": hash_files([folder / WEIGHTS]),
        "settings": origin(folder, corpus_of(folder))["settings"],
        "best_epoch": best_epoch(folder),
        "epochs": len(epochs),
        "valid_perplexities": [event["valid_perplexity"] for event in epochs],
        "training_seconds": round(notes["progress"]["seconds"]),
        "precision": notes.get("precision", "float32"),
        "device": notes.get("device", "cpu"),
    }


def look_at(folder: Path, piece: Training, shop: Workshop) -> Entry | None:
    """A run that is not finished, by the best weights it has so far."""
    if not (folder / WEIGHTS).is_file():
        return None
    corpus, settings = corpus_of(folder), configured(piece.model, piece.changes, piece.seed)
    check_same(folder, settings.resolved(corpus))
    if corpus.digest != settings.corpus(shop.runs).digest:
        raise BadInput(f"{folder} was trained on another text than {piece.model} is; name other runs (--runs)")
    known = progress_of(folder)
    before = shop.results.training(piece.run)
    if before and before.get("weights") == known["weights"] and before["key"] == piece.key:
        return {"finished": False, "perplexity": before["perplexity"], **known, **about(piece)}
    model = shop.model(f"{piece.run}@epoch-{known['best_epoch']}")
    measured = {s: shop.perplexity(model, corpus, s, settings.measured_lines) for s in settings.measured}
    return {"finished": False, "perplexity": measured, **known, **about(piece)}


def where(model: LanguageModel) -> torch.device:
    return device_of(model) or torch.device("cpu")


def audit_run(shop: Workshop, piece: Audit) -> Entry | None:
    if not shop.has(piece.run):
        return None
    folder, out = shop.folder(piece.run), shop.results.folder / piece.file
    corpus, model = corpus_of(folder), shop.model(piece.run, piece.floor)
    prefixes = corpus.contexts(piece.contexts, piece.count or None)
    named = {**origin(folder, corpus), "run": piece.run, "contexts_from": piece.contexts, "dtype": "float32"}
    bar = tqdm(total=len(prefixes) * len(piece.decoders), desc=piece.name, disable=None, delay=2, leave=False)
    with bar, use_threads(shop.threads or threads_before(out)):

        def watch(completion: Completion, decoder: Decoder) -> None:
            bar.update()

        audit(
            model,
            prefixes,
            list(piece.decoders),
            max_steps=piece.max_steps,
            survival=piece.survival,
            out=out,
            about={**named, **({"floor": piece.floor} if piece.floor else {})},
            watch=watch,
            tick=shop.check_stop,
            text_of=Tokenizer.load(folder).decode,
        )
    whole = whole_records(out)
    if uncounted := [decoder for decoder in piece.decoders if decoder not in whole]:
        raise BadInput(
            f"{out} does not add up: the counts of {uncounted[0]} are not those of {len(prefixes)} contexts; "
            "remove that file, and it is made anew"
        )
    write_text(out, "".join(record.to_line() + "\n" for record in [*whole.values(), *unfinished(out, whole)]))
    if not piece.floor:
        return {}
    lines = settings_of(read_toml(folder / CONFIG)).measured_lines
    return {"perplexity": {"test": shop.perplexity(model, corpus, "test", lines)}}


def threads_before(out: Path) -> int | None:
    """Sums depend on how many threads share them, so an audit goes on with as many as it was begun with."""
    return next((record.signature.threads for record in read_records(out)), None) if out.is_file() else None


def unfinished(out: Path, whole: dict[str, Record]) -> list[Record]:
    """The shards of decoders that an earlier audit was not through with; all others are one record now."""
    return [record for record in read_records(out) if record.signature.decoder not in whole]


def trace_examples(shop: Workshop, piece: Examples) -> Entry | None:
    runs = ((piece.run, piece.decoder), (piece.remedy_run, piece.remedy_decoder))
    audited = shop.results.whole_records(piece.baseline)
    if piece.decoder not in audited or not all(shop.has(run) for run, _ in runs):
        return None
    unended = audited[piece.decoder].counts.unended
    chosen = [context for context, left in sorted(unended.items()) if left][: piece.shown]
    prefixes = corpus_of(shop.folder(piece.run)).contexts("test")
    lines = []
    for run, decoder in runs:
        model, tokenizer = shop.model(run), Tokenizer.load(shop.folder(run))
        for context in chosen:
            shop.check_stop()
            found = trace(model, prefixes[context], decoder, max_steps=piece.max_steps, index=context)
            lines.append({"run": run, **in_words(found, tokenizer)})
    path = shop.results.folder / piece.file
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return {"contexts": chosen}


def in_words(found: Trace, tokenizer: Tokenizer) -> Entry:
    """A completion with what became of eos at each step; one that does not end is cut off while it repeats."""
    tail = None if found.cause.ends else repeating_tail(np.array(found.tokens))
    kept = found.steps if found.cause.ends else found.steps[: (tail.onset - 1 if tail else 0) + TRACED]
    return {
        "decoder": found.decoder,
        "context": found.index,
        "prefix": tokenizer.decode(found.prefix),
        "cause": str(Cause.LOOPING if tail else found.cause),
        "steps": [
            [text, step.prob, step.eos_prob, step.eos_rank, step.kept, step.removed_by]
            for text, step in zip(spelt(tokenizer, [step.token for step in kept]), kept, strict=True)
        ],
        "loop": None if tail is None else {"onset": tail.onset, "period": tail.period},
    }


def spelt(tokenizer: Tokenizer, tokens: list[int]) -> Iterator[str]:
    """What each token adds to the text, its space included."""
    before = ""
    for place, token in enumerate(tokens, 1):
        whole = tokenizer.decode(tokens[:place])
        # a token may complete a letter that others began
        yield whole[len(before) :] if whole.startswith(before) else tokenizer.spelling(token)
        before = whole


WORK: dict[str, Callable[[Workshop, Any], Entry | None]] = {
    Corpus.what: count_corpus,
    Training.what: train_run,
    Bundled.what: measure_bundled,
    Audit.what: audit_run,
    Examples.what: trace_examples,
}
