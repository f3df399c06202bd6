"""Output heads: how probable eos is, and what is promised about it.

A head sees the eos logit z_t = u_eos . h_t + c_eos at each position after the context and answers log(1 - p_t(eos)),
the log-survival. The tokens other than eos always keep the ratios of their softmax, so that one number is the whole
difference between the heads (`eosin.logits.rewrite_eos` turns it back into a logit).

    Softmax          1 - p_t = the softmax's own
    SelfTerminating  1 - p_t = product over i <= t of (1 - epsilon) sigmoid(z_i)         Definition 4.3 of the paper
    NonMonotonic     1 - p_t = (1 - epsilon)^t (1 - sigmoid(z_t))                         Choi, Cho and Lee, ICLR 2023

In SelfTerminating the sigmoid is *survival*: a large z_t means "go on". In the other two it means "stop".
Positions are counted from the first token after the context, t = 1, 2, ...; log-survival is kept in float64.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional

from eosin.contracts import EosLogits, LogSurvival
from eosin.states import TensorState


class Softmax(nn.Module):
    """The ordinary output layer. It promises nothing about eos."""

    stationary = True
    """What it says depends on the logits alone, not on the step."""
    grounds = "p(eos) >= xi at every step, as hidden vectors and weights are bounded (Lemma 3.2)"

    def initial(self, batch: int, device: torch.device) -> TensorState:
        return TensorState((torch.empty(batch, 0, device=device),))

    def forward(self, eos_logits: EosLogits, memory: TensorState) -> tuple[None, TensorState]:
        return None, memory

    def promise(self, steps: Float64[Tensor, " steps"]) -> None:
        """Nothing but what the softmax gives by itself."""


class SelfTerminating(nn.Module):
    """p(eos) never falls and tends to one: p_t >= 1 - (1 - epsilon)^t. The memory is the log-survival so far."""

    stationary = False

    def __init__(self, epsilon: float = 1e-3):
        super().__init__()
        self.epsilon = checked_epsilon(epsilon)

    def initial(self, batch: int, device: torch.device) -> TensorState:
        return TensorState((torch.zeros(batch, dtype=torch.float64, device=device),))

    def forward(self, eos_logits: EosLogits, memory: TensorState) -> tuple[LogSurvival, TensorState]:
        (so_far,) = memory.tensors
        factors = math.log1p(-self.epsilon) + functional.logsigmoid(eos_logits.double())
        log_survival = so_far[:, None] + factors.cumsum(1)
        return log_survival, TensorState((log_survival[:, -1],))

    def promise(self, steps: Float64[Tensor, " steps"]) -> Float64[Tensor, " steps"]:
        return steps * math.log1p(-self.epsilon)

    @property
    def grounds(self) -> str:
        return f"p(eos) >= 1 - (1 - {self.epsilon:g})^t at step t, by a self-terminating head"

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}"


class NonMonotonic(nn.Module):
    """p(eos) tends to one but may fall on the way: p_t >= 1 - (1 - epsilon)^t. The memory is the step."""

    stationary = False

    def __init__(self, epsilon: float = 1e-3):
        super().__init__()
        self.epsilon = checked_epsilon(epsilon)

    def initial(self, batch: int, device: torch.device) -> TensorState:
        return TensorState((torch.zeros(batch, dtype=torch.int64, device=device),))

    def forward(self, eos_logits: EosLogits, memory: TensorState) -> tuple[LogSurvival, TensorState]:
        (so_far,) = memory.tensors
        step = so_far[:, None] + torch.arange(1, eos_logits.shape[1] + 1, device=so_far.device)
        log_survival = step.double() * math.log1p(-self.epsilon) + functional.logsigmoid(-eos_logits.double())
        return log_survival, TensorState((step[:, -1],))

    def promise(self, steps: Float64[Tensor, " steps"]) -> Float64[Tensor, " steps"]:
        return steps * math.log1p(-self.epsilon)

    @property
    def grounds(self) -> str:
        return f"p(eos) >= 1 - (1 - {self.epsilon:g})^t at step t, by a non-monotonic head"

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}"


def checked_epsilon(epsilon: float) -> float:
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must lie strictly between 0 and 1, got {epsilon}")
    return epsilon


HEADS: dict[str, type[Softmax] | type[SelfTerminating] | type[NonMonotonic]] = {
    "softmax": Softmax,
    "self-terminating": SelfTerminating,
    "non-monotonic": NonMonotonic,
}
