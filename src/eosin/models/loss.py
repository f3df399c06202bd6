"""The log-probability of given tokens, and its gradient, close to the cost of the matrix products.

With logits z = W h + c the gradient of log p(v) = z_v - log sum exp z is a softmax, so only exp(z) is kept between
forward and backward. It is computed in blocks of columns that fit into the cache. Each block is relative to its own
largest logit in each row, so nothing overflows. The missing factor, exp(that logit - log sum exp z), is one number per
row and block; it is multiplied into the small sides of the products of the gradient:

    dh   = sum over blocks of  factor * (exp(z_b) W_b)          dW_b = exp(z_b)^T (factor * h)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 512
"""Columns of the output layer in a block. A few hundred rows of them fit into the cache of a CPU core."""


def log_softmax_at(
    hidden: Float[Tensor, "rows width"],
    weight: Float[Tensor, "vocab width"],
    bias: Float[Tensor, " vocab"],
    target: Int[Tensor, " rows"],
    without: int | None = None,
) -> Float[Tensor, " rows"]:
    """log softmax(hidden weight^T + bias) at one token a row; the token `without` is left out of the vocabulary."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, weight, bias))
    return _LogSoftmaxAt.apply(hidden, weight, bias, target, without, keeps)  # type: ignore[no-untyped-call]


class _LogSoftmaxAt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, without: int | None, keeps: bool
    ) -> Float[Tensor, " rows"]:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        rows, vocab = len(hidden), len(weight)
        room = hidden.new_empty(rows * (vocab if keeps else min(BLOCK, vocab)))
        at_target = room.new_empty(rows, dtype=exact)
        exponentials, peaks, sums = [], [], []
        for (start, stop), wanted in zip(blocks(vocab), group_by_block(target, vocab), strict=True):
            place = room[rows * start : rows * stop] if keeps else room[: rows * (stop - start)]
            logits = place.view(rows, stop - start)
            torch.addmm(bias[start:stop].to(room.dtype), hidden, weight[start:stop].to(room.dtype).T, out=logits)
            if without is not None and start <= without < stop:
                logits[:, without - start] = -math.inf
            at_target[wanted] = logits[wanted, target[wanted] - start].to(exact)
            # a block that holds nothing but the token left out has no largest logit
            peak = logits.amax(1, keepdim=True).clamp(min=torch.finfo(room.dtype).min)
            exponentials.append(logits.sub_(peak).exp_())
            peaks.append(peak[:, 0].to(exact))
            sums.append(logits.sum(1, dtype=exact))
        peak = torch.stack(peaks, 1)
        normaliser = (peak + torch.stack(sums, 1).log()).logsumexp(1)
        if keeps:
            ctx.save_for_backward(hidden, weight, target, peak - normaliser[:, None], *exponentials)
        return at_target - normaliser

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        hidden, weight, target, log_factors, *exponentials = ctx.saved_tensors
        factors = -log_factors.exp() * gradient[:, None]
        # the target's own logit first; the normaliser is added to it
        hidden_gradient = gradient[:, None] * weight[target]
        weight_gradient, bias_gradient = torch.empty_like(weight), weight.new_empty(len(weight))
        for (start, stop), block, factor in zip(blocks(len(weight)), exponentials, factors.T, strict=True):
            factor = factor[:, None]
            hidden_gradient.addcmul_(factor, block @ weight[start:stop].to(hidden.dtype))
            weight_gradient[start:stop] = block.T @ (factor * hidden).to(hidden.dtype)
            bias_gradient[start:stop] = (block.T @ factor.to(hidden.dtype))[:, 0]
        weight_gradient.index_add_(0, target, (gradient[:, None] * hidden).to(weight.dtype))
        bias_gradient.index_add_(0, target, gradient.to(weight.dtype))
        return hidden_gradient.to(hidden.dtype), weight_gradient, bias_gradient, None, None, None


def blocks(vocab: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + BLOCK, vocab)) for start in range(0, vocab, BLOCK))


def group_by_block(target: Int[Tensor, " rows"], vocab: int) -> tuple[Tensor, ...]:
    """For each block of the vocabulary the rows whose target lies in it."""
    ordered, order = target.sort(stable=True)
    starts = torch.tensor([start for start, _ in blocks(vocab)][1:], dtype=target.dtype, device=target.device)
    return order.tensor_split(torch.searchsorted(ordered, starts).cpu())
