"""Prompts: texts of one's own, brought to the shape of the contexts that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eosin.contracts import Prefix
from eosin.data.layout import PAPER
from eosin.data.sources import check_line, decoded_lines
from eosin.data.tokenizer import UNK_ID, Tokenizer
from eosin.errors import BadInput


@dataclass(frozen=True)
class Prompts:
    """Prompts as contexts: <bos> and the last k tokens, padded on the left where a prompt is shorter."""

    contexts: Prefix
    shortened: int
    """How many prompts had more than k tokens."""

    @property
    def unknown(self) -> int:
        """How many tokens of the contexts are <unk>."""
        return int((self.contexts == UNK_ID).sum())


def as_contexts(prompts: Sequence[str], tokenizer: Tokenizer, context: int) -> Prompts:
    """Contexts of `context` tokens, made as those of a corpus are."""
    encoded = list(tokenizer.encode(prompts))
    with_eos = np.stack([PAPER.sequence(ids[-context:], context) for ids in encoded])
    return Prompts(
        contexts=torch.from_numpy(with_eos[:, :-1]).long(), shortened=sum(len(ids) > context for ids in encoded)
    )


def read_prompts(path: Path) -> list[str]:
    """The lines of a UTF-8 text file that are not empty, as they are."""
    prompts = [line.rstrip("\r\n") for line in decoded_lines(path) if line.strip()]
    if not prompts:
        raise BadInput(f"{path} is empty: it should have a prompt on every line")
    return prompts


def checked_prompt(text: str, number: int = 1) -> str:
    """The prompt with single spaces between words, as in a corpus."""
    prompt = " ".join(text.split())
    if not prompt:
        raise BadInput("the prompt is empty: give at least one word")
    check_line(prompt, number, Path("the prompts"))
    return prompt
