"""What became of a decoding: a completion, and where it never ends, the proof of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from eosin.causes import Cause


@dataclass(frozen=True)
class Proof:
    """A proof that a decoding never ends: a cycle of tokens repeats for ever."""

    cycle: tuple[int, ...]
    """The tokens that repeat, beginning with the last one that was produced."""
    by: str
    """"certified cycle" or "exact recurrence"."""


@dataclass(frozen=True)
class Completion:
    """What a decoder made of one context."""

    index: int
    """Which context this is."""
    tokens: Int[Tensor, " length"]
    """What was produced, eos included where it was."""
    cause: Cause
    """Why decoding stopped."""
    steps: int
    """The step at which it ended or met the limit: a beam may go on after its best hypothesis is finished."""
    log_prob: float
    """Log-probability of the tokens under the model: not truncated, temperature 1."""
    proof: Proof | None = None
    """Set if the decoding was proved infinite."""
    survival: Float64[Tensor, " length"] | None = None
    """The weight of the path after each step, if survival is estimated."""

    @property
    def terminated(self) -> bool:
        """Whether decoding ended by itself within the limit."""
        return self.cause.ends


@dataclass(frozen=True)
class Completions:
    """What a decoder made of many contexts, in the order in which the contexts were given.

    Tokens are packed: context i has `packed[offsets[i]:offsets[i + 1]]`.
    """

    packed: Int[Tensor, " tokens"]
    offsets: Int[Tensor, " bounds"]
    terminated: Bool[Tensor, " contexts"]
    """Whether each decoding ended by itself; recorded where it happened, never deduced from a length."""
    steps: Int[Tensor, " contexts"]
    """The step at which each ended or met the limit; for a beam it may be later than the length."""
    log_prob: Float64[Tensor, " contexts"]
    """Log-probability of each completion under the model: not truncated, temperature 1."""

    @classmethod
    def pack(cls, completions: Sequence[Completion]) -> Completions:
        lengths = torch.tensor([len(c.tokens) for c in completions], dtype=torch.int64, device="cpu")
        return cls(
            packed=torch.cat([c.tokens for c in completions]),
            offsets=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
            terminated=torch.tensor([c.terminated for c in completions], device="cpu"),
            steps=torch.tensor([c.steps for c in completions], dtype=torch.int64, device="cpu"),
            log_prob=torch.tensor([c.log_prob for c in completions], dtype=torch.float64, device="cpu"),
        )

    @property
    def tokens(self) -> list[list[int]]:
        """The token ids of each completion, eos included where it was produced."""
        return [part.tolist() for part in self.packed.tensor_split(self.offsets[1:-1])]

    @property
    def lengths(self) -> Int[Tensor, " contexts"]:
        return self.offsets.diff()

    def __len__(self) -> int:
        return len(self.terminated)

    def __repr__(self) -> str:
        ended = int(self.terminated.sum())
        return f"Completions({len(self)} contexts, {ended} terminated, {len(self.packed)} tokens)"
