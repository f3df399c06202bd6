"""torch's tanh-RNN layer, with a backward pass that multiplies once for all steps what need not be done step by step.

With h_t = tanh(x_t + U h_(t-1)) and the gradient g_t that comes from above, the gradient of x_t is

    d_t = (1 - h_t^2) (g_t + U^T d_(t+1))

which goes from step to step; that of U is the sum of d_t h_(t-1)^T over all steps, a single product.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from eosin.devices import has_fused_layers


class ElmanLayer(nn.RNN):
    """One layer, batch first. Without gradients it is torch's own, whose bits decoding and proofs rest upon."""

    def forward(self, inputs: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if has_fused_layers(inputs.device) or not torch.is_grad_enabled():
            return super().forward(inputs, start)
        input_weight, hidden_weight, input_bias, hidden_bias = self.parameters()
        columns = functional.linear(inputs, input_weight, input_bias + hidden_bias)
        as_computed = (tensor.to(columns.dtype) for tensor in (start[0], hidden_weight))
        hidden = _TanhSteps.apply(columns, *as_computed)  # type: ignore[no-untyped-call]
        return hidden, hidden[:, -1][None]


class _TanhSteps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, columns: Float[Tensor, "batch time width"], start: Float[Tensor, "batch width"], weight: Tensor
    ) -> Float[Tensor, "batch time width"]:
        rows, steps, width = columns.shape
        hidden = columns.new_empty(steps + 1, rows, width)
        hidden[0] = start
        for column, before, after in zip(columns.unbind(1), hidden[:-1], hidden[1:], strict=True):
            torch.addmm(column, before, weight.T, out=after).tanh_()
        ctx.save_for_backward(hidden, weight)
        return hidden[1:].transpose(0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "batch time width"]) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight = ctx.saved_tensors
        of_columns = 1 - hidden[1:].square()  # slopes at first; each becomes a gradient in its place
        later = torch.zeros_like(hidden[0])
        for above, slope in zip(reversed(gradient.unbind(1)), reversed(of_columns.unbind(0)), strict=True):
            later = slope.mul_(torch.addmm(above, later, weight))
        of_weight = of_columns.flatten(0, 1).T @ hidden[:-1].flatten(0, 1)
        return of_columns.transpose(0, 1), later @ weight, of_weight
