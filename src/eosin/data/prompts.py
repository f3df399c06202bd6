"""Prompts: the user's texts as contexts like those that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from eosin.contracts import Prefix
from eosin.data.layout import PAPER
from eosin.data.sources import check_line, decode_lines
from eosin.data.tokenizer import UNK_ID, Tokenizer
from eosin.errors import BadInput


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


def read_texts(path: Path, what: str, most: int | None = None) -> list[str]:
    """The first non-empty lines of a UTF-8 text file, unchanged; `what` names a line in messages."""
    texts = list(islice((line.rstrip("\r\n") for line in decode_lines(path) if line.strip()), most))
    if not texts:
        raise BadInput(f"{path} is empty: it should have {what} on every line")
    return texts


def normalise_prompt(text: str, number: int) -> str:
    """The text with single spaces between words, as in a corpus."""
    prompt = " ".join(text.split())
    if not prompt:
        raise BadInput("the prompt is empty: give at least one word")
    check_line(prompt, number, Path("the prompts"))
    return prompt
