"""Attention of a single query over rows that are padded differently, without copies of the keys for each head.

Where heads share keys and values, transformers repeats these for every head as soon as there is a mask: a step with
rows of different lengths then takes twice the time of one with rows of one length. torch's kernel for CPUs needs no
copies, and what it returns is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME, USUAL = "eosin_grouped_sdpa", "sdpa"


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: Any
) -> tuple[Tensor, None]:
    """As `sdpa_attention_forward`."""
    plain = not how.get("dropout") and how.get("position_bias") is None and how.get("softcap") is None
    if attention_mask is None or query.shape[2] > 1 or query.device.type != "cpu" or not plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **how)
    made = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=how.get("scaling"), enable_gqa=True
    )
    return made.transpose(1, 2).contiguous(), None


def use_grouped_attention(model: Any) -> None:
    """Where the model would use torch's attention, and its heads share keys and values."""
    config = model.config.get_text_config()
    heads, shared = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if model.base_model.config._attn_implementation == USUAL and shared and heads != shared:
        model.base_model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
