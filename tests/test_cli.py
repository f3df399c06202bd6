"""The command line: help with examples, one clear line for bad input, nothing overwritten, results for machines."""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from command_line import SETTINGS, files, run, start
from texts import real_sentences, write_lines

from eosin.cli.main import COMMANDS, GROUPS, build_parser
from eosin.decoding.spec import DECODERS
from eosin.decoding.truncation import TRUNCATIONS
from eosin.models.heads import HEADS


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a text and settings."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "text.txt", real_sentences(120))
    (tmp_path / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]):
    assert run(verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"eosin {verb} " in text.split("examples:")[1]
    assert "--json" in text


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]):
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in COMMANDS)


def test_the_command_is_installed_and_the_module_is_the_same():
    for command in ([str(Path(sys.executable).parent / "eosin")], [sys.executable, "-m", "eosin"]):
        assert (
            subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
            == "eosin 0.2.0\n"
        )


def test_from_text_to_a_finished_run(place: Path, capsys: pytest.CaptureFixture[str]):
    assert run("prepare", "text.txt", "--tokenization", "word", "--json") == 0
    (statistics,) = json.loads(capsys.readouterr().out).values()
    assert statistics["train"] == 108
    assert run("train", "settings.toml", "--out", "runs/a") == 0
    text = capsys.readouterr().out
    assert "epoch 2: train loss" in text
    assert text.splitlines()[-1].startswith("runs/a ")
    before = files(place)
    assert run("train", "runs/a", "--json") == 0
    result = json.loads(capsys.readouterr().out)["runs/a"]
    assert set(result) == {"train_perplexity", "valid_perplexity", "test_perplexity"}
    assert files(place) == before


@pytest.mark.slow
def test_statistics_stand_beside_the_paper_s(capsys: pytest.CaptureFixture[str]):
    assert run("prepare") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][1:5] == ["81,158", "8,784", "10,190", "33,236"]
    assert rows[2][2:] == ["78,274", "8,464", "9,708", "33,182", "24.0"]
    # the paper's BPE text had no <unk>
    assert rows[3][1:5] == ["48,294", "2,975", "3,091", "19,483"]
    assert rows[4][2:] == ["83,344", "8,721", "10,156", "19,483", "28.0"]


def test_a_prepared_corpus_another_text_and_other_settings(capsys: pytest.CaptureFixture[str]):
    write_lines(Path("other.txt"), real_sentences(80))
    assert run("prepare", "other.txt", "--tokenization", "bpe", "--vocab-size", "300", "--out", "mine") == 0
    assert "to train on it: eosin train SETTINGS --data mine" in capsys.readouterr().out
    assert run("train", "settings.toml", "--set", "data.source=mine", "--out", "from-corpus") == 2
    assert "data.tokenization is 'word' in the settings" in capsys.readouterr().err
    assert not Path("from-corpus").exists()
    assert run("train", "settings.toml", "--data", "mine", "--out", "from-corpus") == 0
    assert run("train", "settings.toml", "--data", "other.txt", "--set", "core.kind=gru", "--seed", "3") == 0
    capsys.readouterr()
    config = Path("runs/settings-seed-3/config.toml").read_text(encoding="utf-8")
    assert 'kind = "gru"' in config
    assert "seed = 3" in config
    assert 'tokenization = "bpe"' in Path("from-corpus/config.toml").read_text(encoding="utf-8")


def test_a_corpus_prepared_under_another_name_is_found_again(place: Path, capsys: pytest.CaptureFixture[str]):
    assert run("prepare", "text.txt", "--tokenization", "word", "--out", "data/mine") == 0
    assert run("prepare", "text.txt", "--tokenization", "word", "--context", "5", "--out", "data/another") == 0
    assert run("train", "settings.toml", "--out", "run") == 0
    assert sorted(path.name for path in Path("data").iterdir()) == ["another", "mine"]
    assert f'folder = "{place / "data" / "mine"}"' in Path("run/corpus.toml").read_text(encoding="utf-8")
    write_lines(Path("text.txt"), real_sentences(130))
    assert run("train", "settings.toml", "--out", "other") == 0
    assert len(list(Path("data").iterdir())) == 3


def test_a_run_goes_on_from_anywhere(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert run("train", "settings.toml", "--out", "run") == 0
    first = capsys.readouterr().out.splitlines()[-1].split()[1:]
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert run("train", "../run") == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[1:] == first


def test_settings_may_be_called_config(place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "settings.toml").rename(place / "config.toml")
    assert run("train", "config.toml") == 0
    assert "runs/config" in capsys.readouterr().out


def test_an_audit_of_a_run(place: Path, capsys: pytest.CaptureFixture[str]):
    assert run("train", "settings.toml", "--out", "run", "--set", "core.width=16") == 0
    capsys.readouterr()
    specs = "greedy,nucleus:0.9,temperature=0.7,beam:2,stop=first"
    arguments = ["audit", "run", "--decoders", specs, "--contexts", "train", "--count", "30", "--max-steps", "40"]
    assert run(*arguments, "--completions", "completions.jsonl") == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["greedy", "nucleus:0.9,temperature=0.7", "beam:2,stop=first"]
    completions = [json.loads(line) for line in Path("completions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(completions) == 3 * 30
    before = files(place)
    assert run(*arguments, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    for spec, found in summary.items():
        mine = [each for each in completions if each["decoder"] == spec]
        assert found["ratio"] == sum(each["cause"] != "eos" for each in mine) / 30
        assert found["tokens"] == sum(len(each["tokens"]) for each in mine)
    assert files(place) == before
    worst = max(each["ratio"] for each in summary.values())
    assert run(*arguments, "--fail-above", str(worst)) == 0
    assert run(*arguments, "--fail-above", str(worst - 1e-9)) == 1


def test_a_sweep_trains_every_combination(capsys: pytest.CaptureFixture[str]):
    sweep = 'base = "settings.toml"\n[sweep]\n"core.width" = [4, 8]\n"core.kind" = ["tanh", "gru"]\n'
    Path("sweep.toml").write_text(sweep, encoding="utf-8")
    assert run("train", "sweep.toml", "--dry-run") == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    assert not Path("runs").exists()
    assert run("train", "sweep.toml", "--set", "training.epochs=1", "--json") == 0
    results = json.loads(capsys.readouterr().out)
    assert set(results) == {f"runs/sweep/width-{w}-{k}" for w in (4, 8) for k in ("tanh", "gru")}


def test_a_bundled_experiment_by_name(capsys: pytest.CaptureFixture[str]):
    assert run("train", "bpe-lstm-st-1e-3", "--dry-run") == 0
    (settings,) = json.loads(capsys.readouterr().out).values()
    assert settings["head"] == {"kind": "self-terminating", "epsilon": 1e-3}


BAD = {
    "no such text": (["prepare", "nowhere.txt"], "there is no text 'nowhere.txt'"),
    "empty text": (["prepare", "empty.txt"], "the text is empty"),
    "latin-1": (["prepare", "latin.txt"], "is not UTF-8 text"),
    "eos in the text": (["prepare", "eos.txt"], "contains '<eos>', which is a special token"),
    "pad in the text": (["prepare", "pad.txt", "--tokenization", "word"], "contains '<pad>', which is a special token"),
    "vocabulary too small": (["prepare", "text.txt", "--vocab-size", "20"], "vocab_size must be at least 260"),
    "no words": (
        ["prepare", "text.txt", "--tokenization", "word", "--vocab-size", "2"],
        "must exceed the 4 special tokens",
    ),
    "context": (["prepare", "text.txt", "--context", "0"], "context must lie between 1 and 10000, got 0"),
    "two corpora, one place": (["prepare", "--out", "here"], "--out names one corpus"),
    "unwritable": (["prepare", "text.txt", "--out", "settings.toml/x"], "Not a directory"),
    "another corpus": (["prepare", "text.txt", "--tokenization", "bpe", "--out", "data/there"], "holds another corpus"),
    "a file as corpus": (["prepare", "text.txt", "--out", "text.txt"], "is not a prepared corpus"),
    "audit of nothing": (["audit", "nowhere"], "nowhere is not a run directory"),
    "audit of no context": (
        ["audit", "done", "--count", "0"],
        "argument --count: must be a whole number of at least 1, got '0'",
    ),
    "audit of no step": (["audit", "done", "--max-steps", "0"], "max_steps must be a whole number from 1"),
    "audit by no decoder": (["audit", "done", "--decoders", ","], "name at least one decoder"),
    "audit by a misspelt decoder": (["audit", "done", "--decoders", "gredy"], "did you mean 'greedy'?"),
    "audit of two": (["audit", "done", "--decoders", "greedy", "--out", "text.txt"], "is not a record of an audit"),
    "audit to nowhere": (["audit", "done", "--decoders", "greedy", "--out", "text.txt/a"], "cannot write in text.txt"),
    "no such settings": (["train", "nothing.toml"], "there is no settings file nothing.toml"),
    "a misspelt name": (["train", "word-tanh-sofmax"], "did you mean 'word-tanh-softmax'?"),
    "not a run": (["train", "data"], "is not a run directory"),
    "two of a name": (["train", "word-lstm-softmax"], "say ./word-lstm-softmax for the run, or word-lstm-softmax.toml"),
    "not toml": (["train", "text.txt"], "is not a TOML file"),
    "unknown key": (["train", "unknown.toml"], "'widht' is not a setting of [core]; did you mean 'width'?"),
    "unknown base": (["train", "base.toml"], "cannot read the settings file nowhere.toml"),
    "unknown set": (["train", "settings.toml", "--set", "core.dept=3"], "'dept' is not a setting of [core]"),
    "nonsense set": (["train", "settings.toml", "--set", "width"], "section.key=value"),
    "value": (["train", "settings.toml", "--set", "core.width=wide"], "width must be a whole number, got 'wide'"),
    "few sentences": (["train", "settings.toml", "--set", "training.batch=999"], "fewer than a batch of 999"),
    "no text": (["train", "settings.toml", "--data", "nowhere.txt"], "there is no text 'nowhere.txt'"),
    "another run": (
        ["train", "settings.toml", "--out", "done", "--seed", "1"],
        "training.epochs is 1 there and 2 here",
    ),
    "not a folder": (["train", "settings.toml", "--out", "text.txt"], "is a file"),
    "a foreign folder": (["train", "settings.toml", "--out", "data"], "exists and is not a run"),
    "not UTF-8": (["prepare", "\udcff.txt"], "is not UTF-8: rename it"),
    "another device": (["train", "settings.toml", "--device", "meta"], "device 'meta' cannot be used"),
    "too many words": (["prepare", "text.txt", "--vocab-size", "9" * 26], "vocab_size must lie between"),
    "a folder of runs": (["train", "sweep"], "name one of the runs in it"),
    "a fixed setting": (["train", "settings.toml", "--set", "output.vocab_size=7"], "follows from the corpus"),
    "damaged config": (["train", "settings.toml", "--out", "damaged"], "damaged: core should be a section, and is 3"),
    "float16": (["train", "settings.toml", "--precision", "float16"], "float16 needs an accelerator"),
    "device": (["train", "settings.toml", "--out", "x", "--device", "cuda"], "device 'cuda' cannot be used"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case: str, place: Path, capsys: pytest.CaptureFixture[str]):
    arguments, says = BAD[case]
    Path("empty.txt").touch()
    Path("latin.txt").write_bytes("größer\n".encode("latin-1") * 50)
    write_lines(Path("eos.txt"), [*real_sentences(50), "a <eos> b"])
    write_lines(Path("pad.txt"), [*real_sentences(50), "a <pad> b"])
    Path("unknown.toml").write_text(SETTINGS.replace("width", "widht"), encoding="utf-8")
    Path("base.toml").write_text('base = "nowhere.toml"', encoding="utf-8")
    assert run("prepare", "text.txt", "--tokenization", "word", "--out", "data/there") == 0
    assert run("train", "settings.toml", "--out", "done", "--set", "training.epochs=1") == 0
    Path("sweep").mkdir()
    shutil.copytree("done", "sweep/one")
    shutil.copytree("done", "word-lstm-softmax")
    shutil.copytree("done", "damaged")
    Path("damaged/config.toml").write_text("core = 3", encoding="utf-8")
    capsys.readouterr()
    before = files(place)
    if case == "device" and __import__("torch").cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert run(*arguments) == 2
    said = capsys.readouterr()
    *_, line = said.err.splitlines()
    assert len(said.err.splitlines()) == 1
    assert line.startswith(f"eosin {arguments[0]}: ")
    assert says in line
    after = files(place)
    assert {name: after[name] for name in before} == before
    new = after.keys() - before.keys()  # at most the corpus of the text, and a lock
    assert all(name.startswith("data/text-") or name.endswith(".lock") for name in new)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tran"],
        ["train"],
        ["train", "a", "--treads", "2"],
        ["train", "a", "--threads", "0"],
        ["train", "a", "--save-every", "nan"],
    ],
)
def test_usage_errors_exit_with_2_too(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("eosin")
    assert "--help" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_training_and_saves(number: signal.Signals, place: Path):
    many = [
        "train",
        "settings.toml",
        "--out",
        "run",
        "--set",
        "training.epochs=100000",
        "--set",
        "training.patience=100000",
    ]
    process = start(*many)
    while not (place / "run" / "resume.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error == "eosin train: stopped and saved; the same command resumes run\n"
    assert (place / "run" / "resume.safetensors").exists()


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(place: Path):
    """No file may be larger than 60 KB, as if the disk were full: the first state does not fit."""
    assert run("train", "settings.toml", "--out", "whole") == 0
    full = start(
        "train", "settings.toml", "--out", "run", "--save-every", "0",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
    )  # fmt: skip
    _, error = full.communicate(timeout=60)
    assert full.returncode == 2
    assert len(error.splitlines()) == 1
    assert "File too large: 'run/resume.safetensors'" in error
    there = {path.name for path in (place / "run").iterdir()} - {"tensorboard"}
    assert there == {"config.toml", "corpus.toml", "lock", "log.jsonl", "tokenizer.json"}
    assert run("train", "settings.toml", "--out", "run") == 0
    assert files(place / "run")["weights.safetensors"] == files(place / "whole")["weights.safetensors"]


# as a new user tries it


def test_without_a_command_the_help_is_printed_in_two_groups(capsys: pytest.CaptureFixture[str]):
    assert run() == 0
    text = capsys.readouterr().out
    mine, paper = text.split("my model:")[1].split("the paper:")
    assert [line.split()[0] for line in mine.split("\n") if line.strip()] == list(GROUPS["my model"])
    assert list(GROUPS["my model"]) == ["doctor", "audit", "trace", "decode", "certify", "fix", "report"]
    assert [line.split()[0] for line in paper.split("\n\n")[0].split("\n") if line.strip()] == list(GROUPS["the paper"])
    assert list(GROUPS["the paper"]) == ["prepare", "train", "reproduce"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_first_sentence_of_a_help_says_what_the_command_does(verb: str, capsys: pytest.CaptureFixture[str]):
    assert run(verb, "--help") == 0
    summary = COMMANDS[verb]
    assert f"\n\n{summary[0].upper()}{summary[1:]}.\n" in capsys.readouterr().out


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_examples_of_a_help_are_command_lines_that_are_understood(verb: str, capsys: pytest.CaptureFixture[str]):
    description = import_module(f"eosin.cli.{verb}").DESCRIPTION
    examples = [shlex.split(line)[1:] for line in description.split("examples:\n")[1].splitlines()]
    assert all(example[0] == verb for example in examples)
    for example in examples:
        assert build_parser(example).parse_args(example).command == verb


def test_the_help_starts_fast():
    """CPU time of a process that prints the help, beyond that of Python itself; the least of five."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "eosin", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.2


def test_the_help_imports_nothing_heavy():
    code = "import sys; from eosin.cli.main import build_parser; build_parser(['--help']); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "tqdm", "transformers", "msgspec", "tokenizers"} & set(found)


def test_threads_that_wait_let_others_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """OpenMP reads the variable when torch is imported; what the user sets is left as it is."""
    code = "import os, sys; from eosin.cli.main import main; " + (
        "assert 'torch' not in sys.modules; sys.argv = ['eosin', 'audit', 'nowhere']\n"
        "try: main()\nexcept SystemExit: print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    )
    for given, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        environment = {**{key: it for key, it in os.environ.items() if key != "OMP_WAIT_POLICY"}, **given}
        said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert said.stdout.split() == ["True", expected], said.stderr


PLUGIN = """
from __future__ import annotations

from dataclasses import dataclass

import torch

import eosin
from beside_mine import FEW
from eosin.decoding.samplers import Greedy
from eosin.decoding.spec import DECODERS
from eosin.decoding.truncation import TRUNCATIONS, TopK
from eosin.models.heads import HEADS


@dataclass(frozen=True)
class Second(TopK):
    name = "first-few"
    aliases = ()

    def __post_init__(self):
        if self.k > FEW:
            raise ValueError("that is no longer few")

    def check(self, vocab_size):
        if self.k == 3:
            raise ValueError("three is unlucky")


@dataclass(frozen=True)
class Mine(Greedy):
    text: str

    def __str__(self):
        return f"mine:{self.text}"


DECODERS["mine"] = Mine

TRUNCATIONS["first-few"] = Second


class Plain(type(HEADS["softmax"]())):
    pass


HEADS["plain"] = Plain
"""


def test_a_plugin_registers_parts_and_imports_what_is_beside_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (place / "mine.py").write_text(PLUGIN, encoding="utf-8")
    (place / "beside_mine.py").write_text("FEW = 4", encoding="utf-8")
    plugin = ["--plugin", "mine.py"]
    asked = ["decode", "demo", "--decoder", "first-few:2", "--max-steps", "4", "--count", "2", "--json"]
    try:
        assert run(*asked) == 2
        assert "unknown decoder 'first-few:2'" in capsys.readouterr().err
        assert run(*asked, *plugin) == 0
        assert all(json.loads(line)["decoder"] == "first-few:2" for line in capsys.readouterr().out.splitlines())
        for spec, says in (
            ("first-few:5", "that is no longer few"),
            ("first-few:3", "three is unlucky"),
            ("mine:a,b=1", "unknown option 'b'"),
        ):
            assert run("decode", "demo", "--decoder", spec, *plugin) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"eosin decode: decoder '{spec}'")
            assert says in line
            assert run("certify", "demo", spec, *plugin) == 2
            capsys.readouterr()
        audit = ["audit", "demo", "--decoders", "mine:a", "--max-steps", "30", "--count", "4", "--out", "records.jsonl"]
        assert run(*audit, *plugin) == 0
        assert "mine:a" in capsys.readouterr().out
        assert '"made_of"' in (place / "records-demo.jsonl").read_text(encoding="utf-8")
        train = ["train", "settings.toml", "--out", "run", "--set", "head.kind=plain"]
        assert run(*train, *plugin) == 0
        assert run("certify", "run", *plugin) == 0
        assert files(place / "run").keys() >= {"config.toml", "weights.safetensors"}
    finally:
        TRUNCATIONS.pop("first-few", None)
        DECODERS.pop("mine", None)
        HEADS.pop("plain", None)


def test_what_is_missing_may_be_in_a_plugin(place: Path, capsys: pytest.CaptureFixture[str]):
    assert run("train", "settings.toml", "--set", "head.kind=weibull") == 2
    assert "'weibull' is not a kind of head" in (said := capsys.readouterr().err)
    assert "--plugin FILE" in said


@pytest.mark.parametrize(
    ("code", "says"),
    [("1 / 0", "--plugin bad.py fails with ZeroDivisionError"), ("def", "--plugin bad.py fails with SyntaxError")],
)
def test_a_plugin_that_fails_is_one_line(code: str, says: str, place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "bad.py").write_text(code, encoding="utf-8")
    assert run("certify", "demo", "--plugin", "bad.py") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert run("certify", "demo", "--plugin", "nowhere.py") == 2
    assert "nowhere.py" in capsys.readouterr().err


def test_the_help_of_plugins_says_that_code_is_run(capsys: pytest.CaptureFixture[str]):
    for verb in COMMANDS:
        assert run(verb, "--help") == 0
        text = " ".join(capsys.readouterr().out.split())
        assert ("run the code of this Python file first" in text) == (verb not in ("doctor", "report", "prepare"))


def test_a_hugging_face_folder_is_recognised(place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "mymodel").mkdir()
    (place / "mymodel/config.json").write_text("{}", encoding="utf-8")
    assert run("audit", "mymodel") == 2
    assert "say hf:mymodel" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["audit", "decode", "trace"])
@pytest.mark.parametrize(
    "option", [["--chat"], ["--prompt-tokens", "2"], ["--eos", "2"], ["--trust-remote-code"]], ids=lambda it: it[0]
)
def test_options_for_hub_models_are_refused_for_runs(verb: str, option: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(verb, "demo", *option) == 2
    said = capsys.readouterr()
    assert f"{option[0]} is for hf: models, and demo is none" in said.err
    assert said.out == ""


@pytest.mark.parametrize("name", ["--decoder", "--decoders"])
def test_decoder_and_decoders_are_one_option(name: str, capsys: pytest.CaptureFixture[str]):
    small = ["--max-steps", "6", "--json"]
    for verb, spec in (("audit", "top_p:0.9,greedy"), ("decode", "top-p:0.9"), ("trace", "top-p:0.9")):
        assert run(verb, "demo", name, spec, *small, *(["--count", "3"] * (verb != "trace"))) == 0
        assert '"nucleus:0.9"' in capsys.readouterr().out
    assert run("decode", "demo", name, "greedy,top-k:2") == 2
    assert "--decoder names one decoder, got 'greedy,top-k:2'" in capsys.readouterr().err
    assert run("audit", "demo", name, "nucleos:0.9") == 2
    assert "did you mean 'nucleus'?" in capsys.readouterr().err


def test_options_that_a_command_does_not_use_are_not_offered(capsys: pytest.CaptureFixture[str]):
    assert run("certify", "--help") == 0
    text = capsys.readouterr().out
    assert "--dtype" in text
    assert "--eos" in text
    for option in ("--chat", "--prompt-tokens", "--stop", "--device", "--seed"):
        assert option not in text
