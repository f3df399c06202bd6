"""Recurrent cores: tanh-RNN, LSTM and GRU, of any depth, with a batch-first state."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional

from eosin.devices import has_fused_layers
from eosin.models.dropout import dropout
from eosin.models.elman import ElmanLayer
from eosin.states import TensorState


class Weights(NamedTuple):
    """The parameters of one layer, in torch's order; those of all gates one below the other."""

    inputs: Tensor
    hidden: Tensor
    inputs_bias: Tensor
    hidden_bias: Tensor

    def of_inputs(self, inputs: Any) -> Any:
        return self.inputs @ inputs + self.inputs_bias

    def of_hidden(self, hidden: Any) -> Any:
        return self.hidden @ hidden + self.hidden_bias


class Recurrent(nn.Module):
    """Layers of one kind of recurrent cell, with dropout before, between and after them.

    A subclass names the cell and how many tensors of state one layer has.
    """

    cell: type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]
    tensors_per_layer: int

    def __init__(self, width: int = 256, layers: int = 2, dropout: float = 0.0, learned_start: bool = False):
        super().__init__()
        if not 1 <= width <= 65_536:
            raise ValueError(f"width must lie between 1 and 65536, got {width}")
        if not 1 <= layers <= 1_000:
            raise ValueError(f"layers must lie between 1 and 1000, got {layers}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.width = width
        self.dropout = dropout
        self.layers = nn.ModuleList(self.cell(width, width, batch_first=True) for _ in range(layers))
        self.start = nn.Parameter(torch.zeros(layers * self.tensors_per_layer, width), requires_grad=learned_start)

    @property
    def depth(self) -> int:
        return len(self.layers)

    def initial(self, batch: int) -> TensorState:
        return TensorState(tuple(self.start[:, None].expand(-1, batch, -1).contiguous()))

    def forward(
        self, inputs: Float[Tensor, "batch time width"], state: TensorState
    ) -> tuple[Float[Tensor, "batch time width"], TensorState]:
        hidden = dropout(inputs, self.dropout, self.training)
        after: list[Tensor] = []
        per_layer = zip(*[iter(state.tensors)] * self.tensors_per_layer, strict=True)
        for layer, before in zip(self.layers, per_layer, strict=True):
            # torch puts the batch second in a state; with one layer that is a view
            memory = tuple(tensor[None] for tensor in before)
            if self.tensors_per_layer == 1:
                hidden, last = layer(hidden, *memory)
                memory = (last,)
            else:
                hidden, memory = layer(hidden, memory)
            after += [tensor[0] for tensor in memory]
            hidden = dropout(hidden, self.dropout, self.training)
        return hidden, TensorState(tuple(after))

    def reach(self, directions: Float64[Tensor, "directions width"]) -> Float64[Tensor, " directions"]:
        return directions.abs() @ self.largest_entries().to(directions)

    def largest_entries(self) -> Float[Tensor, " width"]:
        """An upper bound on the absolute value of each entry of a hidden vector of the last layer."""
        return torch.ones_like(self.start[-1])

    def next_memory(self, inputs: Any, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        after: list[Any] = []
        for layer, before in zip(self.layers, zip(*[iter(memory)] * self.tensors_per_layer, strict=True), strict=True):
            weights = Weights(*(parameter.detach().double() for parameter in layer.parameters()))
            after += self.formula(inputs, before, weights)
            inputs = after[-self.tensors_per_layer]
        return tuple(after)

    def formula(self, inputs: Any, memory: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
        """The cell itself: its memory after one more input, the hidden vector first."""
        raise NotImplementedError


class TanhRNN(Recurrent):
    """h' = tanh(W x + U h + b), the recurrent network of Elman (1990)."""

    cell = ElmanLayer
    tensors_per_layer = 1

    def formula(self, inputs: Any, memory: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
        (hidden,) = memory
        return ((weights.of_inputs(inputs) + weights.of_hidden(hidden)).tanh(),)


class SteadyGRU(nn.GRU):
    """torch's layer, with bits that do not depend on the size of the batch.

    torch computes the last few elements of each thread's share of a sigmoid with different instructions, so the bits of
    a row change with its place. tanh has no such remainder.
    """

    def forward(self, inputs: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if has_fused_layers(inputs.device):
            return super().forward(inputs, start)
        hidden, rows = start[0], []
        input_weight, hidden_weight, input_bias, hidden_bias = self.parameters()
        for column in functional.linear(inputs, input_weight, input_bias).unbind(1):
            from_hidden = functional.linear(hidden, hidden_weight, hidden_bias)
            reset, update = sigmoid((column + from_hidden)[:, : 2 * self.hidden_size]).chunk(2, dim=1)
            candidate = torch.tanh(column.chunk(3, dim=1)[2] + reset * from_hidden.chunk(3, dim=1)[2])
            hidden = candidate + update * (hidden - candidate)
            rows.append(hidden)
        return torch.stack(rows, dim=1), hidden[None]


def sigmoid(values: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.tanh(0.5 * values)


class GRU(Recurrent):
    """The gated recurrent unit of Cho et al. (2014)."""

    cell = SteadyGRU
    tensors_per_layer = 1

    def largest_entries(self) -> Float[Tensor, " width"]:
        """A hidden vector is a mean of the previous one, at first the start, and a tanh."""
        return self.start[-1].detach().abs().clamp(min=1)

    def formula(self, inputs: Any, memory: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
        (hidden,) = memory
        reset_in, update_in, new_in = weights.of_inputs(inputs).chunk(3)
        reset_hidden, update_hidden, new_hidden = weights.of_hidden(hidden).chunk(3)
        reset, update = (reset_in + reset_hidden).sigmoid(), (update_in + update_hidden).sigmoid()
        candidate = (new_in + reset * new_hidden).tanh()
        return (candidate + update * (hidden - candidate),)


class LSTM(Recurrent):
    """Long short-term memory, Hochreiter and Schmidhuber (1997): a hidden vector and a cell per layer."""

    cell = nn.LSTM
    tensors_per_layer = 2

    def formula(self, inputs: Any, memory: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
        hidden, cell = memory
        enter, keep, new, show = (weights.of_inputs(inputs) + weights.of_hidden(hidden)).chunk(4)
        cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell
