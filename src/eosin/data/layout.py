"""How a sentence becomes a sequence: its special tokens, and which tokens are predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from eosin.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIAL


@dataclass(frozen=True)
class Layout:
    """A sequence is <bos>, padding if there are fewer words than a context has, the words, <eos>.

    <bos> and padding are optional. Without them sequences begin with a word, and short ones are not padded.
    """

    eos: int
    special: tuple[int, ...]
    """All special tokens."""
    bos: int | None = None
    pad: int | None = None
    whole: bool = False
    """Whether all tokens but the first are predicted, instead of only those after the context."""

    def build_sequence(self, ids: list[int], context: int) -> Int32[np.ndarray, " length"]:
        start = [] if self.bos is None else [self.bos]
        padding = [] if self.pad is None else [self.pad] * (context - len(ids))
        return np.array([*start, *padding, *ids, self.eos], dtype=np.int32)

    def prefix_length(self, context: int) -> int:
        """Tokens in a context of so many words."""
        return context + (self.bos is not None)

    def unpredicted_length(self, context: int) -> int:
        """Tokens at the start of a sequence that are not predicted."""
        return 1 if self.whole else self.prefix_length(context)


PAPER = Layout(EOS_ID, tuple(range(len(SPECIAL))), BOS_ID, PAD_ID)
