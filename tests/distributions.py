"""Logits as decoders see them, and kept sets written out as sets."""

from __future__ import annotations

import math

import torch

from eosin.decoding.distribution import NextToken, Workspace, survey
from eosin.decoding.truncation import keep_mask, keep_mask_by_line
from eosin.logits import Dense


def surveyed(logits: torch.Tensor, eos_ids: tuple[int, ...] = (2,), temperature: float = 1.0) -> NextToken:
    return survey(Dense(logits), len(logits), Workspace(eos_ids)).at(temperature)


def listed(rule, asked) -> list[set[int] | None]:
    """The kept set of each row as a list gives it; None where it is too long for one."""
    kept = rule.keep(asked)
    if kept is None:
        return [None] * asked.rows
    sets = []
    for row in range(asked.rows):
        others = {int(i) for i, lp in zip(kept.ids[row], kept.log_probs[row], strict=True) if lp > -math.inf}
        eos = {int(i) for i, lp in zip(asked.eos_ids, kept.eos_log_probs[row], strict=True) if lp > -math.inf}
        sets.append(others | eos if kept.complete[row] else None)
    return sets


def lined(rule, asked) -> list[set[int]]:
    """The kept set of each row as the line through the order gives it, tokens that cannot occur left out."""
    return [set(row.nonzero()[:, 0].tolist()) for row in keep_mask_by_line(rule, asked)]


def masked(rule, asked) -> list[set[int]]:
    """The kept set of each row, written out."""
    return [set(row.nonzero()[:, 0].tolist()) for row in keep_mask(rule, asked)]
