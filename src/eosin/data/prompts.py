"""Prompts: the user's texts as contexts like those that a model was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eosin.contracts import Prefix
from eosin.data.layout import PAPER
from eosin.data.sources import check_line, decode_lines
from eosin.data.tokenizer import UNK_ID, Tokenizer
from eosin.errors import BadInput
from eosin.storage.json_lines import MALFORMED

Prompt = str | list[dict[str, Any]]
"""A text, or the messages of a conversation, which a chat template turns into one."""
ASSISTANT = "assistant"


@dataclass(frozen=True)
class Prompts:
    """Prompts as contexts, and what was lost on the way."""

    contexts: Prefix | list[list[int]]
    shortened: int = 0
    """How many prompts were longer than a context."""
    unknown: int = 0
    """How many tokens of the contexts are <unk>."""


def encode_contexts(texts: Sequence[str], tokenizer: Tokenizer, context: int) -> Prompts:
    """<bos> and the last `context` tokens of each text, padded on the left if it is shorter, as in a corpus."""
    encoded = list(tokenizer.encode(normalise_prompt(text, number) for number, text in enumerate(texts, 1)))
    with_eos = np.stack([PAPER.build_sequence(ids[-context:], context) for ids in encoded])
    contexts = torch.from_numpy(with_eos[:, :-1]).long()
    return Prompts(contexts, sum(len(ids) > context for ids in encoded), int((contexts == UNK_ID).sum()))


def read_prompts(path: Path, most: int | None = None) -> list[Prompt]:
    """The lines of a text file, or the `prompt` or `messages` of JSON lines; last answers are left out."""
    return read_entries(path, "prompt (JSON lines: `prompt` or `messages`)", parse_prompt, most)


def parse_prompt(table: dict[str, Any]) -> Prompt:
    prompt = parse_messages(table["messages"]) if "messages" in table else parse_text(table["prompt"])
    if isinstance(prompt, str):
        return prompt
    asked = max((place for place, each in enumerate(prompt, 1) if each["role"] != ASSISTANT), default=0)
    return check_filled(prompt[:asked])


def read_entries(
    path: Path, what: str, parse: Callable[[dict[str, Any]], Prompt], most: int | None = None
) -> list[Prompt]:
    """The first non-empty lines of a UTF-8 text file, unchanged; of JSON lines, what `parse` takes from each.

    A file is JSON lines by its name (.json, .jsonl), or if its first line is a JSON object.
    """
    lines = list(
        islice(((n, line.strip("\r\n")) for n, line in enumerate(decode_lines(path), 1) if line.strip()), most)
    )
    if not lines:
        raise BadInput(f"{path} is empty: it should have one {what} on every line")
    if path.suffix not in (".json", ".jsonl") and not is_object(lines[0][1]):
        return [line for _, line in lines]
    return list(parse_entries(path, what, parse, lines))


def is_object(line: str) -> bool:
    """Whether a line is an object of JSON."""
    try:
        return line.startswith("{") and bool(json.loads(line))
    except (ValueError, RecursionError):
        return False


def parse_entries(
    path: Path, what: str, parse: Callable[[dict[str, Any]], Prompt], lines: Sequence[tuple[int, str]]
) -> Iterator[Prompt]:
    for number, line in lines:
        try:
            yield parse(check_object(json.loads(line)))
        except (*MALFORMED, AttributeError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else error
            raise BadInput(f"line {number} of {path} is no {what}: {said}") from error


def check_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"it is {json.dumps(value)[:30]}, not an object of JSON")
    return value


def parse_text(value: Any) -> Prompt:
    """A text, or a list of messages."""
    return check_filled(value) if isinstance(value, str) else parse_messages(value)


def parse_messages(messages: Any) -> Prompt:
    return check_filled([{**each, "role": each["role"], "content": join_parts(each["content"])} for each in messages])


def join_parts(content: Any) -> str:
    """The text of a message, which may come in parts."""
    if content is None or isinstance(content, str):  # a message that only calls a tool has no content
        return content or ""
    return "".join(part["text"] for part in content)


def check_filled(prompt: Prompt) -> Prompt:
    if not prompt:
        raise ValueError("it is empty")
    return prompt


def normalise_prompt(text: str, number: int) -> str:
    """The text with single spaces between words, as in a corpus."""
    prompt = " ".join(text.split())
    if not prompt:
        raise BadInput("the prompt is empty: give at least one word")
    check_line(prompt, number, Path("the prompts"))
    return prompt
