"""Bad input: a ValueError that names the value, the field and what is allowed; nothing is silently clipped."""

import math
import subprocess
import sys

import pytest
import torch
from members import DECODERS, VOCAB, fits, neural, prefixes

import eosin
from eosin.states import TensorState
from eosin.theory.constructions import Coin

COIN = Coin(0.5, vocab_size=VOCAB)
GOOD = {"prefixes": [[1, 2], [3]], "decoder": "greedy", "max_steps": 5}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prefixes": []}, "prefixes must hold at least one prefix, got none"),
        ({"prefixes": torch.empty(0, 3, dtype=torch.int64)}, "prefixes must hold at least one prefix, got none"),
        ({"prefixes": [[1], []]}, "prefix 1 must be a list of at least one token id, got []"),
        ({"prefixes": torch.empty(2, 0, dtype=torch.int64)}, "prefix 0 must be a list of at least one token id"),
        ({"prefixes": [[1], [2, VOCAB]]}, f"prefix 1 holds token id {VOCAB}; ids must lie in [0, {VOCAB})"),
        ({"prefixes": [[-1]]}, f"prefix 0 holds token id -1; ids must lie in [0, {VOCAB})"),
        ({"prefixes": torch.tensor([[0.5]])}, "prefix 0 must hold token ids, which are whole numbers, got"),
        ({"prefixes": torch.tensor([[[1]]])}, "prefix 0 must be a list of at least one token id"),
        ({"prefixes": torch.tensor([1, 2])}, "prefix 0 must be a list of at least one token id"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1, got 0"),
        ({"max_steps": -3}, "max_steps must be a whole number of at least 1, got -3"),
        ({"pool": 0}, "pool must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number in [0, 2^64), got -1"),
        ({"seed": 2**64}, "seed must be a whole number in [0, 2^64), got"),
        ({"indices": [1]}, "indices must be 2 different numbers"),
        ({"indices": [1, 1]}, "indices must be 2 different numbers"),
        ({"indices": [-1, 1]}, "indices must be 2 different numbers"),
        ({"decoder": f"top-k:{VOCAB + 1}"}, f"k must be at most {VOCAB}, the size of the vocabulary, got {VOCAB + 1}"),
        ({"decoder": f"consistent-top-k:{VOCAB + 1}"}, f"k must be at most {VOCAB}"),
        ({"decoder": "nucleus:0"}, "mu must lie in (0, 1], got 0"),
        ({"decoder": "gredy"}, "did you mean greedy"),
    ],
)
def test_bad_arguments(change: dict, says: str):
    with pytest.raises(ValueError) as error:
        eosin.decode(COIN, **{**GOOD, **change})
    assert says in str(error.value)


AS_A_USER = """
import eosin
from eosin.theory.constructions import Coin

def said(*arguments, **settings):
    try:
        eosin.decode(*arguments, **settings)
    except ValueError as error:
        return str(error)

class Nothing:
    vocab_size = 3

assert said(Nothing(), [[1]], max_steps=5) == "model must have eos_ids, prefill, step; Nothing has not"
assert said(Coin(0.5), [[0.5]], max_steps=5).startswith("prefix 0 must hold token ids, which are whole numbers")
assert said(Coin(0.5), [["a"]], max_steps=5) == "prefix 0 must be a list of token ids, got ['a']"
assert said(Coin(0.5), [[1]], max_steps=2.5) == "max_steps must be a whole number of at least 1, got 2.5"
assert said(Coin(0.5), [[1]], max_steps="5") == "max_steps must be a whole number of at least 1, got '5'"
assert said(Coin(0.5), [[1]], max_steps=5, seed=0.5) == "seed must be a whole number in [0, 2^64), got 0.5"
assert said(Coin(0.5), [[1]], 7, max_steps=5).startswith("decoder must be a specification")
assert said(Coin(0.5), 7, max_steps=5) == "prefixes must be a tensor or a list of lists of token ids, got 7"
"""


def test_messages_without_the_type_checker_of_the_tests():
    finished = subprocess.run([sys.executable, "-c", AS_A_USER], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("eos_ids", [(), (VOCAB,), (-1,)])
def test_bad_eos_ids(eos_ids: tuple[int, ...]):
    model = Coin(0.5, vocab_size=VOCAB)
    model.eos_ids = eos_ids
    with pytest.raises(ValueError, match="eos_ids must be one or more ids in"):
        eosin.decode(model, **GOOD)


class Breaks(Coin):
    """Its logits go wrong for contexts that start with token 5, at their fourth step."""

    def __init__(self, broken: float):
        super().__init__(0.0, vocab_size=VOCAB)
        self.broken = broken

    def prefill(self, prefix):
        logits, _ = super().prefill(prefix)
        return logits, TensorState((prefix[:, 0], torch.ones(len(prefix), dtype=torch.int64)))

    def step(self, token, state):
        if not hasattr(state, "tensors") or len(state.tensors) == 1:
            return super().step(token, state)
        first, steps = state.tensors
        logits, _ = super().step(token, state)
        bad = (first == 5) & (steps == 3)
        logits = torch.where(bad[:, None] & torch.ones_like(logits, dtype=torch.bool), self.broken, logits)
        return logits, TensorState((first, steps + 1))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spec", [spec for spec in DECODERS if fits(spec, VOCAB)])
def test_broken_logits_name_the_context_and_the_step(spec: str, broken: float):
    contexts = [[1], [2], [5], [1]]
    with pytest.raises(ValueError, match="logits of context 2 at step 4 are not a distribution"):
        eosin.decode(Breaks(broken), contexts, spec, max_steps=10)


def test_one_nan_among_good_logits_is_seen():
    class OneNan(Coin):
        def step(self, token, state):
            logits, state = super().step(token, state)
            logits = logits.clone()
            logits[:, 4] = math.nan
            return logits, state

    with pytest.raises(ValueError, match="logits of context 0 at step 1"):
        eosin.decode(OneNan(0.5, vocab_size=VOCAB), [[1]], "greedy", max_steps=5)


def test_nothing_is_left_behind_by_an_error():
    model = neural("lstm", "softmax").train()
    with torch.no_grad():
        model.output.bias[0] = math.nan
    with pytest.raises(ValueError, match="not a distribution"):
        eosin.decode(model, prefixes(3), "greedy", max_steps=5)
    assert model.training
    assert model.core.training


def test_an_unknown_public_name():
    with pytest.raises(AttributeError, match="has no attribute 'decod'; it has"):
        _ = eosin.decod
