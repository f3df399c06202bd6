"""`eosin decode` and `eosin trace`, end to end on small trained runs: what is shown is what the library made."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from command_line import SETTINGS, files, run
from texts import real_sentences, small_corpus, write_lines

import eosin
from eosin.causes import Cause
from eosin.cli.decode import Decoding, abridge, format_completion
from eosin.cli.model import LoadedModel
from eosin.cli.terminal import escape_for_terminal
from eosin.cli.trace import describe_outcome
from eosin.data.prompts import encode_contexts
from eosin.data.tokenizer import PAD_ID
from eosin.decoding.spec import parse_decoder
from eosin.decoding.trace import Step, Trace
from eosin.loading import open_run
from eosin.outcome import Completion, Proof

RED = "\x1b[31mred"
"""A word that would colour the terminal."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs: `word`, hardly trained, so that it seldom stops, and `bpe`."""
    place = tmp_path_factory.mktemp("runs")
    text = write_lines(place / "text.txt", [f"{RED} {sentence}" for sentence in real_sentences(120)])
    (place / "word.toml").write_text(SETTINGS.replace("text.txt", str(text)), encoding="utf-8")
    bpe = SETTINGS.replace("text.txt", str(text)).replace('"word"', '"bpe"\nvocab_size = 400')
    (place / "bpe.toml").write_text(bpe, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert run("train", "word.toml", "--out", "word", "--set", "training.epochs=1") == 0
        assert run("train", "bpe.toml", "--out", "bpe", "--set", "training.epochs=1") == 0
    return place


@pytest.fixture(autouse=True)
def at_home(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(trained)
    capsys.readouterr()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(*arguments) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", ["word", "bpe"])
@pytest.mark.parametrize("spec", ["greedy", "nucleus:0.9", "beam:3,stop=first"])
def test_decode_prints_what_the_library_decodes(name: str, spec: str, capsys: pytest.CaptureFixture[str]):
    arguments = ["decode", name, "--decoder", spec, "--contexts", "train", "--count", "4", "--max-steps", "12"]
    found = [json.loads(line) for line in printed(capsys, *arguments, "--seed", "2", "--json")]
    prefixes = open_run(name).corpus.take_contexts("train", 4)
    expected = eosin.decode(eosin.load(name), prefixes, spec, max_steps=12, seed=2)
    assert [each["tokens"] for each in found] == expected.tokens
    assert [each["cause"] == "eos" for each in found] == expected.terminated.tolist()
    assert [each["log_prob"] for each in found] == expected.log_prob.tolist()
    assert [each["prefix_tokens"] for each in found] == prefixes.tolist()
    assert [each["context"] for each in found] == [0, 1, 2, 3]


def test_completions_go_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["decode", "word", "--decoder", "ancestral", "--max-steps", "30"]
    lines = printed(capsys, *arguments, "--json")
    out = tmp_path / "completions.jsonl"
    (said,) = printed(capsys, *arguments, "--out", str(out))
    assert out.read_text(encoding="utf-8").splitlines() == lines
    ended = sum(json.loads(line)["cause"] == "eos" for line in lines)
    assert said == f"{ended} of 5 completions ended; all of them: {out}"


def test_a_loop_is_shown_once_unless_all_is_asked_for(capsys: pytest.CaptureFixture[str]):
    arguments = ["decode", "word", "--count", "1", "--max-steps", "120", "--no-proofs"]
    (found,) = map(json.loads, printed(capsys, *arguments, "--json"))
    onset, period = found["loop"]["onset"], found["loop"]["period"]
    tokens = found["tokens"]
    assert tokens[onset - 1 : -period] == tokens[onset - 1 + period :]
    prefix, text, ending, _ = printed(capsys, *arguments)
    assert prefix == f"[0] {escape_for_terminal(found['prefix'])}"
    assert text.endswith("] ...")
    assert len(text.split()) < 80
    assert ending.startswith("    limit at step 120, log-probability ")
    assert ending.endswith(f"; repeats from step {onset} with period {period} (seen, not proved)")
    assert printed(capsys, *arguments, "--full")[1].strip() == escape_for_terminal(found["text"])


def test_what_is_left_out(trained: Path):
    tokenizer = open_run(trained / "word").corpus.tokenizer
    words = [4 + n for n in range(200)]

    def abridged(tokens: list[int], proof: Proof | None = None) -> str:
        cause = Cause.LIMIT if proof is None else Cause.PROVED
        return abridge(Completion(0, torch.tensor(tokens), cause, len(tokens), -1.0, proof), tokenizer)

    assert abridged(words[:80]) == tokenizer.decode(words[:80])
    expected = f"{tokenizer.decode(words[:60])} ... (120 tokens) ... {tokenizer.decode(words[-20:])}"
    assert abridged(words) == expected
    loop = f"{tokenizer.decode([9])} [{tokenizer.decode([7, 8])}] ..."
    assert abridged([9, *[7, 8] * 12]) == loop
    assert abridged([7] * 24) == f"[{tokenizer.decode([7])}] ..."
    # a proof may come before one turn of the loop was decoded
    assert abridged([9, 7], Proof((7, 8), "certified cycle")) == loop


def test_nothing_is_sent_to_the_terminal_that_it_would_obey(trained: Path, capsys: pytest.CaptureFixture[str]):
    tokenizer = open_run(trained / "word").corpus.tokenizer
    (red,) = next(iter(tokenizer.encode([RED])))
    completion = Completion(0, torch.tensor([red, 5]), Cause.LIMIT, 2, -1.0)
    loaded = LoadedModel("word", None, tokenizer, list, None)
    decoded = Decoding(loaded, parse_decoder("greedy"), {0: [red]}, [completion])
    _, text, _ = format_completion(completion, decoded, full=True)
    assert text.startswith(r"    \x1b[31mred ")
    for verb in ("decode", "trace"):
        out = "\n".join(printed(capsys, verb, "word", "--prompt", f"{RED} and", "--max-steps", "9"))
        assert r"\x1b[31mred and" in out
        assert "\x1b" not in out


def test_escape_for_terminal(monkeypatch: pytest.MonkeyPatch):
    assert escape_for_terminal("a\x9b\u202e\nb\x7f") == r"a\x9b\u202e\nb\x7f"
    assert escape_for_terminal("größer \\ 日本") == "größer \\ 日本"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert escape_for_terminal("größer") == r"gr\xf6\xdfer"


@pytest.mark.parametrize("tokenization", ["word", "bpe"])
def test_a_prompt_becomes_the_context_that_the_corpus_makes_of_it(tokenization: str, tmp_path: Path):
    """Sentences and their beginnings, short ones too; a longer prompt is read from its last k tokens on."""
    corpus = small_corpus(tmp_path, 60, tokenization, vocab_size=400, context=12)
    sentences = [line for n, line in enumerate(real_sentences(60)) if n % 20 not in (18, 19)]
    encoded = list(corpus.tokenizer.encode(sentences))
    made = encode_contexts(sentences, corpus.tokenizer, 12)
    for row, ids, example in zip(made.contexts, encoded, corpus.train, strict=True):
        assert row[0] == example.prefix[0]
        assert row[1:].tolist() == (ids[-12:] if len(ids) > 12 else example.prefix[1:].tolist())
    shorter = [" ".join(sentence.split()[:2]) for sentence in sentences]
    lengths = [len(ids) for ids in corpus.tokenizer.encode(shorter)]
    padded = encode_contexts(shorter, corpus.tokenizer, 12).contexts
    assert (padded == 0).sum(1).tolist() == [max(0, 12 - length) for length in lengths]
    assert made.shortened == sum(len(ids) > 12 for ids in encoded)
    assert made.unknown == sum(ids[-12:].count(3) for ids in encoded) > 0


def test_prompts_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = ["the  first of", "", "zyzzyva the qwertz", "one two three four five six seven eight nine ten eleven the"]
    path = write_lines(tmp_path / "prompts.txt", lines)
    assert run("decode", "word", "--prompts", str(path), "--max-steps", "3", "--json") == 0
    said = capsys.readouterr()
    found = [json.loads(line) for line in said.out.splitlines()]
    model = eosin.load("word")
    expected = eosin.decode(model, [each["prefix_tokens"] for each in found], max_steps=3)
    assert [each["tokens"] for each in found] == expected.tokens
    assert found[0]["prefix_tokens"][1:8] == [PAD_ID] * 7
    assert found[0]["prefix"] == "<bos> the first of"  # padding is not text
    assert found[1]["prefix"] == "<bos> <unk> the <unk>"
    assert found[2]["prefix"].endswith("<unk> the")
    unknown = sum(each["prefix"].count("<unk>") for each in found)
    assert said.err.splitlines() == [
        f"eosin decode: {unknown} words are not in the vocabulary; they are read as <unk>",
        "eosin decode: 1 of 3 prompts are longer than a context; only their last 10 tokens are read",
    ]


@pytest.mark.parametrize("contexts", ["test", "random"])
def test_a_trace_is_of_the_context_that_an_audit_counted(
    contexts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    common = ["--contexts", contexts, "--max-steps", "12", "--seed", "4"]
    out = tmp_path / "completions.jsonl"
    audit = ["audit", "bpe", "--decoders", "nucleus:0.95", "--count", "6", *common]
    assert run(*audit, "--out", str(tmp_path / "records.jsonl"), "--completions", str(out)) == 0
    capsys.readouterr()
    completions = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    for audited in (each for each in completions if each["context"] in (2, 5)):
        number = str(audited["context"])
        (traced,) = printed(capsys, "trace", "bpe", "--decoder", "nucleus:0.95", "--context", number, *common, "--json")
        assert [step["token"] for step in json.loads(traced)["steps"]] == audited["tokens"]
    assert len(completions) == 6


def test_a_trace_as_a_table(capsys: pytest.CaptureFixture[str]):
    arguments = ["trace", "word", "--decoder", "top-k:2", "--context", "1", "--max-steps", "30"]
    found = json.loads("".join(printed(capsys, *arguments, "--json")))
    steps = found["steps"]
    assert len(steps) == 30
    prefix, decoder, _, header, *rows, _, first, best = printed(capsys, *arguments, "--all")
    assert prefix == f"prefix: {escape_for_terminal(found['prefix_text'])}"
    assert decoder == "decoder: top-k:2"
    assert header.split() == ["step", "token", "p(token)", "p(eos)", "rank", "kept", "eos", "removed", "by"]
    for row, step in zip(rows, steps, strict=True):
        ending = ["kept"] if step["eos_kept"] else ["removed", "top-k:2"]
        shown = [
            str(step["number"]),
            *escape_for_terminal(step["text"]).split(),
            f"{step['prob']:.4g}",
            f"{step['eos_prob']:.4g}",
        ]
        assert row.split() == [*shown, str(step["eos_rank"]), "2", *ending]
    kept = sum(step["eos_kept"] for step in steps)
    assert first.startswith(f"did not end in 30 steps (limit): eos was kept in {kept} of 30 steps")
    assert first.endswith(f", removed by top-k:2 in {30 - kept}")
    rank = min(step["eos_rank"] for step in steps)
    assert best.startswith(f"best rank of eos: {rank}, at step ")


def test_a_long_trace_is_abridged(capsys: pytest.CaptureFixture[str]):
    arguments = ["trace", "word", "--max-steps", "50", "--no-proofs"]
    whole = printed(capsys, *arguments, "--all")
    brief = printed(capsys, *arguments)
    assert brief[24] == "... 10 steps ... (--all shows them)"
    numbers = [int(line.split()[0]) for line in brief[4:24] + brief[25:45]]
    assert numbers == [*range(1, 21), *range(31, 51)]
    assert brief[45:] == whole[54:]
    assert whole[-1].endswith(found_loop(capsys, arguments))
    last = printed(capsys, *arguments, "--last", "3")
    assert [line.split()[0] for line in last[5:8]] == ["48", "49", "50"]
    assert last[4] == "... 47 steps ... (--all shows them)"


def found_loop(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    found = json.loads("".join(printed(capsys, *arguments, "--json")))
    onset, period = found["loop"]["onset"], found["loop"]["period"]
    words = [step["text"] for step in found["steps"][onset - 1 : onset - 1 + period]]
    return f"from step {onset} with period {period} (seen, not proved): {escape_for_terminal(' '.join(words))}"


def test_how_a_trace_says_that_it_ended():
    def trace(cause: Cause, last_step: int) -> Trace:
        steps = tuple(Step(number, 1, 0.5, 0.1, 2, 3, None) for number in (1, 2))
        return Trace((1,), "beam:3", 9, 0, 0, cause, last_step, steps)

    assert describe_outcome(trace(Cause.EOS, 2)) == "ended with eos at step 2"
    assert describe_outcome(trace(Cause.EOS, 5)) == "ended with eos at step 2 (the search ended at step 5)"
    assert describe_outcome(trace(Cause.LIMIT, 2)) == "did not end in 2 steps (limit)"
    assert (
        describe_outcome(trace(Cause.LIMIT, 9)) == "did not end in 9 steps (limit); the best finished hypothesis has 2"
    )


BAD = {
    "not a run": (["--prompt", "a"], "nowhere", "nowhere is not a run directory"),
    "unknown decoder": (["--decoder", "gredy"], "word", "did you mean 'greedy'?"),
    "a decoder that does not fit": (["--decoder", "top-k:99999"], "word", "k must be at most"),
    "no step": (["--max-steps", "0"], "word", "max_steps must be a whole number from 1"),
    "seed": (["--seed", "-1", "--contexts", "random"], "word", "seed must be a whole number from 0"),
    "empty prompt": (["--prompt", "  "], "word", "the prompt is empty"),
    "eos in the prompt": (["--prompt", "a <eos> b"], "word", "contains '<eos>', which is a special token"),
}
BAD_DECODE = {
    "no context": (["--count", "0"], "word", "argument --count: must be a whole number of at least 1, got '0'"),
    "so many prompts": (["--prompt", "a", "--count", "2"], "word", "--count is for contexts of the corpus"),
    "no file": (["--prompts", "nowhere.txt"], "word", "No such file"),
    "not UTF-8": (["--prompts", "latin.txt"], "word", "latin.txt is not UTF-8 text"),
    "an empty file": (["--prompts", "blank.txt"], "word", "blank.txt is empty: it should have one prompt"),
    "pad in a file": (["--prompts", "pad.txt"], "word", "line 2 of the prompts contains '<pad>'"),
    "out to nowhere": (["--out", "nowhere/a.jsonl"], "word", "cannot be written"),
    "two sources": (["--prompt", "a", "--prompts", "b"], "word", "not allowed with argument"),
}
BAD_TRACE = {
    "behind the last": (
        ["--context", "6"],
        "word",
        "context must be a number from 0 to 5, the last one of test, got 6",
    ),
    "before the first": (["--context", "-1"], "word", "context must be a number from 0 to 5"),
    "last of none": (["--last", "0"], "word", "argument --last: must be a whole number of at least 1, got '0'"),
    "prompt and split": (["--prompt", "a", "--contexts", "train"], "word", "prompts take its place, so leave it out"),
    "two lengths": (["--last", "3", "--all"], "word", "not allowed with argument"),
}
CASES = [
    *(("decode", *case) for case in [*BAD.values(), *BAD_DECODE.values()]),
    *(("trace", *case) for case in [*BAD.values(), *BAD_TRACE.values()]),
]


@pytest.mark.parametrize(("verb", "options", "name", "says"), CASES)
def test_bad_input_is_one_line_and_exit_code_2(
    verb: str, options: list[str], name: str, says: str, trained: Path, capsys: pytest.CaptureFixture[str]
):
    Path("latin.txt").write_bytes("größer\n".encode("latin-1"))
    write_lines(Path("blank.txt"), ["", " "])
    write_lines(Path("pad.txt"), ["a", "b <pad>"])
    before = files(trained)
    assert run(verb, name, *options) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith(f"eosin {verb}: ")
    assert says in line
    assert said.out == ""
    assert files(trained) == before


def test_a_context_by_its_number(capsys: pytest.CaptureFixture[str]):
    common = ["--decoder", "ancestral", "--contexts", "train", "--max-steps", "9", "--json"]
    all_of_them = printed(capsys, "decode", "word", "--count", "4", *common)
    assert printed(capsys, "decode", "word", "--context", "3", *common) == all_of_them[3:]
    assert run("decode", "word", "--context", "6") == 2
    assert "context must be a number from 0 to 5" in capsys.readouterr().err


def test_padding_is_not_printed(capsys: pytest.CaptureFixture[str]):
    for verb in ("decode", "trace"):
        assert "<pad>" not in "\n".join(printed(capsys, verb, "word", "--prompt", "the first", "--max-steps", "3"))
