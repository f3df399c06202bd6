"""What a step costs where the model is small, against the textbook loop. Run it when nothing else runs.

The model is a table of 512 x 512 logits, one row for each last token, and 64 contexts are decoded that do not end. The
textbook loop takes the largest logit of each row, notes which rows have ended, and counts nothing else.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

import eosin
from eosin.states import TensorState

ROWS, VOCAB, STEPS, ROUNDS = 64, 512, 500, 15
LIMITS = {"greedy": 4.0, "ancestral": None, "top-k:2": None, "nucleus:0.2": None, "nucleus:0.9": None, "beam:4": None}
"""How many times as long as the textbook loop a step may take, where a limit is promised."""


class LastToken:
    """Logits that depend on the last token alone; eos is never drawn."""

    vocab_size, eos_ids = VOCAB, (0,)

    def __init__(self) -> None:
        self.logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
        self.logits[:, 0] = -1e4

    def prefill(self, prefix: Tensor) -> tuple[Tensor, TensorState]:
        return self.step(prefix[:, -1], TensorState(()))

    def step(self, token: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        return self.logits[token], TensorState((token,))


def decode_as_in_a_textbook(model: LastToken, prefixes: Tensor, steps: int) -> Tensor:
    (eos,) = model.eos_ids
    tokens, ended = [], torch.zeros(len(prefixes), dtype=torch.bool)
    logits, state = model.prefill(prefixes)
    for _ in range(steps):
        token = torch.where(ended, eos, logits.argmax(-1))
        tokens.append(token)
        ended |= token == eos
        if ended.all():
            break
        logits, state = model.step(token, state)
    return torch.stack(tokens, dim=1)


def main() -> None:
    torch.set_num_threads(1)
    model, prefixes = LastToken(), torch.randint(1, VOCAB, (ROWS, 5), generator=torch.Generator().manual_seed(1))
    times: dict[str, list[float]] = {}
    with torch.inference_mode():
        for spec in LIMITS:
            for _ in range(ROUNDS):
                start = time.perf_counter()
                decode_as_in_a_textbook(model, prefixes, STEPS)
                middle = time.perf_counter()
                eosin.decode(model, prefixes, spec, max_steps=STEPS)
                times.setdefault(spec, []).append((time.perf_counter() - middle) / (middle - start))
                times.setdefault("textbook", []).append(middle - start)
    print(f"textbook loop: {1e6 * statistics.median(times['textbook']) / STEPS:.0f} microseconds a step of {ROWS} rows")
    for spec, limit in LIMITS.items():
        promised = "" if limit is None else f"  (limit {limit})"
        print(f"{spec:12} {statistics.median(times[spec]):6.1f} times as long{promised}")
    if any(limit is not None and statistics.median(times[spec]) > limit for spec, limit in LIMITS.items()):
        raise SystemExit("a step took longer than promised")


if __name__ == "__main__":
    main()
