"""Run directories: config.toml, tokenizer.json, weights.safetensors (the best), log.jsonl, resume.safetensors.

One file, resume.safetensors, holds the whole state for resuming, so its parts always belong together. Files are written
atomically, in an order that makes a kill harmless at any point: weights first, then the state that names them. What was
logged after the saved state is removed when the run resumes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import tomli_w
import torch
from torch import Tensor

from eosin.bundled_runs import BUNDLED_RUNS
from eosin.contracts import LanguageModel
from eosin.data.corpus import Corpus, Recipe, load_corpus
from eosin.data.prompts import Prompts
from eosin.data.tokenizer import TOKENIZER, Tokenizer
from eosin.errors import BadInput
from eosin.models.checkpoint import CONFIG, WEIGHTS
from eosin.settings import Table, get_section, read_toml
from eosin.storage.files import PARTIAL, write_text
from eosin.storage.locks import hold_lock
from eosin.storage.tensors import load_tensors, save_tensors
from eosin.training.log import LOG
from eosin.training.trainer import Trainer

RESUME, CORPUS, LOCK = "resume.safetensors", "corpus.toml", "lock"
BEFORE_CONFIG = {TOKENIZER, CORPUS, LOCK}
"""The files that a new run directory may hold before config.toml, which is written last."""
PRETRAINED = "pretrained"
"""The section that only the settings of a fine-tuning have."""


@runtime_checkable
class RunSettings(Protocol):
    """The settings of a run: a `Config`, which has a docstring for each member, or a `FineTuningConfig`."""

    measured_splits: ClassVar[tuple[str, ...]]

    @property
    def data(self) -> Recipe: ...

    @property
    def training(self) -> Any: ...

    @property
    def measured_lines(self) -> int | None: ...

    @property
    def sections(self) -> dict[str, Table]: ...

    def resolve_architecture(self, vocab_size: int) -> Any: ...

    def check(self, corpus: Corpus) -> None: ...

    def resolve(self, corpus: Corpus) -> dict[str, Table]: ...

    def open_corpus(self, below: Path) -> Corpus: ...

    def build_trainer(self, corpus: Corpus, device: torch.device, precision: str) -> Trainer: ...

    def load_model(self, folder: Path) -> LanguageModel: ...

    def encode_prompts(self, folder: Path, texts: Sequence[str]) -> Prompts: ...


@dataclass(frozen=True)
class Run:
    """A run directory, opened once. Tokenizer, corpus and model are read when first asked for."""

    folder: Path
    table: dict[str, dict[str, Any]]
    """The sections of config.toml."""
    settings: RunSettings

    @property
    def is_fine_tuned(self) -> bool:
        return PRETRAINED in self.table

    @property
    def audits(self) -> Path | None:
        """The folder for records of audits; None beside a bundled run."""
        return None if BUNDLED_RUNS in self.folder.parents else self.folder / "audits"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder)

    @cached_property
    def model(self) -> Any:
        """What `eosin.load` returns."""
        return self.settings.load_model(self.folder)

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus that the run was trained on: where it was then, or in data/ beside the run if both were moved."""
        path = self.folder / CORPUS
        place = get_section(read_toml(path), "corpus", path)
        original = self.folder / place.get("folder", "")  # an absolute path stays as it is
        beside = self.folder.resolve().parent / "data" / original.name
        corpus = load_corpus(beside if beside.is_dir() and not original.exists() else original)
        if corpus.digest != place.get("digest"):
            raise BadInput(f"{place['folder']} is not the corpus that {self.folder} was trained on; put that back")
        return corpus

    @cached_property
    def origin(self) -> dict[str, Any]:
        """Names the run in records. Runs that differ only in their initialisation have the same `settings`."""
        settings = {name: dict(self.table.get(name, {})) for name in ("data", "training", *self.table)}
        initialisation = settings["training"].pop("seed", 0)
        shared = json.dumps([drop_source(settings), self.corpus.digest], sort_keys=True)
        return {
            "run": self.folder.resolve().name,
            "settings": sha256(shared.encode()).hexdigest()[:16],
            "initialisation": initialisation,
        }


def read_config(folder: Path) -> dict[str, dict[str, Any]]:
    """The sections of a run's config.toml."""
    table = read_toml(folder / CONFIG)
    return {name: get_section(table, name, folder / CONFIG) for name in table}


def drop_source(settings: Table) -> dict[str, Any]:
    """Settings without data.source: a text may move, and the digest of the corpus covers its content."""
    data = {key: value for key, value in settings.get("data", {}).items() if key != "source"}
    return {**settings, "data": data}


def check_same_settings(folder: Path, settings: Table) -> None:
    """Raise BadInput unless the run in a directory has these settings."""
    there, here = drop_source(read_config(folder)), drop_source(settings)
    for name in {**there, **here}:
        before, now = there.get(name, {}), here.get(name, {})
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                raise BadInput(
                    f"{folder} holds a run with other settings: {name}.{key} is {before.get(key)!r} there and "
                    f"{now.get(key)!r} here; train in a new directory (--out), or with the settings of that run"
                )


# writing a run


@dataclass(frozen=True)
class RunWriter:
    """A run directory that this process alone writes to."""

    folder: Path
    identity: dict[str, str]
    """What must not change during a run: its settings, as TOML, and the digest of its corpus."""

    def save_state(self, tensors: dict[str, Tensor], notes: Table) -> None:
        save_tensors(self.folder / RESUME, tensors, {**notes, "identity": self.identity})

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and notes that were saved last; none in a new run. All files must belong together."""
        if not (self.folder / RESUME).exists():
            if (self.folder / WEIGHTS).exists():
                raise BadInput(
                    f"{self.folder} has {WEIGHTS} but no {RESUME}, without which it cannot resume; put it back"
                )
            return {}, {}
        tensors, notes = self._load(RESUME)
        log, size = self.folder / LOG, notes["log_size"]
        if not log.exists() or log.stat().st_size < size:
            raise BadInput(f"{log} is shorter than when {RESUME} was saved; put back the whole log")
        self._check_weights(notes["progress"])
        return tensors, notes

    def _check_weights(self, progress: Table) -> None:
        """The best weights must be those that the state names, or one epoch newer: a kill may come between the two."""
        if not progress["best_epoch"]:
            return
        _, notes = self._load(WEIGHTS)
        if notes["epoch"] not in (progress["best_epoch"], progress["epoch"] + 1):
            raise BadInput(
                f"{self.folder / WEIGHTS} is of epoch {notes['epoch']}, but the best was epoch "
                f"{progress['best_epoch']}; put back the right file"
            )

    def _load(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            raise BadInput(f"{path} is missing; put it back, or train in a new directory")
        tensors, notes = load_tensors(path)
        theirs, mine = parse_identity(notes.get("identity", {})), parse_identity(self.identity)
        for key, value in mine.items():
            if theirs.get(key) != value:
                raise BadInput(
                    f"{path} belongs to a different {key}; put the right one back, or train in a new directory"
                )
        return tensors, notes


def parse_identity(identity: dict[str, str]) -> dict[str, Any]:
    """The identity with its settings parsed: the same settings may be written as TOML in several ways."""
    return {**identity, "run": tomllib.loads(identity.get("run", ""))}


@contextmanager
def lock_run(folder: Path, settings: Table, corpus: Corpus) -> Iterator[RunWriter]:
    """Open a new run directory, or an existing one with the same settings, for this process alone."""
    check_place(folder, settings)
    with hold_lock(folder / LOCK, f"another process is training in {folder}; wait for it or choose another --out"):
        check_place(folder, settings)
        if not (folder / CONFIG).exists():
            corpus.tokenizer.save(folder)
            place = {"folder": str((corpus.folder or Path()).resolve()), "digest": corpus.digest}
            write_text(folder / CORPUS, tomli_w.dumps({"corpus": place}))
            write_text(folder / CONFIG, tomli_w.dumps(settings))
        elif Tokenizer.load(folder).to_json() != corpus.tokenizer.to_json():
            raise BadInput(
                f"{folder / TOKENIZER} is not the tokenizer of the corpus {corpus.recipe.source!r}; "
                "put it back, or train in a new directory (--out)"
            )
        yield RunWriter(folder, {"run": tomli_w.dumps(drop_source(settings)), "corpus": corpus.digest})


def check_place(folder: Path, settings: Table) -> None:
    """Raise BadInput if a run with these settings cannot be in a folder."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a directory for the run")
    if (folder / CONFIG).exists():
        check_same_settings(folder, settings)
    elif folder.exists():
        foreign = [path.name for path in folder.iterdir() if path.name.removesuffix(PARTIAL) not in BEFORE_CONFIG]
        if foreign:
            raise BadInput(
                f"{folder} exists and is not a run: it holds {foreign[0]!r} and no {CONFIG}; "
                "name another directory (--out)"
            )
