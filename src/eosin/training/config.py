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

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from eosin.data.corpus import Corpus, Recipe
from eosin.data.preparation import open_corpus
from eosin.data.prompts import Prompts, encode_contexts
from eosin.data.sources import SPLITS
from eosin.data.tokenizer import EOS_ID, Tokenizer
from eosin.errors import BadInput
from eosin.models.checkpoint import Architecture, build_trained
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES, NeuralLM
from eosin.settings import (
    Table,
    build,
    check_numbers,
    check_sections,
    expand_sweep,
    get_parameters,
    label_settings,
    list_changes,
    merge,
    read_with_bases,
)
from eosin.training.trainer import Trainer

SECTIONS = ("data", "core", "head", "output", "training")


@dataclass(frozen=True)
class Training:
    """Adam on shuffled batches; the rate falls and training ends when validation makes no progress."""

    batch: int = 32
    """Sentences in a batch."""
    learning_rate: float = 1e-3
    """Of Adam, at the start."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    epochs: int = 100
    """Maximum number of epochs."""
    patience: int = 10
    """Training ends after so many epochs without a better validation perplexity."""
    anneal: float = 0.5
    """Factor on the learning rate after each epoch without a better validation perplexity."""
    falling: bool = False
    """Whether the rate also decays linearly to zero, at the end of the last epoch."""
    warmup: int = 0
    """Steps over which the rate rises linearly to its full value."""
    seed: int = 0
    """Decides the initial weights, the order of the batches and dropout."""
    torch_start: bool = False
    """Initialise embedding and output as torch does (tied: N(0, 1)) instead of with U(-0.1, 0.1)."""
    log_every: int = 100
    """Steps between two lines of the log."""

    def __post_init__(self) -> None:
        least = {"batch": 1, "epochs": 1, "patience": 1, "log_every": 1, "warmup": 0}
        check_numbers(self, least, positive=("learning_rate", "clip", "anneal"))
        if self.anneal > 1:
            raise ValueError(f"anneal must be at most 1: the rate never grows, got {self.anneal}")


@dataclass(frozen=True)
class Config:
    """The settings of one run, checked as far as possible without the corpus."""

    measured_splits: ClassVar[tuple[str, ...]] = SPLITS
    """The splits whose perplexity is measured at the end."""
    measured_lines: ClassVar[int | None] = None
    """How many sentences of valid and test are measured; None: all."""
    data: Recipe
    training: Training
    model: dict[str, Table]
    data_table: Table
    """The section [data] as written. A prepared corpus must not contradict it."""

    @classmethod
    def from_table(cls, table: Table) -> Config:
        check_sections(table, SECTIONS, "a settings file")
        config = cls(
            data=build(Recipe, table.get("data", {}), "data"),
            training=build(Training, table.get("training", {}), "training"),
            model={section: table.get(section, {}) for section in ("core", "head", "output")},
            data_table=table.get("data", {}),
        )
        config.resolve_architecture(vocab_size=EOS_ID + 1).build()
        return config

    def resolve_architecture(self, vocab_size: int) -> Architecture:
        output = {**self.model["output"], "vocab_size": vocab_size, "eos_id": EOS_ID}
        return replace(Architecture.resolve({**self.model, "output": output}), torch_start=self.training.torch_start)

    def resolve(self, corpus: Corpus) -> dict[str, Table]:
        """All sections with every default, as config.toml holds them."""
        corpus.check_settings({key: value for key, value in self.data_table.items() if key != "source"})
        data = {**asdict(corpus.recipe), "source": self.data_table.get("source", corpus.recipe.source)}
        architecture = self.resolve_architecture(corpus.tokenizer.vocab_size)
        for key, value in self.model["output"].items():
            if architecture.output[key] != value:
                raise BadInput(f"output.{key} follows from the corpus: it is {architecture.output[key]}, not {value!r}")
        return {"data": data, **architecture.sections, "training": asdict(self.training)}

    @property
    def sections(self) -> dict[str, Table]:
        """All sections, without what follows from the corpus."""
        return {"data": asdict(self.data), **self.model, "training": asdict(self.training)}

    def check(self, corpus: Corpus) -> None:
        """Raise BadInput if there is too little text to train on."""
        if len(corpus.train) < self.training.batch:
            raise BadInput(
                f"there are {len(corpus.train)} sentences to train on, fewer than a batch of {self.training.batch}; "
                "give more text or set training.batch"
            )

    def open_corpus(self, below: Path) -> Corpus:
        """The corpus of these settings, prepared below a folder if it is missing."""
        return open_corpus(self.data, below)

    def build_trainer(self, corpus: Corpus, device: torch.device, precision: str) -> Trainer:
        return Trainer(self, corpus, device, precision)

    def load_model(self, folder: Path) -> NeuralLM:
        """The model of a run directory with these settings, ready to decode."""
        return build_trained(folder, Architecture.resolve(self.model))

    def encode_prompts(self, folder: Path, texts: Sequence[str]) -> Prompts:
        """Prompts as contexts of the length that the model was trained on."""
        return encode_contexts(texts, Tokenizer.load(folder), self.data.context)


def inherit_settings(before: Table, change: Table) -> Table:
    """The settings that remain under a change: under a change of kind, only those that the new kind has too."""
    kinds = {**CORES, **HEADS}
    if change.get("kind", before.get("kind")) == before.get("kind") or change["kind"] not in kinds:
        return before
    return {key: value for key, value in before.items() if key in get_parameters(kinds[change["kind"]])}


merge_settings = partial(merge, inherit=inherit_settings)


def read_settings(path: Path) -> dict[str, Any]:
    """The sections of a settings file and of the files it starts from."""
    return merge_settings(*read_with_bases(path))


def expand_runs(table: Table) -> dict[str, dict[str, Any]]:
    """The settings of each run by label. A file without [sweep] is one run with an empty label."""
    base = dict(table)
    if "sweep" not in base:
        return {"": base}
    sweep = base.pop("sweep")
    if not sweep or not is_sweep(sweep):
        raise BadInput('[sweep] needs keys like "core.width" with lists of values')
    runs: dict[str, dict[str, Any]] = {}
    for settings in expand_sweep(sweep):
        label = label_settings(settings)
        if label in runs:
            raise BadInput(f"[sweep] has two runs that would both be called {label!r}")
        runs[label] = merge_settings(base, *list_changes(settings))
    return runs


def is_sweep(sweep: Any) -> bool:
    return isinstance(sweep, dict) and all(
        isinstance(values, list) and values and name.count(".") == 1 for name, values in sweep.items()
    )
