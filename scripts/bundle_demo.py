"""Make the runs that come with the package: train the four demo models, and keep what audits of them need.

    python scripts/bundle_demo.py RUNS

RUNS is a folder for the runs and their corpus. A run that is finished is not trained again. Weights are stored in
float16; a loaded model computes with them in float32. The corpus is cut: the first thousand sentences of train and of
valid, and all of test.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import tomli_w

from eosin.bundled_runs import BUNDLED_RUNS, TWINS
from eosin.cli.progress import Bar
from eosin.data.corpus import Corpus, Split, hash_corpus
from eosin.data.preparation import list_tensors, prepare, write_corpus
from eosin.data.tokenizer import TOKENIZER
from eosin.models.checkpoint import CONFIG, WEIGHTS
from eosin.paper.execution import load_settings
from eosin.storage.files import write_text
from eosin.storage.tensors import load_tensors, save_tensors
from eosin.training.loop import train
from eosin.training.run import CORPUS

KEPT = {"train": 1000, "valid": 1000, "test": None}


def main(runs: Path) -> None:
    for name in (name for twins in TWINS.values() for name in twins):
        config = load_settings(name, {})
        corpus = prepare(config.data, runs / config.data.folder)
        train(config, corpus, runs / name, threads=1, watch=Bar())
        bundle_run(runs / name, cut_corpus(corpus))


def bundle_run(run: Path, corpus: Corpus) -> None:
    folder = BUNDLED_RUNS / run.name
    folder.mkdir(parents=True, exist_ok=True)
    for file in (CONFIG, TOKENIZER):
        shutil.copy(run / file, folder / file)
    weights, notes = load_tensors(run / WEIGHTS)
    save_tensors(folder / WEIGHTS, {key: tensor.half() for key, tensor in weights.items()}, notes)
    place = {"folder": f"../{corpus.folder.name}", "digest": corpus.digest}
    write_text(folder / CORPUS, tomli_w.dumps({"corpus": place}))


def cut_corpus(corpus: Corpus) -> Corpus:
    splits = {name: take_first_sentences(split, KEPT[name]) for name, split in corpus.splits.items()}
    folder = BUNDLED_RUNS / "demo-corpus"
    digest = hash_corpus(list_tensors(splits), corpus.tokenizer, corpus.recipe, corpus.layout)
    kept = replace(corpus, splits=splits, folder=folder, digest=digest)
    shutil.rmtree(folder, ignore_errors=True)
    write_corpus(kept, "cut", folder)
    return kept


def take_first_sentences(split: Split, count: int | None) -> Split:
    offsets = split.offsets[: None if count is None else count + 1].clone()
    return Split(split.tokens[: offsets[-1]].clone(), offsets, split.unpredicted)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
