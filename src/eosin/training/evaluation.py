"""The likelihood of continuations, <eos> included, under a model, and its perplexity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eosin.contracts import LanguageModel, Selective
from eosin.data.batches import Batch, gather, plan_by_length
from eosin.data.corpus import Split
from eosin.decoding.job import window_of
from eosin.devices import choose_exact_device, eval_mode, own_precision
from eosin.events import Event, Watch, ignore

EVALUATION_BATCH = 128
"""Sentences in a batch that needs no gradient."""
MOST_TOKENS = 4096
"""Tokens in such a batch, for models that keep all its logits."""


@dataclass(frozen=True)
class Likelihood:
    """A sum over tokens, in nats. Likelihoods add up."""

    negative_log: float = 0.0
    tokens: int = 0

    def __add__(self, other: Likelihood) -> Likelihood:
        return Likelihood(self.negative_log + other.negative_log, self.tokens + other.tokens)

    @property
    def loss(self) -> float:
        """Mean over tokens."""
        return self.negative_log / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf


def negative_log_likelihood(model: LanguageModel, batch: Batch) -> Float[Tensor, ""]:
    """The sum over the tokens of the continuations."""
    if isinstance(model, Selective):
        log_probs = model.log_probs(batch.prefix, batch.continuation, batch.wanted)
    else:
        log_probs = model.score(batch.prefix, batch.continuation)[batch.wanted]
    return -log_probs.to(choose_exact_device(log_probs.device)).sum(dtype=torch.float64)


def evaluate(
    model: LanguageModel,
    split: Split,
    device: torch.device,
    watch: Watch = ignore,
    count: int | None = None,
    label: str = "perplexity",
) -> Likelihood:
    """The likelihood of a split, or of its first `count` sentences, under a model without dropout.

    Continuations are cut where the model has no more positions. The watch gets an event "progress" for each batch.
    """
    total = Likelihood()
    window = window_of(model)
    most = None if window is None else window - split.unpredicted + 1
    tokens = None if isinstance(model, Selective) else MOST_TOKENS
    plan = plan_by_length(split.lengths[:count], EVALUATION_BATCH, tokens)
    with eval_mode(model), own_precision(), torch.inference_mode():
        for done, rows in enumerate(plan, 1):
            batch = gather(split, rows, most)
            total += Likelihood(float(negative_log_likelihood(model, batch.to(device))), batch.tokens)
            watch(Event("progress", {"label": label, "done": done, "total": len(plan)}))
    return total
