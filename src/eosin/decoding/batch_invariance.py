"""Whether a model's bits depend on how many rows are decoded together.

The rounding of a matrix product can depend on its number of rows. Where it does not, a context's completion is the same
to the last bit in any company, and a state that comes back bit for bit comes back for ever. So it is tried before it
is relied on: some rows take a step in batches of the sizes that will occur, and must come out the same in all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eosin.contracts import Generative, Prefix
from eosin.decoding.distribution import Workspace, numbers_of, survey
from eosin.decoding.loop import SMALLEST_BATCH, filled_size
from eosin.devices import own_precision
from eosin.logits import as_logits
from eosin.states import size_of


@own_precision()
@torch.inference_mode()
def is_steady(model: Generative, prefixes: Prefix, most_rows: int) -> bool:
    """Whether these prefixes get the same bits in batches of up to so many rows, at any place."""
    prefixes = prefixes[:SMALLEST_BATCH]
    sizes = sorted({filled_size(rows) for rows in (1, SMALLEST_BATCH + 1, most_rows)})
    first, *others = (seen_in_a_batch(model, prefixes, size) for size in sizes)
    return first is not None and all(alike(first, other, len(prefixes)) for other in (first, *others))


def seen_in_a_batch(model: Generative, prefixes: Prefix, size: int) -> tuple[Any, list[Tensor]] | None:
    """State and logits of all rows after one step, the prefixes repeated; None where states cannot be compared."""
    device = prefixes.device
    _, state = model.prefill(prefixes[torch.arange(SMALLEST_BATCH, device=device) % len(prefixes)])
    if size_of(state) is None:
        return None
    rows = torch.arange(size, device=device) % len(prefixes)
    logits, state = model.step(prefixes[rows, -1], state.select(rows))
    seen = survey(as_logits(logits), torch.tensor(model.eos_ids, device=device), size, Workspace())
    return state, numbers_of(seen)


def alike(first: tuple[Any, list[Tensor]], second: tuple[Any, list[Tensor]] | None, different: int) -> bool:
    """Whether every row of the second is the row of the first with the same prefix."""
    if second is None:
        return False
    counterpart = torch.arange(len(second[1][0]), device=second[1][0].device) % different
    same_logits = all(torch.equal(a[counterpart], b) for a, b in zip(first[1], second[1], strict=True))
    return same_logits and bool(first[0].select(counterpart).same(second[0]).all())
