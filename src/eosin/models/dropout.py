"""Dropout from sixteen random bits an element: torch's own, on a CPU, takes five times as long."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

LEVELS = 2**16


def dropout(values: Tensor, share: float, active: bool) -> Tensor:
    """Set a share of the elements, rounded to a multiple of 1/65,536, to zero; scale the rest: the mean stays."""
    if not active or share == 0 or values.device.type != "cpu":
        return functional.dropout(values, share, active)
    kept = max(1, round(LEVELS * (1 - share)))
    words = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    noise = words.view(torch.int16)[: values.numel()].view(values.shape)
    return values * (noise <= kept - 1 - LEVELS // 2).to(values.dtype).mul_(LEVELS / kept)
