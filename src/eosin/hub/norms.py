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

from eosin.devices import own_precision

NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")
LARGE = 1e4
"""Inputs of this size make the norm's own epsilon immaterial."""
CLOSE = 1e-3
SOME_TOKENS = 4
AGREEING = 1e-2
"""Of the largest logit: bfloat16 rounds to half of this."""


@own_precision()
def least_log_odds(model: Any, eos_ids: tuple[int, ...], temperature: float = 1.0) -> float:
    """Of all tokens that end together; minus infinity where nothing is known of the last layer."""
    norm, output = last_norm(model), model.get_output_embeddings()
    found = None if norm is None else gain_and_bias(norm)
    factor = 0.0 if found is None or output is None else factor_on_logits(model, norm, output)
    if found is None or factor <= 0 or softcapped(model):
        return -math.inf
    gain, shift = found
    weight, bias = output.weight.detach().double(), getattr(output, "bias", None)
    eos = eos_ids[0]  # together the tokens that end are at least as probable as the first of them
    difference = weight - weight[eos]
    lead = math.sqrt(len(gain)) * (difference * gain).norm(dim=1) + difference @ shift
    if bias is not None:
        lead = lead + bias.detach().double() - bias.detach().double()[eos]
    lead[list(eos_ids)] = -math.inf
    return -float((lead * factor / temperature).logsumexp(0))


def factor_on_logits(model: Any, norm: Any, output: Any) -> float:
    """What the output layer's answer to the norm is multiplied with: one, or what a model scales its logits by.

    It is asked, on one input. Zero where the logits are anything else, such as capped.
    """
    seen: list[Tensor] = []
    hook = norm.register_forward_hook(lambda _, inputs, made: seen.append(made))
    some = torch.arange(SOME_TOKENS, device=output.weight.device)[None] % output.weight.shape[0]
    try:
        with torch.no_grad():
            logits = model(input_ids=some, use_cache=False).logits.double()
            plain = output(seen[-1]).double() if seen else torch.zeros_like(logits)
    finally:
        hook.remove()
    if plain.shape != logits.shape or not plain.any():
        return 0.0
    factor = float((logits * plain).sum() / (plain * plain).sum())
    agrees = (logits - factor * plain).abs().max() <= AGREEING * logits.abs().max()
    return factor if agrees else 0.0


def softcapped(model: Any) -> bool:
    """A cap on the logits is a bound of another kind, and a better one; it is not used here."""
    return bool(getattr(model.config.get_text_config(), "final_logit_softcapping", None))


def last_norm(model: Any) -> Any:
    body = getattr(model, "base_model", model)
    return next((module for name in NAMES if (module := getattr(body, name, None)) is not None), None)


def gain_and_bias(norm: Any) -> tuple[Tensor, Tensor] | None:
    """Of a norm, in float64; None if it does not behave as one."""
    parameter = next(norm.parameters(), None)
    if parameter is None:
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
