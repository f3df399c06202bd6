"""A recurrent model as a dynamical system, in float64: what proofs about its cycles ask for."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from eosin.devices import own_precision
from eosin.models.neural_lm import NeuralLM
from eosin.models.recurrent import Recurrent
from eosin.states import TensorState

ROUNDED = 1e-12
"""Part of a square: more than rounding in float64 can take from it."""
NEARBY = 1e-2
"""How far from a centre rounding is measured: as far as a ball may reach."""
LOWER_WEIGHS = 4.0
"""How much a distance counts in the length of a vector, of the same distance one layer above: what happens below is
amplified above, and not the other way round, so in this length cycles contract sooner."""
MEASURED_ROWS = 32
"""Steps whose rounding is measured; products of so many rows round as those of any larger batch do."""


class RecurrentDynamics:
    """One step of the state by the core's own formula; leads of logits by the output layer."""

    def __init__(self, model: NeuralLM):
        self.core: Any = model.core
        self.exact = copy.deepcopy(model.core).double()  # type: ignore[attr-defined]
        self.embedding = model.embedding.weight.detach()
        self.weight = model.output.weight.detach().double()
        self.bias = model.output.bias.detach().double()
        self.magnitudes = self.weight.abs()
        self.squares = self.weight.square().sum(1)
        self.unit = torch.finfo(self.embedding.dtype).eps / 2
        self.vocab_size = len(self.weight)
        self.size = self._parts * self.core.width

    def read(self, token: int, state: Any) -> Any:
        inputs = state.constant(self.embedding[token].double())
        return state.joined(self._parts_after(inputs, state))

    def advance(self, token: int, state: Float64[Tensor, " state"]) -> Float64[Tensor, " state"]:
        return torch.cat(self._parts_after(self.embedding[token].double(), state))

    def _parts_after(self, inputs: Any, state: Any) -> list[Any]:
        """Works on an expansion as on a vector: the parts of the state are slices of it."""
        width = self.core.width
        parts = (state[i * width : (i + 1) * width] * (1 / weight) for i, weight in enumerate(self.weights))
        memory = self.exact.next_memory(inputs, tuple(parts))
        return [part * weight for part, weight in zip(memory, self.weights, strict=True)]

    @own_precision()
    @torch.no_grad()
    def rounding(self, token: int, state: Float64[Tensor, " state"]) -> float:
        """How far steps in the model's own precision are from those in float64, in the 2-norm: the farthest of some,
        from this state and from others up to NEARBY away from it.
        """
        dtype, generator = self.embedding.dtype, torch.Generator("cpu").manual_seed(0)
        directions = torch.randn(MEASURED_ROWS, len(state), dtype=torch.float64, generator=generator, device="cpu")
        directions[::2] = directions[::2, :1]  # every other one the same everywhere: there equal roundings add up
        lengths = torch.linspace(0, NEARBY, MEASURED_ROWS, dtype=torch.float64, device=state.device)
        directions = directions.to(state.device)
        vectors = state + directions / directions.norm(dim=1, keepdim=True) * lengths[:, None]
        before = self.memory(vectors, dtype)
        _, after = self.core(self.embedding[token].repeat(MEASURED_ROWS, 1, 1), before)
        exact = torch.stack([self.advance(token, row) for row in self.weighted(before)])
        return float((self.weighted(after) - exact).norm(dim=1).max())

    @own_precision()
    def leads(self, token: int, state: Float64[Tensor, " state"]) -> tuple[Tensor, Tensor]:
        """The leads are less what rounding of the logits in the model's own precision can take from them."""
        top = self._top(state)
        logits = self.weight @ top + self.bias
        # no hidden vector in a tube is farther than 1 from its centre in any coordinate
        sizes = (self.core.width + 2) * (self.magnitudes @ (top.abs() + 1) + self.bias.abs()) + logits.abs()
        error = torch.finfo(self.embedding.dtype).eps * sizes
        # |u - v|^2 by the square of a binomial: what cancels is made up for
        products = self.weight @ self.weight[token]
        squares = (self.squares + self.squares[token] - 2 * products).clamp(min=0) + ROUNDED * self.squares
        return logits[token] - logits - (error + error[token]), squares.sqrt()

    def vectors(self, state: Any) -> Float64[Tensor, "batch state"]:
        """The rows of the model's state, each as one vector."""
        return self.weighted(state.first)

    def numbers(self, state: Any) -> Float64[Tensor, "batch state"]:
        """The same without weights: the numbers of the state as they are."""
        return torch.cat(state.first.tensors, dim=1).double()

    def weighted(self, memory: TensorState) -> Float64[Tensor, "batch state"]:
        parts = zip(memory.tensors, self.weights, strict=True)
        return torch.cat([part.double() * weight for part, weight in parts], dim=1)

    def memory(self, vectors: Float64[Tensor, "batch state"], dtype: torch.dtype) -> TensorState:
        """The core's memory that such vectors are of, as near as it can be in some precision."""
        parts = zip(vectors.chunk(self._parts, dim=1), self.weights, strict=True)
        return TensorState(tuple((part / weight).to(dtype).contiguous() for part, weight in parts))

    def _top(self, state: Tensor) -> Tensor:
        """The hidden vector of the last layer, which has weight one."""
        width, per_layer = self.core.width, self.core.tensors_per_layer
        start = (self._parts - per_layer) * width
        return state[start : start + width]

    @property
    def weights(self) -> list[float]:
        """Of the parts of the state, from the lowest layer on."""
        above = [len(self.core.layers) - 1 - part // self.core.tensors_per_layer for part in range(self._parts)]
        return [LOWER_WEIGHS**layers for layers in above]

    @property
    def _parts(self) -> int:
        return len(self.core.layers) * self.core.tensors_per_layer


READS_TOKENS = ("prefill", "step", "forward", "_last", "_run", "_logits")


def dynamics_of(model: Any) -> RecurrentDynamics | None:
    """The model as a dynamical system; None where a state that comes back does not bring everything back.

    A model or a core that reads tokens in a way of its own, such as a wrapper that lends the attributes of what it
    wraps, has other dynamics, and none that are known here.
    """
    if not all(method_of(model, name) is vars(NeuralLM)[name] for name in READS_TOKENS):
        return None
    known = method_of(model.core, "forward") is Recurrent.forward and softmax_stands(
        model.head, model.output.bias.device
    )
    return RecurrentDynamics(model) if known else None


def method_of(owner: Any, name: str) -> Any:
    return getattr(getattr(owner, name, None), "__func__", None)


def softmax_stands(head: Any, device: torch.device) -> bool:
    """Whether the head leaves p(eos) to the softmax, at every step."""
    if not getattr(head, "stationary", False):
        return False
    log_survival, _ = head(torch.zeros(1, 1, device=device), head.initial(1, device))
    return log_survival is None
