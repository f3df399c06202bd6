"""Doing the pieces: preparing, training, auditing, tracing. A piece that was killed goes on the next time."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import eosin
from eosin.auditing.loops import repeating_tail
from eosin.auditing.quality import evaluate
from eosin.auditing.record import pooled, read_records
from eosin.auditing.run import audit
from eosin.decoding.decode import device_of
from eosin.decoding.floor import Floor
from eosin.decoding.trace import Trace, trace
from eosin.files import write_text
from eosin.interfaces import LanguageModel
from eosin.models.checkpoint import WEIGHTS, load
from eosin.reproduction.exhibits import FOLDER
from eosin.reproduction.pieces import Audit, Corpus, Examples, Piece, Training
from eosin.reproduction.results import Entry, Results
from eosin.settings import check_known
from eosin.tensor_files import load_tensors
from eosin.text.corpus import Corpus as Prepared
from eosin.text.preparation import open_corpus, prepare
from eosin.text.sources import SPLITS
from eosin.text.tokenization import Tokenizer
from eosin.training.config import Config, merged, read_settings
from eosin.training.events import LOG, Listener
from eosin.training.loop import chosen_device, train
from eosin.training.run import RESUME, corpus_of, origin


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

    def do(self, piece: Piece) -> Entry | None:
        """Do a piece and remember it; None if it cannot be done as things are."""
        started = time.monotonic()
        result = WORK[piece.what](self, piece)
        if result is None:
            return None
        seconds = {"seconds": round(time.monotonic() - started, 1)}
        self.results.add(piece, {**seconds, **result, "machine": machine()})
        return self.results.entries[piece.name]

    def folder(self, run: str) -> Path:
        """Of a run, whatever it is called in records."""
        return self.runs / run.partition("@")[0]

    def model(self, run: str, floor: float = 0.0) -> LanguageModel:
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        model = load(self.folder(run)).to(chosen_device(usual if self.device == "auto" else self.device))
        return Floor(model, floor) if floor else model


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


def configured(model: str, changes: dict[str, dict[str, Any]], seed: int = 0) -> Config:
    """The settings of a model with the changes of a preset or a sweep."""
    path = Path(model)
    if path.suffix != ".toml":
        check_known(model, sorted(path.stem for path in FOLDER.glob("*.toml")), "a model, or a .toml file of one")
        path = FOLDER / f"{model}.toml"
    table = merged(read_settings(path), changes)
    return Config.of(merged(table, {"training": {"seed": seed}}))


def corpus_for(config: Config, shop: Workshop) -> Prepared:
    recipe = config.data
    return open_corpus(recipe) if Path(recipe.source).is_dir() else prepare(recipe, shop.runs / recipe.folder)


def count_corpus(shop: Workshop, piece: Corpus) -> Entry:
    config = configured(piece.model, piece.changes)
    corpus = corpus_for(config, shop)
    lengths = {split: np.unique(corpus.splits[split].lengths.numpy(), return_counts=True) for split in SPLITS}
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
        corpus_for(config, shop),
        folder,
        device=shop.device,
        precision=shop.precision,
        threads=shop.threads,
        listeners=shop.listeners,
        stopping=shop.stopping,
        show=True,
    )
    return {"finished": True, "perplexity": by_split(result), **progress_of(folder), **about(piece)}


def by_split(result: dict[str, Any]) -> dict[str, float]:
    return {split: result[f"{split}_perplexity"] for split in SPLITS}


def about(piece: Training) -> Entry:
    return {"run": piece.run, "model": piece.model, "initialisation": piece.seed}


def is_finished(folder: Path) -> bool:
    return (folder / RESUME).is_file() and "result" in load_tensors(folder / RESUME)[1]


def progress_of(folder: Path) -> Entry:
    """How a run went: its epochs, how long they took, and under what conditions."""
    notes = load_tensors(folder / RESUME)[1]
    log = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    epochs = [event for event in log if event["event"] == "epoch"]
    return {
        "best_epoch": notes["progress"]["best_epoch"],
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
    model, corpus = load(folder), corpus_of(folder)
    measured = {split: evaluate(model, corpus.splits[split], torch.device("cpu")).perplexity for split in SPLITS}
    return {"finished": False, "perplexity": measured, **progress_of(folder), **about(piece)}


def audit_run(shop: Workshop, piece: Audit) -> Entry | None:
    folder = shop.folder(piece.run)
    if not (folder / WEIGHTS).is_file():
        return None
    corpus = corpus_of(folder)
    prefixes = corpus.contexts(piece.contexts, piece.count or None)
    model = shop.model(piece.run, piece.floor)
    out = shop.results.folder / piece.file
    named = {**origin(folder, corpus), "run": piece.run, "contexts_from": piece.contexts, "dtype": "float32"}
    with tqdm(total=len(prefixes) * len(piece.decoders), desc=piece.name, disable=None, delay=2, leave=False) as bar:
        audit(
            model,
            prefixes,
            list(piece.decoders),
            max_steps=piece.max_steps,
            survival=piece.survival,
            out=out,
            about={**named, **({"floor": piece.floor} if piece.floor else {})},
            watch=lambda completion, decoder: bar.update(),
            text_of=Tokenizer.load(folder).decode,
        )
    # the shards of one decoder in one line: a tenth of the size, and all of it counts
    write_text(out, "".join(record.written() + "\n" for record in pooled(read_records(out))))
    if not piece.floor:
        return {}
    device = device_of(model) or torch.device("cpu")
    return {"perplexity": {"test": evaluate(model, corpus.splits["test"], device).perplexity}}


def trace_examples(shop: Workshop, piece: Examples) -> Entry | None:
    folder = shop.folder(piece.run)
    records = shop.results.folder / piece.records.replace(piece.run.partition("@")[0], piece.run)
    if not records.is_file() or not (shop.folder(piece.remedy_run) / WEIGHTS).is_file():
        return None
    by_decoder = {record.signature["decoder"]: record for record in pooled(read_records(records))}
    unended = by_decoder[piece.decoder].counts.unended
    chosen = [context for context, left in sorted(unended.items()) if left][: piece.shown]
    prefixes = corpus_of(folder).contexts("test")
    lines = []
    for run, decoder in ((piece.run, piece.decoder), (piece.remedy_run, piece.remedy_decoder)):
        model, tokenizer = shop.model(run), Tokenizer.load(shop.folder(run))
        for context in chosen:
            found = trace(model, prefixes[context], decoder, max_steps=piece.max_steps, index=context)
            lines.append({"run": run, **in_words(found, tokenizer)})
    path = shop.results.folder / piece.file
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return {"contexts": chosen}


def in_words(found: Trace, tokenizer: Tokenizer) -> Entry:
    """A completion with what became of eos at each step."""
    tail = repeating_tail(np.array(found.tokens))
    return {
        "decoder": found.decoder,
        "context": found.index,
        "prefix": tokenizer.decode(found.prefix),
        "cause": str(found.cause),
        "steps": [
            [text, step.prob, step.eos_prob, step.eos_rank, step.kept, step.removed_by]
            for text, step in zip(spelt(tokenizer, found.tokens), found.steps, strict=True)
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
    Audit.what: audit_run,
    Examples.what: trace_examples,
}
