"""Prepared corpora: sentences as token ids, each a context and its continuation, in files that people can open.

A sequence is <bos>, the words, <eos>. The context is <bos> and the first k words, padded on the left if the
sentence is shorter. The continuation is the rest, <eos> included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eosin.contracts import Prefix
from eosin.data.layout import PAPER, Layout
from eosin.data.sources import BUNDLED, CONTEXTS, SPLITS
from eosin.data.tokenizer import TOKENIZATIONS, UNK_ID, Tokenizer
from eosin.errors import BadInput
from eosin.settings import build, check_known, get_section, read_toml
from eosin.storage.files import HUB
from eosin.storage.tensors import hash_tensors, load_tensors

DATASET, TOKENS = "dataset.toml", "corpus.safetensors"


@dataclass(frozen=True)
class Recipe:
    """How to make a corpus from a text."""

    source: str = BUNDLED[0]
    """A bundled text (`NAME@8000`: its first 8,000 sentences, and 800 of valid and of test), a WikiText folder or a
    UTF-8 text file."""
    tokenization: str = "bpe"
    """`word` (vocabulary of train and valid), `bpe` (trained on train), or that of a pretrained model (`hf:NAME`)."""
    vocab_size: int = 0
    """Maximum size of the vocabulary, special tokens included; 0: all words, or the paper's 19,483 for BPE."""
    context: int = 10
    """The paper's k."""
    sentences_by: str = "line"
    """A sequence is a `line`, or a sentence found by spaCy's `sentencizer` or the spaCy model of this name."""
    short: str = "auto"
    """Sentences of k tokens or fewer: `pad` them, or `drop` them as in the GPT-2 experiment. `auto` drops lines of
    the original WikiText and pads everything else."""
    unknown: str = "keep"
    """Sequences whose text contains `<unk>`: `keep` or `drop` them."""
    valid: str = ""
    """A text file for validation. Without one, sentences of the text are held out."""
    test: str = ""
    """A text file for testing, as for validation."""

    def __post_init__(self) -> None:
        if not self.tokenization.startswith(HUB):
            check_known(self.tokenization, TOKENIZATIONS, "a tokenization")
        check_known(self.short, ("auto", "pad", "drop"), "a treatment of short sentences")
        check_known(self.unknown, ("keep", "drop"), "a treatment of sequences with <unk>")
        if not 1 <= self.context <= 10_000:
            raise ValueError(f"context must lie between 1 and 10000, got {self.context}")
        if not 0 <= self.vocab_size <= 10_000_000:
            raise ValueError(
                f"vocab_size must lie between 1 and 10000000, or be 0 for the default, got {self.vocab_size}"
            )

    @property
    def folder(self) -> Path:
        """The default folder of the corpus."""
        tokenization = re.sub(r"[^\w.+-]+", "-", self.tokenization)
        name = f"{Path(self.source).stem}-{tokenization}-k{self.context}" + "-without-unk" * (self.unknown == "drop")
        usual = Recipe(self.source, self.tokenization, context=self.context, unknown=self.unknown)
        if self == usual and self.source in BUNDLED:
            return Path("data") / name
        return Path("data") / f"{name}-{sha256(repr(self).encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Sentence:
    """One sentence: what is given, and what is predicted."""

    prefix: Int[Tensor, " prefix"]
    continuation: Int[Tensor, " continuation"]


@dataclass(frozen=True)
class Split:
    """Sentences as packed token ids: sentence i is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: Int[Tensor, " tokens"]
    offsets: Int[Tensor, " bounds"]
    unpredicted: int
    """Tokens at the start of each sentence that are not predicted: its context, or in fine-tuning the first token."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Sentence:
        tokens = self.tokens[self.offsets[index] : self.offsets[index + 1]].long()
        return Sentence(tokens[: self.unpredicted], tokens[self.unpredicted :])

    def __iter__(self) -> Iterator[Sentence]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def lengths(self) -> Int[Tensor, " sentences"]:
        """Predicted tokens of each sentence, <eos> included."""
        return self.offsets.diff() - self.unpredicted

    def take_prefixes(self, length: int) -> Prefix:
        """The first tokens of each sentence."""
        return self.tokens[self.offsets[:-1, None] + torch.arange(length)].long()


@dataclass(frozen=True)
class Corpus:
    """Train, valid and test, with the tokenizer that made them."""

    recipe: Recipe
    tokenizer: Tokenizer
    splits: dict[str, Split]
    digest: str
    """A hash of all tokens, the tokenizer and the length of a context."""
    folder: Path | None = None
    """The folder of its files."""
    dropped: int = 0
    """Sequences that were dropped: no longer than a context, or with `<unk>`."""
    layout: Layout = PAPER

    @property
    def train(self) -> Split:
        return self.splits["train"]

    def take_contexts(self, which: str, count: int | None = None, seed: int = 0) -> Prefix:
        """The first `count` contexts of a split, or of `random` contexts, uniform over the words."""
        check_known(which, CONTEXTS, "a context distribution")
        if which != "random":
            return self.splits[which].take_prefixes(self.prefix_length)[:count]
        generator = torch.Generator().manual_seed(seed)
        size = (len(self.splits["test"]) if count is None else count, self.recipe.context)
        words = torch.tensor(sorted(set(range(self.tokenizer.vocab_size)) - set(self.layout.special)))
        drawn = words[torch.randint(len(words), size, generator=generator)]
        start = torch.full((len(drawn), self.prefix_length - self.recipe.context), self.layout.bos or 0)
        return torch.cat([start, drawn], dim=1)

    @property
    def prefix_length(self) -> int:
        return self.layout.prefix_length(self.recipe.context)

    def count_after_context(self, split: str) -> Int[Tensor, " sentences"]:
        """Tokens after the context of each sentence, <eos> included."""
        return self.splits[split].offsets.diff() - self.prefix_length

    def check_settings(self, data: Mapping[str, Any]) -> None:
        """Raise BadInput if these settings of the section [data] are not those of the corpus."""
        for key, wanted in data.items():
            if getattr(self.recipe, key) != wanted:
                raise BadInput(
                    f"data.{key} is {wanted!r} in the settings, but the corpus was prepared with "
                    f"{getattr(self.recipe, key)!r}; name a text instead of a prepared corpus, or change data.{key}"
                )

    @property
    def statistics(self) -> dict[str, Any]:
        train = self.train
        pad = -1 if self.layout.pad is None else self.layout.pad
        padding = (train.take_prefixes(self.prefix_length) == pad).sum(1)
        around = 2 if self.layout.bos is not None else 1
        real = len(train.tokens) - int(padding.sum()) - around * len(train)
        return {
            **{name: len(split) for name, split in self.splits.items()},
            "vocabulary": self.tokenizer.vocab_size,
            "average_length": real / len(train),
            "longest": int(self.count_after_context("train").max()) - 1 + self.recipe.context - int(padding.min()),
            "dropped": self.dropped,
            "unknown": float((train.tokens == UNK_ID).sum() / real) if self.layout == PAPER else 0.0,
        }


def load_corpus(folder: Path | str) -> Corpus:
    """Open a prepared corpus."""
    folder = Path(folder)
    if not (folder / DATASET).is_file():
        raise BadInput(f"{folder} is not a prepared corpus: it has no {DATASET}; make one with: eosin prepare")
    table = read_toml(folder / DATASET)
    tensors, _ = load_tensors(folder / TOKENS)
    tokenizer = Tokenizer.load(folder)
    parts = {name: get_section(table, name, folder / DATASET) for name in ("recipe", "statistics", "digest", "layout")}
    recipe = build(Recipe, parts["recipe"], "recipe")
    layout = build(Layout, parts["layout"], "layout") if parts["layout"] else PAPER
    digest = hash_corpus(tensors, tokenizer, recipe, layout)
    if parts["digest"].get("corpus") != digest:
        raise BadInput(f"the files of {folder} do not belong together: one has been altered; prepare the corpus anew")
    splits = {
        split: Split(tensors[f"{split}.tokens"], tensors[f"{split}.offsets"], layout.unpredicted_length(recipe.context))
        for split in SPLITS
    }
    return Corpus(recipe, tokenizer, splits, digest, folder, parts["statistics"].get("dropped", 0), layout)


def hash_corpus(tensors: dict[str, Tensor], tokenizer: Tokenizer, recipe: Recipe, layout: Layout) -> str:
    unusual = "" if layout == PAPER else repr(layout)
    return hash_tensors(tensors, f"{recipe.context} {tokenizer.to_json()}{unusual}")
