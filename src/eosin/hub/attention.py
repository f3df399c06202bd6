"""Attention of single queries over rows with different padding, without a copy of the keys for each head.

If heads share keys and values, transformers copies these for every head whenever there is a mask. A step on rows of
different lengths then takes twice as long. torch's CPU kernel needs no copies, and returns the same bits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME, USUAL = "eosin_grouped_sdpa", "sdpa"


def attend_grouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: Any
) -> tuple[Tensor, None]:
    """As `sdpa_attention_forward`."""
    plain = not how.get("dropout") and how.get("position_bias") is None and how.get("softcap") is None
    if attention_mask is None or query.shape[2] > 1 or query.device.type != "cpu" or not plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **how)
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=how.get("scaling"), enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


def use_grouped_attention(model: Any) -> None:
    """Use it if the model uses torch's attention and its heads share keys and values."""
    config = model.config.get_text_config()
    heads, shared = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if model.base_model.config._attn_implementation == USUAL and shared and heads != shared:
        model.base_model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, attend_grouped)
AttentionMaskInterface.register(NAME, sdpa_mask)
