"""eosin certify: what people and machines are told, what is proposed for a budget, and one line for bad input."""

import json
import re
from pathlib import Path

import pytest
from command_line import SETTINGS, run
from texts import real_sentences, write_lines

import eosin
from eosin.guarantees.certificate import certify


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two small runs: `plain`, and `st` with a self-terminating head."""
    place = tmp_path_factory.mktemp("certify")
    write_lines(place / "text.txt", real_sentences(120))
    settings = SETTINGS.replace('"text.txt"', f'"{place / "text.txt"}"').replace("epochs = 2", "epochs = 1")
    heads = {"plain": '"softmax"', "st": '"self-terminating"\nepsilon = 0.01'}
    for name, head in heads.items():
        (place / f"{name}.toml").write_text(settings.replace('"softmax"', head), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for name in heads:
            assert run("train", f"{name}.toml", "--out", name) == 0
    return place


@pytest.fixture(autouse=True)
def there(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(runs)
    capsys.readouterr()


SPECS = ["greedy", "beam:4", "nucleus:0.9,temperature=0.7", "consistent-nucleus:0.2", "ancestral"]


@pytest.mark.parametrize("name", ["plain", "st"])
def test_it_prints_the_certificates(name: str, capsys: pytest.CaptureFixture[str]):
    assert run("certify", name, *SPECS) == 0
    model = eosin.load(name)
    assert capsys.readouterr().out == "".join(f"{certify(model, spec)}\n" for spec in SPECS)


@pytest.mark.parametrize("name", ["plain", "st"])
def test_json(name: str, capsys: pytest.CaptureFixture[str]):
    assert run("certify", name, *SPECS, "--json") == 0
    found, model = json.loads(capsys.readouterr().out), eosin.load(name)
    assert list(found) == SPECS
    for spec in SPECS:
        assert found[spec] == json.loads(json.dumps(certify(model, spec).as_json()))
    assert found["greedy"]["ends_by"] == (69 if name == "st" else None)


def test_a_proposed_floor_can_be_pasted_and_keeps_to_the_budget(capsys: pytest.CaptureFixture[str]):
    assert run("certify", "plain", *SPECS, "--budget", "200") == 0
    text = capsys.readouterr().out
    pasted = re.findall(
        r"^  Within 200 steps, but for one decoding in a million, without training: (eosin\.Floor\(.*\))$", text, re.M
    )
    assert len(pasted) == len(SPECS)
    for code, spec in zip(pasted, SPECS, strict=True):
        floor = eval(code, {"eosin": eosin, "model": eosin.load("plain")})
        assert certify(floor, spec).ends_within(200)
    assert 'kind = "self-terminating"\n  epsilon = 0.00346\n' in text


def test_what_ends_already_needs_no_floor(capsys: pytest.CaptureFixture[str]):
    assert run("certify", "st", "greedy", "beam:4", "--budget", "70") == 0
    greedy, beam = re.findall("^  Within 70 steps.*$", capsys.readouterr().out, re.M)
    assert greedy == "  Within 70 steps, but for one decoding in a million: as it is."
    assert "eosin.Floor" in beam
    assert run("certify", "st", "greedy", "beam:4", "--budget", "70", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[spec]["within_budget"] for spec in ("greedy", "beam:4")] == [True, False]
    assert set(found["beam:4"]["floor"]) == {"epsilon", "grace"}
    assert run("certify", "st", "greedy", "--budget", "70") == 0
    assert "if the model is trained with" not in capsys.readouterr().out


def test_the_floored_model(capsys: pytest.CaptureFixture[str]):
    arguments = ["certify", "plain", "greedy", "--floor-epsilon", "0.01", "--floor-grace", "20"]
    assert run(*arguments) == 0
    assert "greedy: always ends (Theorem 4.2)\n  Every decoding has ended by step 89.\n" in capsys.readouterr().out
    assert run(*arguments[:5], "--json") == 0
    assert json.loads(capsys.readouterr().out)["greedy"]["ends_by"] == 69


BAD = {
    "no run": (["nowhere", "greedy"], "nowhere is not a run directory"),
    "misspelt": (["plain", "greedy", "gredy"], "did you mean 'greedy'?"),
    "too many": (["plain", "top-k:99999"], "k must be at most"),
    "no budget": (["plain", "greedy", "--budget", "0"], "budget must be a whole number from 1"),
    "short budget": (["plain", "greedy", "top-k:2", "--budget", "1"], "ends top-k:2 by step 1: allow more steps"),
    "epsilon": (["plain", "greedy", "--floor-epsilon", "1"], "epsilon must lie strictly between 0 and 1, got 1.0"),
    "grace": (["plain", "greedy", "--floor-epsilon", "0.1", "--floor-grace", "-1"], "grace must be a whole number"),
    "grace alone": (["plain", "greedy", "--floor-grace", "3"], "--floor-grace 3 needs --floor-epsilon"),
    "not a number": (["plain", "greedy", "--budget", "many"], "--budget"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case: str, capsys: pytest.CaptureFixture[str]):
    arguments, says = BAD[case]
    assert run("certify", *arguments) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("eosin certify: ")
    assert says in line
    assert said.out == ""


def test_greedy_is_what_is_certified_unless_another_decoder_is_named(capsys: pytest.CaptureFixture[str]):
    assert run("certify", "demo") == 0
    assert capsys.readouterr().out == f"{certify(eosin.load('demo'), 'greedy')}\n"


def test_decoders_may_follow_options(capsys: pytest.CaptureFixture[str]):
    assert run("certify", "--json", "plain", "--budget", "200", "greedy", "beam:2") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["greedy", "beam:2"]
    assert run("report", "--contexts-for", "0.01", "nowhere") == 2
    assert "needs no records" in capsys.readouterr().err
    assert run("certify", "--budget", "200") == 2
    assert "the following arguments are required: MODEL;" in capsys.readouterr().err
