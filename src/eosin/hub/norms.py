"""How improbable eos can get in a model whose last layer is a norm (Lemma 3.2).

The hidden vector is h = g * n + b with |n|_2 <= sqrt(d), whatever went before, so no logit leads that of eos by more
than sqrt(d) |g * (u_v - u_eos)|_2 + (u_v - u_eos) . b. Gain and bias are read off the norm by asking it, not its class:
Gemma's gain is 1 + weight, and a root-mean-square norm has no bias.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")
LARGE = 1e4
"""Inputs of this size make the norm's own epsilon immaterial."""
CLOSE = 1e-3


def least_log_odds(model: Any, eos_ids: tuple[int, ...], temperature: float = 1.0) -> float:
    """Of all tokens that end together; minus infinity where nothing is known of the last layer."""
    found = gain_and_bias(model)
    output = model.get_output_embeddings()
    if found is None or output is None or softcapped(model):
        return -math.inf
    gain, shift = found
    weight, bias = output.weight.detach().double(), getattr(output, "bias", None)
    eos = eos_ids[0]  # together the tokens that end are at least as probable as the first of them
    difference = weight - weight[eos]
    lead = math.sqrt(len(gain)) * (difference * gain).norm(dim=1) + difference @ shift
    if bias is not None:
        lead = lead + bias.detach().double() - bias.detach().double()[eos]
    lead[list(eos_ids)] = -math.inf
    return -float((lead * multiplier(model) / temperature).logsumexp(0))


def multiplier(model: Any) -> float:
    """Some models scale their logits (Granite divides them)."""
    return 1 / float(getattr(model.config.get_text_config(), "logits_scaling", 1.0) or 1.0)


def softcapped(model: Any) -> bool:
    """A cap on the logits is a bound of another kind, and a better one; it is not used here."""
    return bool(getattr(model.config.get_text_config(), "final_logit_softcapping", None))


def gain_and_bias(model: Any) -> tuple[Tensor, Tensor] | None:
    """Of the last norm, in float64; None if there is none, or if it does not behave as one."""
    body = getattr(model, "base_model", model)
    norm = next((module for name in NAMES if (module := getattr(body, name, None)) is not None), None)
    parameter = None if norm is None else next(norm.parameters(), None)
    if norm is None or parameter is None:
        return None
    ones = torch.full((1, parameter.numel()), LARGE, dtype=parameter.dtype, device=parameter.device)
    signs = ones.clone()
    signs[:, ::2] *= -1
    with torch.no_grad():
        plus, minus, mixed = (norm(each)[0].double() for each in (ones, -ones, signs))
    bias = (plus + minus) / 2
    directions = signs[0].double() / LARGE
    # of equal inputs a norm that subtracts the mean leaves the bias alone
    gain = (mixed - bias) * directions
    behaves = torch.allclose(plus, bias, atol=CLOSE) or torch.allclose(plus, gain + bias, atol=CLOSE, rtol=CLOSE)
    return (gain, bias) if behaves and parameter.numel() % 2 == 0 else None
