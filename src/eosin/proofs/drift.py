"""Drift in a loop without a proof: numbers of the state that count its turns.

Tokens can repeat while the state does not: a cell of an LSTM may add the same amount at every turn. Such a row may be
long without being infinite: the count may end it, and often does.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from eosin.contracts import Generative
from eosin.decoding.loop import SMALLEST_BATCH
from eosin.devices import own_precision
from eosin.proofs.dynamics import Dynamics

MOVES = 1e-3
"""A number of the state that changes by more than this with every turn is counting."""
FOLLOWED = 64
"""The number of last steps over which the change is measured; at least one turn."""

Drift = tuple[int, int, float]
"""The number of numbers that count, the one that counts most, and its change in a turn."""


@own_precision()
@torch.inference_mode()
def measure_drift(
    model: Generative,
    dynamics: Dynamics,
    prefix: Int[Tensor, " prefix"],
    tokens: Int[Tensor, " time"],
    period: int,
) -> Drift:
    """Measure the drift at the end of a completion, given the period of its loop."""
    turns = max(1, min(FOLLOWED, len(tokens) - 1) // period)
    _, state = model.prefill(prefix.expand(SMALLEST_BATCH, -1))
    for step, token in enumerate(tokens.tolist()):
        if step == len(tokens) - turns * period:
            earlier = dynamics.numbers(state)[0]
        _, state = model.step(torch.full((SMALLEST_BATCH,), token, device=tokens.device), state)
    by = (dynamics.numbers(state)[0] - earlier) / turns
    most = int(by.abs().argmax())
    return int((by.abs() > MOVES).sum()), most, float(by[most])
