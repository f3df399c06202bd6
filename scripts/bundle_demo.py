"""Make the runs that come with the package: train `demo` and `demo-st`, and keep what `eosin audit demo` needs.

    python scripts/bundle_demo.py RUNS

RUNS is a folder for the runs and their corpus; what is finished there is not trained again. The corpus that is kept is
cut: of train and valid a few paragraphs, of test two hundred.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from eosin.files import write_text
from eosin.models.checkpoint import BUNDLED_RUNS, CONFIG, TWINS, WEIGHTS
from eosin.reproduction.work import configured
from eosin.settings import to_toml
from eosin.text.corpus import Corpus, Split, corpus_digest
from eosin.text.preparation import prepare, tensors_of, write_corpus
from eosin.text.tokenization import TOKENIZER
from eosin.training.loop import train
from eosin.training.run import CORPUS

KEPT = {"train": 20, "valid": 20, "test": 200}


def main(runs: Path) -> None:
    for name in TWINS["demo"]:
        config = configured(name, {})
        corpus = prepare(config.data, runs / config.data.folder)
        train(config, corpus, runs / name, show=True)
        kept = cut(corpus)
        folder = BUNDLED_RUNS / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in (CONFIG, TOKENIZER, WEIGHTS):
            shutil.copy(runs / name / file, folder / file)
        place = {"folder": f"../{kept.folder.name}", "digest": kept.digest}
        write_text(folder / CORPUS, to_toml({"corpus": place}))


def cut(corpus: Corpus) -> Corpus:
    splits = {name: first(split, KEPT[name]) for name, split in corpus.splits.items()}
    folder = BUNDLED_RUNS / "demo-corpus"
    digest = corpus_digest(tensors_of(splits), corpus.tokenizer, corpus.recipe, corpus.layout)
    kept = replace(corpus, splits=splits, folder=folder, digest=digest)
    shutil.rmtree(folder, ignore_errors=True)
    write_corpus(kept, "cut", folder)
    return kept


def first(split: Split, count: int) -> Split:
    offsets = split.offsets[: count + 1].clone()
    return Split(split.tokens[: offsets[-1]].clone(), offsets, split.prefix_length)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
