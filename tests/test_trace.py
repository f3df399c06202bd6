"""The trace of eos: every number of every step against the blackboard, on every decoder and every model."""

import json
import math

import pytest
import torch
from definitions import by_probability
from distributions import surveyed
from members import DECODERS, EOS, MODELS, SAMPLERS, TEMPERED, VOCAB, Specimen, fits
from naive import at_temperature, distributions, kept_set

import eosin
from eosin.decoding.distribution import BLOCK
from eosin.decoding.spec import parse_decoder
from eosin.proofs.constructions import Repeater, Script, build_theorem_3_4
from eosin.states import TensorState

PREFIXES = [[1, 2, 5], [6], [4, 4], [0, 1, 2], [5]]
SMALL = [spec for spec in DECODERS if fits(spec, VOCAB)]
PAIRS = [(i + j, spec, model) for i, spec in enumerate(SMALL) for j, model in enumerate(MODELS) if (i + j) % 8 == 0]
"""Every decoder with some models, and every model with some decoders."""


def kept_by_hand(log_probs: list[float], eos_ids: tuple[int, ...], spec: str) -> set[int]:
    rule, _, option = spec.partition(",")
    name, _, value = option.partition("=")
    probs = at_temperature(log_probs, float(value) if name == "temperature" else 1.0)
    return {token for token in kept_set(probs, eos_ids, rule) if probs[token] > 0}


@pytest.mark.parametrize(("number", "spec", "specimen"), PAIRS, ids=str)
def test_every_step_is_the_naive_one(number: int, spec: str, specimen: Specimen):
    model, prefix = specimen.model, PREFIXES[number % len(PREFIXES)]
    trace = eosin.trace(model, prefix, spec, max_steps=7, seed=3, index=number)
    decoded = eosin.decode(model, [prefix], spec, max_steps=7, seed=3, indices=[number])
    assert (trace.decoder, trace.prefix) == (spec, tuple(prefix))
    assert trace.tokens == decoded.tokens[0]
    assert trace.cause.ends == bool(decoded.terminated[0])
    assert trace.last_step == int(decoded.steps[0])
    after = distributions(model, prefix)
    for place, step in enumerate(trace.steps):
        log_probs = after(trace.tokens[:place])
        kept = kept_by_hand(log_probs, model.eos_ids, spec)
        ranks = [by_probability(log_probs).index(token) + 1 for token in model.eos_ids]
        assert (step.number, step.kept, step.eos_rank) == (place + 1, len(kept), min(ranks))
        assert step.token in kept
        assert step.eos_kept == any(token in kept for token in model.eos_ids)
        assert math.isclose(step.prob, math.exp(log_probs[step.token]), rel_tol=1e-5)
        assert math.isclose(step.eos_prob, sum(math.exp(log_probs[t]) for t in model.eos_ids), rel_tol=1e-5)


def test_the_examples_are_of_every_kind():
    """Otherwise the test above would show little."""
    traces = [eosin.trace(specimen.model, [1, 2, 5], "nucleus:0.4", max_steps=7) for specimen in MODELS]
    lengths = {len(trace.steps) for trace in traces}
    kept = {tuple(sorted({step.eos_kept for step in trace.steps})) for trace in traces}
    assert len(lengths) > 2
    assert kept == {(True,), (False,), (False, True)}


@pytest.mark.parametrize("spec", [spec for spec in [*SAMPLERS, *TEMPERED] if fits(spec, 2 * BLOCK + 40)])
def test_kept_is_what_can_be_drawn(spec: str):
    """With zero as the first number a draw ends wherever eos has any probability at all."""
    generator = torch.Generator().manual_seed(4)
    logits = (
        torch.randn(60, 2 * BLOCK + 40, generator=generator, dtype=torch.float64) * torch.linspace(0.1, 9, 60)[:, None]
    )
    logits[::2, EOS] += 6
    logits[5, EOS] = -math.inf
    asked, sampler = surveyed(logits, (EOS,)), parse_decoder(spec)
    kept = sampler.kept(asked)
    numbers = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    assert kept.gather(1, sampler.choose(asked, numbers)[:, None]).all()
    numbers[:, 0] = 0
    assert torch.equal(sampler.choose(asked, numbers) == EOS, kept[:, EOS])
    assert 0 < kept[:, EOS].sum() < 60


def test_the_model_of_theorem_3_4_ranks_eos_last_for_ever():
    trace = eosin.trace(build_theorem_3_4(VOCAB, eos_id=EOS), [1, 2], "top-k:4,temperature=2", max_steps=30)
    assert {(step.eos_rank, step.kept, step.removed_by) for step in trace.steps} == {(VOCAB, 4, "top-k:4")}
    assert not trace.cause.ends


@pytest.mark.parametrize(
    ("spec", "kept", "removed_by"),
    [
        ("greedy", 1, "greedy"),
        ("nucleus:0.2", 1, "nucleus:0.2"),
        ("nucleus:0.95", 2, None),
        ("consistent-nucleus:0.2", 2, None),
        ("beam:1", 1, "beam:1"),
        ("beam:2,stop=first", 2, None),
        ("ancestral", 2, None),
    ],
)
def test_a_loop_by_hand(spec: str, kept: int, removed_by: str | None):
    """One token of probability 0.9, eos with 0.1, nothing else."""
    first, *_ = eosin.trace(Repeater(4, p=0.1), [2], spec, max_steps=5).steps
    assert (first.kept, first.removed_by, first.eos_rank) == (kept, removed_by, 2)
    assert math.isclose(first.eos_prob, 0.1)


@pytest.mark.parametrize("spec", ["greedy", "ancestral", "nucleus:0.4", "consistent-nucleus:0.4", "beam:3"])
def test_where_eos_cannot_occur_it_is_the_model_that_removed_it(spec: str):
    trace = eosin.trace(Repeater(4, p=0.0), [2], spec, max_steps=6)
    assert {step.removed_by for step in trace.steps} == {"the model"}
    assert {step.kept for step in trace.steps} == {1}


class TwoEnds:
    """Tokens 1 and 3 end the sequence; probabilities do not change."""

    vocab_size, eos_ids = 4, (3, 1)
    probs = torch.tensor([0.5, 0.05, 0.25, 0.2], dtype=torch.float64)

    def prefill(self, prefix):
        return self.step(prefix[:, 0], TensorState((prefix[:, :0],)))

    def step(self, token, state):
        return self.probs.log().expand(len(token), -1), state


@pytest.mark.parametrize(("spec", "kept"), [("top-k:2", False), ("top-k:3", True), ("consistent-top-k:1", True)])
def test_several_ways_to_end(spec: str, kept: bool):
    first, *_ = eosin.trace(TwoEnds(), [0], spec, max_steps=3).steps
    assert (first.eos_rank, first.eos_kept) == (3, kept)
    assert math.isclose(first.eos_prob, 0.25)


def test_a_beam_that_met_the_limit_shows_its_best_finished_hypothesis():
    model = Script([[1, 2]], 4, certainty=0.99)
    trace = eosin.trace(model, [1], "beam:4", max_steps=4)
    assert trace.tokens == [1, 2, 0]
    assert (len(trace.steps), trace.last_step) == (3, 4)
    assert [step.eos_rank for step in trace.steps] == [2, 2, 1]


def test_a_trace_is_json():
    trace = eosin.trace(Repeater(4, p=0.1), torch.tensor([2]), "nucleus:0.2", max_steps=2, seed=5, index=8)
    written = json.loads(json.dumps(trace.as_json()))
    assert {key: written[key] for key in ("prefix", "decoder", "max_steps", "seed", "index", "cause", "last_step")} == {
        "prefix": [2], "decoder": "nucleus:0.2", "max_steps": 2, "seed": 5, "index": 8, "cause": "limit", "last_step": 2
    }  # fmt: skip
    assert [step["token"] for step in written["steps"]] == trace.tokens
    assert [step["eos_kept"] for step in written["steps"]] == [False, False]


class Mute:
    """A decoder that cannot say what it keeps."""

    rows_per_context, keeps_eos = 1, False

    def check(self, vocab_size: int) -> None: ...

    def begin(self, indices, eos_ids, max_steps, seed, stop):
        return parse_decoder("greedy").begin(indices, eos_ids, max_steps, seed, stop)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([1], "gredy"), "did you mean 'greedy'"),
        (([1], Mute()), "decoder must have `kept` and `rule` to be traced; Mute has not"),
        (([], "greedy"), "prefix 0 must be a list of at least one token id"),
        (([9], "greedy"), "each token id of prefix 0 must be a whole number from 0 to 4"),
    ],
)
def test_bad_input(arguments: tuple, says: str):
    with pytest.raises(ValueError, match=says):
        eosin.trace(Repeater(4), *arguments, max_steps=3)
