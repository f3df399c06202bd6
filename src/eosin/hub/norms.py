"""A lower bound on the log-odds of eos for models whose last layer is a norm (Lemma 3.2).

The hidden vector is h = g * n + b with |n|_2 <= sqrt(d), whatever the text, so no logit exceeds that of eos by more
than sqrt(d) |g * (u_v - u_eos)|_2 + (u_v - u_eos) . b. Gain and bias are measured on the norm, since classes differ:
Gemma's gain is 1 + weight, and a root-mean-square norm has no bias.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from eosin.devices import own_precision, to_float64

NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")
LARGE = 1e4
"""For inputs of this size the epsilon of a norm does not matter."""
CLOSE = 1e-3
"""Tolerance of the outputs of a norm."""
SOME_TOKENS = 4
AGREEING = 1e-2
"""Tolerance of logits, relative to the largest: bfloat16 rounds to half of this."""


@own_precision()
def bound_log_odds(model: Any, eos_ids: tuple[int, ...], temperature: float = 1.0) -> float:
    """A lower bound on the log-odds of eos; minus infinity if the last layer is of an unknown kind."""
    norm, output = find_last_norm(model), model.get_output_embeddings()
    found = None if norm is None else read_gain_and_bias(norm)
    factor = 0.0 if found is None or output is None else measure_logit_factor(model, norm, output)
    # a cap on the logits is a better bound, which is not used here
    is_capped = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if found is None or factor <= 0 or is_capped:
        return -math.inf
    gain, shift = found
    weight, bias = to_float64(output.weight.detach()), getattr(output, "bias", None)
    eos = eos_ids[0]  # all eos tokens together are at least as probable as the first
    difference = weight - weight[eos]
    lead = math.sqrt(len(gain)) * (difference * gain).norm(dim=1) + difference @ shift
    if bias is not None:
        exact_bias = to_float64(bias.detach())
        lead = lead + exact_bias - exact_bias[eos]
    lead[list(eos_ids)] = -math.inf
    return -float((lead * factor / temperature).logsumexp(0))


def measure_logit_factor(model: Any, norm: Any, output: Any) -> float:
    """The factor by which a model scales its logits, measured on one input; usually one.

    Zero if the logits are no multiple of the output layer, for example if they are capped.
    """
    seen: list[Tensor] = []
    hook = norm.register_forward_hook(lambda _, inputs, made: seen.append(made))
    some = torch.arange(SOME_TOKENS, device=output.weight.device)[None] % output.weight.shape[0]
    try:
        with torch.no_grad():
            logits = to_float64(model(input_ids=some, use_cache=False).logits)
            plain = to_float64(output(seen[-1])) if seen else torch.zeros_like(logits)
    finally:
        hook.remove()
    if plain.shape != logits.shape or not plain.any():
        return 0.0
    factor = float((logits * plain).sum() / (plain * plain).sum())
    agrees = (logits - factor * plain).abs().max() <= AGREEING * logits.abs().max()
    return factor if agrees else 0.0


def find_last_norm(model: Any) -> Any:
    body = getattr(model, "base_model", model)
    return next((module for name in NORM_NAMES if (module := getattr(body, name, None)) is not None), None)


def read_gain_and_bias(norm: Any) -> tuple[Tensor, Tensor] | None:
    """Gain and bias of a norm, in float64; None if it does not behave as a norm."""
    parameter = next(norm.parameters(), None)
    if parameter is None:
        return None
    ones = torch.full((1, parameter.numel()), LARGE, dtype=parameter.dtype, device=parameter.device)
    signs = ones.clone()
    signs[:, ::2] *= -1
    with torch.no_grad():
        plus, minus, mixed = (to_float64(norm(each)[0]) for each in (ones, -ones, signs))
    bias = (plus + minus) / 2
    directions = to_float64(signs[0]) / LARGE
    # for equal inputs, a norm that subtracts the mean returns the bias
    gain = (mixed - bias) * directions
    behaves = torch.allclose(plus, bias, atol=CLOSE) or torch.allclose(plus, gain + bias, atol=CLOSE, rtol=CLOSE)
    return (gain, bias) if behaves and parameter.numel() % 2 == 0 else None
