"""Bad input: a ValueError that names the value, the field and what is allowed; nothing is silently clipped."""

import math
import subprocess
import sys

import pytest
import torch
from members import DECODERS, VOCAB, fits, neural, prefixes

import eosin
from eosin.proofs.constructions import Coin
from eosin.states import TensorState

COIN = Coin(0.5, vocab_size=VOCAB)
GOOD = {"prefixes": [[1, 2], [3]], "decoder": "greedy", "max_steps": 5}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prefixes": []}, "prefixes must hold at least one prefix, got none"),
        ({"prefixes": torch.empty(0, 3, dtype=torch.int64)}, "prefixes must hold at least one prefix, got none"),
        ({"prefixes": [[1], []]}, "prefix 1 must be a list of at least one token id, got []"),
        ({"prefixes": torch.empty(2, 0, dtype=torch.int64)}, "prefix 0 must be a list of at least one token id"),
        (
            {"prefixes": [[1], [2, VOCAB]]},
            f"each token id of prefix 1 must be a whole number from 0 to {VOCAB - 1}, got {VOCAB}",
        ),
        ({"prefixes": [[-1]]}, "each token id of prefix 0 must be a whole number from 0 to 6, got -1"),
        (
            {"prefixes": torch.tensor([[0.5]])},
            f"each token id of prefix 0 must be a whole number from 0 to {VOCAB - 1}, got 0.5",
        ),
        ({"prefixes": torch.tensor([[[1]]])}, "each token id of prefix 0 must be a whole number"),
        ({"prefixes": torch.tensor([1, 2])}, "prefix 0 must be a list of at least one token id"),
        ({"max_steps": 0}, "max_steps must be a whole number from 1 to 2147483647, got 0"),
        ({"max_steps": -3}, "max_steps must be a whole number from 1 to 2147483647, got -3"),
        ({"pool": 0}, "pool must be a whole number from 1 to 2147483647, got 0"),
        ({"seed": -1}, "seed must be a whole number from 0 to 18446744073709551615, got -1"),
        ({"seed": 2**64}, "seed must be a whole number from 0 to 18446744073709551615, got"),
        ({"indices": [1]}, "indices must be 2 different numbers"),
        ({"indices": [1, 1]}, "indices must be 2 different numbers"),
        ({"indices": [-1, 1]}, "each of indices must be a whole number from 0 to"),
        ({"decoder": f"top-k:{VOCAB + 1}"}, f"k must be at most {VOCAB}, the size of the vocabulary, got {VOCAB + 1}"),
        ({"decoder": f"consistent-top-k:{VOCAB + 1}"}, f"k must be at most {VOCAB}"),
        ({"decoder": "nucleus:0"}, "mu must lie in (0, 1], got 0"),
        ({"decoder": "gredy"}, "did you mean 'greedy'"),
    ],
)
def test_bad_arguments(change: dict, says: str):
    with pytest.raises(ValueError) as error:
        eosin.decode(COIN, **{**GOOD, **change})
    assert says in str(error.value)


AS_A_USER = """
import numpy, torch
import eosin
from eosin.proofs.constructions import Coin

def said(*arguments, **settings):
    try:
        eosin.decode(*arguments, **settings)
    except ValueError as error:
        return str(error)

class Nothing:
    vocab_size = 3

assert said(Nothing(), [[1]], max_steps=5) == "model must have eos_ids, prefill, step; Nothing has not"
for bad in (0.5, "a", None, 2**63, True, -1):
    assert said(Coin(0.5), [[bad]], max_steps=5) == (
        f"each token id of prefix 0 must be a whole number from 0 to 1, got {bad!r}"
    )
for bad in (2.5, "5", None, True, 2**64, torch.tensor(2.5)):
    for field in ("max_steps", "pool", "seed"):
        settings = {"max_steps": 5, field: bad}
        if field == "pool" and bad is None:
            continue  # what suits the model
        assert said(Coin(0.5), [[1]], **settings).startswith(f"{field} must be a whole number from"), (field, bad)
for bad in ([0.5, 1.5], "01", [None, 1], [2**63, 0], [float("nan"), 1]):
    assert said(Coin(0.5), [[1], [1]], max_steps=5, indices=bad).startswith("each of indices must be a whole number")
for bad in ((), (0, 0), None, 5, [0, 1, 0]):
    coin = Coin(0.5)
    coin.eos_ids = bad
    assert said(coin, [[1]], max_steps=5).startswith("eos_ids must be one or more different token ids")
for bad in ((2,), (0.0,), (True,), "0", (-1,)):
    coin = Coin(0.5)
    coin.eos_ids = bad
    assert said(coin, [[1]], max_steps=5).startswith("each of eos_ids must be a whole number from 0 to 1")
assert said(Coin(0.5), [[1]], 7, max_steps=5).startswith("decoder must be a specification")
assert said(Coin(0.5), 7, max_steps=5) == "prefixes must be a tensor or a list of lists of token ids, got 7"

class Answers(Coin):
    def __init__(self, answer):
        super().__init__(0.5)
        self.answer = answer

    def step(self, token, state):
        return self.answer(torch.zeros(len(token), 2), state)

for answer in (
    lambda logits, state: logits,
    lambda logits, state: (logits, None),
    lambda logits, state: (logits[:, :1], state),
    lambda logits, state: (logits[:3], state),
    lambda logits, state: (logits[None], state),
    lambda logits, state: (logits.tolist(), state),
    lambda logits, state: (logits, state, 1),
    lambda logits, state: None,
):
    assert said(Answers(answer), [[1]], max_steps=5).startswith("prefill and step must return logits of shape (")

# what is unusual and right
rows = numpy.array([[1, 0], [0, 1]])
for prefixes in (rows, rows[:, ::-1], rows.astype("uint16"), torch.tensor(rows).byte(), [torch.tensor([1]), (1, 0)]):
    found = eosin.decode(Coin(0.5), prefixes, max_steps=numpy.int32(3), seed=numpy.int32(3), pool=torch.tensor(2))
    assert len(found) == 2
assert len(eosin.decode(Coin(0.5, 300), torch.tensor([[100]], dtype=torch.uint8), max_steps=3)) == 1
mu = numpy.float32(0.2)
assert eosin.parse_decoder(str(eosin.decoding.truncation.Nucleus(mu))).truncation.mu == mu
coin = Coin(0.5)
coin.eos_ids = numpy.array([0])
assert eosin.decode(coin, [[1]], max_steps=3, indices=numpy.array([2**40])).terminated.all()
"""


def test_messages_without_the_type_checker_of_the_tests():
    finished = subprocess.run([sys.executable, "-c", AS_A_USER], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


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
