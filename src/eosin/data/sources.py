"""Where text comes from: the bundled WikiText-2, a WikiText folder, any UTF-8 text file, or JSON lines.

A source yields sentences: lines with single spaces between words, one for each sequence of the corpus.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from eosin.data.tokenizer import RESERVED
from eosin.errors import BadInput
from eosin.storage.files import hash_files
from eosin.storage.json_lines import MALFORMED

SPLITS = ("train", "valid", "test")
CONTEXTS = (*SPLITS, "random")
BUNDLED = ("wikitext-2-sentences", "wikitext-2")
HELD_OUT = 20
"""Of so many sentences of a single text file, one goes to valid and one to test."""
JSON_NAMES = {".json", ".jsonl"}
SENTENCIZER = "sentencizer"


@dataclass(frozen=True)
class Source:
    """Text files, one for each split, or one for all."""

    paths: dict[str, Path]
    wikitext: bool = False
    """Whether a line is a paragraph or a heading, as in WikiText."""
    shared: bool = False
    """Whether all splits come from one file: of every HELD_OUT sentences the last but one is valid, the last test."""
    most: int | None = None
    """Read at most so many sentences of train, and a tenth as many of valid and test; None: all."""

    def read_sentences(self, split: str, by: str) -> Iterator[str]:
        """Lines, or sentences that spaCy finds: one for each sequence."""
        path = self.paths[split]
        lines = read_normalised_lines(path) if by == "line" else split_by_spacy(self._paragraphs(path), by)
        if self.shared:
            lines = (line for number, line in enumerate(lines) if choose_split(number) == split)
        return islice(lines, self.most and (self.most if split == "train" else self.most // 10))

    def _paragraphs(self, path: Path) -> Iterator[str]:
        if self.wikitext:
            return (line for line in read_normalised_lines(path) if not is_heading(line))
        return join_paragraphs(read_normalised_lines(path, empty=True))

    def compute_digest(self) -> str:
        digest = hash_files([self.paths[split] for split in SPLITS])
        return digest if self.most is None else f"{digest}@{self.most}"


def choose_split(number: int) -> str:
    return {HELD_OUT - 2: "valid", HELD_OUT - 1: "test"}.get(number % HELD_OUT, "train")


def open_source(name: str, valid: str = "", test: str = "") -> Source:
    """Open a bundled text, a folder, or a text file; without valid and test files, sentences of it are held out."""
    bundled, cut, most = name.partition("@")
    path = Path(str(files("eosin") / "bundled" / bundled)) if bundled in BUNDLED else Path(name)
    if path.is_dir():
        if valid or test:
            raise BadInput(f"{name!r} already has valid and test files; name others only with a text file")
        return replace(open_folder(path), most=parse_limit(most, name) if cut and bundled in BUNDLED else None)
    for each in filter(None, (name, valid, test)):
        if not Path(each).is_file():
            raise BadInput(f"there is no text {each!r}: name {', '.join(BUNDLED)}, a WikiText folder or a text file")
    if bool(valid) != bool(test):
        raise BadInput("give both valid and test files, or neither: then sentences of the text are held out for them")
    if valid:
        return Source({"train": path, "valid": Path(valid), "test": Path(test)})
    return Source(dict.fromkeys(SPLITS, path), shared=True)


def parse_limit(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 10:
        raise BadInput(f"the sentences to read are a whole number from 10, as in {BUNDLED[0]}@8000; got {name!r}")
    return int(text)


def open_folder(folder: Path) -> Source:
    """Official WikiText, tokenised or raw, or three text files with a sentence a line; compressed or not."""
    forms = {"wiki.{}.tokens": True, "wiki.{}.raw": True, "{}.txt": False}
    for form, wikitext in forms.items():
        for ending in ("", ".xz"):
            paths = {split: folder / (form.format(split) + ending) for split in SPLITS}
            if all(path.is_file() for path in paths.values()):
                return Source(paths, wikitext)
    wanted = ", ".join(form.format("{train,valid,test}") for form in forms)
    raise BadInput(f"{folder} is not a folder of texts: it should hold one of {wanted} (or the same with .xz)")


def read_normalised_lines(path: Path, empty: bool = False) -> Iterator[str]:
    """The lines of a text file, with single spaces between words; empty lines only if asked for."""
    for number, line in read_numbered_texts(path):
        line = " ".join(line.split())
        check_line(line, number, path)
        if line or empty:
            yield line


def read_numbered_texts(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file; of JSON lines the `text` of each, with an empty line after it.

    A file is JSON lines by its name, or if its first line is a JSON object.
    """
    is_json = not JSON_NAMES.isdisjoint(path.suffixes)
    for number, line in enumerate(decode_lines(path), 1):
        is_json = is_json or (number == 1 and is_json_object(line))
        if not is_json:
            yield number, line
        elif line.strip():
            yield number, parse_text(line, number, path)
            yield number, ""


def is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def parse_text(line: str, number: int, path: Path) -> str:
    try:
        text = json.loads(line)["text"]
    except MALFORMED:
        text = None
    if not isinstance(text, str):
        raise BadInput(f'line {number} of {path} is not a JSON object with a text, as in {{"text": "A sentence."}}')
    return text


def decode_lines(path: Path) -> Iterator[str]:
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            yield from file
    except UnicodeDecodeError as error:
        with opened(path, "rt", encoding="utf-8", errors="surrogateescape") as file:
            number = next(number for number, line in enumerate(file, 1) if re.search("[\udc80-\udcff]", line))
        raise BadInput(f"{path} is not UTF-8 text: line {number}, {error.reason}; convert it first") from error
    except (lzma.LZMAError, EOFError) as error:
        raise BadInput(f"{path} is not a whole xz file: {error}") from error


def check_line(line: str, number: int, path: Path) -> None:
    """Raise BadInput if the text contains a special token, which would be taken for the real one."""
    found = RESERVED.search(line)
    if found:
        around = line[max(0, found.start() - 30) : found.end() + 30]
        raise BadInput(
            f"line {number} of {path} contains {found[0]!r}, which is a special token, in {around!r}; "
            "write it differently in the text"
        )


def is_heading(line: str) -> bool:
    return line.startswith("= ") and line.endswith(" =")


def join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Join wrapped lines: an empty line ends a paragraph."""
    for _, group in groupby(lines, key=bool):
        paragraph = " ".join(group)
        if paragraph:
            yield paragraph


def split_by_spacy(texts: Iterable[str], model: str) -> Iterator[str]:
    """Sentences found by spaCy's rules ("sentencizer") or by a spaCy model."""
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
        pipeline.max_length = 10**9  # the limit protects parsers from running out of memory
        return pipeline
    try:
        return spacy.load(model, exclude=["ner", "lemmatizer", "attribute_ruler", "tagger"])
    except OSError as error:
        raise BadInput(
            f"sentences_by must be 'line', {SENTENCIZER!r} or an installed spaCy model, got {model!r}; "
            f"a model is installed by: python -m spacy download {model}"
        ) from error
