"""Fine-tune a pretrained model, plain or with a self-terminating head: the paper's GPT-2 experiment.

    [data]        Recipe      a line of the text is a sequence
    [pretrained]  Pretrained  what is fine-tuned
    [head]        HEADS       as in eosin.models.heads; softmax is the model's own
    [training]    FineTuning  optimiser and schedule

As in the paper's experiment all tokens of a line but the first are predicted: loss, perplexity and the product of a
self-terminating head include the context. `eosin.training` has the loop, the run directory and resuming.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
import torch
from safetensors import SafetensorError
from torch import Tensor

from eosin.contracts import Rows
from eosin.data.batches import Batch, BatchPlan, gather, plan_shuffled
from eosin.data.corpus import Corpus, Recipe
from eosin.data.layout import Layout
from eosin.data.preparation import open_corpus
from eosin.data.prompts import Prompts
from eosin.data.tokenizer import Tokenizer
from eosin.errors import BadInput
from eosin.hub.causal_lm import CausalLM
from eosin.hub.heads import add_head
from eosin.hub.loading import Pretrained
from eosin.models.checkpoint import build_trained
from eosin.models.heads import build_head, keeps_softmax, resolve_head
from eosin.settings import Table, build, check_numbers, check_sections
from eosin.storage.files import HUB, PARTIAL
from eosin.training.trainer import Trainer, derive_seed

SECTIONS = ("data", "pretrained", "head", "training")
EXPORT = "model"
"""The folder of a finished run for transformers."""
SHORTEST = 8
"""Tokens that a line is assumed to have at least, so that the tokens and not the lines limit a batch."""


@dataclass(frozen=True)
class FineTuning:
    """Adam on shuffled batches, with a rate that decays to zero; the weights that validate best are kept."""

    steps: int = 400_000
    """FineTuning of gradient descent; 0 keeps the model unchanged."""
    validate_every: int = 5_000
    """FineTuning between two validations."""
    tokens: int = 1024
    """Maximum tokens in a batch, padding included. Lines are cut off there, and at the positions of the model."""
    learning_rate: float = 5e-5
    """Of Adam, at the start; the default of transformers."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    lines: int = 0
    """Measure so many lines of valid and of test; 0: all."""
    seed: int = 0
    """Decides the order of the batches and dropout."""
    log_every: int = 100
    """FineTuning between two lines of the log."""

    def __post_init__(self) -> None:
        least = {"steps": 0, "validate_every": 1, "tokens": 2, "lines": 0, "log_every": 1}
        check_numbers(self, least, positive=("learning_rate", "clip"))


@dataclass(frozen=True)
class PretrainedArchitecture:
    """A pretrained model and a head for it, as `models.checkpoint.Architecture` is for models of our own."""

    pretrained: Pretrained
    head: dict[str, Any]

    def build(self, seed: int = 0) -> CausalLM:
        """The model with pretrained weights, whatever the seed."""
        model, _ = self.pretrained.load(dtype=torch.float32)
        if keeps_softmax(build_head(self.head)):
            return CausalLM(model.model, model.eos_ids)
        return CausalLM(add_head(model.model, eos_ids=model.eos_ids, count_prompt=True, **self.head), model.eos_ids)

    def load_text_tokenizer(self) -> tuple[Tokenizer, Layout]:
        """The tokenizer of a corpus, which reads the name of a special token as text, and the layout of a line."""
        tokenizer = self.pretrained.load_tokenizer().inner
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise BadInput(f"{self.pretrained.model} has a slow tokenizer; fine-tuning needs a fast one")
        inner = tokenizers.Tokenizer.from_str(backend.to_str())
        inner.encode_special_tokens = True
        return Tokenizer(inner), make_layout(tokenizer, self.pretrained.model)

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        return {"pretrained": asdict(self.pretrained), "head": self.head}


@dataclass(frozen=True)
class FineTuningConfig:
    """The settings of one run."""

    measured_splits: ClassVar[tuple[str, ...]] = ("valid", "test")
    data: Recipe
    training: FineTuning
    base: PretrainedArchitecture

    @classmethod
    def from_table(cls, table: Table) -> FineTuningConfig:
        check_sections(table, SECTIONS, "the settings of a fine-tuning")
        pretrained = build(Pretrained, table["pretrained"], "pretrained")
        data = {**table.get("data", {}), "tokenization": HUB + pretrained.model}
        head = resolve_head(table.get("head", {"kind": "softmax"}))
        build_head(head)
        return cls(
            data=build(Recipe, data, "data"),
            training=build(FineTuning, table.get("training", {}), "training"),
            base=PretrainedArchitecture(pretrained, head),
        )

    def resolve_architecture(self, vocab_size: int) -> PretrainedArchitecture:
        return self.base

    def open_corpus(self, below: Path) -> Corpus:
        return open_corpus(self.data, below, self.base.load_text_tokenizer)

    def check(self, corpus: Corpus) -> None:
        """Raise BadInput unless the corpus has these settings and the tokens of the model."""
        keys = ("tokenization", "context", "short", "sentences_by")
        corpus.check_settings({key: getattr(self.data, key) for key in keys})

    def resolve(self, corpus: Corpus) -> dict[str, Table]:
        return {**self.sections, "data": {**asdict(corpus.recipe), "source": self.data.source}}

    @property
    def sections(self) -> dict[str, Table]:
        return {"data": asdict(self.data), **self.base.sections, "training": asdict(self.training)}

    def build_trainer(self, corpus: Corpus, device: torch.device, precision: str) -> FineTuner:
        return FineTuner(self, corpus, device, precision)

    def load_model(self, folder: Path) -> CausalLM:
        exported = self._find_export(folder)
        return exported.load()[0] if exported else build_trained(folder, self.base)

    def encode_prompts(self, folder: Path, texts: Sequence[str]) -> Prompts:
        """Prompts as the lines of the corpus begin."""
        tokenizer = (self._find_export(folder) or self.base.pretrained).load_tokenizer().inner
        layout = make_layout(tokenizer, self.base.pretrained.model)
        start = [] if layout.bos is None else [layout.bos]
        return Prompts([[*start, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts])

    def _find_export(self, folder: Path) -> Pretrained | None:
        """The model of a finished run, which does not need the one that it started from."""
        export = replace(self.base.pretrained, model=str(folder / EXPORT))
        return export if (folder / EXPORT).is_dir() else None

    @property
    def measured_lines(self) -> int | None:
        return self.training.lines or None


def make_layout(tokenizer: Any, name: str) -> Layout:
    """Lines as the tokenizer encodes them, and eos after them."""
    if tokenizer.eos_token_id is None:
        raise BadInput(f"the tokenizer of {name} has no eos, and every line must end with one")
    first = tokenizer("a")["input_ids"][:1]
    begins = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
    return Layout(
        eos=tokenizer.eos_token_id,
        special=tuple(sorted(tokenizer.all_special_ids)),
        bos=tokenizer.bos_token_id if begins else None,
        whole=True,
    )


class FineTuner(Trainer):
    """A pretrained model, its optimiser and its progress."""

    span = "part"
    save_seconds = 900.0

    def __init__(self, config: FineTuningConfig, corpus: Corpus, device: torch.device, precision: str = "float32"):
        super().__init__(config, corpus, device, precision)
        self.longest_line = min(self.settings.tokens, self.model.window or self.settings.tokens)

    @property
    def is_over(self) -> bool:
        return self.progress.epoch * self.settings.validate_every >= self.settings.steps

    @property
    def rate(self) -> float:
        return self.settings.learning_rate * (1 - self.progress.step / self.settings.steps)

    def plan_epoch(self) -> BatchPlan:
        """The batches up to the next validation, from an endless stream of shuffled passes."""
        first = self.progress.epoch * self.settings.validate_every
        last = min(first + self.settings.validate_every, self.settings.steps)
        return list(itertools.islice(self._stream_batches(), first, last))

    def _stream_batches(self) -> Iterator[Tensor]:
        tokens = self.settings.tokens
        lengths = (self.corpus.train.lengths + 1).clamp(max=self.longest_line)  # the first token is read too
        for number in itertools.count():
            seed = derive_seed(self.settings.seed, "order", number)
            yield from plan_shuffled(lengths, max(1, tokens // SHORTEST), seed, tokens)

    def gather_batch(self, rows: Rows) -> Batch:
        return gather(self.corpus.train, rows, most=self.longest_line - 1)

    def get_divisor(self, batch: Batch) -> int:
        """A constant: with a mean, tokens in batches of short lines would weigh more."""
        return int(self.settings.tokens)

    def stall(self) -> None:
        self.progress.stalled += 1

    def export(self, folder: Path) -> None:
        """Write a folder that transformers can open."""
        partial = folder / f"{EXPORT}{PARTIAL}"
        for leftover in (partial, folder / EXPORT):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            self.model.model.save_pretrained(partial)
            self.architecture.pretrained.load_tokenizer().inner.save_pretrained(partial)
            partial.rename(folder / EXPORT)
        except SafetensorError as error:
            raise OSError(f"cannot write {partial}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
