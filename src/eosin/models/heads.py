"""Heads: how probable eos is at each step, for our models and for pretrained ones.

A head sees an eos logit z_t at each position after the context and answers log(1 - p_t(eos)), the log-survival. In our
models z_t = u_eos . h_t + c_eos; on pretrained models z_t is made of the model's own log-odds of eos. The tokens other
than eos keep the ratios of their softmax, so that one number is the whole difference between the heads
(`eosin.logits.rewrite_eos` turns it back into a logit).

    softmax           1 - p_t is the softmax's own
    self-terminating  1 - p_t = product over i <= t of (1 - epsilon) sigmoid(z_i)         Definition 4.3 of the paper
    non-monotonic     1 - p_t = (1 - epsilon)^t (1 - sigmoid(z_t))                         Choi, Cho and Lee, ICLR 2023

In the self-terminating head a large z_t means "go on", in the other two "stop". Steps are counted from the first token
after the context, t = 1, 2, ...; log-survival and memory are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional

from eosin.contracts import EosLogits, Head, HeadMemories, HeadMemory, LogSurvival, is_defined_together
from eosin.errors import BadInput
from eosin.settings import Table, build_kind, resolve_kind


class Softmax(nn.Module):
    """The ordinary output layer."""

    keeps_softmax = True
    logit_favors_eos = True
    memory_shape = (0,)
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def forward(self, eos_logits: EosLogits, memory: HeadMemory) -> tuple[None, HeadMemories]:
        return None, memory[:, None].expand(-1, eos_logits.shape[1], -1)


class EpsilonHead(nn.Module):
    """A head with p_t(eos) >= 1 - (1 - epsilon)^t, whatever the logits."""

    name: str
    memory_shape = ()
    examples: ClassVar[tuple[dict[str, Any], ...]] = ({"epsilon": 0.02}, {"epsilon": 1e-3}, {"epsilon": 0.5})

    def __init__(self, epsilon: float = 1e-3):
        super().__init__()
        if not 0 < epsilon < 1:
            raise ValueError(f"epsilon must lie strictly between 0 and 1, got {epsilon}")
        self.epsilon = epsilon

    def bound(self, steps: Float64[Tensor, " steps"]) -> Float64[Tensor, " steps"]:
        return steps * math.log1p(-self.epsilon)

    @property
    def grounds(self) -> str:
        return f"p(eos) >= 1 - (1 - {self.epsilon:g})^t at step t, by a {self.name} head"

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}"


class SelfTerminating(EpsilonHead):
    """p(eos) never falls and tends to one. The memory is the log-survival so far."""

    name = "self-terminating"
    logit_favors_eos = False

    def forward(self, eos_logits: EosLogits, memory: HeadMemory) -> tuple[LogSurvival, HeadMemories]:
        factors = math.log1p(-self.epsilon) + functional.logsigmoid(eos_logits.double())
        log_survival = memory[:, None] + factors.cumsum(1)
        return log_survival, log_survival


class NonMonotonic(EpsilonHead):
    """p(eos) tends to one but may fall on the way. The memory is the number of steps so far."""

    name = "non-monotonic"
    logit_favors_eos = True

    def forward(self, eos_logits: EosLogits, memory: HeadMemory) -> tuple[LogSurvival, HeadMemories]:
        steps = memory[:, None] + torch.arange(1, eos_logits.shape[1] + 1, device=memory.device)
        return steps * math.log1p(-self.epsilon) + functional.logsigmoid(-eos_logits.double()), steps


HEADS: dict[str, Callable[..., Head]] = {
    "softmax": Softmax,
    "self-terminating": SelfTerminating,
    "non-monotonic": NonMonotonic,
}
ALIASES = {"st": "self-terminating", "nmst": "non-monotonic"}


def keeps_softmax(head: object) -> bool:
    """Whether a head leaves p(eos) to the softmax at every step."""
    return is_defined_together(head, "keeps_softmax", "forward") and bool(getattr(head, "keeps_softmax", False))


@torch.no_grad()
def check_head(head: Head) -> None:
    """Raise BadInput unless a head answers in the shapes of its contract. It is tried once, when a model is made."""
    start = torch.zeros(2, *head.memory_shape, dtype=torch.float64)
    log_survival, memories = head(torch.zeros(2, 3), start)
    like = start.new_empty(2, 3, *head.memory_shape)
    wanted = [None if log_survival is None else describe(like.new_empty(2, 3)), describe(like)]
    got = [None if log_survival is None else describe(log_survival), describe(memories)]
    if got != wanted:
        raise BadInput(
            f"the head {type(head).__name__} must answer (batch, time) and (batch, time, *memory_shape) in float64, "
            f"here {wanted[0]} and {wanted[1]}; got {got[0]} and {got[1]}"
        )


def describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def resolve_head(settings: Table) -> dict[str, Any]:
    """Every setting of a head. The kind stays as it was written, so that the settings of old runs do not change."""
    return {**resolve_kind(HEADS, _without_alias(settings), "head"), "kind": settings["kind"]}


def build_head(settings: Table) -> Head:
    head: Any = build_kind(HEADS, _without_alias(settings), "head")
    return head


def _without_alias(settings: Table) -> Table:
    kind = settings.get("kind")
    return {**settings, "kind": ALIASES.get(kind, kind)} if isinstance(kind, str) else settings
