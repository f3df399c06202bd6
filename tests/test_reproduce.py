"""eosin reproduce: exhibits and presets as data, pieces that are done once, kills, and numbers beside the paper's."""

import csv
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from on_workers import list_children, wait_for
from texts import real_sentences, write_lines
from watches import stop_now

from eosin.causes import Cause
from eosin.cli.main import main
from eosin.contracts import LanguageModel
from eosin.data.corpus import Recipe
from eosin.data.sources import CONTEXTS
from eosin.data.tokenizer import Tokenizer
from eosin.decoding.spec import parse_decoder
from eosin.errors import BadInput
from eosin.events import Stopped, ignore
from eosin.paper import figures, rendering, tables
from eosin.paper.execution import TRACED_STEPS, Runner, build_example, check_plan, read_threads, trace_completions
from eosin.paper.exhibits import CONFIGS, EXHIBITS, PaperNumber, list_names, load_exhibit
from eosin.paper.plan import (
    AuditRun,
    Plan,
    RunPiece,
    drop_duplicates,
    hash_settings,
    hash_text,
    merge_audits,
)
from eosin.paper.presets import PRESETS, load_preset
from eosin.paper.rendering import Reproduction, build_paper_page, list_baseline_records, write_paper_verdict, write_plan
from eosin.paper.results import PIECES, Results
from eosin.proofs.constructions import Repeater, Script
from eosin.records.record import Counts, Record, read_records
from eosin.records.signature import Signature
from eosin.report.page import Page
from eosin.report.tables import Table
from eosin.report.traces import Example, ExampleStep

PAPER = Path(__file__).with_name("paper_tables.tex")
RESULTS = Path(__file__).parents[1] / "results"
FIVE_STEPS = Signature.from_table({"decoder": "greedy", "shard": "all", "max_steps": 5})
MODELS = set(list_names(CONFIGS))

TINY = """
about = "for tests"
exhibits = {exhibits}
max_steps = 12
contexts = 12
tokenization = "word"
must_hold = ["greedy-tanh"]

[changes.data]
source = "{text}"
vocab_size = 300

[changes.core]
width = 8
layers = 1
dropout = 0.0

[changes.training]
epochs = {epochs}
batch = 16
learning_rate = 1e-2
"""


def preset(folder: Path, *exhibits: object, epochs: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    text = write_lines(folder / "text.txt", real_sentences(200))
    path = folder / "tiny.toml"
    path.write_text(TINY.format(exhibits=list(map(str, exhibits)), text=text, epochs=epochs).replace("'", '"'))
    return path


def reproduce(*arguments: object) -> None:
    """The verb, which must succeed: these models hardly know an end."""
    main(["reproduce", *map(str, arguments)])


# the tables of members


@pytest.mark.parametrize("name", list_names(EXHIBITS))
def test_every_exhibit_can_be_made(name: str):
    exhibit = load_exhibit(name)
    assert exhibit.kind in tables.KINDS
    assert set(exhibit.trained_models) | {shown.model for shown in exhibit.models} <= MODELS
    assert set(exhibit.contexts) <= set(CONTEXTS)
    for decoder in [*exhibit.specifications, *(pair.decoder for pair in exhibit.pairs)]:
        assert str(parse_decoder(decoder)) == decoder


def test_every_kind_of_exhibit_occurs():
    assert {load_exhibit(name).kind for name in list_names(EXHIBITS)} == set(tables.KINDS)


CAPTIONS = {
    "table-1-bpe": "tbl:rnn-results-decoding-bpe}",
    "table-1-word": "tbl:rnn-results-decoding}",
    "table-3-bpe": "tbl:st-results-bpe}",
    "table-3-word": "tbl:st-results}",
    "perplexities-bpe": "tbl:rnn-results-ppl-bpe}",
    "perplexities-word": "tbl:rnn-results-ppl-word}",
}


def rows_of_the_paper(name: str) -> dict[str, list[tuple[float, float]]]:
    """Each row of a table of the paper: its first cells, and its numbers."""
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", PAPER.read_text(encoding="utf-8"), re.DOTALL)
    (table,) = [each for each in tables if CAPTIONS[name] in each]
    found = {}
    for number, line in enumerate(table.splitlines()):
        numbers = re.findall(r"([\d.]+) \$\\pm\$ ([\d.]+)", line)
        if numbers:
            found[f"{number} {line.partition('$')[0]}"] = [(float(mean), float(spread)) for mean, spread in numbers]
    return found


@pytest.mark.parametrize("name", CAPTIONS)
def test_the_papers_numbers_are_the_papers(name: str):
    """Row by row and model by model."""
    exhibit, rows = load_exhibit(name), rows_of_the_paper(name)
    numbers = list(rows.values())
    if exhibit.kind == "ratios":
        names = [decoder for decoder in exhibit.decoders if decoder in exhibit.models[0].paper]
        ours = [[tuple(shown.paper[decoder]) for shown in exhibit.models] for decoder in names]
        plain = [
            re.sub(r",.*", "", decoder.replace("top-k", "topk").replace("consistent-", "consistent "))
            for decoder in names
        ]
        assert [re.sub(r":", "-", each) in row for each, row in zip(plain, rows, strict=True)] == [True] * len(rows)
    elif exhibit.kind == "heads":
        ours = [[tuple(shown.paper[key]) for key in ("ratio", "perplexity")] for shown in exhibit.models if shown.paper]
    else:
        ours = [[tuple(shown.paper[split])] for shown in exhibit.models for split in ("train", "test")]
    assert ours == numbers


@pytest.mark.parametrize("name", list_names(PRESETS))
def test_a_plan_has_every_piece_once_and_in_order(name: str):
    chosen = load_preset(name)
    exhibits = tuple(load_exhibit(each, chosen.tokenization) for each in chosen.exhibits)
    plan = Plan(chosen, exhibits, tuple(range(chosen.initialisations)))
    pieces = plan.pieces
    assert len({piece.name for piece in pieces}) == len({piece.key for piece in pieces}) == len(pieces)
    trained: set[str] = set()
    for piece in pieces:
        if isinstance(piece, RunPiece):
            trained.add(piece.run)
        assert set(piece.needed_runs) <= trained


def test_a_search_for_settings_is_of_one_initialisation():
    """The paper searched first, and then trained what it had chosen ten times."""
    whole = load_preset("paper")
    searches = [load_exhibit(name) for name in whole.exhibits if load_exhibit(name).sweep]
    assert len(searches) == 2
    plan = Plan(whole, tuple(searches), tuple(range(whole.initialisations)))
    assert len(plan.trainings) == 72
    assert {piece.seed for piece in plan.trainings} == {0}


@pytest.mark.parametrize("length", [1, 40, 41, 300])
@pytest.mark.parametrize("cause", ["eos", "limit", "looping"])
def test_a_completion_that_ends_is_shown_with_its_end(cause: str, length: int):
    words = [f" {number}" for number in range(length - 1)] + [" <eos>" if cause == "eos" else " more"]
    steps = [ExampleStep(word, 0.5, 0.1, 2, 1, None) for word in words]
    shown = tables.shorten_completion(Example("run", "greedy", 0, "", Cause(cause), steps))
    assert shown.endswith("...") == (cause != "eos" and length > 40)
    assert ("<eos>" in shown) == (cause == "eos")
    assert (f"({length} tokens)" in shown) == (cause == "eos" and length > 40)


def test_audits_that_share_a_file_are_one_with_all_decoders():
    one = AuditRun("run", "test", 0, 10, ("greedy", "top-k:2"))
    other = replace(one, decoders=("top-k:2", "ancestral"))
    elsewhere = replace(one, contexts="valid")
    assert merge_audits([one, other, elsewhere]) == [
        replace(one, decoders=("greedy", "top-k:2", "ancestral")),
        elsewhere,
    ]
    assert drop_duplicates([one, elsewhere, one]) == [one, elsewhere]


def test_examples_of_one_pair_in_two_exhibits_do_not_take_each_other_s_place():
    few = load_exhibit("continuations", "word")
    plan = Plan(load_preset("small"), (few, replace(few, path="more", shown=few.shown + 4)), (0,))
    pieces = plan.examples
    assert len({piece.name for piece in pieces}) == len({piece.file for piece in pieces}) == 2 * len(few.pairs)


# numbers beside the paper's


HUNDREDTHS = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)


@given(st.lists(HUNDREDTHS, min_size=1, max_size=10), st.floats(0, 5), HUNDREDTHS, st.none() | HUNDREDTHS)
def test_a_star_means_that_the_spreads_do_not_meet(
    values: list[float], counted: float, mean: float, deviation: float | None
):
    average = sum(values) / len(values)
    ours = tables.compare_with_paper(values, PaperNumber(mean, deviation), (average - counted, average + counted))
    half = max(counted, stdev(values) if len(values) > 1 else 0.0)
    room = half + 2 * (deviation or 0.0) + 0.005
    assert not ours[4] or abs(average - mean) > room - 1e-9
    assert ours[4] or abs(average - mean) <= room + 1e-9
    assert min(values) - 1e-9 <= ours[0] <= max(values) + 1e-9
    assert ("*" in tables.format_ours(ours)) == bool(ours[4])


@pytest.mark.parametrize(("unended", "starred"), [(0, 0), (1, 0), (2, 1), (3, 1), (8, 1), (15, 1), (16, 1)])
def test_what_the_paper_prints_as_zero_is_below_half_a_hundredth(unended: int, starred: int):
    """On the paper's 10,156 contexts: from two on, the interval excludes every mean that "0.00 ± 0.0" stands for."""
    record = Record(FIVE_STEPS, Counts(10_156, 10_156, Counter({1: 10_156 - unended})))
    found = tables.measure_ratio([record], PaperNumber(0.0, 0.0))
    assert found[4] == starred == int(found[1] > 0.005)


def test_a_perplexity_of_one_initialisation_is_not_compared():
    paper = PaperNumber(45.8, 2.5)
    columns = (tables.make_our_column("perplexity"), tables.make_paper_column("paper"))
    one, two = tables.compare_with_paper([30.6], paper), tables.compare_with_paper([30.6, 30.8], paper)
    assert [tables.format_ours(found) for found in (one, two)] == ["30.60", "30.70 ± 0.14 *"]
    assert tables.count_stars(Table(columns, ((one, paper), (two, paper), (two, None)))) == (1, 1)


@pytest.mark.parametrize(
    ("paper", "ratio", "starred"),
    [
        ((0.06, 0.02), 0.0, 0),
        ((0.13, 0.02), 0.0, 0),
        ((0.0, 0.01), 0.1, 0),
        ((0.0, None), 0.0, 0),
        ((0.0, None), 0.5, 1),
        ((0.02, 0.0), 2.0, 1),
        ((9.0, 0.01), 0.0, 1),
    ],
)
@pytest.mark.parametrize("initialisations", [1, 2, 10])
def test_initialisations_that_agree_tell_no_more_than_their_contexts(
    paper: tuple[float, float | None], ratio: float, starred: int, initialisations: int
):
    """On a thousand contexts each; at the paper's own rates most such audits find nothing."""
    ended = Counter({1: round(1000 - 10 * ratio)})
    records = [Record(FIVE_STEPS, Counts(1000, 1000, ended))] * initialisations
    mean, low, high, count, star = tables.measure_ratio(records, PaperNumber(*paper))
    assert (mean, count, star) == (pytest.approx(ratio), initialisations, starred)
    assert (high > low) == (initialisations == 1)


def test_a_number_without_a_deviation_is_written_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """As GPT-2's are."""
    plan = Plan(load_preset("gpt2"), (load_exhibit("table-4"),), (0,))
    made = tables.KINDS["heads"](tables.ExhibitData(plan, Results(tmp_path), plan.exhibits[0]))
    rows = json.loads(json.dumps(made.flat_rows, allow_nan=False))
    place = made.flat_headings.index("paper perplexity: deviation")
    assert [row[place] for row in rows] == [None] * len(rows)


def open_exhibit(chosen: object, exhibit: str, out: Path) -> tables.ExhibitData:
    plan = Plan(load_preset(str(chosen)), (load_exhibit(exhibit, "word"),), (0,))
    return tables.ExhibitData(plan, Results(out), plan.exhibits[0])


def test_what_is_missing_is_said_and_not_made_up(tmp_path: Path):
    for name in ("table-3-word", "table-1-word", "perplexities-word"):
        exhibit = load_exhibit(name)
        table = tables.KINDS[exhibit.kind](open_exhibit("small", name, tmp_path))
        assert f"Not run: {exhibit.trained_models[0]}, " in table.note
        assert table.rows == ()


# from nothing to a page, and never twice


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A preset and the folder of its finished results."""
    folder = tmp_path_factory.mktemp("reproduced")
    chosen = preset(
        folder,
        *(name for name in list_names(EXHIBITS) if not re.match("grid|published|table-4|.*(bpe|gpt2|smollm2)", name)),
    )
    out = folder / "out"
    reproduce(chosen, "--out", out)
    return chosen, out


def test_everything_is_made(done: tuple[Path, Path]):
    chosen, out = done
    names = load_preset(str(chosen)).exhibits
    for name in names:
        for ending in ("txt", "md", "tex", "csv"):
            assert (out / "tables" / f"{name}.{ending}").read_text().strip()
    drawn = {name for name in names if load_exhibit(name).kind in figures.CHARTS}
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"{name}.{ending}" for name in drawn for ending in figures.FORMATS
    }
    assert "</html>" in (out / "report.html").read_text()
    for entry in Results(out).entries.values():
        assert entry.machine.processor
        assert entry.seconds >= 0


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_tables_say_what_the_records_say(done: tuple[Path, Path]):
    _, out = done
    records = {r.signature.decoder: r for r in read_records(out / "records" / "word-tanh-softmax" / "test-12-12.jsonl")}
    rows = csv_rows(out / "tables" / "table-1-word.csv")
    assert {row["model"] for row in rows} == {"tanh-RNN", "LSTM"}
    of_tanh = [row for row in rows if row["model"] == "tanh-RNN"]
    assert of_tanh
    assert {row["decoder"] for row in of_tanh} <= records.keys()
    for row in of_tanh:
        assert math.isclose(float(row["r_L (%): ours"]), 100 * records[row["decoder"]].counts.ratio(12).value)
    assert (out / "tables" / "table-1-word.txt").read_text().count("\n\n") == 1


BLOCKED = """
import sys
for name in ("torch", "numpy", "matplotlib"): sys.modules[name] = None
from eosin.cli.main import main
main(sys.argv[1:])
"""


def test_a_finished_reproduction_needs_no_torch_and_changes_nothing(done: tuple[Path, Path]):
    chosen, out = done
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    started = time.monotonic()
    again = subprocess.run(
        [sys.executable, "-c", BLOCKED, "reproduce", str(chosen), "--out", str(out)],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    assert "Table 1" in again.stdout
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert time.monotonic() - started < 30  # three seconds where nothing else runs


def test_a_dry_run_lists_every_piece_and_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = preset(tmp_path, "table-3-word")
    before = sorted(tmp_path.rglob("*"))
    reproduce(chosen, "--out", tmp_path / "out", "--dry-run", "--json")
    listed = json.loads(capsys.readouterr().out)
    plan = Plan(load_preset(str(chosen)), (load_exhibit("table-3-word"),), (0,))
    assert list(listed["pieces"]) == [piece.name for piece in plan.pieces]
    assert not any(listed["pieces"].values())
    assert sorted(tmp_path.rglob("*")) == before


def test_more_seeds_add_to_what_is_there(tmp_path: Path):
    chosen = preset(tmp_path, "perplexities-word")
    reproduce(chosen, "--out", tmp_path / "out")
    first = Results(tmp_path / "out").entries
    reproduce(chosen, "--out", tmp_path / "out", "--seeds", "2")
    both = Results(tmp_path / "out").entries
    assert first.items() <= both.items()
    assert {entry.initialisation for entry in both.values()} == {0, 1}
    assert "±" in (tmp_path / "out" / "tables" / "perplexities-word.txt").read_text().splitlines()[2]


def add_run(plan: Plan, results: Results, run: str) -> None:
    """A run that is finished, without being trained."""
    machine = dict.fromkeys(("processor", "torch", "eosin"), "")
    outcome = {"run": run, "perplexity": {"test": 100.0}, "best_epoch": 1, "epochs": 1}
    results.add(plan.run_pieces[run], {**outcome, "seconds": 1.0, "machine": machine})


def test_the_verdict_is_of_all_initialisations(tmp_path: Path):
    """The first ends always, the second never."""
    plan, results = Plan(load_preset("paper"), (load_exhibit("table-1-word", "word"),), (0, 1)), Results(tmp_path)
    for run, ended in (("word-tanh-softmax", {1: 3}), ("word-tanh-softmax-seed-1", {})):
        add_run(plan, results, run)
        path = tmp_path / plan.plan_audit(run).file
        path.parent.mkdir(parents=True)
        counts = Counts(3, 3, Counter(ended))
        asked = {"run": run, "contexts_from": "test", "max_steps": 1500}
        signature = {**asked, "decoder": "greedy", "contexts": {"count": 3}, "shard": "0-2"}
        path.write_text(Record(Signature.from_table(signature), counts).to_line() + "\n")
    data = tables.ExhibitData(plan, results, plan.exhibits[0])
    headline, *_ = write_paper_verdict([data], {})
    assert headline.tone == "bad"
    assert [record.signature.run for record in list_baseline_records([data], 1)] == ["word-tanh-softmax"]


@pytest.mark.parametrize("contexts", ["train", "valid", "random"])
def test_the_verdict_of_a_remedy_is_of_all_kinds_of_contexts(contexts: str, tmp_path: Path):
    plan = Plan(load_preset("small"), (load_exhibit("table-1-bpe"), load_exhibit("contexts")), (0,))
    remedy, results = "consistent-nucleus:0.2", Results(tmp_path)
    add_run(plan, results, "bpe-tanh-softmax")
    for kind, decoder, ended in (("test", "greedy", {}), ("test", remedy, {1: 3}), (contexts, remedy, {1: 2})):
        path = tmp_path / plan.plan_audit("bpe-tanh-softmax", (), kind).file
        path.parent.mkdir(parents=True, exist_ok=True)
        asked = {"run": "bpe-tanh-softmax", "contexts_from": kind, "max_steps": 1500}
        signature = {**asked, "decoder": decoder, "contexts": {"count": 3}, "shard": "0-2"}
        with path.open("a") as file:
            file.write(Record(Signature.from_table(signature), Counts(3, 3, Counter(ended))).to_line() + "\n")
    exhibits = [tables.ExhibitData(plan, results, exhibit) for exhibit in plan.exhibits]
    worst, *_, late = (said.text for said in write_paper_verdict(exhibits, {}))
    assert "greedy had not ended on 100.00%" in worst
    assert late.endswith(f"had not ended on every context at the limit: {remedy}.")


def start(*arguments: object, **how: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "eosin", "reproduce", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **how,
    )


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=300)
    return process.returncode


def outcomes(out: Path) -> dict[str, object]:
    """What came out, but for how long it took."""
    times = ("seconds", "training_seconds")
    entries = Results(out).entries
    return {name: {k: v for k, v in structs.asdict(entry).items() if k not in times} for name, entry in entries.items()}


@pytest.mark.parametrize("kills", [(4,), pytest.param((1, 3, 6), marks=pytest.mark.slow)], ids=str)
def test_a_reproduction_that_is_killed_goes_on(kills: tuple[int, ...], tmp_path: Path):
    chosen = preset(tmp_path, "table-3-word", epochs=3)
    whole = tmp_path / "whole"
    reproduce(chosen, "--out", whole)
    out = tmp_path / "out"
    for after in kills:
        process = start(chosen, "--out", out)
        deadline = time.monotonic() + 120
        while len(Results(out).entries) < after and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    left = len(Results(out).entries)
    reproduce(chosen, "--out", out)
    assert left < len(Results(out).entries) or left == len(Results(whole).entries)
    assert outcomes(out) == outcomes(whole)
    for path in (whole / "records").rglob("*.jsonl"):
        assert (out / path.relative_to(whole)).read_bytes() == path.read_bytes()


def test_a_line_that_was_cut_off_is_done_again(done: tuple[Path, Path], tmp_path: Path):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    lines = (out / PIECES).read_text()
    (out / PIECES).write_text(lines[:-20])
    reproduce(chosen, "--out", out)
    assert outcomes(out) == outcomes(finished)


def test_a_stop_is_heard_while_a_perplexity_is_measured(done: tuple[Path, Path]):
    _, out = done
    runner = Runner(Results(out), out / "runs", watch=stop_now)
    run = runner.open_run("word-tanh-softmax")
    with pytest.raises(Stopped):
        runner.measure_perplexity(runner.load_model(run), run.corpus)


def test_a_run_that_is_not_finished_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = preset(tmp_path, "table-3-word", epochs=50)
    out = tmp_path / "out"
    process = start(chosen, "--out", out)
    log = out / "runs" / "word-tanh-st-1e-3" / "log.jsonl"
    while not (log.is_file() and '"epoch"' in log.read_text().replace('"epoch":', "")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped; what is finished is saved, and the same command resumes" in error
    capsys.readouterr()
    reproduce(chosen, "--out", out, "--as-is")
    printed = capsys.readouterr().out
    assert printed.count("skipped: not trained to the end") == 9  # of ten, each once
    (heads,) = csv_rows(out / "tables" / "table-3-word.csv")
    assert heads["head"] == "self-terminating 1e-2"
    assert "Not run: word-tanh-st-1e-3, " in (out / "tables" / "table-3-word.txt").read_text().replace("\n", " ")
    assert f"`eosin reproduce {chosen} --as-is`" in (out / "README.md").read_text()
    assert "Nothing has been audited" not in (out / "report.html").read_text()


def test_runs_with_other_weights_than_those_of_the_results_are_refused(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "records" / "word-tanh-softmax" / "random-12-12.jsonl").unlink()
    weights = out / "runs" / "word-tanh-softmax" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    assert "has other weights than the word-tanh-softmax" in refused(capsys, chosen, "--out", out)
    shutil.copy(finished / "runs" / "word-tanh-softmax" / weights.name, weights)
    reproduce(chosen, "--out", out)


def test_a_pair_without_examples_says_why(done: tuple[Path, Path], tmp_path: Path):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out, ignore=shutil.ignore_patterns("runs"))
    data = open_exhibit(chosen, "continuations", out)
    ended, untold = (data.plan.plan_examples(pair, data.exhibit.shown) for pair in data.exhibit.pairs[:2])
    data.results.entries[ended.name] = structs.replace(data.results.entries[ended.name], contexts=[])
    (out / ended.file).write_text("")
    del data.results.entries[untold.name]
    table = tables.KINDS["continuations"](data)
    assert f"{ended.run}, {ended.decoder}: ended on every context." in table.note
    assert f"Not finished: {untold.name}." in table.note


# never twice, and never half


def audited(out: Path, run: str = "word-lstm-softmax") -> dict[str, int]:
    """How many contexts each decoder has been through."""
    records = read_records(out / "records" / run / "test-12-12.jsonl")
    return {record.signature.decoder: record.counts.contexts for record in records}


def test_other_exhibits_add_decoders_and_count_nothing_twice(tmp_path: Path):
    chosen, out = preset(tmp_path, "lengths"), tmp_path / "out"
    reproduce(chosen, "--out", out)
    first = audited(out)
    count = first["greedy"]
    reproduce(chosen, "--out", out, "--only", "limits")
    both = audited(out)
    assert len(both) > len(first)
    assert set(both.values()) == {count}
    written = (out / "records" / "word-lstm-softmax" / "test-12-12.jsonl").read_bytes()
    reproduce(chosen, "--out", out, "--only", "lengths")
    assert (out / "records" / "word-lstm-softmax" / "test-12-12.jsonl").read_bytes() == written


def test_an_audit_that_is_not_through_is_not_shown(done: tuple[Path, Path], tmp_path: Path):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out, ignore=shutil.ignore_patterns("runs"))
    path = out / "records" / "word-tanh-softmax" / "test-12-12.jsonl"
    record, *others = read_records(path)
    half = Record(record.signature.change(contexts={"count": 99, "digest": "x"}), record.counts)
    path.write_text("".join(each.to_line() + "\n" for each in (half, *others)))
    data = open_exhibit(chosen, "table-1-word", out)
    table = tables.KINDS["ratios"](data)
    there = [row[1] for row in table.rows if row[0] == "tanh-RNN"]
    assert set(data.exhibit.decoders).difference(there) == {record.signature.decoder}
    assert "Not finished: audit word-tanh-softmax test-12-12." in table.note


def test_a_plan_is_there_from_the_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A reproduction that was stopped goes on without being told again of what it is."""
    chosen, out = preset(tmp_path, "table-3-word"), tmp_path / "out"
    begun = Plan(load_preset(str(chosen)), (load_exhibit("table-3-word"),), (0,))
    reproduce("small", "--out", out, "--only", "statistics", "--set", f"data.source={tmp_path / 'text.txt'}")
    (out / "plan.toml").unlink()
    assert "no plan.toml that says of what preset" in refused(capsys, "--out", out)
    write_plan(begun, out)
    reproduce("--out", out, "--dry-run")
    assert "training word-tanh-softmax" in capsys.readouterr().out


def test_a_text_of_one_s_own_decides_what_comes_out(tmp_path: Path):
    def digest(**data: Path) -> str:
        hash_text.cache_clear()
        return hash_settings("word-tanh-softmax", {"data": {key: str(path) for key, path in data.items()}})

    names = ("train", "valid", "test")
    files = {name: write_lines(tmp_path / f"{name}.txt", real_sentences(20)) for name in names}
    named = {"source": files["train"], "valid": files["valid"], "test": files["test"]}
    before, in_folder = digest(**named), digest(source=tmp_path)
    assert (digest(**named), digest(source=tmp_path)) == (before, in_folder)
    for path in files.values():
        path.write_text(path.read_text() + "one more sentence of ours .\n")
        assert digest(**named) != before
        assert digest(source=tmp_path) != in_folder
        before, in_folder = digest(**named), digest(source=tmp_path)
    assert digest(source=tmp_path / "not there")


def test_examples_that_were_cut_are_made_again(done: tuple[Path, Path], tmp_path: Path):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    path = max((out / "examples").iterdir(), key=lambda path: path.stat().st_size)
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    reproduce(chosen, "--out", out)
    assert path.read_text() == whole


def test_only_some_exhibits_are_shown_where_only_these_are_asked_for(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    before, overview = (out / "plan.toml").read_text(), (out / "README.md").read_text()
    reproduce(chosen, "--out", out, "--only", "lengths", "--tables-only")
    printed = capsys.readouterr().out
    assert "Lengths" in printed
    assert "Table 1:" not in printed
    assert "Table 1:" not in (out / "README.md").read_text()
    reproduce(chosen, "--out", out, "--tables-only")
    assert ((out / "plan.toml").read_text(), (out / "README.md").read_text()) == (before, overview)


def test_results_that_were_moved_go_on(tmp_path: Path):
    chosen, out = preset(tmp_path, "lengths"), tmp_path / "out"
    reproduce(chosen, "--out", out)
    moved = out.rename(tmp_path / "moved")
    (record,) = moved.glob("records/word-lstm-softmax/test-12-12.jsonl")
    written = record.read_bytes()
    record.unlink()
    reproduce("--out", moved)
    assert record.read_bytes() == written


def test_no_run_at_all_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = preset(tmp_path, "perplexities-word")
    arguments = ("--out", tmp_path / "out", "--as-is", "--runs", tmp_path / "nowhere")
    assert "there is no finished run of tiny in" in refused(capsys, chosen, *arguments)


@pytest.mark.parametrize(
    ("what", "name", "value"),
    [
        ("training", "seconds", "a"),
        ("training", "seconds", None),
        ("training", "seconds", 10**400),
        ("training", "machine", {}),
        ("training", "perplexity", "low"),
        ("training", "perplexity", {"valid": 3.0, "test": "low"}),
        ("training", "perplexity", {"valid": 3.0, "test": float("nan")}),
        ("training", "perplexity", {}),
        ("corpus", "lengths", {"train": [[1, 2]], "valid": [[1, 2]], "test": [[1]]}),
        ("corpus", "lengths", {"train": [[1, 2]], "valid": [[1, 2]], "test": [[-1, -2]]}),
        ("corpus", "lengths", {"train": [], "valid": [], "test": []}),
        ("corpus", "lengths", {}),
        ("corpus", "statistics", {}),
        ("corpus", "statistics", {"train": "many"}),
    ],
)
def test_a_piece_that_is_damaged_is_one_line(
    what: str, name: str, value: object, done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, finished = done
    shutil.copytree(finished, tmp_path / "out", ignore=shutil.ignore_patterns("runs"))
    path = tmp_path / "out" / PIECES
    lines = path.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if f'"what": "{what}"' in line)
    lines[place] = json.dumps({**json.loads(lines[place]), name: value})
    path.write_text("\n".join(lines) + "\n")
    said = refused(capsys, chosen, "--out", tmp_path / "out", "--tables-only")
    assert f"line {place + 1} of {path} is not a finished piece" in said


@pytest.mark.parametrize("name", list_names(PRESETS))
def test_every_preset_can_be_worked_on(name: str):
    """But for what is not bundled, nothing is refused in the middle."""
    chosen = load_preset(name)
    plan = Plan(chosen, tuple(load_exhibit(each, chosen.tokenization) for each in chosen.exhibits), (0,))
    check_plan(plan, "cpu", "auto")


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("figures/lengths.svg", None),
        pytest.param("figures/lengths.svg", 0, marks=pytest.mark.slow),
        pytest.param("report.html", None, marks=pytest.mark.slow),
        pytest.param("report.html", 0, marks=pytest.mark.slow),
        ("report.html", 3000),
    ],
)
def test_what_is_shown_is_made_again_where_it_is_gone_or_cut(
    name: str, left: int | None, done: tuple[Path, Path], tmp_path: Path
):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    shown = (out / name).read_bytes()
    (out / name).unlink()
    if left is not None:
        (out / name).write_bytes(shown[:left])
    reproduce(chosen, "--out", out)
    assert (out / name).read_bytes() == shown


def damaged(done: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    """A copy of finished results: the preset, the folder, and records to be damaged."""
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    return chosen, out, out / "records" / "word-tanh-softmax" / "test-12-12.jsonl"


def test_a_record_that_is_there_twice_counts_once(done: tuple[Path, Path], tmp_path: Path):
    chosen, out, path = damaged(done, tmp_path)
    tables = {each.name: each.read_bytes() for each in (out / "tables").iterdir()}
    path.write_text("".join(line * 2 for line in path.read_text().splitlines(keepends=True)))
    reproduce(chosen, "--out", out)
    assert {each.name: each.read_bytes() for each in (out / "tables").iterdir()} == tables


def test_records_of_another_run_are_not_taken_for_its_own(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, out, path = damaged(done, tmp_path)
    shutil.copy(out / "records" / "word-lstm-softmax" / path.name, path)
    assert "run is 'word-lstm-softmax' there" in refused(capsys, chosen, "--out", out)
    path.unlink()
    reproduce(chosen, "--out", out)
    assert path.read_bytes() == (done[1] / path.relative_to(out)).read_bytes()


def test_counts_that_do_not_add_up_are_told(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, out, path = damaged(done, tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    record = json.loads(lines[0])
    record["counts"]["contexts"] += 3
    path.write_text("".join([json.dumps(record) + "\n", *lines[1:]]))
    assert "does not add up" in refused(capsys, chosen, "--out", out)


@pytest.mark.parametrize("steps", [[["a"]], [["a", "b", "c", "d", "e", "f"]], [["a", 0.5, float("nan"), 1, 1, None]]])
def test_examples_that_no_page_can_show_are_told(
    steps: list[list[object]], done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, out, _ = damaged(done, tmp_path)
    path = max((out / "examples").iterdir(), key=lambda path: path.stat().st_size)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(lines[0]), "steps": steps}) + "\n", *lines[1:]]))
    assert f"line 1 of {path} is not an example" in refused(capsys, chosen, "--out", out)


def test_the_page_is_of_the_records_that_are_there(done: tuple[Path, Path]):
    _, out = done
    before = Results(out).compute_digest()
    for path in (next((out / "records").rglob("*.jsonl")), next((out / "examples").iterdir())):
        written = path.read_bytes()
        path.write_bytes(written[:-1])
        assert Results(out).compute_digest() != before
        path.write_bytes(written)
    assert Results(out).compute_digest() == before


def test_somebody_else_s_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = preset(tmp_path, "statistics")
    for name in ("README.md", "report.html", "tables/mine.csv"):
        own = tmp_path / name.replace("/", "-") / name
        own.parent.mkdir(parents=True)
        own.write_text("mine")
        out = tmp_path / name.replace("/", "-")
        assert "would be overwritten" in refused(capsys, chosen, "--out", out)
        assert [path for path in out.rglob("*") if path.is_file()] == [own]


def test_what_another_process_finished_meanwhile_is_not_done_again(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from eosin.cli import reproduce as verb
    from eosin.paper.results import lock_results

    chosen, finished = done
    out = tmp_path / "out"

    @contextmanager
    def held_up(folder: Path) -> Iterator[None]:
        shutil.copytree(finished, out, dirs_exist_ok=True)
        with lock_results(folder):
            yield

    monkeypatch.setattr(verb, "lock_results", held_up)
    reproduce(chosen, "--out", out)
    assert (out / PIECES).read_bytes() == (finished / PIECES).read_bytes()


def test_a_terminal_that_lacks_letters_shows_their_numbers(done: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    chosen, out = done
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = start(chosen, "--out", out)
    printed, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    assert "6.07 \\xb1 5.6" in printed


def test_whoever_has_seen_enough_may_close_the_pipe(tmp_path: Path):
    process = start(preset(tmp_path, "statistics"), "--out", tmp_path / "out")
    assert process.stdout
    process.stdout.close()
    assert process.wait(timeout=120) == 128 + signal.SIGPIPE
    assert process.stderr
    assert process.stderr.read() == ""
    process.stderr.close()


def test_an_audit_goes_on_with_as_many_threads_as_it_was_begun_with(done: tuple[Path, Path], tmp_path: Path):
    _, out = done
    path = out / "records" / "word-tanh-softmax" / "test-12-12.jsonl"
    first, *_ = read_records(path)
    assert read_threads(path) == first.signature.threads
    assert read_threads(tmp_path / "none.jsonl") is None


def test_a_remedy_is_traced_to_its_end_and_a_loop_to_its_limit(done: tuple[Path, Path]):
    words, long = Tokenizer.load(done[1] / "runs" / "word-tanh-softmax"), [1, 2] * TRACED_STEPS

    def trace_one(model: LanguageModel, max_steps: int) -> Example:
        ((completion, steps),) = trace_completions(model, torch.tensor([[1]]), "greedy", [0], max_steps, ignore)
        return build_example("run", "greedy", "", completion, steps, words)

    ended = trace_one(Script([[*long, 0]], vocab_size=3), 1500)
    assert (len(ended.steps), ended.cause, ended.loop) == (len(long) + 1, "eos", None)
    left = trace_one(Repeater(3), TRACED_STEPS + 50)
    assert (len(left.steps), left.cause, left.loop.onset, left.loop.period) == (TRACED_STEPS, "looping", 1, 3)
    left = trace_one(Script([[1, 1, 2, 2] * TRACED_STEPS + [1, 2] * TRACED_STEPS], vocab_size=3), 6 * TRACED_STEPS)
    assert len(left.steps) == left.loop.onset - 1 + TRACED_STEPS > 4 * TRACED_STEPS


def test_the_page_is_made_anew_when_it_has_to_show_something_else(tmp_path: Path):
    chosen, out = preset(tmp_path, "table-3-word", "perplexities-word"), tmp_path / "out"
    reproduce(chosen, "--out", out, "--only", "table-3-word")
    assert "Perplexities of trained models" not in (out / "report.html").read_text()
    reproduce(chosen, "--out", out)
    assert "Perplexities of trained models" in (out / "report.html").read_text()
    before = (out / "report.html").stat().st_mtime_ns
    reproduce(chosen, "--out", out)
    assert (out / "report.html").stat().st_mtime_ns == before


SWEEP = """
kind = "grid"
title = "widths"

[sweep]
"core.width" = [8, 4]
"output.tied" = [true, false]

[[models]]
label = "tanh-RNN"
model = "word-tanh-softmax"
paper = { "core.width" = 4, "output.tied" = false }
"""


def test_a_grid_names_the_best_and_trains_no_model_twice(tmp_path: Path):
    (tmp_path / "grid.toml").write_text(SWEEP)
    chosen, out = preset(tmp_path, tmp_path / "grid.toml", "perplexities-word"), tmp_path / "out"
    reproduce(chosen, "--out", out)
    runs = sorted(path.name for path in (out / "runs").iterdir() if path.name != "data")
    assert "word-tanh-softmax" in runs  # which is 8 wide and tied: the grid's first point
    assert len(runs) == 5
    rows = csv_rows(out / "tables" / "grid.csv")
    best = min(rows, key=lambda row: float(row["valid perplexity: ours"]))
    assert [row["chosen by"].startswith("us") for row in rows] == [row is best for row in rows]
    assert [row for row in rows if "the paper" in row["chosen by"]] == [
        row for row in rows if row["width"] == "4" and row["tied"] == "False"
    ]
    data = open_exhibit(chosen, str(tmp_path / "grid.toml"), out)
    del data.results.entries["training word-tanh-softmax"]
    table = tables.KINDS["grid"](data)
    assert {row[-1] for row in table.rows} == {"", "the paper"}  # nobody chooses from a part


DROPOUT = """
kind = "grid"
title = "dropout"
decoders = ["greedy"]
initialisations = 2

[sweep]
"core.dropout" = [0.1, 0.4]

[[models]]
label = "tanh-RNN"
model = "word-tanh-softmax"
"""


def test_a_sweep_with_a_decoder_audits_the_first_initialisations_of_each_setting(tmp_path: Path):
    """Mean and deviation of r_L beside the perplexity, and a figure with a point for each initialisation."""
    (tmp_path / "dropout.toml").write_text(DROPOUT)
    chosen, out = preset(tmp_path, tmp_path / "dropout.toml"), tmp_path / "out"
    reproduce(chosen, "--out", out, "--seeds", "3")
    runs = sorted(path.name for path in (out / "records").iterdir())
    assert runs == sorted(
        f"word-tanh-softmax{seed}-dropout-{dropout}" for seed in ("", "-seed-1") for dropout in ("0.1", "0.4")
    )
    rows = csv_rows(out / "tables" / "dropout.csv")
    assert [row["greedy r_L (%): initialisations"] for row in rows] == ["2", "2"]
    assert sum(row["chosen by"] == "us" for row in rows) == 1
    unended = [
        100 * record.counts.ratio(12).value
        for run in ("word-tanh-softmax-dropout-0.4", "word-tanh-softmax-seed-1-dropout-0.4")
        for record in read_records(out / "records" / run / "test-12-12.jsonl")
    ]
    assert float(rows[1]["greedy r_L (%): ours"]) == pytest.approx(sum(unended) / 2)
    assert (out / "figures" / "dropout.svg").is_file()


def test_the_dropout_figure_of_seeds_has_three_initialisations_a_point():
    """The first value is that of the preset, so it needs no trainings of its own."""
    seeds = load_preset("seeds")
    plan = Plan(seeds, (load_exhibit("dropout"),), tuple(range(seeds.initialisations)))
    assert {piece.run for piece in plan.trainings} == {
        f"bpe-tanh-softmax{seed}{dropout}"
        for seed in ("", "-seed-1", "-seed-2")
        for dropout in ("", "-dropout-0.2", "-dropout-0.3")
    }


ENDS_AT_ONCE = """
[changes.head]
kind = "self-terminating"
epsilon = 0.9
"""


def test_only_a_claim_that_is_refuted_fails_a_reproduction(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = preset(tmp_path, "table-1-word")
    usual = chosen.read_text()
    chosen.write_text(usual + ENDS_AT_ONCE)
    reproduce(chosen, "--out", tmp_path / "undecided")
    assert "warning: Greedy decoding can go on for ever: tanh-RNN: undecided, 0.00" in capsys.readouterr().err
    chosen.write_text(usual.replace("greedy-tanh", "ancestral"))
    with pytest.raises(SystemExit) as end:
        reproduce(chosen, "--out", tmp_path / "refuted")
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert "Ancestral sampling always ends: does not, 100.00" in said
    assert "claims of the paper are refuted, so this reproduction has failed" in said
    assert "with other settings" in refused(capsys, chosen, "--out", tmp_path / "undecided")


def test_a_signal_to_end_is_heard_while_auditing(tmp_path: Path):
    chosen, out = preset(tmp_path, "lengths"), tmp_path / "out"
    reproduce(chosen, "--out", out)
    plan = Plan(load_preset(str(chosen)), (load_exhibit("limits", "word"),), (0,))
    (audit,) = [piece for piece in plan.audits if piece.run == "word-lstm-softmax"]
    with pytest.raises(Stopped):
        Runner(Results(out), out / "runs", watch=stop_now).do(audit)


def test_runs_that_lie_elsewhere_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen, out = preset(tmp_path, "lengths"), tmp_path / "out"
    reproduce(chosen, "--out", out, "--runs", tmp_path / "there")
    assert "name the folder that it is in (--runs)" in refused(
        capsys, chosen, "--out", out, "--only", "lengths", "survival"
    )


# bad input


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *map(str, arguments)])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_nonsense_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "did you mean 'quick'?" in refused(capsys, "quik")
    assert "did you mean 'table-1-bpe'?" in refused(capsys, "quick", "--only", "table-1-bep")
    assert "no results" in refused(capsys, "quick", "--out", tmp_path / "nothing", "--tables-only")
    (tmp_path / "bad.toml").write_text("kind = 3")
    assert "bad" in refused(capsys, "quick", "--only", tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text('about = "x"\nexhibits = []\nmodels = 3')
    assert "'models' is not a setting" in refused(capsys, tmp_path / "odd.toml")
    (tmp_path / "statistics.toml").write_text('kind = "statistics"\ntitle = "t"')
    assert "two exhibits are called statistics" in refused(
        capsys, "quick", "--only", "statistics", tmp_path / "statistics.toml", "--out", tmp_path / "nothing"
    )
    assert "--seeds N instead of" in refused(capsys, "quick", "--set", "training.seed=3")
    (tmp_path / "two.toml").write_text('kind = "heads"\ntitle = "t"\ndecoders = ["greedy", "ancestral"]')
    assert "has one decoder, got greedy, ancestral" in refused(
        capsys, "quick", "--only", tmp_path / "two.toml", "--out", tmp_path / "nothing"
    )
    (tmp_path / "a.toml").write_text('base = "b.toml"')
    (tmp_path / "b.toml").write_text('base = "a.toml"')
    (tmp_path / "round.toml").write_text(
        f'kind = "perplexities"\ntitle = "t"\n[[models]]\nlabel = "l"\nmodel = "{tmp_path / "a.toml"}"\n'
    )
    assert "form a circle" in refused(capsys, "quick", "--only", tmp_path / "round.toml")
    (tmp_path / "file").write_text("")
    assert "file" in refused(capsys, "quick", "--out", tmp_path / "file" / "out")
    assert "cannot write in /proc/1/nothing" in refused(capsys, "quick", "--out", "/proc/1/nothing")
    for option in ("--out", "--runs"):
        assert f"{option}: must be a folder, and is empty" in refused(capsys, "quick", option, "")


OWN = """
kind = "{kind}"
title = "mine"
{more}
[[models]]
label = "l"
model = "word-tanh-softmax"
{model}
"""


@pytest.mark.parametrize(
    ("kind", "more", "model", "said"),
    [
        ("ratios", 'decoders = ["greeedy"]', "", "did you mean 'greedy'?"),
        ("ratios", 'decoders = ["greedy"]\ncontexts = ["tset"]', "", "did you mean 'test'?"),
        ("temperature", 'decoders = ["greedy"]\ntemperatures = [0.5]', "", "greedy"),
        ("temperature", 'decoders = ["ancestral"]\ntemperatures = [0]', "", "must be positive"),
        ("heads", 'decoders = ["greedy"]', "floor = 2", "floor must be 0"),
        ("heads", 'decoders = ["greedy"]', "paper = { ratio = 3 }", "[mean] or [mean, deviation]"),
        ("perplexities", "", 'paper = { train = ["a"] }', "[mean] or [mean, deviation]"),
        ("statistics", "", 'paper = { train = "many" }', "are numbers"),
        (
            "limits",
            'decoders = ["greedy"]\nlimits = ["a"]',
            "",
            "limits must be a list, each entry of it a whole number",
        ),
        ("grid", "sweep = { width = [1] }", "", "section.key"),
        ("grid", 'sweep = { "core.width" = 8 }', "", "sweep must be a table, each entry of it a list"),
        ("ratios", "decoders = [3]", "", "decoders must be a list, each entry of it a string, got [3]"),
    ],
)
def test_mistakes_in_an_exhibit_are_told_before_anything_is_trained(
    kind: str, more: str, model: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    own = tmp_path / "own.toml"
    own.write_text(OWN.format(kind=kind, more=more, model=model))
    chosen = preset(tmp_path, own)
    assert said in refused(capsys, chosen, "--out", tmp_path / "out")
    assert said in refused(capsys, chosen, "--out", tmp_path / "out", "--dry-run")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exhibits = [3]", "exhibits must be a list, each entry of it a string"),
        ("exhibits = []\n[changes]\ncore = 3", "changes must be a table"),
        ("exhibits = []", "a preset names exhibits"),
        ('exhibits = ["statistics"]\n[bundled]\n"word-tahn-softmax" = "demo"', "did you mean 'word-tanh-softmax'?"),
        ('exhibits = ["statistics"]\ninitialisations = 100000', "1 to 1000"),
        ('exhibits = []\n[matching]\n"*" = 3', "matching must be a table"),
        ('exhibits = ["statistics"]\ncontexts = -1', "contexts at least 0"),
    ],
)
def test_mistakes_in_a_preset_are_one_line(line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "own.toml").write_text(f'about = "x"\n{line}\n')
    assert said in refused(capsys, tmp_path / "own.toml", "--out", tmp_path / "out")


@pytest.mark.parametrize(
    "line", ["seeds = true", 'seeds = "x"', "exhibits = 3", "exhibits = [3]", "preset = 3", "set = 3"]
)
def test_a_damaged_plan_is_one_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "plan.toml").write_text(f"[plan]\n{line}\n")
    assert "plan" in refused(capsys, "--out", tmp_path, "--dry-run")


def test_a_missing_extra_is_named_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("eosin.cli.reproduce.find_spec", lambda name: None)
    assert "pip install 'eosin[report]'" in refused(capsys, preset(tmp_path, "table-3-word"), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_results_of_other_settings_are_left_alone(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _, finished = done
    other = preset(tmp_path, "table-3-word", epochs=2)
    before = (finished / PIECES).read_bytes()
    assert "with other settings" in refused(capsys, other, "--out", finished)
    assert (finished / PIECES).read_bytes() == before


def test_records_of_another_version_are_kept_beside_those_that_are_made_anew(
    done: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    name = "audit word-tanh-softmax test-12-12-floor-0.001"
    path = out / "records" / "word-tanh-softmax" / "test-12-12-floor-0.001.jsonl"
    path.write_text(re.sub(r'"eosin": "[^"]*"', '"eosin": "0.0.1"', path.read_text()))
    kept = path.read_bytes()
    lines = (out / PIECES).read_text().splitlines(keepends=True)
    (out / PIECES).write_text("".join(line for line in lines if json.loads(line)["name"] != name))
    reproduce(chosen, "--out", out, "--runs", finished / "runs")
    assert "starts over" in caplog.text
    assert path.with_name(f"{path.name}.1.kept").read_bytes() == kept
    assert path.read_bytes() != kept


def test_a_damaged_list_of_pieces_is_one_line(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, _ = done
    for line in ('{"no": "piece"}', '{"name": "x", "key": "k", "what": "training", "seconds": 1, "machine": {}}', "[]"):
        (tmp_path / PIECES).write_text(line + "\n")
        assert "is not a finished piece" in refused(capsys, chosen, "--out", tmp_path)


def test_a_full_disk_is_one_line_and_what_is_finished_stays(tmp_path: Path):
    """There is room for everything but the figures and the page."""
    chosen, out = preset(tmp_path, "table-3-word"), tmp_path / "out"
    most = 50_000
    full = start(chosen, "--out", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
    _, error = full.communicate(timeout=120)
    assert full.returncode == 2
    assert error.count("\n") == 1
    assert "what is finished is in" in error
    before = Results(out).entries
    assert len(before) == 22
    assert not (out / "report.html").exists()
    assert ended(start(chosen, "--out", out)) == 0
    assert Results(out).entries == before


def test_two_at_once_are_refused(done: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    from eosin.paper.results import lock_results

    chosen, out = done
    (out / "report.html").unlink()
    with lock_results(out):
        assert "another process is at work" in refused(capsys, chosen, "--out", out)


# what is committed


@pytest.mark.parametrize("folder", sorted(RESULTS.glob("*/")) or [pytest.param(None, marks=pytest.mark.skip)], ids=str)
def test_committed_tables_are_what_the_committed_records_render_to(folder: Path, tmp_path: Path):
    made = tmp_path / folder.name
    shutil.copytree(folder, made)
    shutil.rmtree(made / "tables")
    reproduce("--out", made, "--tables-only")
    for path in [folder / "README.md", *(folder / "tables").iterdir()]:
        assert (made / path.relative_to(folder)).read_text() == path.read_text(), path
    assert {path.name for path in (made / "tables").iterdir()} == {path.name for path in (folder / "tables").iterdir()}


def build_page(name: str, results: Path | None = None) -> Page:
    """The page of a preset, usually of its committed results."""
    chosen = load_preset(name)
    plan = Plan(chosen, tuple(load_exhibit(each, chosen.tokenization) for each in chosen.exhibits), (0,))
    return build_paper_page(Reproduction(plan, Results(results or RESULTS / name)))


def read_rows(name: str) -> list[str]:
    """The rows of all tables of a committed README.md."""
    return [line for line in (RESULTS / name / "README.md").read_text().splitlines() if line.startswith("|")]


def test_a_page_counts_the_stars():
    stars = sum(row.count("\\*") for row in read_rows("with-unk"))
    assert stars > 0
    assert any(f"{stars} of " in line for line in build_page("with-unk").notes)


def test_a_page_names_every_head():
    said, rows = [each.text for each in build_page("quick").verdict], read_rows("quick")
    heads = load_exhibit("table-3-bpe").models
    measured = [each for each in heads if any(f"| {each.head} " in row for row in rows)]
    assert len(measured) == 6
    for member in measured:
        row = next(row for row in rows if row.startswith(f"| {member.label}") and f"| {member.head} " in row)
        ratio = re.split(r" *\| *", row)[3].split()[0]
        line = next(line for line in said if line.startswith(f"Table 3, {member.label}: the test perplexity is "))
        assert re.search(rf"[0-9.]+ with {member.head} \({ratio}% ", line)


def test_a_remedy_is_of_the_same_network_and_beside_the_lengths_of_its_own_data():
    said = [each.text for each in build_page("quick").verdict if "ended on every context, where" in each.text]
    twins = [each for each in said if "the same network" in each]
    assert [re.findall(r"demo\S*|quick\S*", each.partition(" had not")[0]) for each in twins] == [
        ["demo-st,", "demo"],
        ["demo-lstm-st,", "demo-lstm"],
        ["quick-st-1e-3,", "quick-softmax"],
    ]
    assert ["(the data's: 19.0)" in each for each in twins] == [True, True, False], "the third has words of its own"
    assert not any(each.startswith("demo-lstm ended") for each in said)


def test_a_page_has_the_claims_that_were_measured_and_counts_the_others():
    (table,) = build_page("quick").summary
    assert table.headings[:2] == ("the paper says", "verdict")
    assert {row[1] for row in table.rows} == {"holds", "undecided", "does not"}
    assert table.note.endswith("2 more claims are not measured here.")


def test_a_sweep_of_one_value_is_not_drawn():
    assert not any("dropout" in chart.title for chart in build_page("seeds").charts)


def test_a_page_names_the_text_and_the_length_of_prefixes():
    chosen = load_preset("small")
    plan = Plan(chosen, (load_exhibit("table-1-bpe"),), (0,))
    assert rendering.describe_corpus(plan) == [("text", "wikitext-2-sentences"), ("prefix length k", "10")]
    assert Recipe(source="text", tokenization="bpe").context == rendering.PAPER_CONTEXT


def test_the_paper_is_marked_only_beside_models_of_its_sizes():
    assert load_preset("paper").has_paper_sizes
    assert load_preset("small").has_paper_sizes
    assert not load_preset("seeds").has_paper_sizes
    assert not load_preset("quick").has_paper_sizes


def test_a_missing_run_is_named_once(tmp_path: Path):
    said = " ".join(build_page("with-unk", tmp_path).sources)
    assert said.count("Not run") == said.count("bpe-lstm-softmax") == 1


def test_what_is_in_the_way_is_told_or_made_anew(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "report.html").write_bytes(b"\xff\xfe")
    reproduce(chosen, "--out", out)
    assert "</html>" in (out / "report.html").read_text()
    (out / "report.html").unlink()
    (out / "report.html").mkdir()
    capsys.readouterr()
    assert "report.html is a folder or a device" in refused(capsys, chosen, "--out", out)
    shutil.rmtree(out / "tables")
    (out / "tables").write_text("")
    assert "when that is mended the same command resumes" in refused(capsys, chosen, "--out", out, "--tables-only")
    for text in ("[plan", "[plan]\npreset = 3", ""):
        (out / "plan.toml").write_text(text)
        said = refused(capsys, "--out", out)
        assert "plan.toml is damaged" in said
        assert "name the preset" in said
    (tmp_path / "round.toml").symlink_to(tmp_path / "round.toml")
    assert "cannot read" in refused(capsys, tmp_path / "round.toml")
    assert "cannot read" in refused(capsys, chosen, "--only", tmp_path / "round.toml")


def test_two_models_of_one_name_are_told_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for core in ("tanh", "lstm"):
        (tmp_path / core).mkdir()
        (tmp_path / core / "m.toml").write_text(f'base = "{CONFIGS / f"word-{core}-softmax.toml"}"')
    exhibit = "".join(
        f'[[models]]\nlabel = "{core}"\nmodel = "{tmp_path / core / "m.toml"}"\n' for core in ("tanh", "lstm")
    )
    (tmp_path / "both.toml").write_text(f'kind = "perplexities"\ntitle = "t"\n{exhibit}')
    chosen = preset(tmp_path, tmp_path / "both.toml")
    assert "two models are called m" in refused(capsys, chosen, "--out", tmp_path / "out", "--dry-run")


def test_bad_exhibits_raise(tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text('kind = "ratios"\ntitle = "mine"\nmodels = [3]')
    with pytest.raises(BadInput):
        load_exhibit(str(path))


# workers


def read_outcomes(out: Path) -> dict[str, dict[str, object]]:
    """What every piece came to, without how long it took."""
    lines = map(json.loads, (out / PIECES).read_text(encoding="utf-8").splitlines())
    timed = ("seconds", "training_seconds", "machine")
    return {line["name"]: {key: value for key, value in line.items() if key not in timed} for line in lines}


@pytest.mark.slow
def test_workers_make_the_same_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Also if one of them is killed in the middle of a training, and the rest is stopped and begun again."""
    chosen, here, there = preset(tmp_path, "table-1-word", "lengths", epochs=12), tmp_path / "here", tmp_path / "there"
    reproduce(chosen, "--out", here, "--threads", 1)
    command = [sys.executable, "-m", "eosin", "reproduce", str(chosen), "--out", str(there), "--workers", "2"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list((there / "runs").glob("*/log.jsonl")))
    os.kill(list_children(driver.pid)[0], signal.SIGKILL)
    assert driver.stderr
    assert any("a worker is lost: it was killed" in line for line in driver.stderr)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors
    assert read_outcomes(there) == read_outcomes(here)
    for path in (here / "records").rglob("*.jsonl"):
        assert (there / path.relative_to(here)).read_bytes() == path.read_bytes()
    reproduce(chosen, "--out", there, "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["stages"] == []


def test_a_dry_run_says_how_wide_a_plan_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    reproduce(preset(tmp_path, "table-1-word", "lengths"), "--out", tmp_path / "out", "--dry-run")
    stages = [line for line in capsys.readouterr().out.splitlines() if line.startswith("at once")]
    assert len(stages) == 3
    assert stages[1:] == ["at once, stage 2: 3 (3 training)", "at once, stage 3: 3 (3 audit)"]


def test_gpus_are_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = preset(tmp_path, "lengths")
    assert "--gpus-per-training is for a cluster" in refused(capsys, chosen, "--gpus-per-training", "0.5")
