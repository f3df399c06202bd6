"""Prepare a corpus: the text is read twice, once for the vocabulary and once for the token ids."""

from __future__ import annotations

import os
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor
from tqdm import tqdm

from eosin.data.corpus import DATASET, TOKENS, Corpus, Recipe, Split, hash_corpus, load_corpus
from eosin.data.layout import PAPER, Layout
from eosin.data.sources import HELD_OUT, SPLITS, Source, open_source
from eosin.data.tokenizer import TOKENIZATIONS, UNK, Tokenizer
from eosin.errors import BadInput
from eosin.settings import build, read_toml
from eosin.storage.files import PARTIAL, write_text
from eosin.storage.tensors import save_tensors

OpenTokenizer = Callable[[], tuple[Tokenizer, Layout]]
"""Opens the tokenizer of a pretrained model and its layout of a sequence."""


def open_corpus(recipe: Recipe, below: Path = Path(), open_tokenizer: OpenTokenizer | None = None) -> Corpus:
    """The corpus of a recipe, prepared below a folder if it is missing. A source may be a prepared corpus itself."""
    if (Path(recipe.source) / DATASET).is_file():
        return load_corpus(recipe.source)
    usual = below / recipe.folder
    folder = usual if usual.exists() else find_prepared(recipe, usual.parent) or usual
    return prepare(recipe, folder, open_tokenizer)


def find_prepared(recipe: Recipe, place: Path) -> Path | None:
    """A corpus of the same recipe and text under another name, as `eosin prepare --out data/NAME` makes it."""
    return next((file.parent for file in sorted(place.glob(f"*/{DATASET}")) if is_prepared(file, recipe)), None)


def is_prepared(file: Path, recipe: Recipe) -> bool:
    try:
        table = read_toml(file)
        before = build(Recipe, table.get("recipe", {}), "recipe")
    except BadInput:
        return False  # not what is looked for, whatever it is
    same_text = open_source(recipe.source, recipe.valid, recipe.test).compute_digest() == table["digest"].get("source")
    return same_text and not list_differences(before, recipe)


def list_differences(before: Recipe, now: Recipe) -> list[str]:
    """The settings that differ, without the names of texts: the digest of the source covers their contents."""
    there, here = asdict(before), asdict(now)
    return [key for key in here if key not in ("source", "valid", "test") and there[key] != here[key]]


def prepare(recipe: Recipe, folder: Path, open_tokenizer: OpenTokenizer | None = None) -> Corpus:
    """Make a corpus in a folder, or open the one that is there if it has the same recipe and text."""
    source = open_source(recipe.source, recipe.valid, recipe.test)
    source_digest = source.compute_digest()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return reopen(recipe, source_digest, folder, open_tokenizer)

    with_unk: Counter[str] = Counter()

    def sentences(split: str) -> Iterator[str]:
        with_unk[split] = 0
        for sentence in source.read_sentences(split, recipe.sentences_by):
            if recipe.unknown == "drop" and UNK in sentence.split(" "):
                with_unk[split] += 1
            else:
                yield sentence

    tokenizer, layout = open_tokenizer() if open_tokenizer else (train_tokenizer(recipe, sentences), PAPER)
    drop = recipe.short == "drop" or (recipe.short == "auto" and source.wikitext and recipe.sentences_by == "line")
    splits, dropped = {}, 0
    for split in SPLITS:
        rows = [
            layout.build_sequence(ids, recipe.context)
            for ids in tokenizer.encode(show_progress(sentences(split), split))
        ]
        kept = [row for row in rows if not drop or len(row) > layout.prefix_length(recipe.context) + 1]
        if not kept:
            raise BadInput(describe_empty_split(split, source, recipe.context, drop, with_unk[split]))
        splits[split] = pack(kept, layout.unpredicted_length(recipe.context))
        dropped += with_unk[split] + len(rows) - len(kept)
    digest = hash_corpus(list_tensors(splits), tokenizer, recipe, layout)
    corpus = Corpus(recipe, tokenizer, splits, digest, folder, dropped, layout)
    write_corpus(corpus, source_digest, folder)
    return corpus


def train_tokenizer(recipe: Recipe, sentences: Callable[[str], Iterator[str]]) -> Tokenizer:
    if recipe.tokenization not in TOKENIZATIONS:
        raise BadInput(
            f"{recipe.tokenization} is the tokenizer of a pretrained model: use it to fine-tune that model only"
        )
    splits = ("train", "valid") if recipe.tokenization == "word" else ("train",)
    text = (sentence for split in splits for sentence in show_progress(sentences(split), f"vocabulary from {split}"))
    return TOKENIZATIONS[recipe.tokenization](text, recipe.vocab_size)


def pack(rows: list[Any], unpredicted: int) -> Split:
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Split(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(offsets), unpredicted)


def reopen(recipe: Recipe, source_digest: str, folder: Path, open_tokenizer: OpenTokenizer | None = None) -> Corpus:
    """The corpus in a folder, if it is that of the recipe."""
    if not (folder / DATASET).is_file():
        raise BadInput(f"{folder} exists and is not a prepared corpus; name another folder")
    remedy = "prepare it in another folder, or remove that one"
    corpus = load_corpus(folder)
    for key in list_differences(corpus.recipe, recipe):
        before, now = getattr(corpus.recipe, key), getattr(recipe, key)
        raise BadInput(f"{folder} holds another corpus: its {key} is {before!r}, not {now!r}; {remedy}")
    if read_toml(folder / DATASET)["digest"].get("source") != source_digest:
        raise BadInput(
            f"{folder} was prepared from another text than {recipe.source!r} is now: the text has changed; {remedy}"
        )
    if open_tokenizer is not None:
        tokenizer, layout = open_tokenizer()
        if (tokenizer.to_json(), layout) != (corpus.tokenizer.to_json(), corpus.layout):
            raise BadInput(f"{folder} was prepared with another tokenizer than {recipe.tokenization} has now; {remedy}")
    return corpus


def describe_empty_split(split: str, source: Source, context: int, drop: bool, with_unk: int) -> str:
    path = source.paths[split]
    if with_unk:
        return (
            f"nothing is left for {split} of {path}: {with_unk:,} sequences contain {UNK} and were dropped, "
            "all others are too short; keep them (--unknown keep, data.unknown)"
        )
    if drop:
        return (
            f"no sequence for {split} in {path} is longer than the context of {context} tokens; "
            "choose a smaller context, or pad short sequences (--short pad)"
        )
    if not source.shared or split == "train":
        return f"there is no sentence for {split} in {path}: the text is empty"
    return (
        f"{path} is too short: of {HELD_OUT} sentences one goes to valid and one to test, and {split} got none; "
        "give more text, or valid and test files of their own (--valid, --test)"
    )


def list_tensors(splits: dict[str, Split]) -> dict[str, Tensor]:
    return {f"{name}.{part}": getattr(split, part) for name, split in splits.items() for part in ("tokens", "offsets")}


def write_corpus(corpus: Corpus, source_digest: str, folder: Path) -> None:
    """Write all files of a corpus. The folder appears only when it is complete."""
    remove_leftovers(folder)
    partial = folder.with_name(f"{folder.name}.{platform.node()}.{os.getpid()}{PARTIAL}")
    partial.mkdir(parents=True)
    try:
        corpus.tokenizer.save(partial)
        save_tensors(partial / TOKENS, list_tensors(corpus.splits), {})
        layout = {key: value for key, value in asdict(corpus.layout).items() if value is not None}
        sections = {
            "recipe": asdict(corpus.recipe),
            "statistics": corpus.statistics,
            "digest": {"source": source_digest, "corpus": corpus.digest},
            **({} if corpus.layout == PAPER else {"layout": layout}),
        }
        write_text(partial / DATASET, tomli_w.dumps(sections))
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        reopen(corpus.recipe, source_digest, folder)  # another process was faster
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished corpora of processes of this machine that have ended."""
    for leftover in folder.parent.glob(f"{folder.name}.{platform.node()}.*{PARTIAL}"):
        process = leftover.name.removesuffix(PARTIAL).rpartition(".")[2]
        if process.isdigit() and not is_alive(int(process)):
            shutil.rmtree(leftover, ignore_errors=True)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def show_progress(sentences: Iterable[str], what: str) -> Iterator[str]:
    yield from tqdm(sentences, desc=what, unit=" sentences", disable=None, delay=2, leave=False)
