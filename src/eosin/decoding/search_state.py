"""Contexts under way: tensors with one entry per context, dropped and joined in all of them at once."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from eosin.causes import Cause
from eosin.contracts import EosIds, Rows
from eosin.decoding.stopping import Stop
from eosin.outcome import Completion

T = TypeVar("T", bound="Table")
U = TypeVar("U", bound="UnderWay")


@dataclass
class Table:
    """A subclass has tensors as fields, the contexts first; a second dimension, where there is one, is time."""

    def select(self: T, rows: Rows) -> T:
        return replace(self, **{name: column[rows] for name, column in self._columns()})

    def join(self: T, other: T) -> T:
        pairs = zip(self._columns(), other._columns(), strict=True)
        return replace(self, **{name: torch.cat(same_time(mine, theirs)) for (name, mine), (_, theirs) in pairs})

    def _columns(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


class UnderWay:
    """What every search keeps: a table of its contexts, with `index` and `steps`, and the completions to hand out."""

    def __init__(self, table: Any, eos_ids: EosIds, max_steps: int):
        self.table = table
        self.eos_ids = eos_ids
        self.max_steps = max_steps
        self.ended: list[Completion] = []
        self.stop: Stop | None = None

    @property
    def contexts(self) -> int:
        return len(self.table.index)

    def join(self: U, other: U) -> U:
        both = copy(self)
        both.table = self.table.join(other.table)
        both.ended = self.ended + other.ended
        return both

    def finished(self) -> list[Completion]:
        ended, self.ended = self.ended, []
        return ended

    def whereabouts(self, row: int) -> tuple[int, int]:
        context = self.context_of(row)
        return int(self.table.index[context]), int(self.table.steps[context]) + 1

    def context_of(self, row: int) -> int:
        """Which context of the table a row of the batch belongs to."""
        return row


def cause_of(terminated: bool, stopped: bool = False) -> Cause:
    return Cause.EOS if terminated else Cause.STOP if stopped else Cause.LIMIT


def same_time(mine: Tensor, theirs: Tensor) -> tuple[Tensor, ...]:
    """Both tensors with room for as many steps as the longer one."""
    if mine.dim() == 1:
        return mine, theirs
    longer = max(mine.shape[1], theirs.shape[1])
    return tuple(functional.pad(t, (0, 0) * (t.dim() - 2) + (0, longer - t.shape[1])) for t in (mine, theirs))


def written(history: Tensor, steps: Int[Tensor, " contexts"], values: Tensor, limit: int) -> Tensor:
    """The history with one more value per context at its step, grown by doubling where it is full."""
    capacity = history.shape[1]
    if int(steps.max()) == capacity:
        more = history.new_empty(len(history), min(capacity, limit - capacity), *history.shape[2:])
        history = torch.cat([history, more], dim=1)
    history[torch.arange(len(history), device=steps.device), steps] = values.to(history.dtype)
    return history
