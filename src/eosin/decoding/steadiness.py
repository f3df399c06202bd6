"""Whether a model's bits depend on how many rows are decoded together.

The rounding of a matrix product can depend on its number of rows. Where it does not, a context's completion is the same
to the last bit in any company, and a state that comes back bit for bit comes back for ever. So it is tried before it
is relied on: some rows are read in batches of the sizes that will occur, and must come out the same in all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eosin.decoding.next_token import NextToken, Workspace, survey
from eosin.decoding.unroll import SMALLEST_BATCH, filled_size
from eosin.interfaces import Generative, Prefix
from eosin.logits import as_logits
from eosin.states import size_of


@torch.inference_mode()
def is_steady(model: Generative, prefixes: Prefix, most_rows: int) -> bool:
    """Whether prefilling and a step give these prefixes the same bits in batches of up to so many rows."""
    sizes = sorted({filled_size(rows) for rows in (1, SMALLEST_BATCH + 1, most_rows // 2 + 1, most_rows)})
    first, *others = (first_rows(model, prefixes, size) for size in sizes)
    return first is not None and all(other is not None and alike(first, other) for other in others)


def first_rows(model: Generative, prefixes: Prefix, size: int) -> tuple[Any, list[Tensor]] | None:
    """State and logits of the first few rows of a batch after one step; None where states cannot be compared."""
    rows = prefixes[torch.arange(size, device=prefixes.device) % len(prefixes)]
    _, state = model.prefill(rows)
    logits, state = model.step(rows[:, -1], state)
    if size_of(state) is None:
        return None
    eos_ids = torch.tensor(model.eos_ids, device=prefixes.device)
    seen = survey(as_logits(logits), eos_ids, SMALLEST_BATCH, Workspace())
    return state.select(torch.arange(SMALLEST_BATCH, device=prefixes.device)), numbers(seen)


def numbers(seen: NextToken) -> list[Tensor]:
    return [seen.group_max, seen.block_log_mass, seen.eos_logits, seen.log_total]


def alike(first: tuple[Any, list[Tensor]], second: tuple[Any, list[Tensor]]) -> bool:
    same_logits = all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    return same_logits and bool(first[0].same(second[0]).all())
