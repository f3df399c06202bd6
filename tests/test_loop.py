"""The loop: the naive decoder's answers, whatever the order, the pool and the company; and not one step too many."""

import math

import pytest
import torch
from members import DECODERS, EOS, MODELS, NEURAL, SAMPLERS, SEARCHES, VOCAB, Specimen, crossed, fits, neural, prefixes
from naive import beam_one, decode_one
from torch.testing import assert_close

import eosin
from eosin.decoding.distribution import Workspace, survey
from eosin.decoding.loop import BATCH_MULTIPLE, SMALLEST_BATCH
from eosin.proofs.constructions import Coin, Repeater, Script

SMALL = [spec for spec in DECODERS if fits(spec, VOCAB)]
PREFIXES = [[1, 2, 5], [6], [4, 4], [0, 1, 2], [5], [2, 6], [1, 1, 1], [0, 5]]


def naive(model, prefix, spec: str, index: int, max_steps: int, seed: int):
    if spec.startswith("beam"):
        width = int(spec.removeprefix("beam:").partition(",")[0])
        return beam_one(model, prefix, width, 1 if "first" in spec else width, max_steps)
    return decode_one(model, prefix, spec, max_steps, seed, index)


@pytest.mark.parametrize(("specimen", "spec"), crossed(MODELS, SMALL))
def test_every_decoder_is_the_naive_one(specimen: Specimen, spec: str):
    """Eight contexts of three lengths in one pool; their rows end at different times or not at all."""
    model = specimen.model
    found = eosin.decode(model, PREFIXES, spec, max_steps=9, seed=7)
    for index, prefix in enumerate(PREFIXES):
        tokens, terminated, log_prob = naive(model, prefix, spec, index, 9, 7)
        assert found.tokens[index] == tokens, index
        assert bool(found.terminated[index]) == terminated
        assert math.isclose(float(found.log_prob[index]), log_prob, rel_tol=1e-5, abs_tol=1e-5)


@pytest.mark.parametrize("spec", ["greedy", "beam:3", "beam:3,stop=first", "ancestral", "nucleus:0.4"])
def test_the_examples_do_end_at_different_times(spec: str):
    """Otherwise the test above would show little."""
    runs = [eosin.decode(specimen.model, PREFIXES, spec, max_steps=9, seed=7) for specimen in MODELS]
    assert sum(len(set(run.steps.tolist())) > 1 for run in runs) >= 3
    assert any(0 < run.terminated.sum() < len(PREFIXES) for run in runs)


@pytest.fixture
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


SPECS = [*SEARCHES, "ancestral", "nucleus:0.4", "consistent-top-k:2", "consistent-typical:0.5,temperature=0.8"]


ALONE = crossed([1], SPECS, ["tanh", "lstm", "gru"])
TWO_THREADS = [
    pytest.param(2, spec, core, marks=pytest.mark.slow)
    for spec in ("greedy", "nucleus:0.4")
    for core in ("tanh", "lstm", "gru")
]


@pytest.mark.parametrize(("threads", "spec", "core"), [*ALONE, *TWO_THREADS], indirect=["threads"])
def test_order_pool_and_company_do_not_matter(core: str, spec: str, threads: int):
    """Bit for bit, on a recurrent model in float32 with several blocks of vocabulary."""
    model = neural(core, "softmax", vocab=2500, width=64, dtype=torch.float32, scale=0.3)
    with torch.no_grad():
        model.output.bias[EOS] = 3.5
    contexts = prefixes(40, length=4, vocab=2500).tolist() + prefixes(20, length=2, vocab=2500, seed=5).tolist()
    whole = eosin.decode(model, contexts, spec, max_steps=15, seed=3)
    assert len(set(whole.lengths.tolist())) > 1 or spec in SEARCHES

    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = eosin.decode(model, [contexts[i] for i in order], spec, max_steps=15, seed=3, indices=order)
    assert [shuffled.tokens[order.index(i)] for i in range(60)] == whole.tokens
    assert torch.equal(shuffled.log_prob, whole.log_prob[order])
    for pool in (9, 35):
        pooled = eosin.decode(model, contexts, spec, max_steps=15, seed=3, pool=pool)
        assert pooled.tokens == whole.tokens
        assert torch.equal(pooled.log_prob, whole.log_prob)
    alone = [eosin.decode(model, [contexts[i]], spec, max_steps=15, seed=3, indices=[i]).tokens[0] for i in (0, 41, 59)]
    assert alone == [whole.tokens[i] for i in (0, 41, 59)]


def test_a_transformer_agrees_up_to_near_ties():
    """Its sums depend on the length of the longest row beside it, so only almost all completions are the same."""
    model = neural("transformer", "softmax", vocab=500, width=32, dtype=torch.float32, scale=0.3)
    contexts = prefixes(100, length=4, vocab=500).tolist()
    whole = eosin.decode(model, contexts, "ancestral", max_steps=20)
    small = eosin.decode(model, contexts, "ancestral", max_steps=20, pool=9)
    same = sum(mine == theirs for mine, theirs in zip(whole.tokens, small.tokens, strict=True))
    assert same >= 98


@pytest.mark.parametrize("spec", [spec for spec in SAMPLERS if fits(spec, VOCAB)])
def test_seeds_differ(spec: str):
    model = Coin(0.05, vocab_size=VOCAB)
    runs = [eosin.decode(model, [[1]] * 20, spec, max_steps=10, seed=seed).tokens for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2] or all(len(set(tokens)) == 1 for tokens in runs[0])


@pytest.mark.parametrize("mu", [0.2, 0.5])
def test_nucleus_and_consistent_nucleus_part_exactly_where_eos_is_drawn(mu: float):
    model = neural("lstm", "softmax", scale=1.5)
    with torch.no_grad():
        model.output.bias[EOS] = -3.0
    contexts = prefixes(200)
    plain, consistent = (
        eosin.decode(model, contexts, f"{kind}nucleus:{mu}", max_steps=40, seed=1) for kind in ("", "consistent-")
    )
    parted = 0
    for mine, theirs in zip(consistent.tokens, plain.tokens, strict=True):
        if mine != theirs:
            parted += 1
            assert mine[-1] == EOS
            assert mine[:-1] == theirs[: len(mine) - 1]
    assert 0 < parted < 200


class Counted:
    """A model that counts what is asked of it."""

    def __init__(self, model):
        self.model = model
        self.vocab_size, self.eos_ids = model.vocab_size, model.eos_ids
        self.steps: list[int] = []

    def prefill(self, prefix):
        return self.model.prefill(prefix)

    def step(self, token, state):
        self.steps.append(len(token))
        return self.model.step(token, state)


def test_cost_follows_the_tokens_produced():
    """Lines of very different length: a row costs a step for each of its tokens but the first, and nothing after."""
    lines = [[1] * length for length in (0, 1, 2, 5, 10, 50, 200)]
    model = Counted(Script(lines, vocab_size=8))
    contexts = [[i % 7] for i in range(7 * 60)]
    found = eosin.decode(model, contexts, "greedy", max_steps=500)
    assert found.terminated.all()
    assert found.lengths.tolist() == [len(lines[i % 7]) + 1 for i in range(7 * 60)]
    needed = int(found.lengths.sum()) - len(contexts)
    assert needed <= sum(model.steps) < needed + BATCH_MULTIPLE * len(model.steps)
    assert len(model.steps) == 200


def test_the_last_step_is_not_taken():
    model = Counted(Repeater(3))
    eosin.decode(model, [[1]] * 20, "greedy", max_steps=10)
    assert len(model.steps) == 9
    model = Counted(Repeater(3))
    eosin.decode(model, [[1]] * 20, "greedy", max_steps=1)
    assert model.steps == []


def test_a_pool_stays_full():
    """New contexts take the places of finished ones: far fewer steps than one cohort after the other."""
    model = Counted(Coin(0.1))
    found = eosin.decode(model, [[1]] * 2000, "ancestral", max_steps=200, pool=100)
    assert len(model.steps) < 1.35 * int(found.lengths.sum()) / 100
    assert max(model.steps) == 104  # the pool, filled up


def test_small_batches_are_filled_up():
    model = Counted(Coin(0.0))
    eosin.decode(model, [[1]], "ancestral", max_steps=3)
    assert model.steps == [SMALLEST_BATCH] * 2


class OnlySelect:
    """A state that cannot be joined."""

    def __init__(self, inner):
        self.inner = inner

    def select(self, rows):
        return OnlySelect(self.inner.select(rows))


class Cohorts:
    """A ten-line model: no score, and a state with nothing but select."""

    vocab_size, eos_ids = VOCAB, (EOS,)

    def __init__(self):
        self.model = neural("gru", "softmax")

    def prefill(self, prefix):
        logits, state = self.model.prefill(prefix)
        return logits.dense(), OnlySelect(state)

    def step(self, token, state):
        logits, state = self.model.step(token, state.inner)
        return logits.dense(), OnlySelect(state)


@pytest.mark.parametrize("spec", ["greedy", "ancestral", "beam:3"])
@pytest.mark.parametrize("floor", [False, True])
def test_a_state_that_offers_only_select(spec: str, floor: bool):
    """Decoded in cohorts, one after the other, with the same completions; also behind a wrapper."""
    cohorts, joined = Cohorts(), neural("gru", "softmax")
    if floor:
        cohorts, joined = eosin.Floor(cohorts, 0.05), eosin.Floor(joined, 0.05)
    contexts = [row.tolist() for length in (1, 2, 3) for row in prefixes(30, length=length)]
    mine = eosin.decode(cohorts, contexts, spec, max_steps=30, pool=25)
    theirs = eosin.decode(joined, contexts, spec, max_steps=30)
    assert mine.tokens == theirs.tokens


def test_log_prob_is_the_model_s_own(specimen: Specimen):
    """Under the model, not under the truncated or tempered distribution."""
    model = specimen.make()
    found = eosin.decode(model, prefixes(12), "nucleus:0.9,temperature=0.5", max_steps=12, seed=2)
    for row, prefix in enumerate(prefixes(12)):
        score = model.score(prefix[None], torch.tensor([found.tokens[row]])).detach()
        assert_close(float(score.sum()), float(found.log_prob[row]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("length", "terminated"), [(5, True), (6, True), (7, False)])
def test_termination_is_recorded_not_deduced(length: int, terminated: bool):
    """A line whose eos is the very last token allowed has ended; one that is a word longer has not."""
    model = Script([[1] * (length - 1)], vocab_size=4)
    found = eosin.decode(model, [[0]], "greedy", max_steps=6)
    assert bool(found.terminated[0]) == terminated
    assert int(found.lengths[0]) == min(length, 6)


def test_coin_has_its_closed_form():
    """r_L = (1 - p)^L, within five standard deviations."""
    contexts, p = 20_000, 0.03
    found = eosin.decode(Coin(p), [[1]] * contexts, "ancestral", max_steps=60, seed=4)
    for limit in (10, 30, 60):
        ended = found.terminated & (found.lengths <= limit)
        ratio = 1 - ended.double().mean()
        expected = (1 - p) ** limit
        assert abs(float(ratio) - expected) < 5 * math.sqrt(expected * (1 - expected) / contexts)


def test_decoding_switches_dropout_off_and_on_again():
    model = neural("lstm", "softmax", dtype=torch.float32)
    model.core.dropout = 0.5
    model.train()
    model.embedding.eval()
    runs = [eosin.decode(model, prefixes(20), "greedy", max_steps=10).tokens for _ in range(2)]
    assert runs[0] == runs[1]
    assert model.training
    assert model.core.training
    assert not model.embedding.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_models_of_any_precision_decode(dtype: torch.dtype):
    """Logits are taken as they are and everything after them is computed in float32 at least."""
    model = neural("gru", "self-terminating", vocab=3000, dtype=dtype)
    found = eosin.decode(model, prefixes(20), "consistent-nucleus:0.95", max_steps=200)
    assert found.terminated.all()
    with torch.inference_mode():
        logits, _ = model.prefill(prefixes(20))
        asked = survey(logits, 20, Workspace([EOS]))
        others = logits.source.dense().double().index_fill(1, torch.tensor([EOS]), -math.inf)
        assert_close(asked._block_log_mass.logsumexp(-1) + asked._peak[:, 0], others.logsumexp(-1))


def test_several_ways_to_end():
    class Chatty(Coin):
        eos_ids = (0, 2)

    found = eosin.decode(Chatty(0.1, vocab_size=4), [[1]] * 500, "ancestral", max_steps=300)
    last = {tokens[-1] for tokens in found.tokens}
    assert last == {0, 2}
    assert found.terminated.all()
    assert not any(token in (0, 2) for tokens in found.tokens for token in tokens[:-1])


def test_completions_are_in_the_order_given():
    model = Script([[1], [2, 2], [3, 3, 3]], vocab_size=5)
    found = eosin.decode(model, [[2], [0], [1], [2]], "greedy", max_steps=9)
    assert found.tokens == [[3, 3, 3, 0], [1, 0], [2, 2, 0], [3, 3, 3, 0]]
    assert found.lengths.tolist() == found.steps.tolist() == [4, 2, 3, 4]
    assert len(found) == 4
    assert repr(found) == "Completions(4 contexts, 4 terminated, 13 tokens)"


@pytest.mark.parametrize("specimen", NEURAL, ids=str)
def test_all_prefixes_as_one_tensor_or_as_lists(specimen: Specimen):
    model = specimen.make()
    tensor = prefixes(10)
    assert eosin.decode(model, tensor, "greedy", max_steps=5).tokens == (
        eosin.decode(model, tensor.tolist(), "greedy", max_steps=5).tokens
    )
