"""The settings of a run: five sections of TOML, each checked against the signature of what it sets.

    [data]      Recipe            how the corpus is made
    [core]      CORES[kind]       the network
    [head]      HEADS[kind]       the output head
    [output]    NeuralLM          tied or not; the vocabulary follows from the corpus
    [training]  Training          optimiser and schedule

A file may start from another one (`base = "other.toml"`), and may be a sweep: a section [sweep] whose keys, such as
"core.width", have lists of values, one run for each combination.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

import torch

from eosin.data.corpus import Corpus, Recipe
from eosin.data.preparation import open_corpus
from eosin.data.sources import SPLITS
from eosin.data.tokenizer import EOS_ID, PAPER_BPE
from eosin.errors import BadInput
from eosin.models.checkpoint import Architecture
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES
from eosin.settings import Table, assigned, build, check_known, parameters, with_bases
from eosin.training.trainer import Trainer

SECTIONS = ("data", "core", "head", "output", "training")
USUAL_EPOCHS = 20
"""A training with early stopping is taken to last so many epochs, where it may."""


@dataclass(frozen=True)
class Training:
    """Adam on shuffled batches; the rate falls and training ends when validation makes no progress."""

    batch: int = 32
    """Sentences in a batch."""
    learning_rate: float = 1e-3
    """Adam's, to begin with."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    epochs: int = 100
    """The most epochs."""
    patience: int = 10
    """Epochs without a better validation perplexity after which training ends."""
    anneal: float = 0.5
    """Factor on the learning rate after every epoch without a better validation perplexity."""
    falling: bool = False
    """The rate also falls evenly, step by step, to zero at the end of the last epoch."""
    warmup: int = 0
    """Steps over which the rate rises to its full height, evenly."""
    seed: int = 0
    """Decides the initial weights, the order of the batches and dropout."""
    torch_start: bool = False
    """Embedding and output begin as torch's layers do, N(0, 1) where they are tied, and not in U(-0.1, 0.1)."""
    log_every: int = 100
    """Steps between two lines of the log."""

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "patience", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {self.warmup}")
        for name in ("learning_rate", "clip", "anneal"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.anneal > 1:
            raise ValueError(f"anneal must be at most 1: the rate never grows, got {self.anneal}")


@dataclass(frozen=True)
class Config:
    """The settings of one run as they were given, checked as far as they can be without the corpus."""

    measured: ClassVar[tuple[str, ...]] = SPLITS
    """The splits whose perplexity is measured at the end."""
    data: Recipe
    training: Training
    model: dict[str, Table]
    data_as_given: Table
    """What the settings say about the data; a prepared corpus must not say otherwise."""

    @classmethod
    def of(cls, table: Table) -> Config:
        for section, settings in table.items():
            check_known(section, SECTIONS, "a section of a settings file")
            if not isinstance(settings, dict):
                raise BadInput(f"[{section}] must be a section, got {section} = {settings!r}")
        config = cls(
            data=build(Recipe, table.get("data", {}), "data"),
            training=build(Training, table.get("training", {}), "training"),
            model={section: table.get(section, {}) for section in ("core", "head", "output")},
            data_as_given=table.get("data", {}),
        )
        config.architecture(vocab_size=EOS_ID + 1).build()
        return config

    def architecture(self, vocab_size: int) -> Architecture:
        output = {**self.model["output"], "vocab_size": vocab_size, "eos_id": EOS_ID}
        return replace(Architecture.resolve({**self.model, "output": output}), torch_start=self.training.torch_start)

    def resolved(self, corpus: Corpus) -> dict[str, Table]:
        """All sections with every default written out."""
        data = asdict(corpus.recipe)
        for key, value in self.data_as_given.items():
            if key != "source" and data[key] != value:
                raise BadInput(
                    f"data.{key} is {value!r} in the settings, but the corpus was prepared with {data[key]!r}; "
                    f"prepare another, or say --set data.{key}={data[key]}"
                )
        data["source"] = self.data_as_given.get("source", corpus.recipe.source)
        architecture = self.architecture(corpus.tokenizer.vocab_size)
        for key, value in self.model["output"].items():
            if architecture.output[key] != value:
                raise BadInput(f"output.{key} follows from the corpus: it is {architecture.output[key]}, not {value!r}")
        return {"data": data, **architecture.sections, "training": asdict(self.training)}

    def check(self, corpus: Corpus) -> None:
        """That there is enough to train on."""
        if len(corpus.train) < self.training.batch:
            raise BadInput(
                f"there are {len(corpus.train)} sentences to train on, fewer than a batch of {self.training.batch}; "
                "give more text or set training.batch"
            )

    def trainer(self, corpus: Corpus, device: torch.device, precision: str) -> Trainer:
        return Trainer(self, corpus, device, precision)

    def corpus(self, below: Path) -> Corpus:
        """Prepared below a folder if it is not there yet."""
        return open_corpus(self.data, below)

    @property
    def measured_lines(self) -> int | None:
        """How many of valid and of test; None: all."""
        return None

    def weights(self, words: int) -> float:
        """About how many a token is multiplied with, in a text of so many different words."""
        vocab = self.data.vocab_size or (PAPER_BPE if self.data.tokenization == "bpe" else words)
        with torch.device("meta"):
            model = self.architecture(vocab).build()
        looked_up, multiplied = model.embedding.weight, model.output.weight  # one matrix, where they are tied
        return float(sum(p.numel() for p in model.parameters() if p is multiplied or p is not looked_up))

    def tokens_read(self, there: dict[str, int]) -> float:
        """Forward and twice as much backward, and the perplexity of train at the end."""
        return there["tokens"] * (3.0 * min(self.training.epochs, USUAL_EPOCHS) + 1)

    @property
    def given(self) -> dict[str, Table]:
        """All sections, but for what follows from the corpus."""
        return {"data": asdict(self.data), **self.model, "training": asdict(self.training)}


def read_settings(path: Path) -> dict[str, Any]:
    """The sections of a settings file and of those it starts from."""
    return reduce(merged, with_bases(path))


def merged(base: Table, change: Table) -> dict[str, Any]:
    """Section by section, the settings of `change` before those of `base`."""
    together = dict(base)
    for section, settings in change.items():
        before = base.get(section, {})
        both = isinstance(settings, dict) and isinstance(before, dict)
        together[section] = {**_inherited(before, settings), **settings} if both else settings
    return together


def _inherited(before: Table, change: Table) -> Table:
    """Another kind has other settings: only those that both kinds can have are kept."""
    kinds = {**CORES, **HEADS}
    if change.get("kind", before.get("kind")) == before.get("kind") or change["kind"] not in kinds:
        return before
    return {key: value for key, value in before.items() if key in parameters(kinds[change["kind"]])}


def override(table: Table, assignment: str) -> dict[str, Any]:
    """The table with one more setting, written as `section.key=value`."""
    return merged(table, assigned(assignment))


def runs_of(table: Table) -> dict[str, dict[str, Any]]:
    """One table of settings for each run, by label; a file without [sweep] is one run without a label."""
    base = dict(table)
    sweep = base.pop("sweep", None)
    if sweep is None:
        return {"": base}
    if not _is_sweep(sweep):
        raise BadInput('[sweep] needs keys like "core.width" with lists of values')
    runs: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*sweep.values()):
        chosen = base
        for name, value in zip(sweep, values, strict=True):
            section, key = name.split(".")
            chosen = merged(chosen, {section: {key: value}})
        label = "-".join(_label(name, value) for name, value in zip(sweep, values, strict=True))
        if label in runs:
            raise BadInput(f"[sweep] has two runs that would both be called {label!r}")
        runs[label] = chosen
    return runs


def _is_sweep(sweep: Any) -> bool:
    return (
        isinstance(sweep, dict)
        and bool(sweep)
        and all(isinstance(values, list) and values and name.count(".") == 1 for name, values in sweep.items())
    )


def _label(name: str, value: Any) -> str:
    """A file name: a kind speaks for itself, other values follow the name of the setting."""
    words = value if name.endswith(".kind") else f"{name.split('.')[1]}-{value}"
    return re.sub(r"[^\w.+-]+", "_", str(words).lower())
