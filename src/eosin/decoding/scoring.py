"""Scoring by stepping: for models that have no faster way."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from eosin.interfaces import Generative, Prefix, Tokens
from eosin.logits import as_logits


def score_by_steps(model: Generative, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
    """The log-probability of each token of the continuation, one step of the model at a time."""
    logits, state = model.prefill(prefix)
    log_probs = [as_logits(logits).dense().log_softmax(-1)]
    for token in continuation[:, :-1].T:
        logits, state = model.step(token, state)
        log_probs.append(as_logits(logits).dense().log_softmax(-1))
    return torch.stack(log_probs, dim=1).gather(-1, continuation[..., None])[..., 0]
