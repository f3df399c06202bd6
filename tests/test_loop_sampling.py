"""Audits that follow only a random share of the loops."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from records_made_up import record

import eosin
from eosin.auditing.shards import choose_share, may_loop
from eosin.causes import Cause
from eosin.decoding.floor import Floor
from eosin.decoding.job import to_decoder
from eosin.decoding.loop_sampling import LOOK_EVERY, choose_followed, is_long_loop
from eosin.errors import BadInput
from eosin.records.differences import compare_sampled
from eosin.records.reading import FiledRecord
from eosin.records.record import Counts, Record, SampledLoops, Unended
from eosin.records.statistics import Ratio, SampledRatio
from eosin.report.comparison import AuditComparison, compare_audits
from eosin.report.verdict import write_verdict
from eosin.states import TensorState

L = 300
BASE = 256
EOS = 0


@dataclass(frozen=True)
class Growing:
    """A state that cannot be joined or compared, as of a model about which nothing can be proved."""

    inner: TensorState

    def select(self, rows: torch.Tensor) -> Growing:
        return Growing(self.inner.select(rows))


@dataclass
class LateLoops:
    """A model whose context i begins to loop at `onsets[i]`, with some period, and ends at `ends[i]`, if ever.

    The prefix is i + 1 in base BASE, two tokens.
    """

    onsets: torch.Tensor
    ends: torch.Tensor
    vocab_size: int = BASE + 1
    eos_ids: tuple[int, ...] = (EOS,)

    @classmethod
    def draw(cls, count: int, seed: int, late: float = 0.1) -> LateLoops:
        """Some end before they loop, some loops end late, and others never do."""
        random = np.random.default_rng(seed)
        onsets = random.integers(1, 60, count)
        kind = random.random(count)
        ends = np.where(kind < 0.2, onsets, np.where(kind < 0.2 + late, random.integers(240, L + 1, count), 10 * L))
        return cls(torch.tensor(onsets), torch.tensor(ends))

    @property
    def prefixes(self) -> torch.Tensor:
        number = torch.arange(len(self.onsets))
        return torch.stack([1 + number // BASE, 1 + number % BASE], dim=1)

    @property
    def ended(self) -> np.ndarray:
        return (self.ends <= L).numpy()

    def prefill(self, prefix: torch.Tensor) -> tuple[torch.Tensor, Growing]:
        return self.answer((prefix[:, -2] - 1) * BASE + prefix[:, -1] - 1, torch.ones(len(prefix), dtype=torch.long))

    def step(self, token: torch.Tensor, state: Growing) -> tuple[torch.Tensor, Growing]:
        number, step = state.inner.tensors
        return self.answer(number, step + 1)

    def answer(self, number: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, Growing]:
        onset, end = self.onsets[number], self.ends[number]
        fresh = 1 + (step * step * 7 + number) % 37
        token = torch.where(step < onset, fresh, 1 + (step - onset) % (1 + number % 7))
        token = torch.where(step == end, EOS, token)
        return 20.0 * torch.nn.functional.one_hot(token, self.vocab_size), Growing(TensorState((number, step)))


def audit(model: LateLoops, share: float, **how: object) -> Counts:
    found = eosin.audit(model, model.prefixes, ["greedy"], max_steps=L, follow_loops=share, **how)
    return found.by_decoder["greedy"].counts


def expect(model: LateLoops, share: float, seed: int) -> SampledLoops:
    """By the definition, from whole completions."""
    seen: Counter[int] = Counter()
    followed: Counter[int] = Counter()
    ended: dict[int, int] = {}
    whole = eosin.decode(model, model.prefixes, max_steps=L, seed=seed)
    chosen = choose_followed(seed, list(range(len(whole))), share)
    for index, tokens in enumerate(whole.tokens):
        looks = range(LOOK_EVERY, min(len(tokens), L - 1) + 1, LOOK_EVERY)
        step = next((step for step in looks if step < len(tokens) and is_long_loop(np.array(tokens[:step]))), None)
        if step is None:
            continue
        seen[step] += 1
        if chosen[index]:
            followed[step] += 1
            ended |= {index: len(tokens)} if whole.terminated[index] else {}
    return SampledLoops(share, seen, followed, ended)


@pytest.mark.parametrize(("pool", "share"), [(1000, 0.2), (16, 0.2), (64, 0.9), (64, 0.001)])
def test_the_definition(pool: int, share: float):
    model = LateLoops.draw(60, seed=1)
    counts, expected = audit(model, share, pool=pool, seed=5), expect(model, share, seed=5)
    assert counts.sampled == expected
    assert expected.seen
    assert counts.causes[Cause.SAMPLED] == sum(expected.seen.values()) - sum(expected.followed.values())
    everything = audit(model, 1.0)
    assert counts.tokens < everything.tokens
    assert everything.sampled == SampledLoops()
    assert everything.causes[Cause.SAMPLED] == 0
    assert everything.ratio(L) == Ratio(60 - int(model.ended.sum()), 60)


def test_a_larger_share_follows_the_same_loops_and_more():
    contexts = list(range(500))
    few, many = choose_followed(3, contexts, 0.1), choose_followed(3, contexts, 0.3)
    assert all(more for less, more in zip(few, many, strict=True) if less)
    assert 25 < sum(few) < 75 < sum(many)
    assert choose_followed(4, contexts, 0.1) != few


def test_what_is_known_before_the_first_loop_is_counted():
    model = LateLoops.draw(60, seed=1)
    sampled, whole = audit(model, 0.2), audit(model, 1.0)
    first = min(sampled.sampled.seen)
    assert sampled.ratio(first - 1) == whole.ratio(first - 1)
    assert isinstance(sampled.ratio(L), SampledRatio)
    curve = [sampled.ratio(step).value for step in range(1, L + 1)]
    assert curve == sorted(curve, reverse=True)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9), st.sampled_from([0.1, 0.5, 0.9]))
def test_the_mean_over_all_samples_is_the_truth(contexts: list[tuple[bool, bool]], share: float):
    """Every way to choose the followed loops, with its probability."""
    loops = [ends for loops, ends in contexts if loops]
    others = sum(not ends for loops, ends in contexts if not loops)
    mean = 0.0
    for chosen in itertools.product([False, True], repeat=len(loops)):
        ended = sum(follows and ends for follows, ends in zip(chosen, loops, strict=True))
        ratio = SampledRatio(others + len(loops) - ended, chosen.count(False), ended, share, len(contexts))
        probability = share ** sum(chosen) * (1 - share) ** chosen.count(False)
        mean += probability * (ratio.predicted.value - ratio.late.value)
        low, high = ratio.interval()
        assert 0 <= low <= ratio.value <= high <= 1
        assert low < high
    assert mean == pytest.approx(sum(not ends for _, ends in contexts) / len(contexts))


@cache
def interval_of(count: int, left: int, ended: int, share: float, n: int) -> tuple[float, float]:
    return SampledRatio(count, left, ended, share, n).interval()


SIZES = [(1000, 0.1), (1000, 0.03), (300, 0.17), (100, 0.3), (50, 0.5)]
LATE = (0.0, 0.001, 0.01, 0.05, 0.3, 0.7, 1.0)


@pytest.mark.parametrize(("n", "share"), SIZES)
@pytest.mark.parametrize(("loop", "unended"), [(0.1, 0.5), (0.7, 0.0), (0.7, 0.5), (0.95, 0.5), (1.0, 0.0)])
def test_the_interval_covers_the_truth(n: int, share: float, loop: float, unended: float):
    random = np.random.default_rng(n)
    for late in LATE:
        truth = (1 - loop) * unended + loop * (1 - late)
        shares = [loop * share * late, loop * (1 - share), (1 - loop) * unended + loop * share * (1 - late)]
        runs = random.multinomial(n, [*shares, max(0.0, 1 - sum(shares))], size=2000)
        covered = 0
        for ended, left, seen in runs[:, :3].tolist():
            low, high = interval_of(seen + left, left, ended, share, n)
            covered += low - 1e-12 <= truth <= high + 1e-12
        assert covered / len(runs) > 0.937, (late, covered / len(runs))  # 0.94 less what 2,000 runs may err by


def test_no_followed_loop_ended_and_the_interval_is_honest():
    ratio = SampledRatio(count=900, left=810, ended=0, share=0.1, n=1000)
    low, high = ratio.interval()
    counted_low, counted_high = Ratio(900, 1000).interval()
    assert high == counted_high
    assert low < counted_low - 0.01
    assert (high - low) < 3 * (counted_high - counted_low)


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.0, 0.02, 0.3])
def test_whole_audits_are_unbiased_and_cover(late: float, monkeypatch: pytest.MonkeyPatch):
    """Each shard is an audit of 100 contexts that are drawn anew: the truth is that of the distribution."""
    monkeypatch.setattr("eosin.auditing.shards.SHARD", 100)
    truth, model = 0.8 - late, LateLoops.draw(30_000, seed=7, late=late)
    found = eosin.audit(model, model.prefixes, ["greedy"], max_steps=L, follow_loops=0.3)
    ratios = [record.ratio for record in found.records]
    values = [ratio.value for ratio in ratios]
    covered = sum(low <= truth <= high for low, high in (ratio.interval() for ratio in ratios))
    assert len(ratios) == 300
    assert abs(np.mean(values) - truth) < 4 * np.std(values) / math.sqrt(300)
    assert covered / 300 > 0.90  # 0.94 less what 300 runs may err by


def counts_of(model: LateLoops, share: float, seed: int) -> Counts:
    """What an audit counts, without decoding: every loop that ends late was seen before."""
    ends, loops = model.ended, model.ends.numpy() >= 240
    chosen = np.array(choose_followed(seed, list(range(len(ends))), share))
    followed = loops & chosen
    outcomes = (Unended.pack(0, (~ends | (loops & ~chosen)).tolist()),)
    late = dict.fromkeys(np.flatnonzero(followed & ends).tolist(), 280)
    sampled = SampledLoops(share, {200: int(loops.sum())}, {200: int(followed.sum())}, late)
    return Counts(contexts=len(ends), ended=Counter({1: 0}), outcomes=outcomes, sampled=sampled)


@pytest.mark.parametrize(("late", "other"), [(0.0, 0.0), (0.05, 0.0), (0.3, 0.1)])
def test_the_interval_of_a_difference_covers(late: float, other: float):
    covered, values = 0, []
    for seed in range(1000):
        first, second = LateLoops.draw(300, seed, late), LateLoops.draw(300, seed + 10_000, other)
        found = compare_sampled(counts_of(first, 0.2, seed), counts_of(second, 0.2, seed), range(300))
        covered += found.low <= other - late <= found.high
        values.append(found.value)
    assert covered > 937
    assert abs(np.mean(values) - (other - late)) < 4 * np.std(values) / math.sqrt(1000)


def sampled_record(sampled: SampledLoops, outcomes: list[tuple[int, str]], **signature: object) -> Record:
    plain = record(outcomes, **signature)
    counts = Counts(
        **{name: getattr(plain.counts, name) for name in plain.counts.__struct_fields__ if name != "sampled"},
        sampled=sampled,
    )
    return Record(plain.signature, counts)


TWO_LEFT = [(20, Cause.SAMPLED), (20, Cause.SAMPLED), (28, "eos"), (5, "eos")]
ONE_ENDED = SampledLoops(0.25, {20: 3}, {20: 1}, {2: 28})


def test_records_with_sampled_loops_add_up_and_return():
    first = sampled_record(ONE_ENDED, TWO_LEFT)
    assert Record.from_line(first.to_line()) == first
    both = first.counts.sampled + SampledLoops(0.25, {20: 1, 30: 2}, {30: 1}, {9: 29})
    assert both == SampledLoops(0.25, {20: 4, 30: 2}, {20: 1, 30: 1}, {2: 28, 9: 29})
    old = record(TWO_LEFT).to_line().replace('"sampled": {}, ', "")
    assert "sampled" not in old.replace("loop, sampled", "")
    assert Record.from_line(old).counts.sampled.share == 1
    for wrong in ('"share": 2', '"share": 0.25, "followed": {"20": 9}'):
        line = first.to_line().replace('"share": 0.25', wrong)
        with pytest.raises(ValueError, match="more loops were followed"):
            Record.from_line(line.replace('"followed": {"20": 1}, ', ""))


def test_a_followed_loop_stands_for_those_that_were_left():
    counts = sampled_record(ONE_ENDED, TWO_LEFT).counts
    assert counts.endings == {28: 4.0, 5: 1.0}
    assert counts.lengths is not None
    assert counts.lengths.mean == pytest.approx((4 * 28 + 5) / 5)


def test_nothing_is_said_to_end_always_while_loops_are_left():
    failing = sampled_record(ONE_ENDED, TWO_LEFT)
    assert failing.ratio.value == 0
    assert not failing.all_ended
    assert "does not always stop" in next(write_verdict([failing])).text


def test_a_comparison_of_sampled_audits_has_an_interval_and_no_exact_test():
    filed = [
        FiledRecord(sampled_record(ONE_ENDED, TWO_LEFT), ()),
        FiledRecord(record([(4, "eos")] * 4, decoder="nucleus:0.9"), ()),
    ]
    found = compare_audits(filed, "greedy", "nucleus:0.9")
    assert found.sampled is not None
    assert found.sampled.value == pytest.approx(3 / 4 - 1 / 4 / 0.25)
    assert "McNemar" not in str(found.table)
    plain: AuditComparison = replace(found, sampled=None)
    assert "McNemar" in str(plain.table)


def test_only_loops_that_nothing_is_known_about_are_left():
    model = LateLoops.draw(40, seed=0)
    assert may_loop(model, to_decoder("greedy"))
    assert may_loop(model, to_decoder("nucleus:0.9"))
    for ends in ("beam:4", "consistent-nucleus:0.9", "ancestral"):
        assert not may_loop(model, to_decoder(ends))
    assert not may_loop(Floor(model, epsilon=0.01), to_decoder("greedy"))


def test_the_usual_share():
    model = LateLoops.draw(1225, seed=0)
    assert choose_share(model, model.prefixes) == 0.1
    assert choose_share(model, model.prefixes[:100]) == 0.35
    assert choose_share(model, model.prefixes[:99]) == 1
    demo = eosin.load("demo")
    assert choose_share(demo, [[1, 2]] * 900) == 1


@pytest.mark.parametrize("share", [0, -1, 1.5, float("nan")])
def test_a_share_that_is_none(share: float):
    model = LateLoops.draw(4, seed=0)
    with pytest.raises(BadInput, match="follow_loops"):
        audit(model, share)


def test_shares_do_not_share_a_file(tmp_path: Path):
    model, out = LateLoops.draw(40, seed=0), tmp_path / "records.jsonl"
    audit(model, 0.5, out=out)
    counts = audit(model, 0.5, out=out)
    assert counts.sampled.share == 0.5
    with pytest.raises(BadInput, match="follow_loops"):
        audit(model, 1.0, out=out)
