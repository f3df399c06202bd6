"""Records: what is written is what is read, shards add up to the whole, a cut line is no record."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from records_made_up import counts_of

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.records.record import (
    SMALLEST_HASHES,
    Counts,
    Record,
    add_shards,
    read_records,
)
from eosin.records.signature import Signature


def signature(**keys: object) -> Signature:
    return Signature.from_table({"decoder": "greedy", "shard": "0-0", "max_steps": 30, **keys})


OUTCOMES = st.lists(st.tuples(st.integers(1, 30), st.sampled_from(list(Cause))), min_size=1, max_size=40)


@given(outcomes=OUTCOMES)
def test_written_is_read(outcomes: list[tuple[int, str]]):
    record = Record(signature(seed=3, unknown={"a": None}, max_steps=9), counts_of(outcomes, weighted=True))
    line = record.to_line()
    assert "\n" not in line
    again = Record.from_line(line)
    assert again == record
    assert again.to_line() == line


@given(outcomes=OUTCOMES, cut=st.integers(0, 40))
def test_shards_add_up_in_any_order(outcomes: list[tuple[int, str]], cut: int):
    cut = min(cut, len(outcomes) - 1)
    parts = [(0, outcomes[:cut]), (cut, outcomes[cut:])] if cut else [(0, outcomes)]
    records = [
        Record(signature(run="m", shard=str(i)), counts_of(part, start, True)) for i, (start, part) in enumerate(parts)
    ]
    whole = counts_of(outcomes, weighted=True)
    for order in (records, records[::-1]):
        (sum_of_parts,) = add_shards(order)
        found = sum_of_parts.counts
        assert found.unended == whole.unended
        assert (found.contexts, found.tokens, found.hashes) == (whole.contexts, whole.tokens, whole.hashes)
        assert (found.ended, found.causes) == (whole.ended, whole.causes)
        assert found.loops == whole.loops
        for loop in found.loops.values():
            assert loop.onset.least <= loop.onset.mean <= loop.onset.most
            assert 0 <= loop.looping <= loop.onset.count
        assert found.weights == whole.weights
        assert (found.ratio(5), found.ratio(9).value) == (whole.ratio(5), 0.0)
        counted, all_counted = replace(found, weights={}), replace(whole, weights={})
        assert [counted.ratio(limit) for limit in range(32)] == [all_counted.ratio(limit) for limit in range(32)]


def test_other_questions_are_not_added():
    records = [Record(signature(seed=seed), counts_of([(1, "eos")])) for seed in (0, 1, 0)]
    assert [r.counts.contexts for r in add_shards(records)] == [2, 1]


def test_different_completions_are_estimated_where_there_are_many():
    generator = random.Random(0)
    for many in (10, SMALLEST_HASHES - 1, 50_000):
        hashes = {generator.getrandbits(64) for _ in range(many)}
        shards = [tuple(sorted(h for h in hashes if h % 3 == i)[:SMALLEST_HASHES]) for i in range(3)]
        total = sum((Counts(hashes=shard) for shard in shards), Counts())
        assert total.distinct == pytest.approx(many, rel=0 if many < SMALLEST_HASHES else 0.15)


def test_a_cut_line_is_no_record_and_a_broken_one_is_an_error(tmp_path: Path):
    record = Record(signature(), counts_of([(3, "eos"), (9, "limit")]))
    path = tmp_path / "records.jsonl"
    path.write_text(record.to_line() + "\n" + record.to_line()[:50], encoding="utf-8")
    assert list(read_records(path)) == [record]
    path.write_text(record.to_line() + "\n{}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"line 2 of .* is not a record"):
        list(read_records(path))


def test_records_of_the_first_version_do_not_know_what_was_cut():
    """What was not counted is unknown, also in a sum."""
    counts = counts_of([(4, "eos"), (5, "eos")])
    table = json.loads(Record(signature(), counts).to_line())
    del table["counts"]["cut"]
    read = Record.from_line(json.dumps(table)).counts
    assert read.cut is None
    assert (read + counts).cut is None
    assert replace(read, cut=1) == counts
