"""A recurrent model as a dynamical system in float64, for proofs about its cycles.

The arithmetic of a proof is on the CPU, wherever the model is: it consists of many small operations.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from eosin.contracts import HasStepFormula, StepFormula, is_defined_together
from eosin.devices import own_precision, to_float64
from eosin.proofs.expansion import Expansion
from eosin.states import TensorState

logger = logging.getLogger(__name__)
ROUNDED = 1e-12
"""Part of a square: more than rounding in float64 can take from it."""
NEARBY = 1e-2
"""How far from a centre rounding is measured: as far as a ball may reach."""
LOWER_WEIGHS = 4.0
"""The weight of a distance in the length of a vector, relative to the layer above. Upper layers amplify what happens
below, and not the other way round, so cycles contract sooner in this length."""
TRIED_ROWS, SAME = 4, 1e-6
"""The states from which a formula is tried once, and how near it must come to the core in float64."""
MEASURED_ROWS = 32
"""Steps whose rounding is measured; products of so many rows round as those of any larger batch do."""


def dynamics_of(model: object) -> Dynamics | None:
    """The model as a dynamical system; None where its step has no formula of its own."""
    if not (isinstance(model, HasStepFormula) and is_defined_together(model, "step_formula", "prefill", "step")):
        return None
    formula = model.step_formula()
    if formula is None:
        return None
    dynamics = Dynamics(formula)
    if not dynamics.is_step_of_core():
        name = type(formula.core).__name__
        logger.warning("%s.next_memory is not what its forward does: no loop is certified", name)
        return None
    return dynamics


class Dynamics:
    """The state of a model as one vector, one step of it by the formula of the core, and the leads of the logits."""

    def __init__(self, formula: StepFormula):
        self.core: Any = formula.core
        self.exact = in_float64(self.core)
        self.embedding = formula.embedding.detach()
        self.weight = formula.weight.detach().cpu().double()
        self.bias = formula.bias.detach().cpu().double()
        self.magnitudes = self.weight.abs()
        self.squares = self.weight.square().sum(1)
        self.unit = torch.finfo(self.embedding.dtype).eps / 2
        """The error of one operation in the model's own precision, relative to its result."""
        self.vocab_size = len(self.weight)
        self.per_layer = self.core.tensors_per_layer
        self.parts = self.core.depth * self.per_layer
        """The number of tensors in the state."""
        self.size = self.parts * self.core.width
        """The length of the vector."""
        self.weights = [LOWER_WEIGHS ** (self.core.depth - 1 - part // self.per_layer) for part in range(self.parts)]
        """Of the parts of the state, the lowest layer first."""
        self.weight_of_number = torch.tensor(self.weights, dtype=torch.float64, device="cpu").repeat_interleave(
            self.core.width
        )

    @own_precision()
    @torch.no_grad()
    def is_step_of_core(self) -> bool:
        """Whether the formula is what the core does, tried in float64 from a few states."""
        generator = torch.Generator("cpu").manual_seed(0)
        vectors = torch.randn(TRIED_ROWS, self.size, dtype=torch.float64, generator=generator, device="cpu")
        vectors = vectors.to(self.weight.device)
        parts = zip(vectors.chunk(self.parts, dim=1), self.weights, strict=True)
        inputs = self.embedding[0].to(self.weight.device).double()
        try:
            before = TensorState(tuple(part / weight for part, weight in parts))
            hidden, after = self.exact(inputs.repeat(TRIED_ROWS, 1, 1), before)
            formula = torch.stack([self.advance(0, row) for row in vectors])
            same_step = torch.allclose(self.weigh(after), formula, rtol=SAME, atol=SAME)
            return same_step and torch.equal(hidden[:, 0], after.tensors[-self.per_layer])
        except (RuntimeError, ValueError):
            return False

    def advance(self, token: int, state: Float64[Tensor, " state"]) -> Float64[Tensor, " state"]:
        """The state after one more token."""
        return torch.cat(self._next_parts(self._embed(token), state))

    def expand(self, token: int, state: Expansion) -> Expansion:
        """The same with its error bound."""
        return Expansion.concatenate(self._next_parts(state.constant(self._embed(token)), state))

    def _embed(self, token: int) -> Float64[Tensor, " width"]:
        return self.embedding[token].cpu().double()

    def _next_parts(self, inputs: Any, state: Any) -> list[Any]:
        """The parts of a state are slices of a vector, or of an expansion."""
        width = self.core.width
        parts = (state[i * width : (i + 1) * width] * (1 / weight) for i, weight in enumerate(self.weights))
        memory = self.exact.next_memory(inputs, tuple(parts))
        return [part * weight for part, weight in zip(memory, self.weights, strict=True)]

    @own_precision()
    @torch.no_grad()
    def rounding(self, token: int, state: Float64[Tensor, " state"]) -> float:
        """The largest measured distance between steps in the model's own precision and in float64, in the 2-norm.

        It is measured from this state and from others up to NEARBY away from it.
        """
        dtype, generator = self.embedding.dtype, torch.Generator("cpu").manual_seed(0)
        directions = torch.randn(MEASURED_ROWS, len(state), dtype=torch.float64, generator=generator, device="cpu")
        directions[::2] = directions[::2, :1]  # every other one the same everywhere: there equal roundings add up
        lengths = torch.linspace(0, NEARBY, MEASURED_ROWS, dtype=torch.float64, device="cpu")
        vectors = state + directions / directions.norm(dim=1, keepdim=True) * lengths[:, None]
        before = self.memory(vectors, dtype)
        _, after = self.core(self.embedding[token].repeat(MEASURED_ROWS, 1, 1), before)
        exact = torch.stack([self.advance(token, row) for row in self.weigh(before).cpu()])
        return float((self.weigh(after).cpu() - exact).norm(dim=1).max())

    @own_precision()
    def leads(self, token: int, state: Float64[Tensor, " state"]) -> tuple[Tensor, Tensor]:
        """The least lead of a token's logit over each other one, and how fast each can shrink with the distance.

        Rounding of the logits in the model's own precision is already subtracted from the leads.
        """
        width = self.core.width
        start = (self.parts - self.per_layer) * width  # the hidden vector of the last layer, which has weight one
        hidden = state[start : start + width]
        logits = self.weight @ hidden + self.bias
        # no hidden vector in a tube is farther than 1 from its centre in any coordinate
        sizes = (width + 2) * (self.magnitudes @ (hidden.abs() + 1) + self.bias.abs()) + logits.abs()
        error = torch.finfo(self.embedding.dtype).eps * sizes
        # |u - v|^2 by the square of a binomial; ROUNDED makes up for what cancels
        products = self.weight @ self.weight[token]
        squares = (self.squares + self.squares[token] - 2 * products).clamp(min=0) + ROUNDED * self.squares
        return logits[token] - logits - (error + error[token]), squares.sqrt()

    def vectors(self, state: Any) -> Float64[Tensor, "batch state"]:
        """The rows of the model's state, each as one vector."""
        return self.weigh(state.first)

    def distances(self, state: Any, other: Any) -> Float64[Tensor, " batch"]:
        """Between each row of a state and the same row of another."""
        change = self.numbers(state) - self.numbers(other)
        return (change * self.weight_of_number.to(change.device)).norm(dim=1)

    def numbers(self, state: Any) -> Float64[Tensor, "batch state"]:
        """The same without weights."""
        return to_float64(torch.cat(state.first.tensors, dim=1))

    def weigh(self, memory: TensorState) -> Float64[Tensor, "batch state"]:
        numbers = to_float64(torch.cat(memory.tensors, dim=1))
        return numbers * self.weight_of_number.to(numbers.device)

    def memory(self, vectors: Float64[Tensor, "batch state"], dtype: torch.dtype) -> TensorState:
        """The state of the core that such vectors stand for, rounded to a precision."""
        parts = zip(vectors.chunk(self.parts, dim=1), self.weights, strict=True)
        device = self.embedding.device
        return TensorState(tuple((part / weight).to(dtype).contiguous().to(device) for part, weight in parts))


def in_float64(core: Any) -> Any:
    return copy.deepcopy(core).cpu().double()
