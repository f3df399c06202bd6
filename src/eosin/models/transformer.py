"""A small causal transformer whose state is its keys and values.

Positions enter by rotation (RoPE), so there is no longest sequence: a decoding that does not stop meets no window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn import functional

from eosin.contracts import Rows
from eosin.models.dropout import dropout
from eosin.states import TensorState


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of every layer for the tokens read so far, and how many tokens each row has read.

    Rows are aligned at their ends; a shorter row has unused places in front.
    """

    grows = True

    keys: Float[Tensor, "batch layers heads time size"]
    values: Float[Tensor, "batch layers heads time size"]
    lengths: Int[Tensor, " batch"]

    def select(self, rows: Rows) -> KeyValues:
        lengths = self.lengths.index_select(0, rows)
        unused = self.keys.shape[3] - max(lengths.tolist(), default=0)
        keys, values = (tensor.index_select(0, rows)[:, :, :, unused:] for tensor in (self.keys, self.values))
        return KeyValues(keys, values, lengths)

    def join(self, other: KeyValues) -> KeyValues:
        time = max(self.keys.shape[3], other.keys.shape[3])
        mine, theirs = self._pad_to(time), other._pad_to(time)
        return KeyValues(
            torch.cat([mine.keys, theirs.keys]),
            torch.cat([mine.values, theirs.values]),
            torch.cat([mine.lengths, theirs.lengths]),
        )

    def same(self, other: KeyValues) -> Bool[Tensor, " batch"]:
        time = max(self.keys.shape[3], other.keys.shape[3])
        mine, theirs = self._pad_to(time), other._pad_to(time)
        return mine._mask_unused().same(theirs._mask_unused())

    def _mask_unused(self) -> TensorState:
        """Zeros where a row has no tokens yet."""
        time = self.keys.shape[3]
        used = torch.arange(time, device=self.lengths.device) >= time - self.lengths[:, None]
        pairs = (torch.where(used[:, None, None, :, None], each, 0.0) for each in (self.keys, self.values))
        return TensorState((self.lengths, *pairs))

    def _pad_to(self, time: int) -> KeyValues:
        front = (0, 0, time - self.keys.shape[3], 0)
        return KeyValues(functional.pad(self.keys, front), functional.pad(self.values, front), self.lengths)


class Block(nn.Module):
    """Attention and a two-layer network, each on a normalised input and added to it."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.to_query_key_value = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(
        self,
        hidden: Float[Tensor, "batch time width"],
        past: tuple[Tensor, Tensor],
        position: Int[Tensor, "batch time"],
        visible: Bool[Tensor, "batch time all"],
    ) -> tuple[Float[Tensor, "batch time width"], Tensor, Tensor]:
        batch, time, width = hidden.shape
        projected = self.to_query_key_value(self.attention_norm(hidden))
        query, key, value = projected.view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        keys = torch.cat([past[0], rotate_pairs(key, position)], dim=2)
        values = torch.cat([past[1], value], dim=2)
        mixed = functional.scaled_dot_product_attention(rotate_pairs(query, position), keys, values, visible[:, None])
        mixed = self.from_heads(mixed.transpose(1, 2).reshape(batch, time, width))
        hidden = hidden + dropout(mixed, self.dropout, self.training)
        hidden = hidden + dropout(self.network(hidden), self.dropout, self.training)
        return hidden, keys, values


class Transformer(nn.Module):
    """A pre-norm causal transformer."""

    def __init__(self, width: int = 256, layers: int = 2, heads: int = 4, dropout: float = 0.0):
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be at least 1, got {layers}")
        if heads < 1:
            raise ValueError(f"heads must be at least 1, got {heads}")
        if width < 1 or width % (2 * heads):
            raise ValueError(f"width must be a multiple of 2 * heads = {2 * heads}, got {width}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.width = width
        self.heads = heads
        self.dropout = dropout
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)

    def initial(self, batch: int) -> KeyValues:
        weight = self.final_norm.weight
        empty = weight.new_empty(batch, len(self.blocks), self.heads, 0, self.width // self.heads)
        return KeyValues(empty, empty, torch.zeros(batch, dtype=torch.int64, device=weight.device))

    def forward(
        self, inputs: Float[Tensor, "batch time width"], state: KeyValues
    ) -> tuple[Float[Tensor, "batch time width"], KeyValues]:
        past, time = state.keys.shape[3], inputs.shape[1]
        steps = torch.arange(time, device=inputs.device)
        places = torch.arange(past + time, device=inputs.device)
        used = places >= past - state.lengths[:, None]
        visible = used[:, None] & (places <= past + steps[:, None])
        position = state.lengths[:, None] + steps

        hidden = dropout(inputs, self.dropout, self.training)
        keys, values = [], []
        for layer, block in enumerate(self.blocks):
            hidden, key, value = block(hidden, (state.keys[:, layer], state.values[:, layer]), position, visible)
            keys.append(key)
            values.append(value)
        after = KeyValues(torch.stack(keys, 1), torch.stack(values, 1), state.lengths + time)
        return self.final_norm(hidden), after

    def reach(self, directions: Float64[Tensor, "directions width"]) -> Float64[Tensor, " directions"]:
        """How large d . h can get for each direction d, over all hidden vectors h.

        Before gain and bias, a normalised vector has length at most sqrt(width), and entries that sum to zero.
        """
        gain, bias = (parameter.detach().to(directions) for parameter in self.final_norm.parameters())
        scaled = directions * gain
        return math.sqrt(self.width) * (scaled - scaled.mean(1, keepdim=True)).norm(dim=1) + directions @ bias


def rotate_pairs(vectors: Float[Tensor, "batch heads time size"], position: Int[Tensor, "batch time"]) -> Tensor:
    """Turn each pair of coordinates by an angle that grows with the position (Su et al., 2021)."""
    half = vectors.shape[-1] // 2
    speed = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=vectors.device) / half)
    angle = position[:, None, :, None] * speed
    cos, sin = angle.cos().to(vectors.dtype), angle.sin().to(vectors.dtype)
    left, right = vectors[..., :half], vectors[..., half:]
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)
