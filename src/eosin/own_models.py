"""Models of the user's own: py:FILE:FUNCTION names a function in a Python file that returns one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eosin.contracts import Generative, Words
from eosin.decoding.job import check_model
from eosin.errors import BadInput
from eosin.published import find_published
from eosin.python_files import run_python_file
from eosin.storage.files import OWN


@dataclass(frozen=True)
class OwnModel:
    """What the function of a file returned."""

    file: Path
    function: str
    model: Generative
    words: Words | None


def open_own_model(name: str) -> OwnModel:
    """Run the file of py:FILE:FUNCTION and call the function, which returns a model, or a model and its words."""
    file, function = parse_name(name)
    made = call(name, find_function(name, file, function))
    model, words = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, Generative):
        raise BadInput(
            f"{name} must return a model with vocab_size, eos_ids, prefill and step, or a pair of such a model and "
            f"words with encode and decode; it returned a {type(model).__name__}"
        )
    try:
        check_model(model)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error
    if words is not None:
        check_words(name, words, model.eos_ids)
    return OwnModel(file, function, model, words)


def check_words(name: str, words: object, eos_ids: Sequence[int]) -> None:
    """The tokens that end a text are decoded now, since in an audit they come late."""
    if not isinstance(words, Words):
        missing = next(each for each in ("encode", "decode") if not hasattr(words, each))
        raise BadInput(f"{name}: words must have encode and decode; {type(words).__name__} has no {missing}")
    for token in eos_ids:
        text = call(name, partial(words.decode, [token]))
        if not isinstance(text, str):
            raise BadInput(f"{name}: words must decode any tokens to a text; [{token}] gave {text!r}")


def encode_text(words: Words, text: str) -> list[int]:
    try:
        return list(words.encode(text))
    except (ValueError, KeyError) as error:
        raise BadInput(f"the prompt {text!r} cannot be read as tokens: {type(error).__name__}: {error}") from error


def parse_name(name: str) -> tuple[Path, str]:
    file, _, function = name.removeprefix(OWN).rpartition(":")
    if not file or not function.isidentifier():
        example = name.removeprefix(OWN) if name.endswith(".py") else "model.py"
        raise BadInput(f"{name} names no function: say {OWN}FILE:FUNCTION, as in {OWN}{example}:load")
    path = find_published(file)
    if not path.is_file():
        raise BadInput(f"{name}: there is no file {file}")
    return path, function


def find_function(name: str, file: Path, function: str) -> Callable[[], object]:
    names = vars(call(name, lambda: run_python_file(file, "model")))
    if not callable(names.get(function)):
        raise BadInput(f"{name}: {file} has no function {function}")
    return names[function]


def call(name: str, function: Callable[[], Any]) -> Any:
    """Call code of the user's. What it raises is shown with its traceback, as it is the user's to mend."""
    try:
        return function()
    except BadInput:
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace and Path(trace.tb_frame.f_code.co_filename).parent == Path(__file__).parent:
            trace = trace.tb_next  # the frames of this package
        shown = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        raise BadInput(f"{name} raised {type(error).__name__}: {error}\n{shown}") from error
