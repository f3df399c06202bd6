"""Proofs while decoding: what is proved never ends, what only looks like a loop is not proved, nothing else changes."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from members import MODELS, RULES, VOCAB, Specimen, crossed, fits, neural, prefixes
from torch import Tensor

import eosin
from eosin.causes import Cause
from eosin.decoding.batch_invariance import is_steady
from eosin.decoding.distribution import Workspace, survey
from eosin.decoding.loops import reduce_cycle, rotate_cycle
from eosin.decoding.samplers import Greedy, Sampler
from eosin.decoding.truncation import Consistent, Nucleus, TopK
from eosin.events import Event
from eosin.logits import Dense
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES
from eosin.models.recurrent import Recurrent
from eosin.proofs.constructions import Coin, Repeater
from eosin.proofs.drift import MOVES, Looping, measure_drifts
from eosin.proofs.dynamics import dynamics_of
from eosin.proofs.prover import CERTIFIED, RECURRENCE
from eosin.states import PairState, TensorState

RECURRENT = [name for name, core in CORES.items() if issubclass(core, Recurrent)]
STEPS = 150


def looping(core: str, seed: int, **settings):
    """A model of 40 tokens that falls into loops, and sometimes ends before."""
    return neural(core, "softmax", vocab=40, width=12, seed=seed, scale=2.0, eos_bias=-4.0, **settings)


def audited(model, contexts, spec: str, **settings):
    completions = {}

    def watch(event: Event) -> None:
        if event.kind == "completion":
            completions[event.facts["completion"].index] = event.facts["completion"]

    audit = eosin.audit(model, contexts, [spec], watch=watch, **{"max_steps": STEPS, **settings})
    return audit.by_decoder[spec].counts, completions


@pytest.mark.parametrize(("core", "spec"), crossed(RECURRENT, ["greedy", "nucleus:0.2", "min-p:0.5", "top-k:2"]))
def test_what_is_proved_goes_on_as_was_proved(core: str, spec: str):
    proved = 0
    for seed, dtype in ((0, torch.float32), (1, torch.float64)):
        model, contexts = looping(core, seed, dtype=dtype), prefixes(24, vocab=40)
        counts, completions = audited(model, contexts, spec)
        plain = eosin.decode(model, contexts, spec, max_steps=STEPS).tokens
        assert counts.causes[Cause.PROVED] == sum(c.proof is not None for c in completions.values())
        for index, completion in completions.items():
            tokens = completion.tokens.tolist()
            if completion.proof is not None:
                proved += 1
                cycle = list(completion.proof.cycle)
                assert tokens[-1] == cycle[0]
                tokens = (tokens[:-1] + cycle * STEPS)[:STEPS]
            assert tokens == plain[index]
    assert proved >= 5 or spec in ("top-k:2", "min-p:0.5")


@torch.no_grad()
@pytest.mark.parametrize("core", RECURRENT)
def test_drifts_of_several_loops_are_those_of_each_replayed_alone(core: str):
    """Prefixes, completions and turns of different lengths; `earlier` is the state so many turns before the end."""
    model, generator = looping(core, 3, dtype=torch.float64), torch.Generator().manual_seed(0)
    dynamics = dynamics_of(model)
    sizes = [(2, 90, 1), (5, 40, 3), (3, 7, 5), (9, 2, 1), *((4, 70 + row, 2) for row in range(16))]
    draw = partial(torch.randint, 4, 40, generator=generator)
    loops = [Looping(draw((prefix,)), draw((length,)), period) for prefix, length, period in sizes]
    for loop, (counting, most, by) in zip(loops, measure_drifts(model, dynamics, loops), strict=True):
        states = [model.prefill(loop.prefix[None])[1]]
        for token in loop.tokens:
            states.append(model.step(token[None], states[-1])[1])
        moved = dynamics.numbers(states[-1])[0] - dynamics.numbers(states[-1 - loop.turns * loop.period])[0]
        moved = moved / loop.turns
        assert by == pytest.approx(float(moved[most]), rel=1e-9, abs=1e-12)
        assert abs(by) == pytest.approx(float(moved.abs().max()), rel=1e-9, abs=1e-12)
        assert counting == int((moved.abs() > MOVES).sum())


@pytest.mark.parametrize(
    ("decoding", "specimen"), crossed([("greedy", 2), ("nucleus:0.2", 16), ("beam:3", 1024)], MODELS)
)
def test_proofs_change_no_count(decoding: tuple[str, int], specimen: Specimen):
    spec, pool = decoding
    if not fits(spec, specimen.model.vocab_size):
        pytest.skip("does not fit")
    contexts, how = prefixes(20), {"max_steps": 60, "pool": pool}
    (proved, _), (plain, _) = (audited(specimen.model, contexts, spec, proofs=p, **how) for p in (True, False))
    kept = ("contexts", "ended", "ngrams", "repeated", "hashes", "outcomes")
    assert {name: getattr(proved, name) for name in kept} == {name: getattr(plain, name) for name in kept}
    for limit in (1, 20, 60):
        assert proved.ratio(limit) == plain.ratio(limit)
    # what was proved had been seen looping, with the same loop and the same onset
    seen = {tokens: loop.onset.count for tokens, loop in plain.loops.items()}
    assert {tokens: loop.onset.count for tokens, loop in proved.loops.items()} == seen
    if proved.causes[Cause.PROVED] == proved.contexts:
        assert {t: loop.onset for t, loop in proved.loops.items()} == {t: loop.onset for t, loop in plain.loops.items()}


@pytest.mark.parametrize("core", RECURRENT)
def test_a_row_is_proved_soon_after_it_loops(core: str):
    model = looping(core, seed=1)
    counts, completions = audited(model, prefixes(40, vocab=40), "greedy", max_steps=2_000)
    steps = [c.steps for c in completions.values() if c.proof is not None]
    assert steps
    assert np.median(steps) < 200
    assert counts.tokens < 40 * 400


def test_heads_and_floors_that_end_are_never_proved():
    for core in CORES:
        for head in HEADS:
            model = neural(core, head, vocab=40, width=16, scale=2.0, eos_bias=-4.0, epsilon=1e-3)
            if head != "softmax" or core == "transformer":
                assert audited(model, prefixes(8, vocab=40), "greedy")[0].causes[Cause.PROVED] == 0
            floored = eosin.Floor(model, epsilon=1e-3)
            assert audited(floored, prefixes(8, vocab=40), "greedy")[0].causes[Cause.PROVED] == 0


@pytest.mark.parametrize("spec", ["consistent-nucleus:0.2", "consistent-top-k:1", "ancestral", "beam:2"])
def test_decoders_with_a_choice_are_never_proved(spec: str):
    for core in RECURRENT:
        counts, _ = audited(looping(core, seed=1), prefixes(8, vocab=40), spec)
        assert counts.causes[Cause.PROVED] == 0


# impostors


@dataclass
class Impostor:
    """Says token 1 over and over, and eos (token 0) when its `ends` says so of the state."""

    start: tuple[float, ...]
    vocab_size: int = 4
    eos_ids: tuple[int, ...] = (0,)

    def prefill(self, prefix: Tensor) -> tuple[Tensor, TensorState]:
        rows = torch.tensor(self.start, dtype=torch.float64).expand(len(prefix), -1).contiguous()
        return self.logits(rows), TensorState((rows,))

    def step(self, token: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        rows = self.following(state.tensors[0])
        return self.logits(rows), TensorState((rows,))

    def following(self, rows: Tensor) -> Tensor:
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        ends = self.ends(rows)
        return torch.stack([5.0 * ends, 5.0 * ~ends, torch.zeros_like(ends), torch.zeros_like(ends)], dim=1)

    def ends(self, rows: Tensor) -> Tensor:
        return torch.zeros(len(rows), dtype=torch.bool)


class Counter5000(Impostor):
    """Its state counts in steps of one bit of the last place, and ends it after 5,000."""

    def following(self, rows: Tensor) -> Tensor:
        return torch.nextafter(rows, torch.full_like(rows, 2.0))

    def ends(self, rows: Tensor) -> Tensor:
        return (rows[:, 0] - 1.0) / 2.0**-52 >= 5_000


class OneBit(Impostor):
    """Two states in turn, and a third that differs from the first in one bit: that one ends it."""

    def following(self, rows: Tensor) -> Tensor:
        slow = rows[:, 1] + 1
        bit = torch.nextafter(torch.ones(len(rows), dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
        return torch.stack([torch.where(slow >= 900, bit, rows[:, 0]), slow], dim=1)

    def ends(self, rows: Tensor) -> Tensor:
        return rows[:, 0] != 1.0


class Stateless:
    """Remembers nothing that its state would show: it counts its calls behind everybody's back."""

    vocab_size, eos_ids = 4, (0,)

    def __init__(self) -> None:
        self.calls = 0

    def prefill(self, prefix: Tensor) -> tuple[Tensor, TensorState]:
        return self.step(prefix[:, 0], TensorState((torch.empty(len(prefix), 0),)))

    def step(self, token: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        self.calls += 1
        row = [5.0, 0.0, 0.0, 0.0] if self.calls > 700 else [0.0, 5.0, 0.0, 0.0]
        return torch.tensor([row] * len(token)), state


class Delegating:
    """A looping tanh-RNN with everything that it has, and a count of its own that ends it."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def prefill(self, prefix: Tensor):
        logits, state = self.model.prefill(prefix)
        return logits, PairState(state.first, TensorState((torch.zeros(len(prefix)),)))

    def step(self, token: Tensor, state):
        logits, after = self.model.step(
            token, PairState(state.first, TensorState((torch.empty(len(token), 0, dtype=torch.float64),)))
        )
        count = state.second.tensors[0] + 1
        logits = logits.dense()
        logits[:, 3] += 100.0 * (count >= 140)
        return logits, PairState(after.first, TensorState((count,)))


def test_a_wrapper_that_lends_its_model_s_formula_is_not_proved():
    model = looping("tanh", seed=1)
    assert audited(model, prefixes(6, vocab=40), "greedy")[0].causes[Cause.PROVED] == 6
    assert audited(Delegating(model), prefixes(6, vocab=40), "greedy")[0].causes == {Cause.EOS: 6}


def test_a_counter_hidden_in_the_state_is_not_proved():
    counts, _ = audited(Counter5000((1.0,)), [[1], [2]], "greedy", max_steps=6_000)
    assert counts.causes == {Cause.EOS: 2}
    assert set(counts.ended) == {5_001}


def test_one_bit_is_not_the_same():
    counts, _ = audited(OneBit((1.0, 0.0)), [[1], [2]], "greedy", max_steps=2_000)
    assert counts.causes == {Cause.EOS: 2}
    assert set(counts.ended) == {901}


def test_a_stateless_model_is_not_proved():
    counts, _ = audited(Stateless(), [[1], [2]], "greedy", max_steps=2_000)
    assert counts.causes == {Cause.EOS: 2}
    honest, _ = audited(Coin(0.1, vocab_size=2), [[1], [1]], "greedy", max_steps=200)
    assert honest.causes == {Cause.LOOPING: 2}


def test_the_same_state_with_another_next_token_is_no_recurrence():
    """A sampler with two tokens to choose from is in one state all the time, and free all the time."""
    for spec in ("top-k:2", "nucleus:0.9"):
        counts, _ = audited(Impostor((1.0,)), [[1]] * 20, spec)
        assert counts.causes[Cause.PROVED] == (20 if spec == "nucleus:0.9" else 0)


def test_a_cycle_through_eos_is_an_end():
    counts, _ = audited(Repeater(3, p=0.0), [[1]] * 3, "greedy")
    assert counts.causes == {Cause.PROVED: 3}
    looped_eos = Repeater(3, p=0.0)
    looped_eos.eos_ids = (0, 2)
    counts, _ = audited(looped_eos, [[1]] * 3, "greedy")
    assert counts.causes == {Cause.EOS: 3}


class Repelling(Impostor):
    """The state goes away from 1 by a hundredth at each step: it seems to stand still, and then is gone."""

    def following(self, rows: Tensor) -> Tensor:
        return 1 + (rows - 1) * 1.01

    def ends(self, rows: Tensor) -> Tensor:
        return rows[:, 0] > 2


def test_a_repelling_state_is_not_proved():
    counts, _ = audited(Repelling((1 + 2.0**-26,)), [[1], [2]], "greedy", max_steps=3_000)
    assert counts.causes == {Cause.EOS: 2}
    standing_still, _ = audited(Repelling((1.0,)), [[1], [2]], "greedy", max_steps=3_000)
    assert standing_still.causes == {Cause.PROVED: 2}


def test_exact_recurrence_needs_a_step_that_rounds_the_same_everywhere():
    """A model whose bits depend on the batch: that a state came back in one batch says nothing of another."""

    class Unsteady(Impostor):
        def logits(self, rows: Tensor) -> Tensor:
            return super().logits(rows) + len(rows) * 1e-9

    model = Unsteady((1.0,))
    assert not is_steady(model, torch.tensor([[1]]), 64)
    assert audited(model, [[1]] * 3, "greedy")[0].causes == {Cause.LOOPING: 3}
    assert is_steady(Impostor((1.0,)), torch.tensor([[1]]), 64)
    assert audited(Impostor((1.0,)), [[1]] * 3, "greedy")[0].causes == {Cause.PROVED: 3}


def test_recurrent_models_are_steady_and_growing_states_are_not():
    for specimen in MODELS:
        model = specimen.model
        steady = is_steady(model, prefixes(5), 100)
        grows = getattr(model.prefill(prefixes(2))[1], "size", 1) is None
        if (
            specimen.name != "theorem-3.4"
        ):  # nine numbers a row in float32: their bits depend on the place (docs/log.md)
            assert steady != grows, specimen.name


# the parts


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 7))
def test_one_name_for_a_cycle(cycle: list[int], times: int, shift: int):
    root = reduce_cycle(cycle * times)
    assert root * (len(cycle) * times // len(root)) == cycle * times
    assert not any(root == root[:d] * (len(root) // d) for d in range(1, len(root)) if len(root) % d == 0)
    assert rotate_cycle(root) == rotate_cycle(root[shift % len(root) :] + root[: shift % len(root)])
    assert sorted(rotate_cycle(root)) == sorted(root)


LOGITS = st.lists(st.floats(-12, 12), min_size=VOCAB, max_size=VOCAB)


@pytest.mark.parametrize("rule", [*RULES, TopK(1), Nucleus(0.7)], ids=str)
@given(logits=LOGITS, temperature=st.sampled_from([0.3, 1.0, 2.0]))
def test_a_token_with_a_margin_is_kept_alone(rule, logits: list[float], temperature: float):
    """And where a rule can tell exactly, a token kept alone has a margin."""
    values = torch.tensor([logits], dtype=torch.float64)
    best = int(values.argmax())
    next_token = survey(Dense(values), 1, Workspace([3]))
    sampler = Sampler(rule, temperature)
    leads = (values[0, best] - values[0])[:, None]
    leads[best] = torch.inf
    alone = int(sampler.kept(next_token).sum()) == 1
    safe = float(sampler.margin(leads))
    if safe > 1e-9:
        assert alone
    if rule.name in ("nucleus", "min-p", "top-k") and safe < -1e-9:
        assert not alone
    assert float(Sampler(Consistent(rule), temperature).margin(leads)) == -torch.inf
    assert float(Greedy().margin(leads)) == float(leads.min())


@given(logits=LOGITS)
def test_where_one_token_is_kept_the_random_numbers_do_not_matter(logits: list[float]):
    next_token = survey(Dense(torch.tensor([logits] * 50)), 50, Workspace([3]))
    numbers = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for rule in [*RULES, TopK(1)]:
        for truncation in (rule, Consistent(rule)):
            sampler = Sampler(truncation)
            if int(sampler.kept(next_token)[0].sum()) == 1:
                assert len(set(sampler.choose(next_token, numbers).tolist())) == 1


def test_both_kinds_of_proof_occur():
    kinds = set()
    for seed in range(6):
        for dtype in (torch.float32, torch.float64):
            counts, _ = audited(looping("tanh", seed, dtype=dtype), prefixes(20, vocab=40), "greedy")
            kinds |= {kind for loop in counts.loops.values() for kind in loop.proofs}
    kinds |= {kind for loop in audited(Repeater(4), [[1]], "greedy")[0].loops.values() for kind in loop.proofs}
    assert kinds == {CERTIFIED, RECURRENCE}
