"""eosin audit as it is used: proofs and certificates, kills and interrupts, full disks, estimates."""

import json
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from command_line import SETTINGS, files, run, start
from texts import real_sentences, write_lines

import eosin
from eosin.cli.completions import MOST_KEPT
from eosin.cli.main import main
from eosin.records.reading import examples_path
from eosin.records.record import add_shards, read_records
from eosin.storage.tensors import load_tensors, save_tensors

AUDIT = ["--decoders", "greedy", "--contexts", "random", "--max-steps", "200"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose greedy completions loop: it has learnt hardly anything, and eos least of all."""
    place = tmp_path_factory.mktemp("audits")
    write_lines(place / "text.txt", real_sentences(120))
    settings = SETTINGS.replace('"text.txt"', f'"{place / "text.txt"}"').replace("epochs = 2", "epochs = 1")
    (place / "settings.toml").write_text(settings, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert run("train", "settings.toml", "--out", "run") == 0
    weights = place / "run" / "weights.safetensors"
    tensors, notes = load_tensors(weights)
    tensors["output.bias"][2] -= 5.0
    save_tensors(weights, tensors, notes)
    return place


@pytest.fixture(autouse=True)
def there(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(trained)
    capsys.readouterr()
    return trained


def test_proofs_are_shown_saved_and_checked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "records.jsonl"
    assert run("audit", "run", *AUDIT, "--count", "40", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "proved infinite" in said
    assert "rep-1 (%)" not in said
    assert "run does not always stop: greedy had not ended on 100.00% of 40 random contexts" in " ".join(said.split())
    *_, code, more = said.rstrip().splitlines()
    assert code.startswith("    eosin.decode(")
    assert more.startswith("compare the fixes: eosin fix run --budget ")
    (origin,) = json.loads(out.with_suffix(".origin").read_text(encoding="utf-8"))
    assert (origin["run"], origin["contexts_from"], origin["head"]) == ("run", "random", "softmax")
    assert origin["text"].endswith("text.txt")
    assert "lengths" not in origin or not origin["lengths"], "random contexts have no continuations"
    assert run("audit", "run", *AUDIT, "--count", "40", "--out", str(out), "--wide") == 0
    said = capsys.readouterr().out
    assert "certified cycle" in said
    assert "rep-1 (%)" in said
    certificates = out.with_suffix(".cycles")
    assert f"certificates: {certificates}" in said
    assert run("certify", "run", "--check", str(certificates)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(certificates.read_text(encoding="utf-8").splitlines())
    assert all(line.startswith("greedy: the proof that ") and " holds (radius " in line for line in lines)
    assert run("certify", "run", "--check", str(certificates), "--json") == 0
    assert all(each["holds"] for each in json.loads(capsys.readouterr().out))
    forged = json.loads(certificates.read_text(encoding="utf-8").splitlines()[0])
    forged["cycle"]["centre"][0] += 0.5
    (tmp_path / "forged").write_text(json.dumps(forged) + "\n", encoding="utf-8")
    assert run("certify", "run", "--check", str(tmp_path / "forged")) == 1
    assert "does NOT hold" in capsys.readouterr().out
    forged["model"]["weights"] = "0" * 16
    (tmp_path / "other").write_text(json.dumps(forged) + "\n", encoding="utf-8")
    assert run("certify", "run", "--check", str(tmp_path / "other")) == 2
    assert "the certificate is of another model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--check", "nowhere"], "nowhere"),
        (["--check", "text.txt"], "line 1 of text.txt is not the certificate of a cycle"),
        (["--check", "empty"], "empty has no certificate"),
        (["greedy", "--check", "empty"], "leave out greedy"),
    ],
)
def test_nothing_to_check(arguments: list[str], says: str, there: Path, capsys: pytest.CaptureFixture[str]):
    (there / "empty").touch()
    assert run("certify", "run", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_without_proofs_loops_are_looping(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = {}
    for how in ([], ["--no-proofs"]):
        assert run("audit", "run", *AUDIT, "--count", "30", "--out", str(tmp_path / f"{len(how)}"), *how, "--json") == 0
        found[len(how)] = json.loads(capsys.readouterr().out)["greedy"]
    assert found[0]["ratio"] == found[1]["ratio"] > 0
    assert found[1]["causes"].get("proved infinite", 0) == 0
    assert found[0]["tokens"] < found[1]["tokens"]


def test_survival_is_estimated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = [
        "audit",
        "run",
        "--decoders",
        "ancestral",
        "--contexts",
        "random",
        "--count",
        "300",
        "--max-steps",
        "20",
    ]
    assert run(*arguments, "--survival", "--out", str(tmp_path / "s.jsonl"), "--json") == 0
    estimated = json.loads(capsys.readouterr().out)["ancestral"]
    assert run(*arguments, "--out", str(tmp_path / "c.jsonl"), "--json") == 0
    counted = json.loads(capsys.readouterr().out)["ancestral"]
    assert counted["interval"][0] - 0.05 < estimated["ratio"] < counted["interval"][1] + 0.05
    assert run(*arguments, "--survival", "--out", str(tmp_path / "c.jsonl")) == 2
    assert "estimator is 'count' there and 'survival' here" in capsys.readouterr().err
    kept = tmp_path / "paths"
    for _ in range(2):  # the second time there is nothing to do, and nothing is lost
        assert run(*arguments, "--survival", "--out", str(tmp_path / "p.jsonl"), "--completions", str(kept)) == 0
        assert len(kept.read_text(encoding="utf-8").splitlines()) == 300
    capsys.readouterr()
    assert run("audit", "run", "--decoders", "greedy", "--survival") == 2
    assert "greedy is deterministic; survival needs a sampler" in capsys.readouterr().err


LONG = ["--decoders", "ancestral,top-k:2", "--contexts", "random", "--count", "4000", "--max-steps", "20"]


def wait_for_records(process, out: Path, lines: int) -> None:
    while not out.exists() or out.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def said(process) -> str:
    """What a command that succeeds says on standard error."""
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return error


def test_an_audit_that_is_killed_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    complete = ["--out", str(whole), "--completions", str(tmp_path / "whole.completions")]
    assert run("audit", "run", *LONG, *complete) == 0
    command = ["audit", "run", *LONG, "--out", str(out), "--completions", str(tmp_path / "completions")]
    for lines in (1, 5):
        process = start(*command)
        wait_for_records(process, out, lines)
        process.kill()
        process.communicate()
        assert len(list(read_records(out))) >= lines
    capsys.readouterr()
    assert run(*command) == 0
    assert capsys.readouterr().err == ""
    kept, expected = (
        {record.signature.decoder: record.counts.to_table() for record in add_shards(read_records(path))}
        for path in (out, whole)
    )
    assert kept == expected
    completions, all_completions = (
        sorted(path.read_text(encoding="utf-8").splitlines())
        for path in (tmp_path / "completions", tmp_path / "whole.completions")
    )
    assert completions == all_completions


def test_an_interrupt_is_one_line(tmp_path: Path):
    """Also where these tests run in the background of a shell, which has its jobs ignore interrupts."""
    out = tmp_path / "out.jsonl"
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    process = start("audit", "run", *LONG, "--out", str(out), **listening)
    wait_for_records(process, out, 1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert error == f"eosin audit: interrupted; finished shards are in {out}; the same command continues\n"
    assert list(read_records(out))


def test_a_full_disk_is_one_line_and_the_records_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out.jsonl"
    full = start(
        "audit", "run", *LONG, "--out", str(out),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)),
    )  # fmt: skip
    _, error = full.communicate(timeout=120)
    assert full.returncode == 2
    assert len(error.splitlines()) == 1
    assert "File too large" in error
    finished = len(list(read_records(out)))
    assert 1 <= finished < 8
    assert run("audit", "run", *LONG, "--out", str(out)) == 0
    assert capsys.readouterr().err == ""
    assert len(list(read_records(out))) == 8


def test_completions_that_were_counted_before_are_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, later = str(tmp_path / "out.jsonl"), tmp_path / "later"
    assert run("audit", "run", *AUDIT, "--count", "9", "--out", out) == 0
    assert run("audit", "run", *AUDIT, "--count", "9", "--out", out, "--completions", str(later)) == 0
    assert "9 completions were counted before and are not in" in capsys.readouterr().err
    (tmp_path / "mine.txt").write_text("not completions\n", encoding="utf-8")
    before = files(tmp_path)
    assert run("audit", "run", *AUDIT, "--count", "9", "--out", out, "--completions", str(tmp_path / "mine.txt")) == 2
    assert "is not a file of completions" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_completions_beside_records_that_were_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, later = tmp_path / "out.jsonl", tmp_path / "later.jsonl"
    assert run("audit", "run", *AUDIT, "--count", "9", "--out", str(out)) == 0
    out.write_text("".join(each.to_line() + "\n" for each in add_shards(read_records(out))))
    assert run("audit", "run", *AUDIT, "--count", "9", "--out", str(out), "--completions", str(later)) == 0
    assert "9 completions were counted before and are not in" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--out", "--completions"])
@pytest.mark.parametrize("path", [".", "..", "/", "", "/dev/null", "/dev/full"])
def test_a_folder_or_a_device_is_no_file(
    option: str, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert run("audit", "demo", "--count", "5", "--max-steps", "9", option, path) == 2
    assert f"{option} names a file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--out", "--completions"])
def test_a_file_of_one_s_own_without_a_last_line_break_is_left_alone(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine.txt").write_text("one line of mine", encoding="utf-8")
    files_of_mine = {"--out": tmp_path / "records.jsonl", option: tmp_path / "mine.txt"}
    arguments = [str(each) for pair in files_of_mine.items() for each in pair]
    assert run("audit", "run", *AUDIT, "--count", "5", *arguments) == 2
    assert "mine.txt is not a file of" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "one line of mine"


def test_a_second_audit_leaves_the_completions_of_the_first_alone(tmp_path: Path):
    out, completions = tmp_path / "out.jsonl", tmp_path / "completions"
    command = ["audit", "run", *LONG, "--out", str(out), "--completions", str(completions)]
    first = start(*command)
    wait_for_records(first, out, 1)
    second = start(*command)
    _, error = second.communicate(timeout=120)
    if second.returncode == 2:  # the first was still at it
        assert "another audit is writing" in error
    assert not [line for line in said(first).splitlines() if ": r_L " not in line]  # rows of decoders that took long
    assert len(completions.read_text(encoding="utf-8").splitlines()) == 8_000


def test_dtypes_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ratios = {}
    for dtype in ("float32", "float64", "bfloat16"):
        arguments = [
            "audit",
            "run",
            *AUDIT,
            "--count",
            "20",
            "--dtype",
            dtype,
            "--out",
            str(tmp_path / dtype),
            "--json",
        ]
        assert run(*arguments) == 0
        ratios[dtype] = json.loads(capsys.readouterr().out)["greedy"]["ratio"]
        assert next(read_records(tmp_path / dtype)).signature.table["dtype"] == dtype
    assert ratios["float32"] == ratios["float64"]
    if not torch.cuda.is_available():
        assert run("audit", "run", *AUDIT, "--device", "cuda") == 2
        assert "cuda" in capsys.readouterr().err


def test_an_audit_keeps_examples_for_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, page = tmp_path / "records.jsonl", tmp_path / "page.html"
    command = ["audit", "run", "--decoders", "greedy,ancestral", "--max-steps", "99", "--contexts", "random"]
    command += ["--out", str(out)]
    assert run(*command, "--count", "60") == 0
    kept = [json.loads(line) for line in examples_path(out).read_text(encoding="utf-8").splitlines()]
    unended = [each for each in kept if each["cause"] not in ("eos", "stop string")]
    assert {each["context"] for each in kept if each["decoder"] == "ancestral"} >= set(range(MOST_KEPT))
    assert len(kept) <= 2 * (MOST_KEPT + MOST_KEPT)
    assert {each["model"] for each in kept} == {"run"}
    assert all(each["prefix"] for each in kept)
    before = examples_path(out).read_bytes()
    assert run(*command, "--count", "60") == 0
    assert examples_path(out).read_bytes() == before
    capsys.readouterr()
    assert run("report", str(out), "--html", str(page)) == 0
    html = page.read_text(encoding="utf-8")
    assert "of 120 completions" in html
    assert html.count('<article class="pair">') == min(3, len(unended))


def test_a_report_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("audit", "run", *AUDIT, "--count", "30", "--out", str(tmp_path / "records.jsonl")) == 0
    capsys.readouterr()
    assert run("report", str(tmp_path), "--loops") == 0
    said = capsys.readouterr().out
    assert "certified cycle" in said
    assert eosin.load("run").eos_ids == (2,)


def test_the_demo_shows_the_failure_and_its_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Of the two small models that come with the package one does not stop, and its twin does."""
    monkeypatch.chdir(tmp_path)
    asked = ["--decoders", "greedy,consistent-nucleus:0.2", "--max-steps", "800", "--count", "40"]
    main(["audit", "demo", *asked, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["demo"]["greedy"]["ratio"] > 0.05
    assert told["demo"]["greedy"]["causes"]["proved infinite"] > 0
    assert told["demo-st"]["greedy"]["ratio"] == 0  # Theorem 4.2: by step 693
    main(["report", "demo", "--json"])
    (models, _) = json.loads(capsys.readouterr().out)["tables"]
    assert {row[0] for row in models["rows"]} == {"demo", "demo-st"}
    assert [path.name for path in tmp_path.iterdir()] == ["audits"]
    main(["audit", "demo", *asked, "--out", "records.jsonl"])
    shown = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["records-demo-st.jsonl", "records-demo.jsonl"]
    assert "demo-st" in shown
    (tmp_path / "demo").mkdir()  # a folder of that name is no run
    capsys.readouterr()
    main(["trace", "demo", "--max-steps", "30"])
    assert "with period 8 (seen, not proved)" in capsys.readouterr().out
    main(["trace", "demo"])
    assert "with period 8 (proved infinite: certified cycle)" in capsys.readouterr().out
    main(["trace", "demo-st", "--max-steps", "30"])
    assert "ended with eos" in capsys.readouterr().out
    main(["decode", "demo", "--max-steps", "60"])
    failing, twin, cured = capsys.readouterr().out.partition("demo-st\n")
    assert twin
    assert "repeats from step 5" in failing
    assert cured.count("eos at step") == 5
    main(["certify", "demo-st", "greedy"])
    assert "Every decoding has ended by step 693" in capsys.readouterr().out
    assert eosin.load("demo").vocab_size == 4000


def test_decode_and_trace_prove_what_an_audit_proves(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, completions = tmp_path / "records.jsonl", tmp_path / "completions.jsonl"
    asked = ["audit", "run", *AUDIT, "--count", "12", "--out", str(out), "--completions", str(completions)]
    assert run(*asked) == 0
    audited = [json.loads(line) for line in completions.read_text(encoding="utf-8").splitlines()]
    assert {each["cause"] for each in audited} >= {"proved infinite"}
    capsys.readouterr()
    same = ["--contexts", "random", "--max-steps", "200", "--json"]
    assert run("decode", "run", "--count", "12", *same) == 0
    decoded = {each["context"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    for each in audited:
        assert (decoded[each["context"]]["cause"] == "proved infinite") == (each["cause"] == "proved infinite")
    number = next(str(each["context"]) for each in audited if each["cause"] == "proved infinite")
    assert run("trace", "run", "--context", number, *same) == 0
    traced = json.loads(capsys.readouterr().out)
    assert (traced["cause"], traced["proof"]["by"]) == ("proved infinite", "certified cycle")
    assert run("decode", "run", "--context", number, *same) == 0
    (alone,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert alone["tokens"] == [step["token"] for step in traced["steps"]]
    assert len(alone["loop"]) == 3
    assert run("decode", "run", "--context", number, *same[:-1]) == 0
    assert "(proved infinite: certified cycle)" in capsys.readouterr().out
    assert run("decode", "run", "--context", number, "--no-proofs", *same) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "limit"


def test_what_fails_and_by_how_much_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["audit", "run", *AUDIT, "--count", "30", "--out", str(tmp_path / "records.jsonl"), "--json"]
    assert run(*asked) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    low, high = found["interval"]
    assert 0 < low < found["ratio"] <= high
    for fail_on, value in (("ratio", found["ratio"]), ("lower", low), ("upper", high)):
        limit = str(value - 0.02)
        assert run(*asked, "--fail-above", limit, "--fail-on", fail_on) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("eosin audit: run, greedy: ")
        assert line.endswith(f" is {value:.4g}, above {float(limit):g} by 0.02")
    assert run(*asked, "--fail-above", str(min(1, (low + found["ratio"]) / 2)), "--fail-on", "lower") == 0
    assert run(*asked, "--fail-above", str((low + found["ratio"]) / 2)) == 1
    assert run(*asked, "--fail-on", "upper") == 2
    assert "--fail-on upper needs a limit: --fail-above RATIO" in capsys.readouterr().err


def test_a_report_of_a_demo_that_was_not_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert run("report", "demo") == 2
    assert "make them with: eosin audit demo" in capsys.readouterr().err


def test_one_initialisation_has_no_deviation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = ["--count", "5", "--max-steps", "20", "--decoders", "greedy", "--out", str(tmp_path / "records.jsonl")]
    assert run("audit", "demo", *small) == 0
    table = capsys.readouterr().out
    assert "mean length of ended" in table
    assert run("report", str(tmp_path), "--models") == 0
    assert "±" not in capsys.readouterr().out
