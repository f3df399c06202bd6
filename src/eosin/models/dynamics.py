"""A recurrent model as a dynamical system, in float64: what proofs about its cycles ask for."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from eosin.models.language_model import NeuralLM
from eosin.states import TensorState

ROUNDED = 1e-12
"""Part of a square: more than rounding in float64 can take from it."""
STEADY_ROWS = 16
"""Products of this many rows round as those of any larger batch do."""


class RecurrentDynamics:
    """One step of the state by the core's own formula; leads of logits by the output layer."""

    def __init__(self, model: NeuralLM):
        self.core: Any = model.core
        self.exact = copy.deepcopy(model.core).double()  # type: ignore[attr-defined]
        self.embedding = model.embedding.weight.detach()
        self.weight = model.output.weight.detach().double()
        self.bias = model.output.bias.detach().double()
        self.squares = self.weight.square().sum(1)

    def read(self, token: int, state: Any) -> Any:
        """Works on an expansion as on a vector: the parts of the state are slices of it."""
        width = self.core.width
        parts = tuple(state[i * width : (i + 1) * width] for i in range(self._parts))
        after = self.exact.next_memory(self.embedding[token].double(), parts)
        return type(state).joined(after) if hasattr(type(state), "joined") else torch.cat(after)

    def advance(self, token: int, state: Float64[Tensor, " state"]) -> Float64[Tensor, " state"]:
        return self.read(token, state)

    @torch.no_grad()
    def rounding(self, token: int, state: Float64[Tensor, " state"]) -> float:
        """How far a step in the model's own precision is from one in float64, in the 2-norm."""
        dtype = self.embedding.dtype
        rows = state.to(dtype).expand(STEADY_ROWS, -1)
        inputs = self.embedding[token].expand(STEADY_ROWS, 1, -1)
        _, after = self.core(inputs, TensorState(tuple(part.contiguous() for part in rows.chunk(self._parts, dim=1))))
        exact = self.advance(token, state.to(dtype).double())
        return float((torch.cat(after.tensors, dim=1)[0].double() - exact).norm())

    def leads(self, token: int, state: Float64[Tensor, " state"]) -> tuple[Tensor, Tensor]:
        logits = self.weight @ self._top(state) + self.bias
        # |u - v|^2 by the square of a binomial: what cancels is made up for
        products = self.weight @ self.weight[token]
        squares = (self.squares + self.squares[token] - 2 * products).clamp(min=0) + ROUNDED * self.squares
        return logits[token] - logits, squares.sqrt()

    def vectors(self, state: Any) -> Float64[Tensor, "batch state"]:
        """The rows of the model's state, each as one vector."""
        return torch.cat(state.first.tensors, dim=1).double()

    def _top(self, state: Tensor) -> Tensor:
        """The hidden vector of the last layer."""
        width, per_layer = self.core.width, self.core.tensors_per_layer
        start = (self._parts - per_layer) * width
        return state[start : start + width]

    @property
    def _parts(self) -> int:
        return len(self.core.layers) * self.core.tensors_per_layer


def dynamics_of(model: Any) -> RecurrentDynamics | None:
    """The model as a dynamical system; None where a state that comes back does not bring everything back.

    A model that reads tokens in a way of its own, such as a wrapper that lends the attributes of what it wraps, has
    other dynamics, and none that are known here.
    """
    methods = (getattr(getattr(model, name, None), "__func__", None) for name in ("prefill", "step"))
    plain = list(methods) == [NeuralLM.prefill, NeuralLM.step]
    stationary = plain and getattr(model.head, "stationary", False)
    return RecurrentDynamics(model) if stationary and hasattr(model.core, "next_memory") else None
