"""The paper's theorems, as far as a computer can check them."""

import math

import pytest
import torch
from members import EPSILON, RULES, crossed, logit_against_eos, neural, prefixes

import eosin
from eosin.decoding.distribution import Workspace, survey
from eosin.decoding.truncation import TRUNCATIONS
from eosin.logits import as_logits
from eosin.models.neural_lm import CORES
from eosin.models.recurrent import TanhRNN
from eosin.proofs.constructions import Coin, Repeater, Script, build_theorem_3_4


def last_step(epsilon: float) -> int:
    """The first step after B = -ln 2 / ln(1 - epsilon), by which p(eos) > 1/2."""
    return math.floor(-math.log(2) / math.log1p(-epsilon)) + 1


# Theorem 3.4: a consistent model and incomplete decoders that never end


@pytest.mark.parametrize("vocab", [2, 3, 10, 200])
def test_3_4_eos_is_last_for_a_long_time(vocab: int):
    """Under greedy decoding, and under a path that visits every token; also where the prefix contains eos."""
    model = build_theorem_3_4(vocab)
    prefix = torch.tensor([[1, 1], [0, 0], [vocab - 1, 0]])
    logits, state = model.prefill(prefix)
    for step in range(300):
        dense = as_logits(logits).dense()
        assert (dense[:, 1:] > 0).all()
        assert (dense[:, 0] < 0).all()
        token = dense.argmax(-1) if step % 2 else torch.full((3,), 1 + step % (vocab - 1))
        logits, state = model.step(token, state)


def test_3_4_is_the_ordinary_class_with_the_weights_of_the_proof():
    vocab, upper = 7, 2
    model = build_theorem_3_4(vocab, upper=upper)
    assert type(model.core) is TanhRNN
    cell = model.core.layers[0]
    assert (cell.weight_hh_l0[:upper, :upper] > 0).all()
    assert not cell.weight_hh_l0[:upper, upper:].any()
    assert not cell.weight_hh_l0[upper:, :upper].any()
    assert torch.equal(cell.weight_hh_l0[upper:, upper:], torch.eye(vocab))
    assert not cell.bias_ih_l0.any()
    assert not cell.bias_hh_l0.any()
    assert not model.output.bias.any()
    assert (model.core.start > 0).all()
    assert (model.output.weight[1:, :upper] > 0).all()
    assert (model.output.weight[0, :upper] < 0).all()


@pytest.mark.parametrize(("vocab", "eos_id"), crossed([2, 5, 12], [0, 1]))
def test_3_4_incomplete_decoders_never_end(vocab: int, eos_id: int):
    model = build_theorem_3_4(vocab, eos_id)
    specs = ["greedy", *(f"beam:{k}" for k in (1, vocab - 1)), f"beam:{vocab - 1},stop=first"]
    specs += [f"top-k:{k}" for k in (1, vocab // 2, vocab - 1)]
    specs += [f"nucleus:{mu}" for mu in (0.1, 0.3, 1 - 1 / vocab)]
    for spec in specs:
        found = eosin.decode(model, prefixes(8, vocab=vocab), spec, max_steps=120)
        assert not found.terminated.any(), spec
        assert (found.lengths == 120).all()


CONSISTENT = [f"consistent-{rule.parse(rule.examples[0])}" for rule in TRUNCATIONS.values()]


@pytest.mark.parametrize(("vocab", "spec"), crossed([2, 8], ["ancestral", "nucleus:1", "top-k:{vocab}", *CONSISTENT]))
def test_3_4_the_model_itself_is_consistent(vocab: int, spec: str):
    """Ancestral sampling, a complete top-k and every consistent variant end."""
    found = eosin.decode(build_theorem_3_4(vocab), prefixes(8, vocab=vocab), spec.format(vocab=vocab), max_steps=20_000)
    assert found.terminated.all()


def test_3_4_a_beam_as_wide_as_the_vocabulary_can_end():
    assert eosin.decode(build_theorem_3_4(3), [[1]], "beam:3,stop=first", max_steps=300).terminated.all()


# Theorem 4.1: consistent samplers (q(eos) >= p(eos) itself is in test_samplers)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_4_1_says_which_decoders_keep_eos(rule):
    assert not eosin.parse_decoder(str(rule)).keeps_eos
    assert eosin.parse_decoder(f"consistent-{rule}").keeps_eos
    assert eosin.parse_decoder("ancestral").keeps_eos
    assert not eosin.parse_decoder("greedy").keeps_eos
    assert not eosin.parse_decoder("beam:4").keeps_eos


# Theorems 4.2 and 4.3: self-terminating models end under greedy decoding and beam search


def adversary(core: str, head: str, epsilon: float, seed: int):
    """Weights that speak against eos as loudly as they can."""
    model = neural(core, head, epsilon=epsilon, seed=seed, scale=3.0)
    (eos,) = model.eos_ids
    with torch.no_grad():
        model.output.bias[eos] = logit_against_eos(head, 1e3)
        model.output.bias[(eos + 1) % model.vocab_size] = 1e3
    return model


@pytest.mark.parametrize("kind", ["random", "adversarial"])
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("head", EPSILON)
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
def test_4_2_greedy_ends_by_the_bound(kind: str, core: str, head: str, epsilon: float):
    for seed in range(2):
        model = (
            adversary(core, head, epsilon, seed)
            if kind == "adversarial"
            else neural(core, head, epsilon=epsilon, seed=seed)
        )
        found = eosin.decode(model, prefixes(12), "greedy", max_steps=3 * last_step(epsilon) + 5)
        assert found.terminated.all()
        assert found.lengths.max() <= last_step(epsilon)
        if kind == "adversarial":
            assert found.lengths.max() >= last_step(epsilon) - 1, "the bound is not tight"


@pytest.mark.parametrize("kind", ["random", "adversarial"])
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("head", EPSILON)
@pytest.mark.parametrize("width", [2, 4])
def test_4_3_beam_search_ends_by_the_bound(kind: str, core: str, head: str, width: int):
    """From step ceil(B) on, each step finishes the best expansion of some hypothesis: at most width - 1 more."""
    epsilon = 0.1
    bound = last_step(epsilon) + width - 1
    for seed in range(2):
        model = (
            adversary(core, head, epsilon, seed)
            if kind == "adversarial"
            else neural(core, head, epsilon=epsilon, seed=seed)
        )
        found = eosin.decode(model, prefixes(10), f"beam:{width}", max_steps=bound)
        assert found.terminated.all()
        first = eosin.decode(model, prefixes(10), f"beam:{width},stop=first", max_steps=last_step(epsilon))
        assert first.terminated.all()


@pytest.mark.parametrize("head", EPSILON)
@pytest.mark.parametrize("spec", ["top-k:1", "top-k:3", "nucleus:0.2", "nucleus:0.4"])
def test_top_k_and_nucleus_keep_eos_from_the_bound_on(head: str, spec: str):
    """p(eos) > 1/2 makes eos the most probable token, in the kept set at every step from then on."""
    epsilon = 0.05
    model = adversary("lstm", head, epsilon, 0)
    truncation, eos_ids = eosin.parse_decoder(spec).truncation, torch.tensor(model.eos_ids)
    with torch.inference_mode():
        logits, state = model.prefill(prefixes(20))
        for step in range(1, 3 * last_step(epsilon)):
            asked = survey(logits, 20, Workspace(model.eos_ids))
            if step >= last_step(epsilon):
                assert (asked.top(1).ids == eos_ids).all()
                assert (truncation.keep(asked).eos_log_probs > -math.inf).all()
            logits, state = model.step(torch.full((20,), (model.eos_ids[0] + 1) % model.vocab_size), state)
    assert eosin.decode(model, prefixes(50), spec, max_steps=20 * last_step(epsilon)).terminated.all()


# Lemma 3.2 on the toys: survival as it should be


def test_closed_forms_of_the_toys():
    assert eosin.decode(Repeater(4), [[1], [2], [3]], "greedy", max_steps=9).tokens == [
        [2, 3, 4, 1, 2, 3, 4, 1, 2],
        [3, 4, 1, 2, 3, 4, 1, 2, 3],
        [4, 1, 2, 3, 4, 1, 2, 3, 4],
    ]
    script = Script([[1, 2], [3]], vocab_size=5, certainty=0.8)
    found = eosin.decode(script, [[0], [1]], "greedy", max_steps=9)
    assert found.tokens == [[1, 2, 0], [3, 0]]
    assert [round(x, 9) for x in found.log_prob.tolist()] == [round(n * math.log(0.8), 9) for n in (3, 2)]
    assert eosin.decode(Coin(0.6), [[1]], "greedy", max_steps=9).tokens == [[0]]
    assert not eosin.decode(Coin(0.4), [[1]], "greedy", max_steps=9).terminated.any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Coin(1.5),
        lambda: Coin(0.5, vocab_size=1),
        lambda: Repeater(0),
        lambda: Repeater(2, p=0.5),
        lambda: Script([[1]], vocab_size=4, certainty=0.2),
        lambda: build_theorem_3_4(1),
    ],
)
def test_bad_toys(make):
    with pytest.raises(ValueError, match="got"):
        make()
