"""Small texts and corpora for tests."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from eosin.data.corpus import Corpus, Recipe
from eosin.data.preparation import prepare
from eosin.data.sources import BUNDLED, open_source


def real_sentences(count: int, split: str = "valid") -> list[str]:
    return list(islice(open_source(BUNDLED[0]).read_sentences(split, "line"), count))


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def small_corpus(folder: Path, count: int = 200, tokenization: str = "word", **settings: object) -> Corpus:
    text = write_lines(folder / "text.txt", real_sentences(count))
    return prepare(Recipe(source=str(text), tokenization=tokenization, **settings), folder / f"corpus-{tokenization}")
