"""About how long a piece takes: the matrix products it needs, at the speed of this machine."""

from __future__ import annotations

import math
import time
from functools import cache
from typing import Any

import torch

from eosin.data.corpus import Recipe
from eosin.data.sources import SPLITS, open_source
from eosin.paper.execution import configured
from eosin.paper.plan import Audit, Corpus, Piece, Plan, Training

TOKENS = 60
"""A decoding is taken to last so many steps; few last to the limit, and these are often proved."""
BPE_TOKENS = 1.1
"""For each word of the text."""
REST = 1.5
"""What is not products, as a factor."""


class Estimates:
    """Seconds for each piece of a plan; as it is, nothing is trained, and a run is only looked at."""

    def __init__(self, plan: Plan, as_is: bool = False):
        self.as_is = as_is
        self.settings = {piece.run: configured(piece.model, piece.changes) for piece in plan.trainings}
        self.settings |= {piece.run: configured(piece.model, {}) for piece in plan.bundled}
        self.speed = products_a_second()

    def seconds(self, piece: Piece) -> float:
        if isinstance(piece, Corpus):
            return 10.0
        if isinstance(piece, Training):
            settings: Any = configured(piece.model, piece.changes)
            there = size(settings.data)
            tokens = there["tokens"] if self.as_is else settings.tokens_read(there)
            return REST * tokens * operations(settings) / self.speed
        if isinstance(piece, Audit):
            settings = self.settings[piece.run]
            there = size(settings.data)
            contexts = min(piece.count or math.inf, there.get(piece.contexts, there["test"]))
            tokens = contexts * min(TOKENS, piece.max_steps) * sum(map(rows, piece.decoders))
            return REST * tokens * operations(settings) / self.speed
        return 30.0


def rows(decoder: str) -> int:
    """A beam is several rows."""
    name, _, rest = decoder.partition(":")
    return int(rest.partition(",")[0]) if name == "beam" else 1


def operations(settings: Any) -> float:
    """Floating point operations for a token."""
    return 2.0 * settings.weights(size(settings.data)["words"])


@cache
def size(recipe: Recipe) -> dict[str, int]:
    """Tokens to train on, different words, and the contexts of each split."""
    source = open_source(recipe.source, recipe.valid, recipe.test)
    texts = {split: list(source.sentences(split, recipe.sentences_by)) for split in SPLITS}
    parts = [sentence.split(" ") for sentence in texts["train"]]
    factor = 1.0 if recipe.tokenization == "word" else BPE_TOKENS
    tokens = factor * sum(max(len(words) - recipe.context, 0) + 1 for words in parts)
    different = len({word for words in parts for word in words})
    return {"tokens": round(tokens), "words": different, **{split: len(text) for split, text in texts.items()}}


def products_a_second() -> float:
    """Floating point operations of a product of the usual shape, measured."""
    left, right = torch.randn(512, 256), torch.randn(256, 8192)
    left @ right
    started = time.perf_counter()
    for _ in range(5):
        left @ right
    return 5 * 2.0 * 512 * 256 * 8192 / (time.perf_counter() - started)
