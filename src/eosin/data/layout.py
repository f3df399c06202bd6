"""How a sentence becomes a sequence: which special tokens stand around its words, and what of it is predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from eosin.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIAL


@dataclass(frozen=True)
class Layout:
    """<bos>, the words with padding in front where they are fewer than a context, <eos>.

    Any of the first two may be missing: then sequences begin with a word, and short ones cannot be padded.
    """

    eos: int
    special: tuple[int, ...]
    """Tokens that are no words."""
    bos: int | None = None
    pad: int | None = None
    whole: bool = False
    """Whether all but the first token is predicted, or only what follows the context."""

    def sequence(self, ids: list[int], context: int) -> Int32[np.ndarray, " length"]:
        start = [] if self.bos is None else [self.bos]
        padding = [] if self.pad is None else [self.pad] * (context - len(ids))
        return np.array([*start, *padding, *ids, self.eos], dtype=np.int32)

    def prefix_length(self, context: int) -> int:
        """Of a context of so many words."""
        return context + (self.bos is not None)

    def given(self, context: int) -> int:
        """How many tokens are not predicted."""
        return 1 if self.whole else self.prefix_length(context)


PAPER = Layout(EOS_ID, tuple(range(len(SPECIAL))), BOS_ID, PAD_ID)
