"""The cache of keys and values as a state: rows leave it, enter it and go on, and an older state stays what it was.

A step reads from a copy of the cache's shell, so what the model sets is set in the copy. Rows of different lengths
share a batch: the shorter ones are padded on the left.

transformers makes all keys and values anew for every token. Here they have room for more behind them: what is new is
written there, beyond the end of older states. The state that is continued first takes the room; another that is
continued from the same place finds it taken and makes its own.
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
"""Tokens that keys and values get room for at a time."""
MORE_STATES = ("conv", "recurrent", "ssm")
"""What layers of hybrid models keep beside keys and values."""


@dataclass(frozen=True)
class Cached:
    """Keys and values of every layer for each row, and how many of them are padding."""

    cache: Any
    padding: Int[Tensor, " batch"]

    @property
    def length(self) -> int:
        """Of a row, padding included."""
        return int(self.cache.get_seq_length())

    @property
    def joinable(self) -> bool:
        """A layer that keeps a window of the past only cannot be padded."""
        return not any(layer.is_sliding for layer in self.cache.layers)

    def select(self, rows: Rows) -> Cached:
        cache = apart(self.cache)
        cache.batch_select_indices(rows)
        return Cached(cache, self.padding[rows]).trimmed()

    def trimmed(self) -> Cached:
        """Without what is padding in every row: a pool that is filled up again and again would grow without end."""
        spare = int(self.padding.min()) if len(self.padding) else 0
        if not spare:
            return self
        cache = apart(self.cache)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, spare:], layer.values[:, :, spare:]
        return Cached(cache, self.padding - spare)

    def join(self, other: Cached) -> Cached:
        length = max(self.length, other.length)
        mine, theirs = self.padded(length), other.padded(length)
        cache = apart(mine.cache)
        for layer, more in zip(cache.layers, theirs.cache.layers, strict=True):
            layer.keys, layer.values = torch.cat([layer.keys, more.keys]), torch.cat([layer.values, more.values])
        return Cached(cache, torch.cat([mine.padding, theirs.padding]))

    def padded(self, length: int) -> Cached:
        """On the left, up to a length."""
        more = length - self.length
        if not more:
            return self
        cache = apart(self.cache)
        for layer in cache.layers:
            layer.keys, layer.values = (functional.pad(part, (0, 0, more, 0)) for part in (layer.keys, layer.values))
        return Cached(cache, self.padding + more)


def empty_for(part: Tensor, more: int) -> Tensor:
    *rows, length, width = part.shape
    return part.new_empty(*rows, length + more, width)


@dataclass
class Room:
    """Tensors whose first positions are keys and values; all states that they belong to share it."""

    keys: Tensor
    values: Tensor
    taken: int
    """Positions that are written."""

    @classmethod
    def behind(cls, keys: Tensor, values: Tensor, more: int) -> Room:
        """Copies with room for more."""
        room = cls(empty_for(keys, more), empty_for(values, more), 0)
        room.write(keys, values)
        return room

    def write(self, keys: Tensor, values: Tensor) -> None:
        end = self.taken + keys.shape[-2]
        self.keys[..., self.taken : end, :], self.values[..., self.taken : end, :] = keys, values
        self.taken = end

    def continues(self, keys: Tensor, more: int) -> bool:
        """Whether these are its keys, nothing is written behind them, and so many more have room."""
        length = keys.shape[-2]
        is_here = keys.data_ptr() == self.keys.data_ptr()
        return is_here and length == self.taken and length + more <= self.keys.shape[-2]


class RoomyLayer(DynamicLayer):
    """A layer of a cache that grows without being copied."""

    room: Room | None = None

    @classmethod
    def of(cls, layer: DynamicLayer) -> RoomyLayer:
        made = cls()
        made.__dict__.update(layer.__dict__)
        return made

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.values is None or not torch.is_inference_mode_enabled():
            return super().update(key_states, value_states)  # nothing is written to what a gradient may need
        more = key_states.shape[-2]
        if self.room is None or not self.room.continues(self.keys, more):
            self.room = Room.behind(self.keys, self.values, max(ROOM, more))
        self.room.write(key_states, value_states)
        self.keys, self.values = (part[..., : self.room.taken, :] for part in (self.room.keys, self.room.values))
        return self.keys, self.values


def shell(cache: Any) -> Any:
    """The same tensors in new objects."""
    made = copy.copy(cache)
    made.layers = [RoomyLayer.of(layer) if type(layer) is DynamicLayer else copy.copy(layer) for layer in cache.layers]
    return made


def apart(cache: Any) -> Any:
    """The same, without the room behind them, which is of no use to tensors that will be made of these."""
    made = shell(cache)
    for layer in made.layers:
        layer.room = None
    return made


def is_plain(layer: Any) -> bool:
    """Whether a layer of a cache keeps keys and values and nothing else."""
    return hasattr(layer, "batch_select_indices") and not any(hasattr(layer, f"{kind}_states") for kind in MORE_STATES)
