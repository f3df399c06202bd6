"""Whether the bits of a model's results depend on the batch.

The rounding of a matrix product can depend on its number of rows. Where it does not, a completion is the same to the
last bit in any batch, and a state that returns bit for bit returns for ever. That is tested before it is relied on:
some rows take a step in batches of the sizes that will occur, and must get the same bits in all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eosin.contracts import Generative, Prefix
from eosin.decoding.distribution import Workspace, raw_numbers, survey
from eosin.decoding.loop import SMALLEST_BATCH, padded_size
from eosin.devices import own_precision
from eosin.logits import as_logits
from eosin.states import size_of


@own_precision()
@torch.inference_mode()
def is_steady(model: Generative, prefixes: Prefix, most_rows: int) -> bool:
    """Whether these prefixes get the same bits in all batches of at most so many rows, in any place."""
    prefixes = prefixes[:SMALLEST_BATCH]
    sizes = sorted({padded_size(rows) for rows in (1, SMALLEST_BATCH + 1, most_rows)})
    first, *others = (step_in_batch(model, prefixes, size) for size in sizes)
    return first is not None and all(agree(first, other, len(prefixes)) for other in (first, *others))


def step_in_batch(model: Generative, prefixes: Prefix, size: int) -> tuple[Any, list[Tensor]] | None:
    """State and logits of all rows after one step, the prefixes repeated; None where states cannot be compared."""
    device = prefixes.device
    _, state = model.prefill(prefixes[torch.arange(SMALLEST_BATCH, device=device) % len(prefixes)])
    if size_of(state) is None:
        return None
    rows = torch.arange(size, device=device) % len(prefixes)
    logits, state = model.step(prefixes[rows, -1], state.select(rows))
    seen = survey(as_logits(logits), size, Workspace(model.eos_ids))
    return state, raw_numbers(seen)


def agree(first: tuple[Any, list[Tensor]], second: tuple[Any, list[Tensor]] | None, different: int) -> bool:
    """Whether every row of the second is the row of the first with the same prefix."""
    if second is None:
        return False
    counterpart = torch.arange(len(second[1][0]), device=second[1][0].device) % different
    same_logits = all(torch.equal(a[counterpart], b) for a, b in zip(first[1], second[1], strict=True))
    return same_logits and bool(first[0].select(counterpart).same(second[0]).all())
