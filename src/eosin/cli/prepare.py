"""eosin prepare"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from eosin.data.corpus import Corpus, Recipe
from eosin.data.preparation import prepare
from eosin.data.sources import BUNDLED
from eosin.data.tokenizer import TOKENIZATIONS
from eosin.errors import BadInput
from eosin.paper.exhibits import load_exhibit
from eosin.paper.plan import read_model_settings
from eosin.settings import build

DESCRIPTION = """Without SOURCE it makes the paper's two datasets, word and BPE, of the bundled WikiText-2, in data/.

examples:
  eosin prepare
  eosin prepare my-sentences.txt --tokenization word --out data/mine
  eosin prepare wikitext-103/ --vocab-size 50000
  eosin prepare novel.txt --sentences-by sentencizer"""

SETTINGS = ("source", "tokenization", "vocab_size", "context", "sentences_by", "short", "unknown", "valid", "test")
PAPER_STATISTICS = {model.label.lower(): model.paper for model in load_exhibit("statistics").models}
"""The dataset statistics of the paper's appendix."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="wikitext-2-sentences or wikitext-2 (both bundled; NAME@8000 takes its first 8000 sentences, and 800 of "
        "valid and of test); a folder with wiki.{train,valid,test}.tokens or .raw, or with {train,valid,test}.txt "
        "(each also as .xz); or a UTF-8 text file with a sentence on each line, or JSON lines with a `text` in each, "
        "of which one in ten is held out",
    )
    add("--tokenization", choices=list(TOKENIZATIONS), help="words or byte-level BPE (default: bpe)")
    add("--vocab-size", type=int, metavar="N", help="maximum size (default: all words of train and valid; BPE 19483)")
    add("--context", type=int, metavar="K", help="tokens in a context, the paper's k (default: 10)")
    add(
        "--sentences-by",
        metavar="HOW",
        help="what finds the sentences of a paragraph: sentencizer or a spaCy model (default: a sequence is a line)",
    )
    add(
        "--short",
        choices=["auto", "pad", "drop"],
        help="what to do with sequences of K tokens or fewer (default: drop lines of the original WikiText, else pad)",
    )
    add(
        "--unknown",
        choices=["keep", "drop"],
        help="what to do with sequences whose text has <unk> (default: keep; the paper's BPE dataset drops them)",
    )
    add("--valid", metavar="FILE", help="a text file for validation (with --test)")
    add("--test", metavar="FILE", help="a text file for testing (with --valid)")
    add("--out", type=Path, metavar="FOLDER", help="the folder to write (default: a name under data/)")


def run(options: argparse.Namespace) -> None:
    given = {key: value for key in SETTINGS if (value := getattr(options, key)) is not None}
    kinds = [given["tokenization"]] if "tokenization" in given else list(PAPER_STATISTICS)
    settings = [{}] if "source" in given else [read_model_settings(f"{kind}-tanh-softmax")["data"] for kind in kinds]
    if options.out and len(settings) > 1:
        raise BadInput("--out names one corpus, but without a source there are two; add --tokenization")
    prepared = {}
    for recipe in (build(Recipe, {**each, **given}, "data") for each in settings):
        folder = options.out or recipe.folder
        prepared[str(folder)] = prepare(recipe, folder)
    if options.json:
        print(json.dumps({folder: corpus.statistics for folder, corpus in prepared.items()}))
        return
    print(format_statistics(prepared))
    if "source" in given or options.out:
        print(f"to train on it: eosin train SETTINGS --data {folder}")


def format_statistics(prepared: dict[str, Corpus]) -> str:
    rows: list[tuple[str, dict[str, Any]]] = []
    for folder, corpus in prepared.items():
        rows.append((folder, corpus.statistics))
        if corpus.recipe.source == BUNDLED[0]:
            rows.append(("  the paper's", PAPER_STATISTICS[corpus.recipe.tokenization]))
    wide = max(len(name) for name, _ in rows)
    names = ("train", "valid", "test", "|V|", "avg. len", "longest", "<unk>", "dropped")
    return "\n".join(
        [" ".join([" " * wide, *(f"{name:>9}" for name in names)]), *(format_row(*row, wide) for row in rows)]
    )


def format_row(name: str, statistics: dict[str, Any], wide: int) -> str:
    cells = [f"{statistics[key]:9,}" for key in ("train", "valid", "test", "vocabulary")]
    cells.append(f"{statistics['average_length']:9.1f}")
    if "longest" in statistics:
        cells += [f"{statistics['longest']:9,}", f"{statistics['unknown']:9.1%}", f"{statistics['dropped']:9,}"]
    return " ".join([f"{name:{wide}}", *cells])
