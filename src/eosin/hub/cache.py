"""The cache of keys and values as a state: rows can be selected and joined, and an older state never changes.

A step gets a shallow copy of the cache, so the model changes the copy only. Rows of different lengths share a batch:
shorter rows are padded on the left.

transformers copies all keys and values for every token. Here they lie in a buffer with room at its end, and a step
writes new keys and values there, beyond the end of older states. The first continuation of a state takes the room. A
second one finds it taken and allocates its own buffer.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import DynamicLayer

from eosin.contracts import Rows

ROOM = 64
"""Tokens for which room is allocated at a time."""
OTHER_STATES = ("conv", "recurrent", "ssm")
"""What layers of hybrid models keep besides keys and values."""


@dataclass(frozen=True)
class CacheState:
    """Keys and values of every layer, and the padding of each row."""

    grows = True

    cache: Any
    padding: Int[Tensor, " batch"]

    @property
    def length(self) -> int:
        """The length of a row, padding included."""
        return int(self.cache.get_seq_length())

    @property
    def joinable(self) -> bool:
        """Whether rows can be joined: a layer with a sliding window cannot be padded."""
        return not any(layer.is_sliding for layer in self.cache.layers)

    def select(self, rows: Rows) -> CacheState:
        cache = copy_without_buffers(self.cache)
        cache.batch_select_indices(rows)
        return CacheState(cache, self.padding[rows]).trim()

    def trim(self) -> CacheState:
        """Remove padding that all rows share. Without this, a pool that is refilled would grow forever."""
        spare = int(self.padding.min()) if len(self.padding) else 0
        if not spare:
            return self
        cache = copy_without_buffers(self.cache)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, spare:], layer.values[:, :, spare:]
        return CacheState(cache, self.padding - spare)

    def join(self, other: CacheState) -> CacheState:
        length = max(self.length, other.length)
        mine, theirs = self.pad_to(length), other.pad_to(length)
        cache = copy_without_buffers(mine.cache)
        for layer, more in zip(cache.layers, theirs.cache.layers, strict=True):
            layer.keys, layer.values = torch.cat([layer.keys, more.keys]), torch.cat([layer.values, more.values])
        return CacheState(cache, torch.cat([mine.padding, theirs.padding]))

    def pad_to(self, length: int) -> CacheState:
        """Pad on the left, up to a length."""
        more = length - self.length
        if not more:
            return self
        cache = copy_without_buffers(self.cache)
        for layer in cache.layers:
            layer.keys, layer.values = (functional.pad(part, (0, 0, more, 0)) for part in (layer.keys, layer.values))
        return CacheState(cache, self.padding + more)


@dataclass
class Buffer:
    """Tensors that begin with keys and values and have room for more. States that continue each other share them."""

    keys: Tensor
    values: Tensor
    taken: int
    """Positions in use."""

    @classmethod
    def allocate(cls, keys: Tensor, values: Tensor, more: int) -> Buffer:
        """Copy keys and values, with room for more."""
        longer = (0, 0, 0, more)
        return cls(functional.pad(keys, longer), functional.pad(values, longer), taken=keys.shape[-2])

    def write(self, keys: Tensor, values: Tensor) -> None:
        end = self.taken + keys.shape[-2]
        self.keys[..., self.taken : end, :], self.values[..., self.taken : end, :] = keys, values
        self.taken = end

    def has_room_for(self, keys: Tensor, more: int) -> bool:
        """Whether these keys are all that is in this buffer, and more fit in behind them."""
        length = keys.shape[-2]
        is_same = keys.data_ptr() == self.keys.data_ptr()
        return is_same and length == self.taken and length + more <= self.keys.shape[-2]


class GrowingLayer(DynamicLayer):
    """A layer of a cache that grows without copies."""

    buffer: Buffer | None = None

    @classmethod
    def from_layer(cls, layer: DynamicLayer) -> GrowingLayer:
        copied = cls()
        copied.__dict__.update(layer.__dict__)
        return copied

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.values is None or not torch.is_inference_mode_enabled():
            return super().update(key_states, value_states)  # a gradient may need the old tensors
        more = key_states.shape[-2]
        if self.buffer is None or not self.buffer.has_room_for(self.keys, more):
            self.buffer = Buffer.allocate(self.keys, self.values, max(ROOM, more))
        buffer = self.buffer
        buffer.write(key_states, value_states)
        self.keys, self.values = (part[..., : buffer.taken, :] for part in (buffer.keys, buffer.values))
        return self.keys, self.values


def copy_cache(cache: Any) -> Any:
    """A copy of the cache that shares its tensors."""
    copied = copy.copy(cache)
    copied.layers = [
        GrowingLayer.from_layer(layer) if type(layer) is DynamicLayer else copy.copy(layer) for layer in cache.layers
    ]
    return copied


def copy_without_buffers(cache: Any) -> Any:
    """A copy whose layers have no buffers, for keys and values that will be replaced."""
    copied = copy_cache(cache)
    for layer in copied.layers:
        layer.buffer = None
    return copied


def is_plain(layer: Any) -> bool:
    """Whether a layer keeps keys and values only."""
    return hasattr(layer, "batch_select_indices") and not any(hasattr(layer, f"{kind}_states") for kind in OTHER_STATES)
