"""Run directories: config.toml, tokenizer.json, weights.safetensors (the best), log.jsonl and resume.safetensors.

One file holds all that resuming needs, so it is always of one moment. Everything is written atomically, and in an order
that makes a kill at any point harmless: weights first, then the state that says so. What was logged after that state
is taken back when the run goes on.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from eosin.errors import BadInput
from eosin.files import PARTIAL, load_tensors, save_tensors, write_text
from eosin.models.checkpoint import CONFIG, WEIGHTS
from eosin.settings import Table, read_toml, to_toml
from eosin.text.corpus import Corpus
from eosin.text.tokenization import TOKENIZER, Tokenizer
from eosin.training.events import LOG

RESUME, LOCK = "resume.safetensors", "lock"
OURS = {CONFIG, TOKENIZER, WEIGHTS, LOG, RESUME, LOCK, "tensorboard"}


@dataclass(frozen=True)
class Run:
    """A run directory that this process alone is working on."""

    folder: Path
    identity: dict[str, Any]
    """What must not change under a run: its settings, the corpus and the tokenizer."""

    def save(self, tensors: dict[str, Tensor], notes: Table) -> None:
        save_tensors(self.folder / RESUME, tensors, {**notes, "identity": self.identity})

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state of the run when it was last saved, if it was; nothing has been touched where this raises."""
        if not (self.folder / RESUME).exists():
            return None
        tensors, notes = load_tensors(self.folder / RESUME)
        if notes["identity"] != self.identity:
            what = next(key for key in self.identity if notes["identity"].get(key) != self.identity[key])
            raise BadInput(
                f"{self.folder} was trained with another {what}; put that back, or train in a new directory (--out)"
            )
        log = self.folder / LOG
        if not log.exists() or log.stat().st_size < notes["log_size"]:
            raise BadInput(f"{log} is shorter than when {RESUME} was saved; put back the whole log")
        return tensors, notes


@contextmanager
def open_run(folder: Path, settings: Table, corpus: Corpus) -> Iterator[Run]:
    """A new run directory, or the one that is there if it has the same settings, for this process alone."""
    _check_place(folder, settings)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadInput(f"another process is training in {folder}; wait for it or choose another --out") from error
        _check_place(folder, settings)
        if not (folder / CONFIG).exists():
            corpus.tokenizer.save(folder)
            write_text(folder / CONFIG, to_toml(settings))
        elif Tokenizer.load(folder).to_json() != corpus.tokenizer.to_json():
            raise BadInput(
                f"{folder / TOKENIZER} is not the tokenizer of the corpus {corpus.recipe.source!r}; "
                "put it back, or train in a new directory (--out)"
            )
        yield Run(folder, {"settings": to_toml(settings), "corpus": corpus.digest})


def _check_place(folder: Path, settings: Table) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a directory for the run")
    if (folder / CONFIG).exists():
        _check_same(folder, settings)
    elif folder.exists():
        foreign = [path.name for path in folder.iterdir() if path.name.removesuffix(PARTIAL) not in OURS]
        if foreign:
            raise BadInput(f"{folder} exists and is not a run: it holds {foreign[0]!r}; name another directory (--out)")


def _check_same(folder: Path, settings: Table) -> None:
    there = read_toml(folder / CONFIG)
    for section in {**there, **settings}:
        before, now = there.get(section, {}), settings.get(section, {})
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                raise BadInput(
                    f"{folder} holds a run with other settings: {section}.{key} is {before.get(key)!r} there and "
                    f"{now.get(key)!r} here; train in a new directory (--out), or with the settings of that run"
                )
