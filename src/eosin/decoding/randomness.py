"""Two uniform numbers for each (seed, context, step), whatever else is being decoded.

Philox 4x32-10 (Salmon et al., SC 2011) turns a key (the seed) and a counter (context, step) into 128 random bits: two
numbers of 53 bits. There is no generator to carry along, so a completion depends on no other.

They are computed for many steps at once, on the CPU: a step takes one column of them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from eosin.contracts import Rows, Uniforms

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
AHEAD = 32
"""Steps that numbers are computed for at once."""


class Numbers:
    """The numbers of some contexts for their next AHEAD steps."""

    def __init__(self, seed: int, contexts: Rows, steps: Rows, device: torch.device):
        ahead = steps[:, None] + torch.arange(AHEAD, device="cpu")
        self._columns = uniforms(seed, contexts[:, None].expand_as(ahead), ahead).movedim(1, 0).contiguous().to(device)
        self._rows: Rows | None = None
        self._taken = 0

    @property
    def left(self) -> int:
        """How many steps there are numbers for."""
        return AHEAD - self._taken

    def take(self) -> Uniforms:
        """The numbers of the next step."""
        column = self._columns[self._taken]
        self._taken += 1
        return column if self._rows is None else column[self._rows]

    def select(self, rows: Rows) -> None:
        """Drop the numbers of all other contexts."""
        rows = rows.to(self._columns.device)
        self._rows = rows if self._rows is None else self._rows[rows]


def uniforms(seed: int, contexts: Int[Tensor, "*rows"], steps: Int[Tensor, "*rows"]) -> Float64[Tensor, "*rows 2"]:
    """Two numbers in [0, 1) each: the first decides eos or not, the second picks among the other kept tokens."""
    counter = (contexts & WORD, contexts >> 32, steps & WORD, steps >> 32)
    high0, low0, high1, low1 = philox(counter, (seed & WORD, seed >> 32))
    return torch.stack([unit_interval(high0, low0), unit_interval(high1, low1)], dim=-1)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four 32-bit words from four, elementwise; words are held in int64."""
    word0, word1, word2, word3 = counter
    for round_ in range(ROUNDS):
        key0, key1 = ((k + round_ * step) & WORD for k, step in zip(key, KEY_STEPS, strict=True))
        product0, product1 = word0 * MULTIPLIERS[0], word2 * MULTIPLIERS[1]  # modulo 2^64, as it should be
        word0, word1, word2, word3 = (
            (product1 >> 32 & WORD) ^ word1 ^ key0,
            product1 & WORD,
            (product0 >> 32 & WORD) ^ word3 ^ key1,
            product0 & WORD,
        )
    return word0, word1, word2, word3


def unit_interval(high: Tensor, low: Tensor) -> Tensor:
    """53 of 64 bits as a float64 in [0, 1)."""
    return ((high << 21) | (low >> 11)).double() * 2.0**-53
