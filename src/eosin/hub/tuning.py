"""Fine-tuning a pretrained model, plain or with a self-terminating head: the paper's GPT-2 experiment.

    [data]        Recipe      a line of the text is a sequence
    [pretrained]  Pretrained  what is fine-tuned
    [head]        HEADS       as in eosin.models.heads; softmax is the model's own
    [training]    Steps       optimiser and schedule

As in the paper's experiment all but the first token of a line is predicted, so that loss, perplexity and the product of
a self-terminating head include the context. The loop, the run directory and resuming are those of `eosin.training`.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
import torch
from safetensors import SafetensorError
from torch import Tensor

from eosin.contracts import Rows
from eosin.data.batches import Batch, Plan, gather, shuffled
from eosin.data.corpus import OF_MODEL, Corpus, Recipe
from eosin.data.layout import Layout
from eosin.data.preparation import open_corpus
from eosin.data.tokenizer import Tokenizer
from eosin.errors import BadInput
from eosin.hub.causal_lm import CausalLM
from eosin.hub.heads import add_head
from eosin.hub.loading import Words, load_causal, load_words
from eosin.models.checkpoint import CONFIG, WEIGHTS, build_trained
from eosin.models.heads import build_head, keeps_softmax, resolve_head
from eosin.settings import Table, build, check_known, read_toml
from eosin.storage.files import PARTIAL
from eosin.training.evaluation import Likelihood, evaluate
from eosin.training.trainer import Trainer, derived_seed

SECTIONS = ("data", "pretrained", "head", "training")
EXPORT = "model"
"""The folder of a finished run that transformers can open."""
SHORTEST = 8
"""Lines are taken to have more tokens than this, so that it is their tokens that limit a batch."""
USUAL_WEIGHTS = 1.3e8
"""Of the models that this is meant for, to estimate how long it takes."""


@dataclass(frozen=True)
class Pretrained:
    """What is fine-tuned."""

    model: str
    """A folder, a .gguf file, a hub id, or smollm2."""
    trust_remote_code: bool = False
    """Whether code that comes with the model is run."""


@dataclass(frozen=True)
class Steps:
    """Adam on shuffled batches at a rate that falls to zero; the weights that validate best are kept."""

    steps: int = 400_000
    """Of gradient descent; with none the model is taken as it is."""
    validate_every: int = 5_000
    """Steps between two validations."""
    tokens: int = 1024
    """The most in a batch, padding included; longer lines are cut off."""
    learning_rate: float = 5e-5
    """Adam's, to begin with; transformers' default."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    lines: int = 0
    """Of valid and of test, so many are measured; 0: all."""
    seed: int = 0
    """Decides the order of the batches and dropout."""
    log_every: int = 100
    """Steps between two lines of the log."""

    def __post_init__(self) -> None:
        for name, least in {"steps": 0, "validate_every": 1, "tokens": 2, "lines": 0, "log_every": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")


@dataclass(frozen=True)
class Tuned:
    """What a fine-tuned model is but for its weights."""

    pretrained: Pretrained
    head: dict[str, Any]

    def build(self, seed: int = 0) -> CausalLM:
        """With the pretrained weights, whatever the seed."""
        model, _ = load_causal(self.pretrained.model, trust_remote_code=self.pretrained.trust_remote_code)
        if keeps_softmax(build_head(self.head)):
            return CausalLM(model.model, model.eos_ids)
        return CausalLM(add_head(model.model, eos_ids=model.eos_ids, count_prompt=True, **self.head), model.eos_ids)

    def words(self) -> Words:
        return load_words(self.pretrained.model, self.pretrained.trust_remote_code)

    def tokenizer(self) -> Tokenizer:
        """For texts: a special token that is written in one is text."""
        backend = getattr(self.words().inner, "backend_tokenizer", None)
        if backend is None:
            raise BadInput(f"{self.pretrained.model} has a tokenizer of the slow kind; fine-tuning needs a fast one")
        inner = tokenizers.Tokenizer.from_str(backend.to_str())
        inner.encode_special_tokens = True
        return Tokenizer(inner)

    def layout(self) -> Layout:
        return layout_of(self.words(), self.pretrained.model)

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        return {"pretrained": asdict(self.pretrained), "head": self.head}


@dataclass(frozen=True)
class Tuning:
    """The settings of one run."""

    measured: ClassVar[tuple[str, ...]] = ("valid", "test")
    data: Recipe
    training: Steps
    tuned: Tuned

    @classmethod
    def of(cls, table: Table) -> Tuning:
        for section, settings in table.items():
            check_known(section, SECTIONS, "a section of the settings of a fine-tuning")
            if not isinstance(settings, dict):
                raise BadInput(f"[{section}] must be a section, got {section} = {settings!r}")
        pretrained = build(Pretrained, table["pretrained"], "pretrained")
        data = {**table.get("data", {}), "tokenization": OF_MODEL + pretrained.model}
        head = resolve_head(table.get("head", {"kind": "softmax"}))
        build_head(head)
        return cls(
            data=build(Recipe, data, "data"),
            training=build(Steps, table.get("training", {}), "training"),
            tuned=Tuned(pretrained, head),
        )

    def architecture(self, vocab_size: int) -> Tuned:
        return self.tuned

    def corpus(self, below: Path) -> Corpus:
        return open_corpus(self.data, below, self._pretrained)

    def _pretrained(self) -> tuple[Tokenizer, Layout]:
        return self.tuned.tokenizer(), self.tuned.layout()

    def check(self, corpus: Corpus) -> None:
        """That the corpus is what the settings say, and in the model's own tokens."""
        for key in ("tokenization", "context", "short", "sentences_by"):
            mine, theirs = getattr(self.data, key), getattr(corpus.recipe, key)
            if mine != theirs:
                raise BadInput(
                    f"data.{key} is {mine!r} in the settings, but the corpus was prepared with {theirs!r}; "
                    "name a text instead of a prepared corpus"
                )

    def resolved(self, corpus: Corpus) -> dict[str, Table]:
        data = {**asdict(corpus.recipe), "source": self.data.source}
        return {"data": data, **self.tuned.sections, "training": asdict(self.training)}

    @property
    def given(self) -> dict[str, Table]:
        return {"data": asdict(self.data), **self.tuned.sections, "training": asdict(self.training)}

    def trainer(self, corpus: Corpus, device: torch.device, precision: str) -> FineTuner:
        return FineTuner(self, corpus, device, precision)

    @property
    def measured_lines(self) -> int | None:
        return self.training.lines or None

    def weights(self, words: int) -> float:
        return USUAL_WEIGHTS

    def tokens_read(self, there: dict[str, int]) -> float:
        """Forward, and twice as much backward; the rest is small beside it."""
        return 3.0 * self.training.steps * self.training.tokens


def layout_of(words: Words, name: str) -> Layout:
    """Lines as the tokenizer makes them, and eos behind them."""
    tokenizer = words.inner
    if tokenizer.eos_token_id is None:
        raise BadInput(f"the tokenizer of {name} has no eos, which every line has to end with")
    first = tokenizer("a")["input_ids"][:1]
    begins = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
    return Layout(
        eos=tokenizer.eos_token_id,
        special=tuple(sorted(tokenizer.all_special_ids)),
        bos=tokenizer.bos_token_id if begins else None,
        whole=True,
    )


class FineTuner(Trainer):
    """A pretrained model, its optimiser and how far they are."""

    span = "part"

    def __init__(self, config: Tuning, corpus: Corpus, device: torch.device, precision: str = "float32"):
        super().__init__(config, corpus, device, precision)
        window = self.model.window
        if window is not None and self.settings.tokens > window:
            raise BadInput(
                f"[training] tokens is {self.settings.tokens}, more than the {window} positions of the model; lower it"
            )

    save_seconds = 900.0

    @property
    def over(self) -> bool:
        return self.progress.epoch * self.settings.validate_every >= self.settings.steps

    @property
    def rate(self) -> float:
        return self.settings.learning_rate * (1 - self.progress.step / self.settings.steps)

    def plan(self) -> Plan:
        """The batches up to the next validation, of an endless stream of shuffled passes."""
        first = self.progress.epoch * self.settings.validate_every
        last = min(first + self.settings.validate_every, self.settings.steps)
        return list(itertools.islice(self._stream(), first, last))

    def _stream(self) -> Iterator[Tensor]:
        tokens = self.settings.tokens
        lengths = (self.corpus.train.lengths + 1).clamp(max=tokens)  # the first token is read too
        for number in itertools.count():
            seed = derived_seed(self.settings.seed, "order", number)
            yield from shuffled(lengths, max(1, tokens // SHORTEST), seed, tokens)

    def batch(self, rows: Rows) -> Batch:
        return gather(self.corpus.train, rows, most=self.settings.tokens - 1)

    def divisor(self, batch: Batch) -> int:
        """The same for all: batches of short lines have fewer tokens, and a mean would let each of them count more."""
        return int(self.settings.tokens)

    def stall(self) -> None:
        self.progress.stalled += 1

    def likelihood(self, split: str, progress: Callable[[Iterable[Batch]], Iterable[Batch]] = iter) -> Likelihood:
        return evaluate(self.model, self.corpus.splits[split], self.device, progress, self.settings.lines or None)

    def conclude(self, folder: Path) -> None:
        """A folder that transformers can open."""
        partial = folder / f"{EXPORT}{PARTIAL}"
        for left in (partial, folder / EXPORT):
            shutil.rmtree(left, ignore_errors=True)
        try:
            self.model.model.save_pretrained(partial)
            self.architecture.words().inner.save_pretrained(partial)
            partial.rename(folder / EXPORT)
        except SafetensorError as error:
            raise OSError(f"cannot write {partial}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def load_tuned(folder: Path) -> CausalLM:
    """The model of a run directory, ready to decode."""
    config = Tuning.of(read_toml(folder / CONFIG))
    if (folder / EXPORT).is_dir():  # it is finished, and whole without the model that it began with
        return load_causal(str(folder / EXPORT), trust_remote_code=config.tuned.pretrained.trust_remote_code)[0]
    if not (folder / WEIGHTS).is_file():
        raise BadInput(f"{folder} has no {WEIGHTS}: it has not been validated yet; see: eosin train {folder}")
    return build_trained(folder, config.tuned)


def prompts_of(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts as the lines of a run's corpus begin."""
    tuned = Tuning.of(read_toml(folder / CONFIG)).tuned
    words = load_words(str(folder / EXPORT)) if (folder / EXPORT).is_dir() else tuned.words()
    layout = layout_of(words, tuned.pretrained.model)
    start = [] if layout.bos is None else [layout.bos]
    return [[*start, *words.inner(text, add_special_tokens=False)["input_ids"]] for text in texts]
