"""The decoders that a generation config asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eosin.contracts import Decoder
from eosin.decoding.distribution import NextToken
from eosin.decoding.samplers import Greedy, Sampler
from eosin.decoding.truncation import FEW, Consistent, Interval, Nucleus, SmallestSet, TopK, Whole

USUAL_TOP_K = 50
"""What `generate` samples from where nothing is set."""
NOT_APPLIED = {
    "min_p": (None, 0.0), "typical_p": (None, 1.0), "epsilon_cutoff": (None, 0.0), "eta_cutoff": (None, 0.0),
    "top_h": (None,), "repetition_penalty": (None, 1.0), "no_repeat_ngram_size": (None, 0), "bad_words_ids": (None,),
    "min_new_tokens": (None, 0), "min_length": (None, 0), "suppress_tokens": (None,), "num_beams": (None, 1),
    "penalty_alpha": (None, 0.0), "sequence_bias": (None,), "guidance_scale": (None, 1.0),
}  # fmt: skip
"""Settings that `build_sampler` leaves out, with the values that do nothing."""


@dataclass(frozen=True)
class TopKNucleus(SmallestSet):
    """The nucleus of the k most probable tokens, as `generate` has it: their probabilities add up to one."""

    name = "top-k-nucleus"
    examples = ("50:0.9",)
    allowed = (Whole(1), Interval(0, 1, "(]"))
    k: float
    mu: float

    @property
    def few(self) -> int:
        return min(4 * FEW, int(self.k))

    def check(self, vocab_size: int) -> None:
        TopK(self.k).check(vocab_size)

    def certain(self, vocab_size: int) -> float:
        return max(TopK(self.k).certain(vocab_size), Nucleus(self.mu).certain(vocab_size))

    def weight(self, log_probs: Float[Tensor, "batch n"]) -> Float[Tensor, "sums batch n"]:
        return torch.stack([torch.ones_like(log_probs), log_probs.exp()])

    def enough(self, running: Float[Tensor, "sums batch n"], next_token: NextToken) -> Bool[Tensor, "batch n"]:
        count, mass = running
        of_k = next_token.top(int(self.k)).log_probs.exp().sum(1, keepdim=True)
        return (count >= self.k) | (mass > self.mu * of_k + next_token.tie)


def build_sampler(generation: Any, vocab_size: int) -> Sampler:
    """What `generate(do_sample=True)` draws from."""
    top_k = USUAL_TOP_K if generation.top_k is None else generation.top_k
    top_p = 1.0 if generation.top_p is None else generation.top_p
    temperature = 1.0 if generation.temperature is None else generation.temperature
    k = min(top_k, vocab_size) or vocab_size
    if top_p < 1:
        return Sampler(TopKNucleus(k, top_p) if k < vocab_size else Nucleus(top_p), temperature)
    return Sampler(TopK(k) if k < vocab_size else None, temperature)


def choose_decoder(generation: Any, vocab_size: int) -> Decoder:
    """What `generate` does where nothing is said."""
    return build_sampler(generation, vocab_size) if generation.do_sample else Greedy()


def list_decoders(generation: Any, vocab_size: int) -> list[Decoder]:
    """Greedy decoding, the model's own sampling, and its eos-keeping form."""
    own = build_sampler(generation, vocab_size)
    keeping = [] if own.truncation is None else [Sampler(Consistent(own.truncation), own.temperature)]
    return [Greedy(), own, *keeping]


def list_ignored(generation: Any) -> Iterator[str]:
    """Settings of a generation config that these decoders do not have."""
    for name, nothing in NOT_APPLIED.items():
        value = getattr(generation, name, None)
        if value not in nothing:
            yield f"{name}={value}"
