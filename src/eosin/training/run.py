"""Run directories: config.toml, tokenizer.json, weights.safetensors (the best), log.jsonl, resume.safetensors.

One file holds all that resuming needs, so it is always of one moment. Everything is written atomically, and in an order
that makes a kill at any point harmless: weights first, then the state that says so. What was logged after that state
is taken back when the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from eosin.data.corpus import Corpus, load_corpus
from eosin.data.tokenizer import TOKENIZER, Tokenizer
from eosin.errors import BadInput
from eosin.models.checkpoint import CONFIG, WEIGHTS
from eosin.settings import Table, read_toml, section, to_toml
from eosin.storage.files import PARTIAL, write_text
from eosin.storage.locks import hold_lock
from eosin.storage.tensors import load_tensors, save_tensors
from eosin.training.events import LOG

RESUME, CORPUS, LOCK = "resume.safetensors", "corpus.toml", "lock"
BEFORE_CONFIG = {TOKENIZER, CORPUS, LOCK}
"""What a run directory may hold before it has a config.toml, which is written last."""


@dataclass(frozen=True)
class Saved:
    """The state of a run when it was last saved."""

    tensors: dict[str, Tensor]
    notes: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run directory that this process alone is working on."""

    folder: Path
    identity: dict[str, Any]
    """What must not change under a run: its settings and the corpus."""

    def save(self, tensors: dict[str, Tensor], notes: Table) -> None:
        save_tensors(self.folder / RESUME, tensors, {**notes, "identity": self.identity})

    def saved(self) -> Saved | None:
        """The last saved state, if everything belongs to it that should; nothing has been touched where this raises."""
        if not (self.folder / RESUME).exists():
            if (self.folder / WEIGHTS).exists():
                raise BadInput(
                    f"{self.folder} has {WEIGHTS} but no {RESUME}, without which it cannot go on; put it back"
                )
            return None
        saved = Saved(*self._belonging(RESUME))
        log, size = self.folder / LOG, saved.notes["log_size"]
        if not log.exists() or log.stat().st_size < size:
            raise BadInput(f"{log} is shorter than when {RESUME} was saved; put back the whole log")
        self._check_weights(saved.notes["progress"])
        return saved

    def _check_weights(self, progress: Table) -> None:
        """The best weights are those the state knows of, or newer by one epoch: a kill may come between the two."""
        if not progress["best_epoch"]:
            return
        _, notes = self._belonging(WEIGHTS)
        if notes["epoch"] not in (progress["best_epoch"], progress["epoch"] + 1):
            raise BadInput(
                f"{self.folder / WEIGHTS} is of epoch {notes['epoch']}, but the best was epoch "
                f"{progress['best_epoch']}; put back the right file"
            )

    def _belonging(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            raise BadInput(f"{path} is missing; put it back, or train in a new directory")
        tensors, notes = load_tensors(path)
        theirs = notes.get("identity", {})
        for key, mine in self.identity.items():
            if theirs.get(key) != mine:
                raise BadInput(
                    f"{path} belongs to a different {key}; put the right one back, or train in a new directory"
                )
        return tensors, notes


@contextmanager
def open_run(folder: Path, settings: Table, corpus: Corpus) -> Iterator[Run]:
    """A new run directory, or the one that is there if it has the same settings, for this process alone."""
    _check_place(folder, settings)
    with hold_lock(folder / LOCK, f"another process is training in {folder}; wait for it or choose another --out"):
        _check_place(folder, settings)
        if not (folder / CONFIG).exists():
            _create(folder, settings, corpus)
        elif Tokenizer.load(folder).to_json() != corpus.tokenizer.to_json():
            raise BadInput(
                f"{folder / TOKENIZER} is not the tokenizer of the corpus {corpus.recipe.source!r}; "
                "put it back, or train in a new directory (--out)"
            )
        yield Run(folder, {"run": to_toml(without_source(settings)), "corpus": corpus.digest})


def _create(folder: Path, settings: Table, corpus: Corpus) -> None:
    corpus.tokenizer.save(folder)
    place = {"folder": str((corpus.folder or Path()).resolve()), "digest": corpus.digest}
    write_text(folder / CORPUS, to_toml({"corpus": place}))
    write_text(folder / CONFIG, to_toml(settings))


def corpus_of(folder: Path) -> Corpus:
    """The corpus that a run was trained on, from where it was then, or beside the run if both were moved."""
    place = section(read_toml(folder / CORPUS), "corpus", folder / CORPUS)
    then = folder / place.get("folder", "")  # a path that starts at the root stays what it is
    beside = folder.resolve().parent / "data" / then.name
    corpus = load_corpus(beside if beside.is_dir() and not then.exists() else then)
    if corpus.digest != place.get("digest"):
        raise BadInput(f"{place['folder']} is not the corpus that {folder} was trained on; put that back")
    return corpus


def origin(folder: Path, corpus: Corpus) -> dict[str, Any]:
    """Which run a model is of. Runs that differ in the initialisation only have the same settings."""
    table = read_toml(folder / CONFIG)
    settings = {name: dict(section(table, name, folder / CONFIG)) for name in ("data", "training", *table)}
    initialisation = settings["training"].pop("seed", 0)
    shared = json.dumps([without_source(settings), corpus.digest], sort_keys=True)
    return {
        "run": folder.resolve().name,
        "settings": sha256(shared.encode()).hexdigest()[:16],
        "initialisation": initialisation,
    }


def without_source(settings: Table) -> dict[str, Any]:
    """Where a text lies may change; what it says may not, and the digest of the corpus sees to that."""
    return {**settings, "data": {key: value for key, value in settings["data"].items() if key != "source"}}


def _check_place(folder: Path, settings: Table) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a directory for the run")
    if (folder / CONFIG).exists():
        check_same(folder, settings)
    elif folder.exists():
        foreign = [path.name for path in folder.iterdir() if path.name.removesuffix(PARTIAL) not in BEFORE_CONFIG]
        if foreign:
            raise BadInput(
                f"{folder} exists and is not a run: it holds {foreign[0]!r} and no {CONFIG}; "
                "name another directory (--out)"
            )


def check_same(folder: Path, settings: Table) -> None:
    """What is in a run directory must be of these settings."""
    table = read_toml(folder / CONFIG)
    there = without_source({name: section(table, name, folder / CONFIG) for name in ("data", *table)})
    settings = without_source(settings)
    for name in {**there, **settings}:
        before, now = there.get(name, {}), settings.get(name, {})
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                raise BadInput(
                    f"{folder} holds a run with other settings: {name}.{key} is {before.get(key)!r} there and "
                    f"{now.get(key)!r} here; train in a new directory (--out), or with the settings of that run"
                )
