"""Where text comes from: the bundled WikiText-2, a WikiText folder, or any UTF-8 text file.

A source gives sentences: single lines with single spaces between words, one for each sequence of the corpus.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.files import digest_of_files

SPLITS = ("train", "valid", "test")
BUNDLED = ("wikitext-2-sentences", "wikitext-2")
HELD_OUT = 20
"""Of this many sentences of a single text file one goes to valid and one to test."""
SENTENCIZER = "sentencizer"


@dataclass(frozen=True)
class Source:
    """Text files, one for each split, or one for all."""

    paths: dict[str, Path]
    wikitext: bool
    """Lines such as "= Title =" are headings."""
    lines_are_sequences: bool
    """Long lines, each a sequence of its own, as in the GPT-2 experiment; otherwise a line is a sentence."""
    share: dict[str, range] = field(default_factory=dict)
    """Where splits share one file: which sentences of every HELD_OUT belong to each."""

    def sentences(self, split: str, split_by: str) -> Iterator[str]:
        lines = read_lines(self.paths[split])
        if split_by != "line":
            texts = (line for line in lines if not (self.wikitext and is_heading(line)))
            lines = split_by_spacy(texts, split_by)
        mine = self.share.get(split)
        return (line for number, line in enumerate(lines) if mine is None or number % HELD_OUT in mine)

    def digest(self) -> str:
        return digest_of_files([self.paths[split] for split in SPLITS])


def open_source(name: str, valid: str = "", test: str = "") -> Source:
    """The source of a name: bundled, a folder, or a file (with two more, or else with sentences held out of it)."""
    if (valid or test) and (name in BUNDLED or Path(name).is_dir()):
        raise BadInput(f"{name!r} has valid and test files of its own; name others only beside a text file")
    if name in BUNDLED:
        folder = Path(str(files("eosin") / "data" / name))
        return Source(_in_folder(folder), wikitext=True, lines_are_sequences=name == "wikitext-2")
    path = Path(name)
    if path.is_dir():
        return Source(_in_folder(path), wikitext=True, lines_are_sequences=True)
    for each in filter(None, (name, valid, test)):
        if not Path(each).is_file():
            raise BadInput(f"there is no text {each!r}: name {', '.join(BUNDLED)}, a WikiText folder or a text file")
    if bool(valid) != bool(test):
        raise BadInput("give both valid and test files, or neither: then sentences of the text are held out for them")
    if valid:
        return Source({"train": path, "valid": Path(valid), "test": Path(test)}, False, False)
    share = {
        "train": range(HELD_OUT - 2),
        "valid": range(HELD_OUT - 2, HELD_OUT - 1),
        "test": range(HELD_OUT - 1, HELD_OUT),
    }
    return Source(dict.fromkeys(SPLITS, path), wikitext=False, lines_are_sequences=False, share=share)


def _in_folder(folder: Path) -> dict[str, Path]:
    forms = ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt")
    for form in (form + ending for form in forms for ending in ("", ".xz")):
        paths = {split: folder / form.format(split) for split in SPLITS}
        if all(path.is_file() for path in paths.values()):
            return paths
    wanted = ", ".join(form.format("{train,valid,test}") for form in forms)
    raise BadInput(f"{folder} is not a WikiText folder: it should hold one of {wanted} (or the same with .xz)")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file that are not empty, with single spaces between words."""
    number = 0
    try:
        with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):  # noqa: B007 (the number is for the error)
                words = line.split()
                if words:
                    yield " ".join(words)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: after line {number}, {error.reason}; convert it first") from error
    except (lzma.LZMAError, EOFError) as error:
        raise BadInput(f"{path} is not a whole xz file: {error}") from error


def is_heading(line: str) -> bool:
    return line.startswith("= ") and line.endswith(" =")


def split_by_spacy(texts: Iterator[str], model: str) -> Iterator[str]:
    """Sentences by spaCy's rules ("sentencizer"), or by the model that is named."""
    for document in load_spacy(model).pipe(texts, batch_size=64):
        for sentence in document.sents:
            words = sentence.text.split()
            if words:
                yield " ".join(words)


def load_spacy(model: str) -> Any:
    try:
        import spacy
    except ImportError as error:
        raise BadInput("splitting into sentences needs spaCy: pip install 'eosin[spacy]'") from error
    if model == SENTENCIZER:
        pipeline = spacy.blank("en")
        pipeline.add_pipe(SENTENCIZER)
        return pipeline
    try:
        return spacy.load(model, exclude=["ner", "lemmatizer", "attribute_ruler", "tagger"])
    except OSError as error:
        raise BadInput(
            f"split must be 'line', {SENTENCIZER!r} or an installed spaCy model, got {model!r}; "
            f"a model is installed by: python -m spacy download {model}"
        ) from error
