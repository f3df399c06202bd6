"""eosin reproduce: exhibits and presets as data, pieces that are done once, kills, and numbers beside the paper's."""

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
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import real_sentences, write_lines

from eosin.auditing.record import read_records
from eosin.cli import main
from eosin.decoding.spec import parse_decoder
from eosin.errors import BadInput
from eosin.reproduction import figures, tables
from eosin.reproduction.exhibits import FOLDER, exhibit_names, load_exhibit
from eosin.reproduction.pieces import Audit, Examples, Plan, Training, gathered, unique
from eosin.reproduction.presets import load_preset, preset_names
from eosin.reproduction.results import PIECES, Results
from eosin.text.corpus import CONTEXTS

PAPER = Path(__file__).parents[2] / "shared" / "seed" / "consistency_paper.tex"
RESULTS = Path(__file__).parents[1] / "results"
MODELS = {path.stem for path in FOLDER.glob("*.toml")}

TINY = """
about = "for tests"
exhibits = {exhibits}
max_steps = 12
contexts = 12
tokenization = "word"
baselines = ["word-tanh-softmax"]

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


def preset(folder: Path, *exhibits: str, epochs: int = 1) -> Path:
    text = write_lines(folder / "text.txt", real_sentences(200))
    path = folder / "tiny.toml"
    path.write_text(TINY.format(exhibits=list(exhibits), text=text, epochs=epochs).replace("'", '"'))
    return path


def reproduce(*arguments: object) -> None:
    """The verb; a tiny baseline may end on every context, which is exit code 1."""
    try:
        main(["reproduce", *map(str, arguments)])
    except SystemExit as end:
        if end.code != 1:
            raise


# the tables of members


@pytest.mark.parametrize("name", exhibit_names())
def test_every_exhibit_can_be_made(name: str):
    exhibit = load_exhibit(name)
    assert exhibit.kind in tables.KINDS
    assert set(exhibit.trained) | {shown.model for shown in exhibit.models} <= MODELS
    assert set(exhibit.contexts) <= set(CONTEXTS)
    for decoder in [*exhibit.specifications, *(pair.decoder for pair in exhibit.pairs)]:
        assert str(parse_decoder(decoder)) == decoder


def test_every_kind_of_exhibit_occurs():
    assert {load_exhibit(name).kind for name in exhibit_names()} == set(tables.KINDS)


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not beside this checkout")
@pytest.mark.parametrize("name", [name for name in exhibit_names() if re.match("table|perpl", name)])
def test_the_papers_numbers_are_the_papers(name: str):
    text = PAPER.read_text(encoding="utf-8")
    numbers = [pair for shown in load_exhibit(name).models for pair in shown.paper.values()]
    assert numbers
    for mean, deviation in numbers:
        assert re.search(rf"\b0?{mean:.2f} \$\\pm\$ {deviation:g}", text) or re.search(
            rf"\b0?{mean:.2f} \$\\pm\$ {deviation}", text
        )


@pytest.mark.parametrize("name", preset_names())
def test_a_plan_has_every_piece_once_and_in_order(name: str):
    chosen = load_preset(name)
    exhibits = tuple(load_exhibit(each, chosen.tokenization) for each in chosen.exhibits)
    plan = Plan(chosen, exhibits, tuple(range(chosen.initialisations)))
    pieces = plan.pieces
    assert len({piece.name for piece in pieces}) == len({piece.key for piece in pieces}) == len(pieces)
    trained: set[str] = set()
    for piece in pieces:
        if isinstance(piece, Training):
            trained.add(piece.run)
        if isinstance(piece, Audit):
            assert piece.run in trained
        if isinstance(piece, Examples):
            assert {piece.run, piece.remedy_run} <= trained
    assert set(chosen.baselines) <= {piece.model for piece in pieces if isinstance(piece, Training)}


def test_audits_that_share_a_file_are_one_with_all_decoders():
    one = Audit("run", "test", 0, 10, ("greedy", "top-k:2"))
    other = replace(one, decoders=("top-k:2", "ancestral"))
    elsewhere = replace(one, contexts="valid")
    assert gathered([one, other, elsewhere]) == [replace(one, decoders=("greedy", "top-k:2", "ancestral")), elsewhere]
    assert unique([one, other, one]) == [one, other]


# numbers beside the paper's


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10), st.floats(0, 100), st.floats(0, 10))
def test_a_star_means_that_the_spreads_do_not_meet(values: list[float], mean: float, deviation: float):
    ours = tables.ours(values, (values[0], values[0]), (mean, deviation))
    low, high = ours[1], ours[2]
    apart = max(low - mean, mean - high)
    assert ours[4] == (apart > 2 * deviation + tables.ROUNDING)
    assert min(values) - 1e-9 <= ours[0] <= max(values) + 1e-9
    assert ("*" in tables.shown_ours(ours)) == bool(ours[4])


def view_of(chosen: object, exhibit: str, out: Path) -> tables.View:
    plan = Plan(load_preset(str(chosen)), (load_exhibit(exhibit, "word"),), (0,))
    return tables.View(plan.exhibits[0], plan, Results(out))


def test_what_is_missing_is_said_and_not_made_up(tmp_path: Path):
    (table,) = tables.KINDS["heads"](view_of("quick", "table-3-word", tmp_path))
    assert "Not trained yet: word-tanh-st-1e-2, word-tanh-st-1e-3, " in table.note
    assert {row[2] for row in table.rows} == {row[4] for row in table.rows} == {None}


# from nothing to a page, and never twice


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A preset and the folder of its finished results."""
    folder = tmp_path_factory.mktemp("reproduced")
    chosen = preset(folder, *(name for name in exhibit_names() if not re.match("grid|.*bpe", name)))
    out = folder / "out"
    reproduce(chosen, "--out", out)
    return chosen, out


def test_everything_is_made(done: tuple[Path, Path]):
    chosen, out = done
    names = load_preset(str(chosen)).exhibits
    for name in names:
        for ending in ("txt", "md", "tex", "csv"):
            assert (out / "tables" / f"{name}.{ending}").read_text().strip()
    drawn = {name for name in names if load_exhibit(name).kind in figures.FIGURES}
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"{name}.{ending}" for name in drawn for ending in figures.ENDINGS
    }
    assert "</html>" in (out / "report.html").read_text()
    for entry in Results(out).entries.values():
        assert entry["machine"]["processor"]
        assert entry["seconds"] >= 0


def test_tables_say_what_the_records_say(done: tuple[Path, Path]):
    _, out = done
    records = {r.signature["decoder"]: r for r in read_records(out / "records" / "word-tanh-softmax" / "test-12.jsonl")}
    (head, *rows) = (out / "tables" / "table-1-word.csv").read_text().splitlines()
    place = head.split(",").index("tanh-RNN r_L (%): ours")
    for row in rows:
        decoder = row.split(",")[0]
        if decoder.startswith('"'):
            continue  # a decoder with a comma
        assert math.isclose(float(row.split(",")[place]), 100 * records[decoder].counts.ratio(12).value)


BLOCKED = """
import sys
for name in ("torch", "numpy", "matplotlib"): sys.modules[name] = None
from eosin.cli import main
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
    assert again.returncode in (0, 1), again.stderr
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
    assert all(cost > 0 for cost in listed["pieces"].values())
    assert sorted(tmp_path.rglob("*")) == before


def test_more_seeds_add_to_what_is_there(tmp_path: Path):
    chosen = preset(tmp_path, "perplexities-word")
    reproduce(chosen, "--out", tmp_path / "out")
    first = Results(tmp_path / "out").entries
    reproduce(chosen, "--out", tmp_path / "out", "--seeds", "2")
    both = Results(tmp_path / "out").entries
    assert first.items() <= both.items()
    assert {entry["initialisation"] for entry in both.values()} == {0, 1}
    assert "±" in (tmp_path / "out" / "tables" / "perplexities-word.txt").read_text().splitlines()[2]


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
    return {name: {k: v for k, v in entry.items() if k not in times} for name, entry in entries.items()}


def test_a_reproduction_that_is_killed_goes_on(tmp_path: Path):
    chosen = preset(tmp_path, "table-3-word", epochs=3)
    whole = tmp_path / "whole"
    assert ended(start(chosen, "--out", whole)) in (0, 1)
    out = tmp_path / "out"
    for after in (1, 3, 6):
        process = start(chosen, "--out", out)
        deadline = time.monotonic() + 120
        while len(Results(out).entries) < after and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    left = len(Results(out).entries)
    assert ended(start(chosen, "--out", out)) in (0, 1)
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


def test_an_unfinished_run_appears_as_unfinished(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chosen = preset(tmp_path, "table-3-word", epochs=50)
    out = tmp_path / "out"
    process = start(chosen, "--out", out)
    log = out / "runs" / "word-tanh-st-1e-2" / "log.jsonl"
    while not (log.is_file() and '"epoch"' in log.read_text().replace('"epoch":', "")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped and saved; the same command goes on" in error
    reproduce(chosen, "--out", out, "--as-is")
    (table,) = tables.KINDS["heads"](view_of(chosen, "table-3-word", out))
    assert "Unfinished: word-tanh-st-1e-2, after" in table.note
    assert "Not trained yet: word-tanh-st-1e-3, " in table.note
    assert list((out / "records").glob("word-tanh-st-1e-2@epoch-*/test-12.jsonl"))


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
    assert "there are two presets" in refused(capsys, "quick", "--preset", "small")
    assert "no results" in refused(capsys, "quick", "--out", tmp_path / "nothing", "--tables-only")
    (tmp_path / "bad.toml").write_text("kind = 3")
    assert "bad" in refused(capsys, "quick", "--only", tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text('about = "x"\nexhibits = []\nmodels = 3')
    assert "'models' is not a setting" in refused(capsys, tmp_path / "odd.toml")
    (tmp_path / "file").write_text("")
    assert "file" in refused(capsys, "quick", "--out", tmp_path / "file" / "out")
    assert "cannot write in /proc/1/nothing" in refused(capsys, "quick", "--out", "/proc/1/nothing")


def test_a_missing_extra_is_named_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("eosin.verbs.reproduce.find_spec", lambda name: None)
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


def test_records_of_another_version_are_refused_and_kept(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, finished = done
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    name = "audit word-tanh-softmax test-12-floor-0.001"
    path = out / "records" / "word-tanh-softmax" / "test-12-floor-0.001.jsonl"
    path.write_text(re.sub(r'"eosin": "[^"]*"', '"eosin": "0.0.1"', path.read_text()))
    kept = path.read_bytes()
    lines = (out / PIECES).read_text().splitlines(keepends=True)
    (out / PIECES).write_text("".join(line for line in lines if json.loads(line)["name"] != name))
    assert "another audit: eosin is '0.0.1' there" in refused(capsys, chosen, "--out", out)
    assert path.read_bytes() == kept


def test_a_damaged_list_of_pieces_is_one_line(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen, _ = done
    (tmp_path / PIECES).write_text('{"no": "piece"}\n')
    assert "is not a finished piece" in refused(capsys, chosen, "--out", tmp_path)


def test_a_full_disk_is_one_line_and_what_is_finished_stays(tmp_path: Path):
    chosen, out = preset(tmp_path, "table-3-word"), tmp_path / "out"
    full = start(chosen, "--out", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, 25_000)))
    _, error = full.communicate(timeout=120)
    assert full.returncode == 2
    assert error.count("\n") == 1
    assert "too large" in error or "space" in error
    assert ended(start(chosen, "--out", out)) in (0, 1)


def test_two_at_once_are_refused(done: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    from eosin.reproduction.results import locked

    chosen, out = done
    (out / "report.html").unlink()
    with locked(out):
        assert "another process is at work" in refused(capsys, chosen, "--out", out)


# what is committed


@pytest.mark.parametrize("folder", sorted(RESULTS.glob("*/")) or [pytest.param(None, marks=pytest.mark.skip)], ids=str)
def test_committed_tables_are_what_the_committed_records_render_to(folder: Path, tmp_path: Path):
    made = tmp_path / folder.name
    shutil.copytree(folder, made)
    shutil.rmtree(made / "tables")
    reproduce(folder.name, "--out", made, "--tables-only")
    for path in [folder / "README.md", *(folder / "tables").iterdir()]:
        assert (made / path.relative_to(folder)).read_text() == path.read_text(), path
    assert {path.name for path in (made / "tables").iterdir()} == {path.name for path in (folder / "tables").iterdir()}


def test_bad_exhibits_raise(tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text('kind = "ratios"\ntitle = "mine"\nmodels = [3]')
    with pytest.raises(BadInput):
        load_exhibit(str(path))
