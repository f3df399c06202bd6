"""A recurrent model for py:, whose shards have eight contexts."""

from __future__ import annotations

import torch

from eosin import CORES, HEADS, NeuralLM


def load() -> NeuralLM:
    torch.manual_seed(3)
    model = NeuralLM(CORES["tanh"](width=16, layers=2), HEADS["softmax"](), vocab_size=24, eos_id=2)
    with torch.no_grad():
        model.output.weight.mul_(12)
        model.embedding.weight.mul_(8)
    model.pool = 8
    return model.eval()


def load_slowly() -> NeuralLM:
    """The same, but each step takes a while."""
    import time

    model = load()
    step = model.step

    def slow_step(token, state):
        time.sleep(0.004)
        return step(token, state)

    model.step = slow_step
    return model


def load_too_large() -> NeuralLM:
    """The same, but a step needs more memory than there is."""
    model = load()
    model.step = lambda token, state: bytearray(2**62)
    return model
