"""States made of tensors, batch first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from eosin.contracts import Comparable, Growing, Joinable, Measurable, Rows, SometimesJoinable, State


@dataclass(frozen=True)
class TensorState:
    """Any number of tensors whose first dimension is the batch."""

    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        return sum(math.prod(tensor.shape[1:]) for tensor in self.tensors)

    def select(self, rows: Rows) -> TensorState:
        return TensorState(tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors))

    def join(self, other: TensorState) -> TensorState:
        return TensorState(tuple(map(torch.cat, zip(self.tensors, other.tensors, strict=True))))

    def same(self, other: TensorState) -> Bool[Tensor, " batch"]:
        mine, theirs = (torch.cat([view_bits(each) for each in state.tensors], dim=1) for state in (self, other))
        return (mine == theirs).all(1)


@dataclass(frozen=True)
class PairState:
    """Two states side by side: a core's and a head's, or a model's and its wrapper's. It can do what both can."""

    first: Any
    second: Any

    @property
    def joinable(self) -> bool:
        return can_join(self.first) and can_join(self.second)

    @property
    def grows(self) -> bool:
        return grows(self.first) or grows(self.second)

    @property
    def size(self) -> int | None:
        first, second = size_of(self.first), size_of(self.second)
        return None if first is None or second is None else first + second

    def select(self, rows: Rows) -> PairState:
        return PairState(self.first.select(rows), self.second.select(rows))

    def join(self, other: PairState) -> PairState:
        return PairState(self.first.join(other.first), self.second.join(other.second))

    def same(self, other: PairState) -> Bool[Tensor, " batch"]:
        first = self.first.same(other.first)
        return first & self.second.same(other.second).to(first.device)


def offers(state: object, capability: type) -> bool:
    """Whether a kind of state has a capability; the answer is kept, since a step asks often and a protocol is slow."""
    kind = type(state), capability
    if kind not in OFFERED:
        OFFERED[kind] = isinstance(state, capability)
    return OFFERED[kind]


OFFERED: dict[tuple[type, type], bool] = {}


def can_join(state: Any) -> bool:
    """Whether other rows can be put behind those of this state."""
    return state.joinable if offers(state, SometimesJoinable) else offers(state, Joinable)


def size_of(state: Any) -> int | None:
    """How many numbers a row holds; None where that grows with each token, or where rows cannot be compared."""
    if grows(state) or not offers(state, Comparable):
        return None
    return state.size if offers(state, Measurable) else 1


def grows(state: Any) -> bool:
    """Whether a state says that it grows with each token."""
    return offers(state, Growing) and state.grows


def can_recur(state: State) -> bool:
    """Whether a state can return, and whether that means anything: an empty one always returns."""
    return can_join(state) and bool(size_of(state))


def view_bits(tensor: Tensor) -> UInt8[Tensor, "batch bytes"]:
    """The bits of each row: 0.0 is not -0.0, and NaN is itself."""
    return tensor[:, None].flatten(1).contiguous().view(torch.uint8)
