"""Audits against closed forms and plain counting; shards, pools and kills change nothing."""

import json
import math
import random
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from members import DECODERS, MODELS, VOCAB, Specimen, crossed, fits, neural, prefixes

import eosin
from eosin.auditing import shards
from eosin.auditing.audit import open_records
from eosin.auditing.tally import count_ngrams
from eosin.causes import Cause
from eosin.decoding.loops import LONG, NGRAM, PERIODS, SHORTEST, WINDOW, find_tail, measure_novelty, name_loop
from eosin.errors import BadInput
from eosin.events import Event, Stopped
from eosin.proofs.constructions import Coin, Repeater, Script
from eosin.records.record import read_records


def test_the_ratio_of_a_coin_is_its_closed_form():
    n, p = 4_000, 0.05
    counts = (
        eosin.audit(Coin(p, vocab_size=VOCAB), [[1]] * n, ["ancestral"], max_steps=80).by_decoder["ancestral"].counts
    )
    for limit in (1, 5, 20, 80):
        truth = (1 - p) ** limit
        assert abs(counts.ratio(limit).value - truth) < 4.5 * math.sqrt(truth * (1 - truth) / n)


@pytest.mark.parametrize(
    ("specimen", "spec"), crossed(MODELS, ["greedy", "beam:3", "nucleus:0.4", "consistent-top-k:2", "ancestral"])
)
def test_an_audit_counts_what_decode_does(specimen: Specimen, spec: str):
    if not fits(spec, specimen.model.vocab_size):
        pytest.skip("does not fit")
    contexts = prefixes(23)
    counts = eosin.audit(specimen.model, contexts, [spec], max_steps=40, seed=5).by_decoder[spec].counts
    completions = eosin.decode(specimen.model, contexts, spec, max_steps=40, seed=5)
    assert counts.contexts == 23
    proved = counts.causes[Cause.PROVED]
    assert counts.tokens <= int(completions.lengths.sum())
    assert (counts.tokens < int(completions.lengths.sum())) == (proved > 0)
    assert [counts.unended[i] for i in range(23)] == (~completions.terminated).tolist()
    assert counts.ended == Counter(completions.steps[completions.terminated].tolist())
    assert sum(counts.causes.values()) == 23
    assert counts.distinct == len(set(map(tuple, completions.tokens)))
    for limit in (1, 7, 40):
        assert counts.ratio(limit).count == int((~completions.terminated | (completions.steps > limit)).sum())


@pytest.mark.parametrize(("pool", "shard"), crossed([1, 8, 64], [1, 7, 1000]))
def test_shards_and_pools_change_nothing(pool: int, shard: int, monkeypatch: pytest.MonkeyPatch):
    model, contexts = MODELS[0].model, prefixes(30)
    whole = eosin.audit(model, contexts, ["nucleus:0.4"], max_steps=20, seed=3).by_decoder["nucleus:0.4"].counts
    monkeypatch.setattr(shards, "SHARD", shard)
    audit = eosin.audit(model, contexts, ["nucleus:0.4"], max_steps=20, seed=3, pool=pool)
    assert len(audit.records) == -(-30 // shard)
    parts = audit.by_decoder["nucleus:0.4"].counts
    assert parts.unended == whole.unended
    assert without_work(parts) == without_work(whole)


def without_work(counts):
    """Everything but how far proved rows were followed, which depends on who finds a cycle first."""
    kept = {k: v for k, v in counts.to_table().items() if k not in ("outcomes", "tokens")}
    kept["loops"] = [(tokens, loop["onset"], loop["proofs"]) for tokens, loop in kept["loops"]]
    return kept


def test_an_audit_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "SHARD", 5)
    model, contexts, specs = MODELS[0].model, prefixes(23), ["greedy", "ancestral"]
    whole = eosin.audit(model, contexts, specs, max_steps=20, out=tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for kept in range(len(lines)):
        cut = tmp_path / f"cut-{kept}.jsonl"
        cut.write_text("".join(lines[:kept]) + lines[kept][:40], encoding="utf-8")
        seen = []
        again = eosin.audit(model, contexts, specs, max_steps=20, out=cut, watch=partial(note, seen))
        assert {r.to_line() for r in again.records} == {r.to_line() for r in whole.records}
        assert {r.to_line() for r in read_records(cut)} == {r.to_line() for r in whole.records}
        assert len(seen) == 46 - sum(json.loads(line)["counts"]["contexts"] for line in lines[:kept])


def note(seen: list, event: Event) -> None:
    if event.kind == "completion":
        seen.append(event.facts["completion"])


def test_records_of_another_audit_are_left_alone(tmp_path: Path):
    out = tmp_path / "records.jsonl"
    eosin.audit(Coin(0.5, vocab_size=VOCAB), [[1]], ["greedy"], max_steps=9, out=out)
    before = out.read_bytes()
    for change, says in (
        ({"max_steps": 10}, "max_steps is 9 there and 10 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"prefixes": [[2]]}, "contexts is"),
    ):
        settings = {"prefixes": [[1]], "max_steps": 9, "seed": 0, **change}
        with pytest.raises(BadInput, match=says):
            eosin.audit(Coin(0.5, vocab_size=VOCAB), decoders=["greedy"], out=out, **settings)
    assert out.read_bytes() == before


def test_the_weights_are_part_of_the_signature(tmp_path: Path):
    model = MODELS[0].make()
    eosin.audit(model, [[1]], ["greedy"], max_steps=3, out=tmp_path / "a.jsonl")
    with torch.no_grad():
        model.output.bias[0] += 1e-3
    with pytest.raises(BadInput, match="model is"):
        eosin.audit(model, [[1]], ["greedy"], max_steps=3, out=tmp_path / "a.jsonl")


def test_the_table_and_the_file(tmp_path: Path):
    audit = eosin.audit(Repeater(VOCAB - 1, p=0.1), [[1]] * 50, ["greedy", "consistent-top-k:1"], max_steps=300)
    text = str(audit).splitlines()
    assert text[3:5] == ["", "loops"]
    assert text[6].split()[0] == "greedy"
    assert text[6].split()[-3] == "6"  # the period
    assert len(text) == 7
    assert text[1].split()[:2] == ["greedy", "100.00"]
    assert text[2].split()[:2] == ["consistent-top-k:1", "0.00"]
    audit.save(tmp_path / "records.jsonl")
    assert list(read_records(tmp_path / "records.jsonl")) == audit.records


@pytest.mark.parametrize("spec", DECODERS)
def test_every_decoder_can_be_audited(spec: str):
    if not fits(spec, VOCAB):
        pytest.skip("does not fit")
    audit = eosin.audit(Coin(0.4, vocab_size=VOCAB), [[1], [2, 3]], [spec], max_steps=12)
    assert audit.by_decoder[spec].counts.contexts == 2


# loops


def periods_by_definition(tokens: list[int]):
    """Every way in which the end of a list repeats, shortest period first."""
    for period in range(1, len(tokens)):
        onset = len(tokens) - period
        while onset > 0 and tokens[onset - 1] == tokens[onset - 1 + period]:
            onset -= 1
        if len(tokens) - onset >= max(min(PERIODS * period, 2 * period + LONG), SHORTEST):
            yield onset + 1, period


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 9))
def test_a_find_tail_is_the_one_of_the_definition(head: list[int], cycle: list[int], times: int):
    tokens = head + cycle * times
    expected = next(periods_by_definition(tokens), None)
    found = find_tail(np.array(tokens, dtype=np.int64))
    assert (found and (found.onset, found.period)) == expected


@pytest.mark.parametrize("period", [100, 128, 129, 300, 5_000])
def test_a_period_may_be_long(period: int):
    """From 128 tokens on, two turns and 128 tokens are enough."""
    turn = np.random.default_rng(period).integers(0, 50_000, period)
    tokens = np.concatenate([[-1], np.resize(turn, min(3 * period, 2 * period + LONG))])
    found = find_tail(tokens)
    assert found is not None
    assert (found.onset, found.period) == (2, period)
    assert find_tail(tokens[:-1]) is None


def write_template(phrases: int, tokens: int) -> np.ndarray:
    """Phrases of twenty tokens in random order."""
    generator = np.random.default_rng(0)
    known = generator.integers(0, 50_000, (phrases, 20))
    return known[generator.integers(0, phrases, tokens // 20)].flatten()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (np.resize(np.arange(400), 2_000), Cause.LOOPING),
        (write_template(6, 4_000), Cause.TEMPLATED),
        (write_template(6, WINDOW - 20), None),
        (write_template(10_000, 4_000), None),
    ],
    ids=["loop", "template", "too short", "different phrases"],
)
def test_a_loop_has_a_name(tokens: np.ndarray, expected: Cause | None):
    assert name_loop(tokens) is expected


@given(st.lists(st.integers(0, 3), min_size=WINDOW, max_size=WINDOW + 20), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_novelty_by_definition(tokens: list[int], repeats: int):
    tokens = tokens * repeats
    grams = [tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)]
    last = range(max(0, len(grams) - WINDOW), len(grams))
    seen: set[tuple[int, ...]] = set(grams[: last.start])
    new = sum(grams[i] not in seen and not seen.add(grams[i]) for i in last)
    assert measure_novelty(np.array(tokens)) == new / len(last)


def test_an_audit_counts_templated_loops():
    """The toy says its phrases in an order that does not come back."""
    tokens = write_template(6, 4_000).tolist()
    ids = {token: place for place, token in enumerate(dict.fromkeys(tokens), 1)}
    said = [ids[token] for token in tokens]
    audit = eosin.audit(Script([said], len(ids) + 1), [[0]], ["greedy"], max_steps=len(said))
    assert audit.by_decoder["greedy"].counts.causes == {Cause.TEMPLATED: 1}


def test_a_loop_is_proved_or_seen():
    """The state of this toy is the place in the loop: it comes back bit for bit."""
    for proofs, cause in ((True, Cause.PROVED), (False, Cause.LOOPING)):
        audit = eosin.audit(Repeater(5, p=0.0), [[1]] * 3, ["greedy"], max_steps=100, proofs=proofs)
        counts = audit.by_decoder["greedy"].counts
        assert counts.causes == {cause: 3}
        assert [(len(tokens), loop.onset.count) for tokens, loop in counts.loops.items()] == [(5, 3)]
        assert counts.loops.keys() == {(1, 2, 3, 4, 5)}


@given(st.lists(st.integers(0, 3), max_size=25), st.sampled_from([1, 4]))
def test_ngrams_by_definition(tokens: list[int], n: int):
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    assert count_ngrams(np.array(tokens, dtype=np.int64), n) == (len(grams), len(set(grams)))


def test_random_tokens_do_not_loop():
    generator = random.Random(1)
    assert find_tail(np.array([generator.randrange(50) for _ in range(1_500)])) is None


# files


def test_two_audits_may_not_write_to_one_file(tmp_path: Path):
    out = tmp_path / "records.jsonl"
    with open_records(out), pytest.raises(BadInput, match="another audit is writing to"):
        eosin.audit(Coin(0.5), [[1]], ["greedy"], max_steps=5, out=out)


def test_a_shard_that_is_there_twice_counts_once(tmp_path: Path):
    out = tmp_path / "records.jsonl"
    eosin.audit(Coin(0.5), [[1]] * 3, ["greedy"], max_steps=5, out=out)
    out.write_text(out.read_text(encoding="utf-8") * 2, encoding="utf-8")
    again = eosin.audit(Coin(0.5), [[1]] * 3, ["greedy"], max_steps=5, out=out)
    assert again.by_decoder["greedy"].counts.contexts == 3


def test_how_a_model_is_made_is_part_of_the_signature(tmp_path: Path):
    out, model = tmp_path / "records.jsonl", MODELS[0].make()
    eosin.audit(eosin.Floor(model, epsilon=0.1), [[1]], ["greedy"], max_steps=9, out=out)
    with pytest.raises(BadInput, match="model is"):
        eosin.audit(eosin.Floor(model, epsilon=0.01), [[1]], ["greedy"], max_steps=9, out=out)


BROKEN = {
    "no contexts": lambda r: r["counts"].update(contexts=0),
    "fewer than none": lambda r: r["counts"].update(contexts=-5),
    "a cause in words": lambda r: r["counts"].update(causes={"eos": "x"}),
    "a step in words": lambda r: r["counts"].update(ended=[["x", 1]]),
    "no decoder": lambda r: r["signature"].update(decoder=3),
    "no signature": lambda r: r.update(signature=None),
    "broken bits": lambda r: r["counts"]["outcomes"][0].update(unended="AAAA"),
    "a loop of nothing": lambda r: r["counts"]["loops"][0][1]["onset"].update(count=0),
    "half a drift": lambda r: r["counts"]["loops"][0][1].update(drift=[1]),
}


@pytest.mark.parametrize("how", BROKEN)
def test_edited_records_are_refused_and_left_alone(how: str, tmp_path: Path):
    out = tmp_path / "records.jsonl"
    eosin.audit(Repeater(4), [[1]] * 3, ["greedy"], max_steps=50, out=out)
    record = json.loads(out.read_text(encoding="utf-8"))
    BROKEN[how](record)
    out.write_text(json.dumps(record) + "\n", encoding="utf-8")
    before = out.read_bytes()
    with pytest.raises(BadInput, match=r"line 1 of .* is not a record of an audit"):
        eosin.audit(Repeater(4), [[1]] * 3, ["greedy"], max_steps=50, out=out)
    assert out.read_bytes() == before


@pytest.mark.parametrize("decoders", ["greedy", None, []])
def test_decoders_are_a_list(decoders: object, tmp_path: Path):
    with pytest.raises((BadInput, TypeError), match=r"decoder|decoders"):
        eosin.audit(Coin(0.5), [[1]], decoders, max_steps=5)


def test_certificates_of_another_model_are_not_added_to(tmp_path: Path):
    out = tmp_path / "records.jsonl"
    model = neural("tanh", "softmax", vocab=40, width=12, seed=1, scale=2.0, eos_bias=-4.0)
    contexts = prefixes(12, vocab=40)
    eosin.audit(model, contexts, ["greedy"], max_steps=60, out=out)
    assert out.with_suffix(".cycles").exists()
    other = tmp_path / "other.jsonl"
    out.with_suffix(".cycles").rename(other.with_suffix(".cycles"))
    with pytest.raises(BadInput, match="certificates of another model"):
        eosin.audit(MODELS[0].model, prefixes(3), ["greedy"], max_steps=9, out=other)
    with pytest.raises(BadInput, match="name another file"):
        eosin.audit(model, contexts, ["greedy"], max_steps=60, out=tmp_path / "records.cycles")


@pytest.mark.parametrize("grace", [0, 20, 23, 24, 40])
def test_a_loop_that_eos_cuts_short_is_counted(grace: int):
    """A model that repeats two tokens for ever, on a floor."""
    model = eosin.Floor(Repeater(2), epsilon=0.5, grace=grace)
    record = eosin.audit(model, [[1], [1]], ["greedy"], max_steps=100).by_decoder["greedy"]
    (length,) = record.counts.ended
    assert record.counts.ended[length] == 2
    assert record.counts.cut == (2 if length - 1 >= SHORTEST else 0)
    ancestral = eosin.audit(Coin(0.5), [[1]] * 50, ["ancestral"], max_steps=100).by_decoder["ancestral"]
    assert ancestral.counts.cut == 0


def test_a_watch_can_stop_an_audit_and_finished_shards_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "SHARD", 5)
    out, events = tmp_path / "records.jsonl", []

    def watch(event: Event) -> None:
        events.append(event)
        if [each.kind for each in events].count("shard") == 2:
            raise Stopped

    settings = {"max_steps": 20, "pool": 5, "out": out}
    with pytest.raises(Stopped):
        eosin.audit(Coin(0.3), [[1]] * 23, ["ancestral"], watch=watch, **settings)
    assert {event.kind for event in events} == {"step", "completion", "shard"}
    assert len(list(read_records(out))) == 2
    again = eosin.audit(Coin(0.3), [[1]] * 23, ["ancestral"], **settings)
    assert again.by_decoder["ancestral"].counts.contexts == 23
