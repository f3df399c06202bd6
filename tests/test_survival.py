"""The survival estimator against closed forms: unbiased, and how much less it varies than counting."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from members import MODELS, SAMPLERS, VOCAB, Specimen, fits, prefixes
from torch import Tensor

import eosin
from eosin.auditing.tally import list_reported_steps
from eosin.decoding.job import Job
from eosin.decoding.loop import unroll
from eosin.decoding.survival import LEAST_WEIGHT, Survival, roulette
from eosin.errors import BadInput
from eosin.proofs.constructions import Coin
from eosin.records.statistics import Estimate, Ratio
from eosin.states import TensorState


class Regimes:
    """Two regimes that its tokens do not tell: in one it ends often, in the other hardly ever.

    It begins in the first and changes to the second with a small probability at each step, unseen: token 1 says that
    it stays, token 2 that it changes, and both are said in the second regime too. eos is token 0. The survival is that
    of a Markov chain with two states and an end.
    """

    vocab_size, eos_ids = 3, (0,)

    def __init__(self, often: float, hardly: float, change: float):
        self.ends = torch.tensor([often, hardly], dtype=torch.float64)
        self.change = torch.tensor([change, 0.5], dtype=torch.float64)

    def prefill(self, prefix: Tensor) -> tuple[Tensor, TensorState]:
        return self.logits(torch.zeros(len(prefix), dtype=torch.int64))

    def step(self, token: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        (regime,) = state.tensors
        return self.logits(torch.where(token == 2, 1, regime))

    def logits(self, regime: Tensor) -> tuple[Tensor, TensorState]:
        ends, change = self.ends[regime], self.change[regime]
        probs = torch.stack([ends, (1 - ends) * (1 - change), (1 - ends) * change], dim=1)
        return probs.log(), TensorState((regime,))

    def survival(self, steps: int) -> float:
        (often, hardly), change = self.ends.tolist(), float(self.change[0])
        first, second = 1.0, 0.0
        for _ in range(steps):
            stay, leave = first * (1 - often) * (1 - change), first * (1 - often) * change
            first, second = stay, leave + second * (1 - hardly)
        return first + second


MODEL = Regimes(often=0.3, hardly=0.05, change=0.05)
LIMIT = 100


def weights(model, spec: str, contexts: int, steps: int, seed: int = 0, least: float = LEAST_WEIGHT):
    """The weights of all paths at the last step, and the tokens that it took."""
    estimator = Survival(eosin.parse_decoder(spec), least)
    job = Job.create(model, [[1]] * contexts, max_steps=steps, seed=seed, pool=4096)
    paths = list(unroll(job, estimator))
    found = torch.tensor([float(p.survival[-1]) if len(p.survival) == steps else 0.0 for p in paths])
    return found.double(), sum(len(path.tokens) for path in paths)


def test_it_is_unbiased():
    truth = MODEL.survival(LIMIT)
    for least in (1e-6, LEAST_WEIGHT, 0.01, 0.3):
        found, _ = weights(MODEL, "ancestral", 4_000, LIMIT, least=least)
        assert abs(float(found.mean()) - truth) < 4.5 * float(found.std()) / math.sqrt(len(found))


def test_variance_times_tokens_is_smaller_than_by_counting():
    """What one token of work is worth: docs/log.md has the figures."""
    n = 4_000
    truth = MODEL.survival(LIMIT)
    counted = eosin.decode(MODEL, [[1]] * n, "ancestral", max_steps=LIMIT, seed=1)
    by_counting = truth * (1 - truth) * len(counted.packed) / n
    found, tokens = weights(MODEL, "ancestral", n, LIMIT)
    by_weights = float(found.var()) * tokens / n
    assert by_weights < by_counting / 15


def test_a_coin_has_no_variance_until_the_roulette():
    found, _ = weights(Coin(0.05), "ancestral", 50, 60)
    assert torch.allclose(found, torch.full_like(found, 0.95**60), rtol=1e-12)


def test_a_weight_of_zero_is_a_weight():
    """Where eos is all that is kept, the path ends for certain and counts as zero."""
    audit = eosin.audit(Coin(1.0), [[1]] * 30, ["ancestral"], max_steps=20, survival=True)
    (record,) = audit.by_decoder.values()
    assert record.counts.ratio(1) == Estimate(0.0, 0.0, 30)
    assert record.counts.ratio(20).interval() == Ratio(0, 30).interval()
    assert record.counts.tokens == 30


@pytest.mark.parametrize("spec", SAMPLERS)
def test_the_mean_weight_is_the_share_that_survives(spec: str):
    """Against counting, for every rule, on a model that mixes ends with loops."""
    model, n, steps = next(m for m in MODELS if m.name == "lively-lstm").model, 200, 12
    if not fits(spec, VOCAB):
        pytest.skip("does not fit")
    contexts = prefixes(1).expand(n, -1)
    counted = eosin.audit(model, contexts, [spec], max_steps=steps, seed=7).by_decoder[spec].counts.ratio(steps)
    found = eosin.audit(model, contexts, [spec], max_steps=steps, survival=True).by_decoder[spec].counts.ratio(steps)
    spread = math.sqrt(max(counted.value * (1 - counted.value), 1 / n) / n) + found.error
    assert abs(found.value - counted.value) < 4.5 * spread


def test_the_path_is_the_sampler_s_own_until_it_ends(specimen: Specimen):
    spec = "consistent-nucleus:0.4"
    sampled = eosin.decode(specimen.model, prefixes(9), spec, max_steps=15, seed=2)
    estimator = Survival(eosin.parse_decoder(spec))
    paths = unroll(Job.create(specimen.model, prefixes(9), max_steps=15, seed=2, pool=8), estimator)
    for path in paths:
        walked, drawn = path.tokens.tolist(), sampled.tokens[path.index]
        common = min(len(walked), len(drawn)) - 1
        assert walked[:common] == drawn[:common]
        rises = path.survival.diff() > 1e-15
        assert (path.survival[1:][rises] == LEAST_WEIGHT).all()  # raised by the roulette


@given(st.floats(0, 0.999), st.floats(1e-6, 1))
def test_the_roulette_changes_nothing_on_average(weight: float, least: float):
    numbers = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    after = roulette(torch.full_like(numbers, weight), numbers, least)
    assert float(after.mean()) == pytest.approx(weight, rel=1e-3, abs=least / 10_000)
    assert ((after == 0) | (after >= min(weight, least) * (1 - 1e-12))).all()


def test_shards_of_estimates_add_up(monkeypatch: pytest.MonkeyPatch):
    from eosin.auditing import shards

    whole = eosin.audit(MODEL, [[1]] * 50, ["ancestral"], max_steps=30, survival=True).by_decoder["ancestral"].counts
    monkeypatch.setattr(shards, "SHARD", 7)
    parts = eosin.audit(MODEL, [[1]] * 50, ["ancestral"], max_steps=30, survival=True).by_decoder["ancestral"].counts
    for step in list_reported_steps(30):
        assert parts.ratio(step).value == pytest.approx(whole.ratio(step).value, rel=1e-12)
        assert parts.ratio(step).error == pytest.approx(whole.ratio(step).error, rel=1e-9)
    with pytest.raises(BadInput, match="estimated after steps 1, 2, 5, 10, 20, 30, not 7"):
        whole.ratio(7)


@pytest.mark.parametrize("spec", ["greedy", "beam:2"])
def test_what_draws_nothing_has_nothing_to_estimate(spec: str):
    with pytest.raises(BadInput, match=f"{spec} is deterministic; survival needs a sampler"):
        eosin.audit(MODEL, [[1]], [spec], max_steps=5, survival=True)
