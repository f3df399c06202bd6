"""What decoders ask of logits, against the plain formulas: several blocks, ties, -inf, several ways to end."""

import math

import pytest
import torch
from distributions import surveyed
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from eosin.decoding.distribution import BLOCK, NextToken, Workspace, survey
from eosin.logits import Dense, Factored, Rewritten


def example(vocab: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Rows of very different width, with ties and impossible tokens."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, vocab, generator=generator, dtype=dtype) * torch.tensor([[0.1], [1], [3], [8], [3], [0]])
    logits[4] = (logits[4] * 2).round() / 2
    logits[3, torch.randperm(vocab, generator=generator)[: vocab // 3]] = -math.inf
    return logits


SIZES = [5, 31, 32, 33, 100, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 77]
EOS = [(2,), (0, 4), (3, 1, 2)]


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("eos_ids", EOS)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
def test_every_answer(vocab: int, eos_ids: tuple[int, ...], temperature: float):
    logits = example(vocab)
    logits[:, eos_ids[0]] += 1
    expected = (logits / temperature).log_softmax(-1)
    asked = surveyed(logits, eos_ids, temperature)

    assert_close(asked.log_total + asked._peak[:, 0] / temperature, (logits / temperature).logsumexp(-1))
    assert_close(asked.log_probs(), expected)
    assert_close(asked.eos_log_probs, expected[:, list(eos_ids)])
    assert_close(asked.best_log_prob, expected.amax(-1))
    assert_close(asked.entropy, torch.special.entr(expected.exp()).sum(-1))
    token = torch.tensor([0, 1, 2, 3, 4, vocab - 1])
    assert_close(asked.log_probs_of(token), expected.gather(1, token[:, None])[:, 0])
    finite = [row[row > -math.inf] / temperature for row in logits]
    assert_close(asked.deviation, torch.stack([row.std(correction=0) for row in finite]), atol=1e-7, rtol=1e-7)
    whole = torch.cat([ids for ids, _ in asked.parts()])
    assert sorted(whole.tolist()) == sorted([*range(vocab), *eos_ids])


PUBLIC = [name for name in dir(NextToken) if not name.startswith("_") and name not in ("eos_ids", "vocab_size")]
ASKED = {
    "log_probs_of": lambda it: [it.log_probs_of(torch.arange(it.rows))],
    "top": lambda it: [it.top(9).ids, it.top(9).log_probs],
    "best": lambda it: [it.best()],
    "guess_top": lambda it: [it.guess_top(9).log_probs],
    "rounded_log_probs_of": lambda it: [it.rounded_log_probs_of(torch.arange(it.rows)[:, None])],
    "rounded_log_probs": lambda it: [it.rounded_log_probs()],
    "parts": lambda it: list(it.parts()),
    "others": lambda it: list(it.others()),
    "block": lambda it: list(it.block(torch.zeros(it.rows, dtype=torch.int64))),
    "log_probs": lambda it: [it.log_probs()],
    "support": lambda it: [it.support()],
    "eos_rank": lambda it: [it.eos_rank()],
    "at": lambda it: [it.at(0.7).log_probs()],
    "select": lambda it: [it.select(torch.tensor([1, 0])).log_probs()],
}
"""What a method says, as values that can be compared. A new one needs its line."""


@pytest.mark.parametrize("temperature", [0.3, 2.5, 1e3])
@pytest.mark.parametrize("name", PUBLIC)
def test_nothing_tells_that_there_was_a_temperature(name: str, temperature: float):
    """A rule that could read it would do other things than it promises: what is at a temperature is a distribution."""
    logits = example(100)
    tempered, plain = surveyed(logits, (3, 1), temperature), surveyed(logits / temperature, (3, 1))
    if name in ASKED:
        assert_close(ASKED[name](tempered), ASKED[name](plain))
    else:
        assert_close(getattr(tempered, name), getattr(plain, name)) if name not in ("dtype", "device", "tie") else None


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("eos_ids", EOS)
@pytest.mark.parametrize("count", [1, 2, 5, 64, 1000])
def test_top_is_a_stable_sort(vocab: int, eos_ids: tuple[int, ...], count: int):
    logits = example(vocab)
    values, ids = logits.sort(dim=1, descending=True, stable=True)
    top = surveyed(logits, eos_ids).top(count)
    count = min(count, vocab)
    assert top.ids.shape == (6, count)
    possible = values[:, :count] > -math.inf
    assert torch.equal(top.ids[possible], ids[:, :count][possible])
    assert_close(top.log_probs, values[:, :count] - logits.logsumexp(-1, keepdim=True))


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("eos_ids", EOS)
def test_rank_of_eos_is_its_place_in_a_stable_sort(vocab: int, eos_ids: tuple[int, ...]):
    logits = example(vocab)
    logits[3, list(eos_ids)] = -math.inf
    order = logits.sort(dim=1, descending=True, stable=True).indices
    first = torch.isin(order, torch.tensor(eos_ids)).int().argmax(1)
    assert torch.equal(surveyed(logits, eos_ids).eos_rank(), 1 + first)


@given(st.integers(0, 2**32), st.sampled_from((20, 90, 3000)), st.integers(1, 130), st.integers(1, 9))
def test_top_with_many_ties(seed: int, vocab: int, count: int, levels: int):
    """Of equally probable tokens the lower id comes first, and is in where only some have a place."""
    logits = torch.randint(levels, (4, vocab), generator=torch.Generator().manual_seed(seed)).float()
    expected = logits.sort(dim=1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(surveyed(logits, (7, 13)).top(count).ids, expected)


def test_factored_is_dense():
    hidden, weight, bias = torch.randn(6, 16), torch.randn(3000, 16), torch.randn(3000)
    lazy = Factored(hidden, weight, bias)
    asked = survey(lazy, 6, Workspace([7]))
    assert_close(asked.log_probs(), lazy.dense().double().log_softmax(-1), atol=1e-5, rtol=1e-5)
    assert lazy.shape == (6, 3000)


def test_rewritten_is_dense():
    """Nested, with two ways to end: what `survey` is told about eos is what `dense` writes."""
    logits = torch.randn(6, 3000, dtype=torch.float64)
    inner = Rewritten(Dense(logits), (7, 2100), lambda _: torch.linspace(-4, -1e-3, 6, dtype=torch.float64))
    outer = Rewritten(inner, (7, 2100), lambda survival: survival - 0.5)
    asked = survey(outer, 6, Workspace([7, 2100]))
    assert_close(asked.log_probs(), outer.dense().log_softmax(-1))


def test_workspace_is_reused_and_grows():
    workspace = Workspace([1])
    for rows, vocab in [(4, 50), (2, 50), (9, 50), (3, 2000), (4, 50)]:
        logits = torch.randn(rows, vocab, dtype=torch.float64)
        asked = survey(Dense(logits), rows, workspace)
        assert_close(asked.log_probs(), logits.log_softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [-3e38, -1e6, 1e4, 1e8, 3e38])
@pytest.mark.parametrize("temperature", [1.0, 1e-30, 1e-6, 1e6, 1e30])
def test_large_logits_and_extreme_temperatures_lose_nothing(dtype: torch.dtype, offset: float, temperature: float):
    """Ties stay ties, half stays half: a distribution depends on differences of logits only."""
    logits = torch.full((3, 200), offset, dtype=dtype)
    logits[1, 100:] = -math.inf
    logits[2, 1:] = -math.inf
    logits[2, 0] = -math.inf if offset == 1e8 else offset
    logits[2, 7] = offset
    asked = surveyed(logits, (0, 3), temperature)
    possible = logits > -math.inf
    expected = torch.where(possible, -possible.sum(1, keepdim=True).double().log(), -math.inf)
    assert_close(asked.log_probs(), expected)
    assert_close(asked.entropy, possible.sum(1).double().log(), atol=1e-5, rtol=1e-5)
    parts = torch.cat([log_probs for _, log_probs in asked.parts()], dim=1)
    assert_close(parts.double().exp().sum(1), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)


def test_survey_leaves_the_logits_alone():
    logits = torch.randn(4, 50)
    before = logits.clone()
    surveyed(logits)
    assert torch.equal(logits, before)


def test_only_the_rows_asked_for():
    logits = torch.randn(6, 2000, dtype=torch.float64)
    asked = survey(Dense(logits), 4, Workspace([1]))
    assert asked.rows == 4
    assert_close(asked.log_probs(), logits[:4].log_softmax(-1))
    rows = torch.tensor([3, 0, 3])
    assert_close(asked.select(rows).log_probs(), logits[rows].log_softmax(-1))
    assert torch.equal(asked.select(rows).top(3).ids, logits[rows].topk(3).indices)
