"""Scoring by stepping: for models that have no faster way."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from eosin.contracts import Generative, Prefix, Token, Tokens
from eosin.logits import Logits, as_logits


def score_by_steps(model: Generative, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
    """The log-probability of each token of the continuation, one step of the model at a time."""
    logits, state = model.prefill(prefix)
    scores = [log_prob_of(continuation[:, 0], logits)]
    for read, scored in zip(continuation[:, :-1].T, continuation[:, 1:].T, strict=True):
        logits, state = model.step(read, state)
        scores.append(log_prob_of(scored, logits))
    return torch.stack(scores, dim=1)


def log_prob_of(token: Token, logits: Logits | Tensor) -> Float[Tensor, " batch"]:
    return as_logits(logits).dense().log_softmax(-1).gather(1, token[:, None])[:, 0]
