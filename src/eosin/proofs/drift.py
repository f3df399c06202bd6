"""What moves in a loop that nothing was proved of: numbers of the state that count its turns.

Tokens can repeat while the state does not: a cell of an LSTM may add the same amount at every turn. Such a row is long,
not infinite, for all that can be said: the count may end it, and often does.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from eosin.contracts import Generative
from eosin.decoding.loop import SMALLEST_BATCH
from eosin.devices import own_precision
from eosin.proofs.dynamics import RecurrentDynamics

MOVES = 1e-3
"""A number of the state that changes by more than this with every turn is counting."""
FOLLOWED = 64
"""Over so many steps at the end, or one turn where that is longer, the change is measured."""

Drift = tuple[int, int, float]
"""How many numbers count, which of them the most, and by how much a turn."""


@own_precision()
@torch.inference_mode()
def drift(
    model: Generative,
    dynamics: RecurrentDynamics,
    prefix: Int[Tensor, " prefix"],
    tokens: Int[Tensor, " time"],
    period: int,
) -> Drift:
    """What moves at the end of a completion, given the period of its loop."""
    turns = max(1, min(FOLLOWED, len(tokens) - 1) // period)
    _, state = model.prefill(prefix.expand(SMALLEST_BATCH, -1))
    for step, token in enumerate(tokens.tolist()):
        if step == len(tokens) - turns * period:
            earlier = dynamics.numbers(state)[0]
        _, state = model.step(torch.full((SMALLEST_BATCH,), token, device=tokens.device), state)
    by = (dynamics.numbers(state)[0] - earlier) / turns
    most = int(by.abs().argmax())
    return int((by.abs() > MOVES).sum()), most, float(by[most])
