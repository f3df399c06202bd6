"""Reports: every rendering holds every cell, tables say what the records say, and none of it needs torch."""

import csv
import io
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members import MODELS, VOCAB, prefixes
from records_made_up import L, record
from texts import real_sentences, write_lines

import eosin
from eosin.causes import Cause
from eosin.cli.main import main
from eosin.errors import BadInput
from eosin.proofs.constructions import Coin, Repeater
from eosin.records.reading import FiledRecord, load_records
from eosin.records.record import Record, read_records
from eosin.records.signature import Signature
from eosin.records.statistics import count_survivors
from eosin.report.audit_page import build_audit_page
from eosin.report.audits import (
    make_identity_columns,
    tabulate_decoders,
    tabulate_histogram,
    tabulate_limits,
    tabulate_quantiles,
    tabulate_survival,
)
from eosin.report.comparison import compare_audits
from eosin.report.initialisations import find_common_name, tabulate_models
from eosin.report.origin import Origin, Origins, index_origins, read_origins, save_origin
from eosin.report.tables import LATEX_SPECIAL, RENDERINGS, Column, Table, escape_controls, render_text
from eosin.report.verdict import find_remedies, propose_fix, render_verdict, write_verdict

SPECIAL = "\\|&%$#_{}~^<>[]*`!±\n\r\t\x1b\x00\u202e\ud800,;\"' -"
NAMES = st.text(st.one_of(st.sampled_from(SPECIAL), st.characters()), max_size=12)
OUTCOMES = st.lists(st.tuples(st.integers(1, L), st.sampled_from([*Cause, "unheard of"])), min_size=1, max_size=30)


DESCRIBED = st.lists(
    st.fixed_dictionaries(
        {
            "outcomes": OUTCOMES,
            "decoder": NAMES | st.sampled_from("ab"),
            "run": NAMES | st.sampled_from("ab"),
            "model": st.sampled_from([{"kind": "NeuralLM", "weights": weights} for weights in "uvw"]),
            "seed": st.integers(0, 2),
            "threads": st.integers(1, 2),
        }
    ),
    min_size=1,
    max_size=4,
)


def records_of(described: list[dict[str, object]]) -> list[Record]:
    """Those that ask different questions."""
    return list({each.question: each for each in (record(**described_one) for described_one in described)}.values())


MAKERS = {
    "by decoder": tabulate_decoders,
    "at limits": lambda records: tabulate_limits(records, [1, 7, L]),
    "survival": tabulate_survival,
    "quantiles": tabulate_quantiles,
    "histogram": tabulate_histogram,
    "models": tabulate_models,
}


# damage: what is read can be shown


def places(table: object, way: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The ways to everything in a table, its lists and tables included."""
    inside = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in inside:
        yield (*way, key)
        yield from places(value, (*way, key))


def with_damage(table: dict[str, Any], way: tuple[Any, ...], odd: object) -> dict[str, Any]:
    damaged = inner = json.loads(json.dumps(table))
    for key in way[:-1]:
        inner = inner[key]
    if odd is GONE:
        del inner[way[-1]]
    else:
        inner[way[-1]] = odd
    return damaged


GONE = object()
WHOLE = json.loads(record([(3, Cause.EOS), (30, Cause.LOOPING), (20, Cause.PROVED), (5, Cause.EOS)]).to_line())
WEIGHTED = {**WHOLE, "counts": {**WHOLE["counts"], "weights": [[L, 2.0, 1.5]]}}
ODD = [GONE, None, True, "x", [], {}, [[]], 1e308, -1, 7, 10**6, 0.5, 10**400]


@pytest.mark.parametrize("whole", [WHOLE, WEIGHTED], ids=["counted", "estimated"])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: "gone" if odd is GONE else str(odd)[:8])
def test_a_damaged_record_is_refused_or_shown(whole: dict[str, Any], odd: object, tmp_path: Path):
    """Every part of it damaged in turn: one clear line, or tables and a page."""
    path = tmp_path / "records.jsonl"
    refused = 0
    for way in places(whole):
        path.write_text(json.dumps(with_damage(whole, way, odd)) + "\n")
        try:
            assert len(list(read_records(path))) == 1
            records = [filed.record for filed in load_records([path])]
            for make in MAKERS.values():
                render_text(make(records))
            build_audit_page(records).render()
        except BadInput:
            refused += 1
    assert refused


# renderings: what is written is read back by a few lines that know nothing of how it was written


def read_markdown(text: str) -> list[list[str]]:
    lines = [line for line in text.split("\n") if line.startswith("|")]
    del lines[1]
    cells = [re.findall(r"((?:\\.|[^\\|])*)\|", line)[1:] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell).strip() for cell in row] for row in cells]


def read_latex(text: str) -> list[list[str]]:
    lines = [line.removesuffix(r" \\") for line in text.split("\n") if line.endswith(r" \\")]
    assert not any(line.lstrip().startswith(("[", "*")) for line in lines)  # an option of the row before
    return [[read_latex_cell(cell).strip() for cell in re.split(r"(?<!\\)&", line)] for line in lines]


def read_latex_cell(cell: str) -> str:
    """The characters that LaTeX would set; anything it would obey is an error."""
    meaning = {written: character for character, written in LATEX_SPECIAL.items()}
    commands = "|".join(re.escape(written) for written in sorted(meaning, key=len, reverse=True))
    read = ""
    for command, mathematics, plain in re.findall(rf"({commands})|\$r_{{(\w+)}}\$|([^\\{{}}$&#_%~^])|(?:.)", cell):
        assert command or mathematics or plain, cell
        read += meaning[command] if command else f"r_{mathematics}" if mathematics else plain
    return read


def read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def check_renderings(table: Table) -> None:
    shown = [[cell.strip() for cell in row] for row in [table.headings, *table.cells]]
    assert read_markdown(RENDERINGS["markdown"](table)) == shown
    assert read_latex(RENDERINGS["latex"](table)) == shown
    values = [["" if value is None else str(value) for value in row] for row in table.flat_rows]
    assert read_csv(RENDERINGS["csv"](table)) == [table.flat_headings, *values]
    lines = RENDERINGS["text"](replace(table, title="", note="")).split("\n")
    assert len(lines) == len(shown)
    for line, row in zip(lines, shown, strict=True):
        place = 0
        for cell in row:
            place = line.index(cell, place) + len(cell)


CONTENTS = st.integers(1, 4).flatmap(
    lambda width: st.tuples(
        st.lists(st.tuples(NAMES, st.booleans()), min_size=width, max_size=width),
        st.lists(st.tuples(*[st.none() | NAMES | st.integers() | st.floats()] * width), max_size=4),
    )
)


def table_of(contents: tuple[list, list], title: str = "", note: str = "") -> Table:
    columns, rows = contents
    return Table(tuple(Column(heading, left=left) for heading, left in columns), tuple(rows), title, note)


@given(contents=CONTENTS)
def test_every_rendering_holds_every_cell(contents: tuple[list, list]):
    check_renderings(table_of(contents))


@pytest.mark.parametrize("maker", MAKERS)
@settings(max_examples=20)
@given(described=DESCRIBED)
def test_every_rendering_of_every_table_of_records(maker: str, described: list[dict[str, object]]):
    check_renderings(MAKERS[maker](records_of(described)))


@given(contents=CONTENTS, title=NAMES, note=NAMES)
def test_what_is_rendered_can_be_printed(contents: tuple[list, list], title: str, note: str):
    for rendering in RENDERINGS.values():
        text = rendering(table_of(contents, title, note))
        assert all(character.isprintable() or character == "\n" for character in text)
        text.encode()


@given(title=NAMES, note=NAMES)
def test_titles_and_notes_are_data_too(title: str, note: str):
    text = RENDERINGS["latex"](table_of(([("a", False)], [(1,)]), title, note))
    (caption,) = re.findall(r"^\\caption{(.*)}$", text, re.M) or [""]
    assert read_latex_cell(caption) == ". ".join(escape_controls(said) for said in (title, note) if said)
    prose = RENDERINGS["markdown"](table_of(([("a", False)], [(1,)]), title, note)).split("\n\n")
    prose.remove("| a |\n|--:|\n| 1 |")
    assert len(prose) == bool(title) + bool(note)
    for part, said in zip(prose, filter(None, (title and f"**{title}**", note)), strict=True):
        assert re.sub(r"\\(.)", r"\1", part) == escape_controls(said)
        inside = part[2:-2] if said != note else part
        assert re.fullmatch(r"(\\.|[^\\`*_{}\[\]<>#|~$&!])*", inside)


def test_mathematics_in_latex():
    text = RENDERINGS["latex"](tabulate_limits([record([(3, "eos"), (L, "limit")])], [1, 12]))
    assert r"$r_{12}$ (\%)" in text
    assert text.startswith(r"\begin{table}")
    assert r"\toprule" in text


# tables


@given(described=DESCRIBED)
def test_no_two_records_look_alike(described: list[dict[str, object]]):
    records = records_of(described)
    rows = {tuple(of(each) for _, of in make_identity_columns(records)) for each in records}
    assert len(rows) == len(records)


def test_what_changes_the_meaning_of_a_ratio_is_shown_and_what_does_not_is_not():
    """Two runs are told apart by their names; that they had other limits matters, other threads do not."""
    outcomes = [(3, "eos")]
    table = tabulate_decoders(
        [
            record(outcomes, run="a", threads=1, model={"weights": "v"}),
            record(outcomes, run="b", threads=2, max_steps=20),
        ]
    )
    assert table.headings[:4] == ("model", "L", "decoder", "r_L (%)")
    assert "seed 0" in table.title
    assert "threads" not in table.title


def test_the_code_of_a_decoder_is_a_column_only_where_two_differ():
    outcomes = [(3, "eos")]
    own = record(outcomes, decoder="own:1", made_of=["1a2b"])
    assert tabulate_decoders([own, record(outcomes)]).headings[0] == "decoder"
    changed = tabulate_decoders([own, record(outcomes, decoder="own:1", made_of=["3c4d", "a part"])])
    assert changed.headings[0] == "code of the decoder"
    assert [row[0] for row in changed.rows] == ["1a2b", "3c4d, a part"]


@given(outcomes=OUTCOMES)
def test_ratios_causes_and_lengths_are_those_of_plain_counting(outcomes: list[tuple[int, str]]):
    records = [record(outcomes)]
    lengths = [length for length, cause in outcomes if cause == "eos"]
    n = len(outcomes)
    found = dict(zip(tabulate_decoders(records).flat_headings, *tabulate_decoders(records).flat_rows, strict=True))
    assert found["r_L (%)"] == pytest.approx(100 * (n - len(lengths)) / n)
    assert found["95% low"] <= found["r_L (%)"] <= found["95% high"]
    causes = {name: found[name] for name in ("unheard of", *Cause) if name in found}
    assert causes == Counter(cause for _, cause in outcomes)
    assert found["mean length of ended"] == (pytest.approx(statistics.mean(lengths)) if lengths else None)
    steps = dict(tabulate_survival(records).flat_rows)
    ended = Counter(lengths)
    assert steps == {step: pytest.approx(100 * count_survivors(ended, n, step) / n) for step in {0, L, *lengths}}
    shares = [share for _, share in tabulate_histogram(records).flat_rows]
    assert sum(shares) == pytest.approx(100)
    bins = Counter(length.bit_length() - 1 for length in lengths)
    assert shares == pytest.approx([*(100 * bins[i] / n for i in range(L.bit_length())), 100 * (n - len(lengths)) / n])
    median = tabulate_quantiles(records).flat_rows[0][tabulate_quantiles(records).flat_headings.index("50%")]
    assert median == (statistics.median_low(lengths) if lengths else None)


def test_contexts_that_are_missing_are_shown():
    whole, half = record([(3, "eos")] * 4), record([(3, "eos")] * 2, contexts={"count": 4, "digest": "d"}, seed=1)
    assert "missing" not in tabulate_decoders([whole]).headings
    assert [row[-1] for row in tabulate_decoders([whole, half]).rows] == [0, 2]


@given(data=st.data(), models=st.integers(1, 3), initialisations=st.integers(1, 4))
def test_mean_and_deviation_are_those_over_single_audits(data: st.DataObject, models: int, initialisations: int):
    """Initialisations have names, weights, seeds of training and even machines of their own."""
    ratios, records = {}, []
    for model in range(models):
        for seed in range(initialisations):
            for decoder in ("greedy", "beam:2"):
                outcomes = data.draw(OUTCOMES)
                each = record(
                    outcomes,
                    decoder=decoder,
                    run=f"m{model}-seed-{seed}",
                    settings=f"s{model}",
                    initialisation=seed,
                    model={"kind": "NeuralLM", "weights": f"{model} {seed}"},
                    contexts={"count": 30, "digest": "d"},
                    threads=seed,
                )
                records.append(each)
                ratios.setdefault((decoder, f"m{model}"), []).append(100 * each.counts.ratio(L).value)
    data.draw(st.randoms()).shuffle(records)
    table = tabulate_models(records)
    assert len(table.rows) == 2
    for row in table.flat_rows:
        found = dict(zip(table.flat_headings, row, strict=True))
        for model in range(models):
            name = f"m{model}" if initialisations > 1 else f"m{model}-seed-0"
            singles = ratios[found["decoder"], f"m{model}"]
            assert found[f"{name}: mean"] == pytest.approx(statistics.mean(singles))
            assert found[f"{name}: initialisations"] == initialisations
            deviation = pytest.approx(statistics.stdev(singles), abs=1e-9) if initialisations > 1 else None
            assert found[f"{name}: deviation"] == deviation


def test_what_differs_in_more_than_the_initialisation_is_not_averaged():
    outcomes = [(3, "eos"), (L, "limit")]
    runs = [
        record(outcomes, settings="s", initialisation=0, model={"kind": "NeuralLM", "weights": "v"}),
        record(outcomes, settings="s", initialisation=1, contexts={"count": 2, "digest": "other"}),
        record(outcomes, settings="t", initialisation=0),
    ]
    table = tabulate_models(runs)
    counts = [
        [row[i] for i, name in enumerate(table.flat_headings) if "initialisations" in name] for row in table.flat_rows
    ]
    assert counts == [[1, 1], [1, None]]
    assert table.headings[-2:] == ("lstm", "lstm (2)")


def test_the_same_weights_on_two_machines_are_not_two_initialisations():
    runs = [record([(3, "eos"), (L, "limit")], threads=threads) for threads in (1, 2)]
    table = tabulate_models(runs)
    assert table.headings[0] == "threads"
    assert [row[-1] for row in table.flat_rows] == [1, 1]


def test_without_settings_a_model_is_its_run_and_without_a_run_its_weights():
    outcomes = [(3, "eos")]
    named = [record(outcomes, model={"weights": w}) for w in "vw"]
    assert tabulate_models(named).flat_rows[0][-1] == 2
    tables = [{k: v for k, v in each.signature.table.items() if k != "run"} for each in named]
    nameless = [Record(Signature.from_table(table), each.counts) for table, each in zip(tables, named, strict=True)]
    assert [row[-1] for row in tabulate_models(nameless).flat_rows] == [1]
    assert len(tabulate_models(nameless).columns) == 3


@pytest.mark.parametrize(
    ("runs", "name"),
    [
        (["lstm-seed-10", "lstm-seed-11"], "lstm"),
        (["word-tanh-softmax", "word-tanh-softmax-seed-1"], "word-tanh-softmax"),
        (["seed-0", "seed-1"], "seed-0, ..."),
        (["a", "b"], "a, ..."),
        (["mine"], "mine"),
        (["width-8_0", "width-8_1"], "width-8"),
    ],
)
def test_the_name_of_a_model_is_what_its_runs_share(runs: list[str], name: str):
    assert find_common_name(runs) == name


# files


def write(path: Path, records: list[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(each.to_line() + "\n" for each in records), encoding="utf-8")
    return path


@settings(max_examples=30)
@given(outcomes=OUTCOMES, cuts=st.sets(st.integers(1, 29)), seed=st.integers(0, 999))
def test_shards_in_any_order_in_any_files_give_the_same_tables(
    outcomes: list[tuple[int, str]], cuts: set[int], seed: int
):
    """... and so does naming a file twice, or a copy of it, or the folder that it is in."""
    ends = [0, *sorted(cut for cut in cuts if cut < len(outcomes)), len(outcomes)]
    contexts = {"count": len(outcomes), "digest": "d"}
    wanted, shards = [], []
    for decoder, mine in (("greedy", outcomes), ("nucleus:0.2", outcomes[::-1])):
        wanted.append(record(mine, decoder=decoder, contexts=contexts))
        shards += [record(mine[a:b], a, decoder=decoder, contexts=contexts) for a, b in itertools.pairwise(ends)]
    random.Random(seed).shuffle(shards)
    half = len(shards) // 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "run/audits/a.jsonl", [*shards[:half], shards[-1]])
        b = write(folder / "b.jsonl", shards[half:])
        (folder / "log.jsonl").write_text('{"event": "epoch"}\n', encoding="utf-8")
        found = [filed.record for filed in load_records([b, folder, b])]
    found.sort(key=lambda each: each.signature.decoder)
    for make in MAKERS.values():
        assert render_text(make(found)) == render_text(make(wanted))


def test_files_that_disagree_or_overlap_are_refused(tmp_path: Path):
    a = write(tmp_path / "a.jsonl", [record([(3, "eos")] * 4)])
    b = write(tmp_path / "b.jsonl", [record([(4, "eos")] * 4)])
    with pytest.raises(BadInput, match="disagrees with another file on contexts 0-3 by greedy"):
        load_records([a, b])
    c = write(tmp_path / "c.jsonl", [record([(3, "eos")] * 2, contexts={"count": 4, "digest": "d"})])
    with pytest.raises(BadInput, match="overlap"):
        load_records([a, c])


DAMAGE = {
    "no decoder": lambda table: table["signature"].pop("decoder"),
    "no limit": lambda table: table["signature"].pop("max_steps"),
    "a signature of another kind": lambda table: table.update(signature=[1]),
    "counts of another kind": lambda table: table.update(counts=[1]),
    "no contexts": lambda table: table["counts"].update(contexts=0, ended=[]),
    "more ended than there are": lambda table: table["counts"].update(ended=[[1, 99]]),
    "steps that are words": lambda table: table["counts"].update(ended=[["one", 1]]),
    "bits that are none": lambda table: table["counts"]["outcomes"][0].update(unended="AAAA"),
    "too few bits": lambda table: table["counts"]["outcomes"][0].update(count=999),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_bad_input(damage: str, tmp_path: Path):
    table = json.loads(record([(3, "eos"), (L, "limit")]).to_line())
    DAMAGE[damage](table)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(table) + "\n", encoding="utf-8")
    with pytest.raises(BadInput, match=re.escape(str(path))):
        load_records([path])


# comparisons


@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40), cut=st.integers(0, 39))
def test_a_comparison_is_a_count_of_pairs(pairs: list[tuple[bool, bool]], cut: int):
    """The second audit is unfinished: only the contexts that both have are compared."""
    seen = pairs[: max(1, len(pairs) - cut)]
    contexts = {"count": len(pairs), "digest": "d"}
    first = record([(L, "limit") if a else (3, "eos") for a, _ in pairs], contexts=contexts)
    second = record([(L, "limit") if b else (3, "eos") for _, b in seen], contexts=contexts, decoder="beam:2")
    found = compare_audits([FiledRecord(first, ()), FiledRecord(second, ())], "greedy", "beam:2")
    numbers = dict(found.table.rows)
    assert numbers["only greedy did not end"] == seen.count((True, False))
    assert numbers["only beam:2 did not end"] == seen.count((False, True))
    assert numbers["both ended"] == seen.count((False, False))
    assert numbers["neither ended"] == seen.count((True, True))
    assert f"{sum(a for a, _ in seen) / len(seen):.2%}" in found.sentences
    assert ("agree on every context" in found.sentences) == all(a == b for a, b in seen)
    assert ("more than chance" in found.sentences) == (found.counts.p_value < 0.05)
    check_renderings(found.table)


def test_a_probability_too_small_for_a_number_is_not_called_zero():
    first = record([(L, "limit")] * 2000)
    second = record([(3, "eos")] * 2000, decoder="beam:2")
    found = compare_audits([FiledRecord(first, ()), FiledRecord(second, ())], "greedy", "beam:2")
    assert "with probability below 1e-300. This is more than chance." in found.sentences
    assert found.table.cells[-1][-1] == "below 1e-300"


def filed(folder: str, **signature: object) -> FiledRecord:
    return FiledRecord(record([(3, "eos"), (L, "limit")], **signature), (Path(folder) / "x.jsonl",))


def test_a_name_means_one_audit():
    a, b, c = filed("a", run="a"), filed("b", run="b"), filed("c", run="b", decoder="nucleus:0.2")
    found = [a, b, c]
    for first, second, meant in (
        ("a:greedy", "b:greedy", (a, b)),
        ("nucleus:0.2", "a:greedy", (c, a)),
        ("b/x.jsonl:greedy", "c/x.jsonl:nucleus:0.2", (b, c)),
    ):
        counts = compare_audits(found, first, second)
        assert (counts.first, counts.second) == (first, second)
        one, other = (each.record.counts.unended for each in meant)
        assert counts.counts.both == sum(one[i] and other[i] for i in one)
    for first, second, says in (
        ("greedy", "nucleus:0.2", "'greedy' is in 2 audits; say a:greedy or b:greedy"),
        ("b:gredy", "nucleus:0.2", "did you mean 'b:greedy'?"),
        ("xyz", "nucleus:0.2", "there are greedy, a:greedy, x.jsonl:greedy"),
        ("a:greedy", "a/x.jsonl:greedy", "are the same audit"),
    ):
        with pytest.raises(BadInput, match=re.escape(says)):
            compare_audits(found, first, second)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"contexts": {"count": 2, "digest": "e"}}, "the same contexts"), ({"max_steps": 40}, "the same limit")],
)
def test_only_audits_of_the_same_contexts_can_be_paired(change: dict[str, object], says: str):
    with pytest.raises(BadInput, match=says):
        compare_audits([filed("a"), filed("b", decoder="beam:2", **change)], "greedy", "beam:2")


# the verb


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 0
    return 0


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real records: of a network, of a toy that greedy decoding never ends on, and of one that is all chance."""
    folder = tmp_path_factory.mktemp("runs")
    specimen = next(each for each in MODELS if str(each) == "lively-lstm")
    models = {"loop": Repeater(VOCAB - 1, p=0.1), "coin": Coin(0.3, vocab_size=VOCAB), "lively": specimen.model}
    for name, model in models.items():
        eosin.audit(
            model,
            prefixes(60),
            ["greedy", "ancestral", "consistent-top-k:1"],
            max_steps=40,
            out=folder / name / "audits" / "a.jsonl",
            about={"run": name, "contexts_from": "random"},
        )
    return folder


def test_a_report_of_real_audits(audited: Path, capsys: pytest.CaptureFixture[str]):
    assert run("report", audited / "loop") == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "model loop, context set 60 of random, L 40, seed 0"
    assert [line.split()[:2] for line in lines[1:2]] == [["greedy", "100.00"]]
    assert run("report", audited, "--format", "csv", "--at", "1,40") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["model"], row["decoder"]) for row in rows] == [
        (model, decoder)
        for model in ("coin", "lively", "loop")
        for decoder in ("greedy", "ancestral", "consistent-top-k:1")
    ]
    for row, filed in zip(rows, load_records([audited]), strict=True):
        for limit in (1, 40):
            ended = sum(count for step, count in filed.record.counts.ended.items() if step <= limit)
            assert float(row[f"r_{limit} (%)"]) == pytest.approx(100 - 100 * ended / 60)


def test_several_models_have_a_table_of_their_own(audited: Path, capsys: pytest.CaptureFixture[str]):
    assert run("report", audited) == 0
    everything = capsys.readouterr().out
    assert run("report", audited, "--models") == 0
    models = capsys.readouterr().out
    assert run("report", audited, "--loops") == 0
    assert everything.endswith("\n\n" + models + "\n" + capsys.readouterr().out)
    assert models.splitlines()[1].split() == ["decoder", "coin", "lively", "loop"]


@pytest.mark.parametrize(
    "options", [[], ["--survival"], ["--lengths"], ["--at", "3"], ["--models"], ["--compare", "greedy", "ancestral"]]
)
def test_json_has_what_csv_has(options: list[str], audited: Path, capsys: pytest.CaptureFixture[str]):
    assert run("report", audited / "coin", *options, "--format", "csv") == 0
    tables = [read_csv(text) for text in capsys.readouterr().out.strip("\n").split("\n\n")]
    assert run("report", audited / "coin", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)["tables"]
    as_words = [[["" if v is None else str(v) for v in row] for row in [t["columns"], *t["rows"]]] for t in found]
    assert as_words == tables


def test_a_comparison_in_words(audited: Path, capsys: pytest.CaptureFixture[str]):
    assert run("report", audited, "--compare", "loop:greedy", "loop:consistent-top-k:1") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "loop:greedy and loop:consistent-top-k:1 on the same 60 contexts, L 40" in said
    assert "This is more than chance." in said
    assert "loop:greedy did not end on 100.00% of the contexts" in said


def test_how_many_contexts(capsys: pytest.CaptureFixture[str]):
    assert run("report", "--contexts-for", "0.01") == 0
    assert capsys.readouterr().out.startswith("299 contexts, all of which end, show with 95% confidence")
    assert run("report", "--contexts-for", "0.01", "--half-width", "0.005", "--json") == 0
    from eosin.records.statistics import count_contexts_for_width

    wanted = {"contexts": {"below": 299, "within": count_contexts_for_width(0.01, 0.005)}}
    assert json.loads(capsys.readouterr().out) == wanted


def test_out_is_what_would_be_printed(audited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("report", audited, "--format", "latex") == 0
    printed = capsys.readouterr().out
    for _ in range(2):
        assert run("report", audited, "--format", "latex", "--out", tmp_path / "table.tex") == 0
        assert capsys.readouterr().out == ""
        assert (tmp_path / "table.tex").read_text(encoding="utf-8") == printed


BAD = {
    "nothing": ([], "name files of records"),
    "no such file": (["nowhere.jsonl"], "there is no file or folder nowhere.jsonl"),
    "an empty folder": (["empty"], "there are no records in empty"),
    "an empty file": (["empty.jsonl"], "there are no records in empty.jsonl"),
    "another file": (["settings.toml"], "line 1 of settings.toml is not a record of an audit"),
    "bytes": (["bytes.jsonl"], "bytes.jsonl is not a file of records"),
    "other contexts": (
        ["RUNS/loop", "other.jsonl", "--compare", "greedy", "beam:9"],
        "only audits with the same contexts",
    ),
    "a misspelt decoder": (["RUNS/loop", "--compare", "gredy", "ancestral"], "did you mean 'greedy'?"),
    "a decoder in several": (["RUNS", "--compare", "greedy", "ancestral"], "'greedy' is in 3 audits; say coin:greedy"),
    "beyond the limit": (["RUNS", "--at", "10,41"], "nothing is known at L = 41: greedy was given 40 steps"),
    "limits in words": (["RUNS", "--at", "ten"], "must be comma-separated whole numbers from 1"),
    "a limit of nothing": (["RUNS", "--at", "0"], "must be comma-separated whole numbers from 1"),
    "another format": (["RUNS", "--format", "word"], "invalid choice: 'word'"),
    "out into a file": (["RUNS", "--out", "settings.toml/x"], "cannot write settings.toml/x: Not a directory"),
    "a table on a page": (["RUNS", "--html", "x.html", "--at", "5"], "say --at without it"),
    "out onto a folder": (["RUNS", "--out", "empty"], "cannot write empty: Is a directory"),
    "out onto records": (["other.jsonl", "--out", "other.jsonl"], "is a file of records, which would be lost"),
    "a width of nothing": (["--half-width", "0.1"], "--half-width belongs to --contexts-for"),
    "a ratio of one": (["--contexts-for", "1"], "must be a share from 1e-9 to below 1"),
    "contexts for records": (["RUNS", "--contexts-for", "0.1"], "--contexts-for needs no records"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    case: str, audited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("empty.jsonl").touch()
    Path("bytes.jsonl").write_bytes(b"\xff\xfe\n")
    Path("settings.toml").write_text("[core]\n", encoding="utf-8")
    write(Path("other.jsonl"), [record([(3, "eos")] * 60, decoder="beam:9", max_steps=40)])
    before = Path("other.jsonl").read_bytes()
    arguments, says = BAD[case]
    assert run("report", *(argument.replace("RUNS", str(audited)) for argument in arguments)) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("eosin report: ")
    assert says in line
    assert said.out == ""
    assert Path("other.jsonl").read_bytes() == before


# the verdict


ENDED, LEFT = [(3, "eos")] * 9, [(3, "eos")] * 8 + [(30, "limit")]
CUT = [(4, "eos")] * 9
"""All of them loops that eos cut short."""


def say(*records: Record, elsewhere: Sequence[Record] = ()) -> list[str]:
    return [sentence.text for sentence in write_verdict(records, elsewhere)]


def test_the_verdict_is_of_what_was_counted():
    (said,) = write_verdict([record(ENDED, decoder=name, contexts_from="test") for name in ("greedy", "beam:2")])
    assert said.text.startswith("Every decoding stopped, with 2 decoders on 9 test contexts;")
    assert said.tone == "good"
    assert say(record(ENDED, estimator="survival")) == ["Survival was estimated, and no ending counted."]
    assert say() == ["Nothing has been audited yet."]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([*ENDED, (30, "limit")], "greedy had not ended on 10.00% of 10 contexts after 30 tokens."),
        ([*ENDED[:8], (30, "proved infinite"), (30, "proved infinite")], "tokens; all 2 are proved never to end."),
        ([*ENDED[:8], (30, "proved infinite"), (30, "looping")], "tokens; 1 of 2 are proved never to end."),
    ],
)
def test_the_headline_says_how_often_and_what_is_proved(outcomes: list[tuple[int, str]], said: str):
    headline, *_ = write_verdict([record(outcomes), record(ENDED, decoder="nucleus:0.2")])
    assert headline.tone == "bad"
    assert headline.text.startswith("lstm does not always stop: ")
    assert headline.text.endswith(said)


def test_an_eos_keeping_sampler_is_praised_only_where_its_plain_form_failed():
    plain, keeping = record(LEFT, decoder="top-k:2"), record(ENDED, decoder="consistent-top-k:2")
    never, useless = record(ENDED, decoder="top-k:4"), record(ENDED, decoder="consistent-top-k:4")
    said = say(plain, keeping, never, useless)
    assert said[1] == "lstm: consistent-top-k:2 ended on every context, where top-k:2 had not."
    assert "consistent-top-k:4" not in " ".join(said)
    late = record(LEFT, decoder="consistent-top-k:2", contexts_from="random")
    assert not any("ended on every context, where" in each for each in say(plain, keeping, elsewhere=[late]))
    assert say(plain, late)[-1].endswith("had not ended on every context at the limit: consistent-top-k:2.")


HEADS = {
    "tanh": ("tanh network", "softmax"),
    "lstm": ("lstm network", "softmax"),
    "tanh-twin": ("tanh network", "self-terminating"),
    "lstm-twin": ("lstm network", "self-terminating"),
    "tanh-again": ("tanh network", "softmax"),
}


def originate(lengths: Mapping[int, int] = MappingProxyType({})) -> Origins:
    """Runs of which it is known what they share."""
    return index_origins(
        Origin(run=run, contexts_from="test", network=network, head=head, lengths=dict(lengths))
        for run, (network, head) in HEADS.items()
    )


def test_a_remedy_is_the_same_network_with_another_head_and_what_always_ended_is_counted():
    failing = [record(LEFT, run=run, contexts_from="test") for run in ("tanh", "lstm")]
    others = [record(ENDED, run=run, contexts_from="test") for run in ("tanh-twin", "lstm-twin", "tanh-again")]
    said = [each.text for each in write_verdict([*failing, *others], origins=originate())]
    named = [each for each in said if "ended on every context, where" in each]
    assert [each.partition(" had not")[0] for each in named] == [
        f"{kind}-twin, the same network with a self-terminating head, ended on every context, where {kind} (greedy)"
        for kind in ("tanh", "lstm")
    ]
    ended = "tanh-twin, lstm-twin, tanh-again"
    assert said[-1] == f"3 of 5 models ended on every context with every decoder tried: {ended}."
    elsewhere = record(ENDED, run="tanh-twin", contexts_from="test", contexts={"count": 9, "digest": "other contexts"})
    assert not find_remedies(failing[0], [failing[0], elsewhere], origins=originate())
    assert not find_remedies(failing[0], [*failing, *others]), "names say nothing"


def test_a_remedy_that_cuts_loops_is_said_to_cut_them():
    failing = record(LEFT)
    for outcomes, said, tone in (
        (CUT, "but 100.0% of them are loops that were cut; all had ended by step 4.", ""),
        (ENDED, "its greedy completions have 3.0 tokens on average.", "good"),
    ):
        sentence = list(write_verdict([failing, record(outcomes, floor=0.01)]))[1]
        assert sentence.text.startswith("lstm on a floor of 0.01 ended on every context, where lstm (greedy) had not;")
        assert sentence.text.endswith(said)
        assert sentence.tone == tone


def test_lengths_stand_beside_those_of_the_data():
    records = [record(LEFT, contexts_from="test"), record(ENDED, run="lstm-twin", contexts_from="test")]
    said = [each.text for each in write_verdict(records, origins=originate({7: 3}))]
    assert said[1].endswith("3.0 tokens on average (the data's: 7.0).")


def test_what_is_known_of_runs_is_kept_beside_their_records(tmp_path: Path):
    for origin in (*originate().values(), *originate({7: 3}).values()):
        save_origin(tmp_path / "records.jsonl", origin)
    assert index_origins(read_origins([tmp_path / "records.jsonl", tmp_path / "none.jsonl"])) == originate({7: 3})
    (tmp_path / "records.origin").write_text("[{")
    with pytest.raises(BadInput, match=r"records\.origin is damaged"):
        read_origins([tmp_path / "records.jsonl"])


@pytest.mark.parametrize(
    ("decoder", "how", "code"),
    [
        ("greedy", {"settings": "s"}, "eosin.Floor(eosin.load('runs/lstm'), epsilon=1e-3)"),
        ("greedy", {}, "eosin.Floor(eosin.load('MODEL'), epsilon=1e-3)"),
        ("greedy", {"run": "demo"}, "eosin.Floor(eosin.load('demo'), epsilon=1e-3)"),
        ("nucleus:0.9", {"settings": "s"}, "eosin decode runs/lstm --decoder consistent-nucleus:0.9"),
        ("beam:4", {"model": {"kind": "CausalLM"}}, "logits_processor=[floor]"),
        (
            "nucleus:0.9",
            {"model": {"kind": "CausalLM"}},
            "top_k=0, top_p=0.9, temperature=1.0, custom_generate=eosin.hub.consistent",
        ),
        (
            "top-k:50,temperature=0.7",
            {"model": {"kind": "CausalLM"}},
            "top_k=50, top_p=1.0, temperature=0.7, custom_generate",
        ),
    ],
)
def test_the_fix_to_copy_is_for_the_model_and_the_decoder(decoder: str, how: dict[str, Any], code: str):
    fix = propose_fix([record(LEFT, decoder=decoder, **how)])
    assert fix
    assert code in fix.code


def test_a_floor_that_was_not_measured_is_said_not_to_be():
    without, beside = (propose_fix([record(LEFT), *more]) for more in ((), [record(ENDED, floor=0.01)]))
    assert without
    assert beside
    assert "With greedy it was not tried on these contexts." in without.why
    assert "was not tried" not in beside.why
    assert beside.why.startswith("lstm on a floor of 0.01 ended on all of these contexts. ")


def test_keeping_eos_is_not_proposed_where_it_did_not_help():
    plain, keeping = record(LEFT, decoder="nucleus:0.9"), record(LEFT, decoder="consistent-nucleus:0.9")
    fix = propose_fix([plain, keeping])
    assert fix
    assert "Floor" in fix.code
    assert propose_fix([record(ENDED)]) is None


def test_the_verdict_of_a_terminal_is_short():
    records = [record(LEFT), record(ENDED, run="lstm-st"), record(LEFT, decoder="beam:4")]
    lines = render_verdict(list(write_verdict(records)), propose_fix(records))
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 120
    assert lines[-1].startswith("    eosin.decode(")


def test_a_narrow_table_has_what_a_first_reader_needs():
    records = [record(LEFT), record([*ENDED[:8], (30, "looping")], decoder="beam:2")]
    narrow, wide = (tabulate_decoders(records, wide).headings for wide in (False, True))
    assert narrow == ("decoder", "r_L (%)", "95% interval", "looping", "limit", "mean length of ended", "contexts")
    assert set(narrow) < set(wide)


WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"torch", "numpy", "jaxtyping", "safetensors", "tokenizers", "tqdm"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from eosin.cli.main import main
main()
"""


def without_torch(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **more)


def test_reports_need_no_torch(audited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "is missing: pip install eosin" in without_torch("audit", "--help").stderr  # it really is not there
    for arguments in (
        ["--help"],
        ["report", "--help"],
        ["report", audited],
        ["report", audited, "--survival", "--lengths", "--models", "--at", "5", "--format", "latex"],
        ["report", audited, "--compare", "coin:greedy", "loop:greedy", "--json"],
    ):
        found = without_torch(*arguments)
        assert (found.returncode, found.stderr) == (0, "")
        if "--help" not in arguments:
            assert run(*arguments) == 0
            assert found.stdout == capsys.readouterr().out
    # a folder may have the name of another verb
    write(tmp_path / "audit" / "a.jsonl", [record([(3, "eos")])])
    assert without_torch("report", "audit", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("arguments", [["RUNS", "--survival"], ["--contexts-for", "0.01"]], ids=["long", "short"])
def test_a_closed_pipe_is_no_error(arguments: list[str], audited: Path):
    """Much output fails while it is printed, little only when it is flushed."""
    command = [sys.executable, "-m", "eosin", "report", *(a.replace("RUNS", str(audited)) for a in arguments)]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_initialisations_are_recognised_from_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Two seeds of one model and one of another, trained, audited and reported by the commands."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "text.txt", real_sentences(120))
    small = '[data]\nsource = "text.txt"\ntokenization = "word"\n[core]\nkind = "tanh"\nwidth = 8\n'
    Path("small.toml").write_text(small + '[head]\nkind = "softmax"\n[training]\nepochs = 1\n', encoding="utf-8")
    for more in ([], ["--seed", "3"], ["--set", "core.width=4", "--out", "runs/narrow"]):
        assert run("train", "small.toml", *more) == 0
    for name in ("small", "small-seed-3", "narrow"):
        options = ["--decoders", "greedy", "--count", "8", "--max-steps", "12"]
        assert run("audit", f"runs/{name}", *options) == 0
    capsys.readouterr()
    assert run("report", "runs", "--models", "--json") == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    (row,) = table["rows"]
    found = dict(zip(table["columns"], row, strict=True))
    assert {name: n for name, n in found.items() if "initialisations" in name} == {
        "narrow: initialisations": 1,
        "small: initialisations": 2,
    }
    ratios = {
        each.record.signature.table["initialisation"]: 100 * each.record.counts.ratio(12).value
        for each in load_records(["runs/small", "runs/small-seed-3"])
    }
    assert ratios.keys() == {0, 3}
    assert found["small: mean"] == pytest.approx(statistics.mean(ratios.values()))
