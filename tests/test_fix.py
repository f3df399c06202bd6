"""eosin fix: what it measures is what the code to paste does, and it recommends no more than is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import files, run
from torch.testing import assert_close

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from distributions import surveyed  # noqa: E402

import eosin  # noqa: E402
from eosin.cli.main import main  # noqa: E402
from eosin.contracts import Decoder  # noqa: E402
from eosin.decoding.stopping import StopStrings  # noqa: E402
from eosin.hub.candidates import list_hub_candidates  # noqa: E402
from eosin.hub.loading import Pretrained  # noqa: E402
from eosin.loading import open_run  # noqa: E402
from eosin.remedies.advice import write_decode_code, write_generate_code  # noqa: E402
from eosin.remedies.candidates import AS_IT_IS, Candidate, add_floor  # noqa: E402

BUDGET = 24
TEMPLATE = "{% for m in messages %}{{ m['content'] + end }}{% endfor %}"
SPECIAL = ["<pad>", "<s>", "</s>", "<|end|>"]
LETTERS = sorted(set("abcdefhello xyzzy>"))
PROMPTS = ["hello a b", "a", "b b hello a b", "face", "b a", "hello hello"]
TOYS = """
from eosin.proofs.constructions import Coin, Repeater, Script
repeater = lambda: Repeater(3, p=0.1)
always = lambda: Script([[1, 2], [2, 2, 1], [1]], vocab_size=4)
late = lambda: Script([[1, 2] * 20, [2, 1, 1] * 9, [2] * 40], vocab_size=4)
"""


def make_tokenizer(end: str, **special: str) -> Any:
    """A tokenizer of letters, whose chat template puts `end` after an answer."""
    alphabet = [*SPECIAL, *(letter.replace(" ", "\u0120") for letter in LETTERS)]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({each: i for i, each in enumerate(alphabet)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, additional_special_tokens=["<|end|>"], pad_token="<pad>", **special
    )
    made.chat_template = TEMPLATE.replace("end }}", f"{end!r} }}}}")
    return made


def save_model(place: Path, end: str, **settings: object) -> Path:
    """A small random model, whose eos ids in the generation config are not all that it has."""
    config = transformers.LlamaConfig(
        vocab_size=len(SPECIAL) + len(LETTERS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, eos_token_id=None, pad_token_id=0, max_position_embeddings=256,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    model.lm_head.weight.data[2:4] *= 0.1  # hardly ever the most probable
    model.generation_config = transformers.GenerationConfig(**{"pad_token_id": 0, "eos_token_id": 3, **settings})
    model.save_pretrained(place)
    make_tokenizer(end, eos_token="</s>").save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("hub") / "tiny", ">")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
    (tmp_path / "numbers.txt").write_text("1\n2\n3\n1 2\n", encoding="utf-8")
    (tmp_path / "toys.py").write_text(TOYS, encoding="utf-8")
    return tmp_path


def list_all(folder: Path, decoder: str | None) -> tuple[Any, Any, list[Candidate]]:
    """The model, its tokenizer, and every candidate."""
    lm, words = Pretrained(str(folder)).load()
    given: Decoder | None = decoder and eosin.parse_decoder(decoder)
    candidates = list_hub_candidates(lm, words, given, None)
    floored = add_floor(candidates[-1], BUDGET, {5: 3, 9: 1})
    assert floored
    return lm, words, [*candidates, floored]


def paste(code: str, **names: object) -> dict[str, Any]:
    namespace = dict(names)
    exec(compile(code, "pasted", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("decoder", ["greedy", None, "nucleus:0.5,temperature=1.5", "min-p:0.3", "ancestral"])
def test_what_is_measured_is_what_the_pasted_code_does(folder: Path, decoder: str | None):
    """Greedy completions are equal; a sampler draws from the same distribution at every step."""
    settings = {"do_sample": True, "top_k": 4, "top_p": 0.8, "temperature": 0.7}
    lm, words, candidates = list_all(folder, decoder)
    if decoder is None:
        lm.model.generation_config.update(**settings, stop_strings=["zz"])
        candidates = list_hub_candidates(lm, words, None, StopStrings(("zz",), words.decode))
        candidates.append(add_floor(candidates[-1], BUDGET, {}))
    keeps = [] if decoder in ("greedy", "ancestral") else ["eos kept"]
    assert [each.name for each in candidates] == [AS_IT_IS, "all eos ids", "stop strings", *keeps, "floor"]
    lm.model.generation_config.update(**settings)  # the code does not depend on it
    for candidate, text in ((candidate, text) for candidate in candidates for text in PROMPTS[:3]):
        prefix = torch.tensor(words.encode_prompts([text]))
        code = write_generate_code(candidate, candidates[0].plain.eos_ids, BUDGET)
        scored = code.replace("**inputs,", "**inputs, output_scores=True, return_dict_in_generate=True,")
        inputs = {"input_ids": prefix, "attention_mask": torch.ones_like(prefix)}
        output = paste(scored, model=lm.model, tokenizer=words.inner, inputs=inputs)["output"]
        made = output.sequences[0, prefix.shape[1] :]
        if decoder == "greedy":
            (expected,) = eosin.decode(candidate.model, prefix, "greedy", max_steps=BUDGET, stop=candidate.stop).tokens
            assert made.tolist() == expected
            continue
        for scores, ours in zip(output.scores, list_distributions(candidate, prefix, made), strict=True):
            assert_close(scores[0].softmax(-1), ours, atol=1e-4, rtol=1e-3, msg=f"{candidate.name} {scores} {ours}")


@torch.inference_mode()
def list_distributions(candidate: Candidate, prefix: torch.Tensor, made: torch.Tensor) -> list[torch.Tensor]:
    """What the decoder draws from before each token."""
    logits, state = candidate.model.prefill(prefix)
    found = []
    for token in made:
        dense = logits if torch.is_tensor(logits) else logits.dense()
        next_token = surveyed(dense, candidate.model.eos_ids)
        tempered = dense.float() / candidate.decoder.temperature
        found.append(tempered.masked_fill(~candidate.decoder.kept(next_token), -torch.inf).softmax(-1)[0])
        logits, state = candidate.model.step(token[None], state)
    return found


def fix(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run("fix", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_recommended_code_ends_what_did_not(folder: Path, capsys: pytest.CaptureFixture[str]):
    found = fix(capsys, f"hf:{folder}", "--prompts", "prompts.txt", "--budget", str(BUDGET))
    baseline, *_, floored = found["candidates"]
    assert baseline["ratio"] > 0
    assert floored["ratio"] == 0
    lm, words, _ = list_all(folder, None)
    for text in PROMPTS:
        inputs = words.inner(text, return_tensors="pt")
        output = paste(found["code"], model=lm.model, tokenizer=words.inner, inputs=inputs)["output"]
        made = output[0, inputs["input_ids"].shape[1] :].tolist()
        assert len(made) < BUDGET or made[-1] in floored["eos_ids"] or ">" in words.decode(made)


@pytest.mark.parametrize("given", [["--decoder", "greedy"], ["--decoder", "nucleus:0.2"], ["--decoder", "beam:2"]])
def test_a_run_gets_code_that_does_what_was_measured(given: list[str], capsys: pytest.CaptureFixture[str]):
    found = fix(capsys, "demo", "--count", "40", "--budget", "30", *given)
    assert found["recommended"], given
    prefixes = open_run("demo").corpus.take_contexts("test", 40, 0)
    made = paste(found["code"], prefixes=prefixes)["completions"]
    (recommended,) = (each for each in found["candidates"] if each["name"] == found["recommended"])
    assert 1 - made.terminated.double().mean() == recommended["ratio"]
    assert made.lengths.double().mean() == pytest.approx(recommended["lengths"]["mean"])


def test_a_repeater_gets_the_floor(capsys: pytest.CaptureFixture[str]):
    found = fix(capsys, "py:toys.py:repeater", "--prompts", "numbers.txt", "--budget", "50")
    baseline, floored = found["candidates"]
    assert (baseline["ratio"], floored["ratio"], found["recommended"]) == (1, 0, "floor")
    assert floored["loop_cut"] == 1
    assert floored["floor"]["grace"] == 25  # nothing ends by itself: half of the budget
    made = paste(found["code"], prefixes=[[1], [2]])["completions"]
    assert made.terminated.all()
    # the log-probability is that of the model itself, which repeats with 0.9 and ends with 0.1
    steps = floored["lengths"]["mean"]
    expected = ((steps - 1) * torch.tensor(0.9).log() + torch.tensor(0.1).log()) / steps
    assert floored["log_prob_per_token"] == pytest.approx(float(expected), rel=1e-4)


def test_nothing_to_fix(capsys: pytest.CaptureFixture[str]):
    how = ["py:toys.py:always", "--prompts", "numbers.txt", "--budget", "50"]
    found = fix(capsys, *how)
    assert len(found["candidates"]) == 1
    assert (found["recommended"], found["code"], found["better"]) == (None, "", "")
    assert run("fix", *how) == 0
    assert "Nothing to fix: all 4 completions end by themselves within 50 tokens." in capsys.readouterr().out


def test_a_model_without_eos_in_generate_gets_the_one_that_its_tokenizer_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = save_model(tmp_path / "endless", "<|end|>", eos_token_id=None)
    found = fix(capsys, f"hf:{place}", "--prompts", "prompts.txt", "--budget", str(BUDGET))
    baseline, all_ids, *_ = found["candidates"]
    assert baseline["ratio"] == 1
    assert all_ids["eos_ids"] == [2, 3]
    assert "eos_token_id=[2, 3]" in found["code"]
    assert any("<|end|>" in fault for fault in found["doctor"])


@pytest.mark.parametrize("decoder", ["greedy", "nucleus:0.3"])
def test_json_and_text_agree_and_nothing_is_decoded_twice(
    folder: Path, place: Path, decoder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    how = [f"hf:{folder}", "--prompts", "prompts.txt", "--budget", str(BUDGET), "--decoder", decoder]
    found = fix(capsys, *how)
    before = files(place)
    for cut in (False, True):
        if cut:  # as after a kill
            for path in Path("fixes").rglob("floor*"):
                path.unlink()
        assert run("fix", *how) == 0
        text = capsys.readouterr().out
        rows = text.splitlines()[2 : 2 + len(found["candidates"])]
        for row, each in zip(rows, found["candidates"], strict=True):
            assert row.startswith(each["name"])
            assert f"{100 * each['ratio']:.2f}" in row
            assert row.split()[-1] == f"{each['log_prob_per_token']:.2f}"
        assert f"recommended: {found['recommended']}\n" in text
        assert all(line.strip() in text for line in found["code"].splitlines())
        assert set(files(place)) == set(before)
    assert {name: content for name, content in files(place).items() if "floor" not in name} == {
        name: content for name, content in before.items() if "floor" not in name
    }


def test_a_budget_says_what_it_would_cut(capsys: pytest.CaptureFixture[str]):
    """Three of four prompts end after 41 tokens, one after 28."""
    how = ["py:toys.py:late", "--prompts", "numbers.txt"]
    assert run("fix", *how, "--budget", "30") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--budget 30 is too short: of 4 completions that end by themselves within 200 tokens" in error
    assert run("fix", *how, "--budget", "41") == 0
    assert "Nothing to fix" in capsys.readouterr().out
    Path("one.txt").write_text("1\n1 1\n2\n", encoding="utf-8")
    assert run("fix", "py:toys.py:late", "--prompts", "one.txt", "--budget", "40") == 0
    text = capsys.readouterr().out
    assert "budget: of 3 completions that end by themselves within 200 tokens, 1 (33%) have more than 40" in text
    assert "All of these end by themselves within 41 tokens: with that budget nothing needs fixing." in text


def remove_eos(folder: Path) -> str:
    shutil.copytree(folder, "none")
    make_tokenizer(">").save_pretrained("none")
    Path("none/generation_config.json").write_text("{}")
    return "hf:none"


WRONG: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no budget": (lambda folder: ["demo"], "--budget"),
    "a budget of nothing": (lambda folder: ["demo", "--budget", "0"], "whole number from 1"),
    "no prompts": (lambda folder: [f"hf:{folder}", "--budget", "9"], "give prompts of your own (--prompts FILE)"),
    "empty prompts": (lambda folder: [f"hf:{folder}", "--budget", "9", "--prompts", "empty.txt"], "is empty"),
    "no eos": (
        lambda folder: [remove_eos(folder), "--budget", "9", "--prompts", "prompts.txt"],
        "no token ends a sequence",
    ),
    "more than the window": (
        lambda folder: [f"hf:{folder}", "--budget", "999", "--prompts", "prompts.txt"],
        "256 positions",
    ),
    "a limit below the budget": (
        lambda folder: ["demo", "--budget", "9", "--max-steps", "8"],
        "--max-steps 8 is less than --budget 9",
    ),
    "two decoders": (lambda folder: ["demo", "--budget", "9", "--decoder", "greedy,nucleus:0.2"], "names one decoder"),
    "not in generate": (
        lambda folder: [f"hf:{folder}", "--budget", "9", "--prompts", "prompts.txt", "--decoder", "beam:4"],
        "`generate` has no such decoder",
    ),
    "stop strings of a run": (lambda folder: ["demo", "--budget", "9", "--stop", "x"], "--stop is for hf: models"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_line(case: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("empty.txt").write_text("\n\n")
    arguments, said = WRONG[case]
    with pytest.raises(SystemExit) as end:
        main(["fix", *arguments(folder)])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_code_for_a_model_on_a_floor_names_it():
    model = eosin.Floor(eosin.load("demo"), epsilon=0.01, grace=7)
    candidate = Candidate("floor", model.model, eosin.parse_decoder("beam:2"), floor=model)
    code = write_decode_code(candidate, "demo", 20)
    assert paste(code, prefixes=[[1, 5, 6]])["model"].grace == 7
