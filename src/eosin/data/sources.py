"""Where text comes from: the bundled WikiText-2, a WikiText folder, or any UTF-8 text file.

A source gives sentences: single lines with single spaces between words, one for each sequence of the corpus.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from eosin.data.tokenizer import RESERVED
from eosin.errors import BadInput
from eosin.storage.files import hash_files

SPLITS = ("train", "valid", "test")
CONTEXTS = (*SPLITS, "random")
BUNDLED = ("wikitext-2-sentences", "wikitext-2")
HELD_OUT = 20
"""Of this many sentences of a single text file one goes to valid and one to test."""
SENTENCIZER = "sentencizer"


@dataclass(frozen=True)
class Source:
    """Text files, one for each split, or one for all."""

    paths: dict[str, Path]
    wikitext: bool = False
    """A line is a whole paragraph or a heading, and a sequence of its own in the GPT-2 experiment."""
    shared: bool = False
    """All splits come out of one file: of HELD_OUT sentences the last but one is valid, the last test."""
    most: int | None = None
    """How many sentences of train are read, and a tenth as many of valid and test; None: all."""

    def sentences(self, split: str, by: str) -> Iterator[str]:
        """What makes one sequence each: lines, or sentences that spaCy finds."""
        path = self.paths[split]
        lines = read_lines(path) if by == "line" else split_by_spacy(self._paragraphs(path), by)
        own = lines if not self.shared else (line for n, line in enumerate(lines) if share_of(n) == split)
        return islice(own, self.most and (self.most if split == "train" else self.most // 10))

    def _paragraphs(self, path: Path) -> Iterator[str]:
        if self.wikitext:
            return (line for line in read_lines(path) if not is_heading(line))
        return joined(read_lines(path, empty=True))

    def digest(self) -> str:
        whole = hash_files([self.paths[split] for split in SPLITS])
        return whole if self.most is None else f"{whole}@{self.most}"


def share_of(number: int) -> str:
    return {HELD_OUT - 2: "valid", HELD_OUT - 1: "test"}.get(number % HELD_OUT, "train")


def open_source(name: str, valid: str = "", test: str = "") -> Source:
    """The source of a name: bundled, a folder, or a file (with two more, or else with sentences held out of it)."""
    bundled, cut, most = name.partition("@")
    path = Path(str(files("eosin") / "bundled" / bundled)) if bundled in BUNDLED else Path(name)
    if path.is_dir():
        if valid or test:
            raise BadInput(f"{name!r} has valid and test files of its own; name others only beside a text file")
        return replace(in_folder(path), most=least_ten(most, name) if cut and bundled in BUNDLED else None)
    for each in filter(None, (name, valid, test)):
        if not Path(each).is_file():
            raise BadInput(f"there is no text {each!r}: name {', '.join(BUNDLED)}, a WikiText folder or a text file")
    if bool(valid) != bool(test):
        raise BadInput("give both valid and test files, or neither: then sentences of the text are held out for them")
    if valid:
        return Source({"train": path, "valid": Path(valid), "test": Path(test)})
    return Source(dict.fromkeys(SPLITS, path), shared=True)


def least_ten(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 10:
        raise BadInput(f"the sentences to read are a whole number from 10, as in {BUNDLED[0]}@8000; got {name!r}")
    return int(text)


def in_folder(folder: Path) -> Source:
    """Official WikiText, tokenised or raw, or three text files with a sentence a line; compressed or not."""
    forms = {"wiki.{}.tokens": True, "wiki.{}.raw": True, "{}.txt": False}
    for form, wikitext in forms.items():
        for ending in ("", ".xz"):
            paths = {split: folder / (form.format(split) + ending) for split in SPLITS}
            if all(path.is_file() for path in paths.values()):
                return Source(paths, wikitext)
    wanted = ", ".join(form.format("{train,valid,test}") for form in forms)
    raise BadInput(f"{folder} is not a folder of texts: it should hold one of {wanted} (or the same with .xz)")


def read_lines(path: Path, empty: bool = False) -> Iterator[str]:
    """The lines of a text file with single spaces between words; empty ones too if asked for."""
    for number, line in enumerate(decoded_lines(path), 1):
        line = " ".join(line.split())
        check_line(line, number, path)
        if line or empty:
            yield line


def decoded_lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):  # noqa: B007 (the number is for the error)
                yield line
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: after line {number}, {error.reason}; convert it first") from error
    except (lzma.LZMAError, EOFError) as error:
        raise BadInput(f"{path} is not a whole xz file: {error}") from error


def check_line(line: str, number: int, path: Path) -> None:
    """A special token in the text would pass for the real one."""
    found = RESERVED.search(line)
    if found:
        around = line[max(0, found.start() - 30) : found.end() + 30]
        raise BadInput(
            f"line {number} of {path} contains {found[0]!r}, which is a special token, in {around!r}; "
            "write it differently in the text"
        )


def is_heading(line: str) -> bool:
    return line.startswith("= ") and line.endswith(" =")


def joined(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs: lines that no empty line parts, such as those of a text that is wrapped."""
    for _, group in groupby(lines, key=bool):
        paragraph = " ".join(group)
        if paragraph:
            yield paragraph


def split_by_spacy(texts: Iterable[str], model: str) -> Iterator[str]:
    """Sentences by spaCy's rules ("sentencizer"), or by the model that is named."""
    try:
        for document in load_spacy(model).pipe(texts, batch_size=64):
            yield from (sentence.text for sentence in document.sents if sentence.text.strip())
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"spaCy cannot find sentences with {model!r}: {' '.join(str(error).split())[:200]}") from error


def load_spacy(model: str) -> Any:
    try:
        import spacy
    except ImportError as error:
        raise BadInput("splitting into sentences needs spaCy: pip install 'eosin[spacy]'") from error
    if model == SENTENCIZER:
        pipeline = spacy.blank("en")
        pipeline.add_pipe(SENTENCIZER)
        pipeline.max_length = 10**9  # the limit is there for the memory of parsers
        return pipeline
    try:
        return spacy.load(model, exclude=["ner", "lemmatizer", "attribute_ruler", "tagger"])
    except OSError as error:
        raise BadInput(
            f"sentences_by must be 'line', {SENTENCIZER!r} or an installed spaCy model, got {model!r}; "
            f"a model is installed by: python -m spacy download {model}"
        ) from error
