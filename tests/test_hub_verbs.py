"""The verbs on a model of Hugging Face: a small one with random weights, in a folder as save_pretrained makes it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

transformers = pytest.importorskip("transformers")
from tokenizers_made_up import WORDS, tokenizer  # noqa: E402

import eosin  # noqa: E402
from eosin import devices  # noqa: E402
from eosin.cli.main import main  # noqa: E402
from eosin.records.record import read_records  # noqa: E402

POSITIONS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hub") / "tiny"
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        eos_token_id=2, pad_token_id=0, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    model.save_pretrained(place)
    tokenizer(adds_eos=False, chat=True).save_pretrained(place)
    return place


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "prompts.txt"
    path.write_text("hello a b\na\nb b hello a b\nuser a\n", encoding="utf-8")
    return path


def test_audit_counts_what_decode_says(folder: Path, prompts: Path, capsys: pytest.CaptureFixture[str]):
    how = ["--prompts", str(prompts), "--max-steps", "20"]
    main(["audit", f"hf:{folder}", *how, "--decoders", "greedy,consistent-nucleus:0.3", "--json"])
    audit = json.loads(capsys.readouterr().out)
    assert audit["greedy"]["contexts"] == 4
    main(["decode", f"hf:{folder}", *how, "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    unended = sum(line["cause"] not in ("eos",) for line in lines)
    assert audit["greedy"]["ratio"] == unended / 4
    assert [line["prefix"] for line in lines] == prompts.read_text().splitlines()
    model = eosin.load(f"hf:{folder}")
    assert model.eos_ids == (2, 4)  # eos, and the end of a turn in the chat template
    made = eosin.decode(model, [line["prefix_tokens"] for line in lines], "greedy", max_steps=20)
    assert made.tokens == [line["tokens"] for line in lines]
    assert list(Path("audits").glob("*tiny/*.jsonl"))


def test_trace_certify_and_chat(folder: Path, prompts: Path, capsys: pytest.CaptureFixture[str]):
    main(["trace", f"hf:{folder}", "--prompt", "hello a", "--decoder", "nucleus:0.3", "--max-steps", "10", "--json"])
    assert json.loads(capsys.readouterr().out)["steps"]
    main(["certify", f"hf:{folder}", "greedy", "consistent-nucleus:0.3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["consistent-nucleus:0.3"]["consistent"]
    assert found["greedy"]["consistent"] is None
    main(["decode", f"hf:{folder}", "--prompt", "hello a", "--chat", "--max-steps", "5", "--json"])
    assert "<|im_start|> user hello a <|im_end|>" in json.loads(capsys.readouterr().out)["prefix"]
    main(["decode", f"hf:{folder}", "--prompt", "hello a b", "--prompt-tokens", "2", "--max-steps", "5", "--json"])
    assert json.loads(capsys.readouterr().out)["prefix"] == "hello a"


def test_messages_go_into_the_chat_template(folder: Path, prompts: Path, capsys: pytest.CaptureFixture[str]):
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "b"}]
    lines = [{"messages": [*turns, turns[0]]}, {"prompt": "hello a"}]
    Path("prompts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    main(["decode", f"hf:{folder}", "--prompts", "prompts.jsonl", "--max-steps", "5", "--json"])
    chat, text = [json.loads(line)["prefix"] for line in capsys.readouterr().out.splitlines()]
    assert chat.count("<|im_start|>") == 3
    assert text == "hello a"
    for model, said in (("demo", "has no chat template"), (f"hf:{folder}", "does not accept messages of nobody")):
        Path("odd.jsonl").write_text(json.dumps({"messages": [{"role": "nobody", "content": "a"}]}))
        with pytest.raises(SystemExit):
            main(["decode", model, "--prompts", "odd.jsonl", "--max-steps", "5"])
        assert said in capsys.readouterr().err


def test_the_usual_settings_are_those_of_the_model(folder: Path, prompts: Path, capsys: pytest.CaptureFixture[str]):
    """Its own sampling, and what its window leaves; an audit is resumed with the same."""
    for again in (False, True):
        main(["audit", f"hf:{folder}", "--prompts", str(prompts), "--json"])
        shown = capsys.readouterr()
        assert list(json.loads(shown.out)) == ["greedy", "ancestral"]  # 50 tokens are more than the model has
        assert "decoders greedy, ancestral;" in shown.err
        assert "at most 60 tokens" in shown.err
        (path,) = Path("audits").glob("*/*.jsonl")
        assert len(list(read_records(path))) == 2, again
    own = folder.parent / "own"
    shutil.copytree(folder, own)
    (own / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "top_k": 5, "top_p": 0.8, "min_p": 0.1}))
    main(["audit", f"hf:{own}", "--prompts", str(prompts), "--max-steps", "5", "--json"])
    shown = capsys.readouterr()
    assert list(json.loads(shown.out)) == ["greedy", "top-k-nucleus:5:0.8", "consistent-top-k-nucleus:5:0.8"]
    assert "without min_p=0.1" in shown.err
    main(["trace", f"hf:{folder}", "--prompt", "a", "--json"])
    assert len(json.loads(capsys.readouterr().out)["steps"]) <= 64


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> Path:
    """An adapter of PEFT that changes the model, without a tokenizer."""
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        adapted = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(folder), settings)
    adapted.save_pretrained(tmp_path / "adapter")
    torch.save(adapted.eval()(torch.tensor([[5, 9, 10]])).logits.detach(), tmp_path / "logits.pt")
    return tmp_path / "adapter"


def test_an_adapter_is_a_model(folder: Path, adapter: Path, prompts: Path, capsys: pytest.CaptureFixture[str]):
    logits = eosin.load(f"hf:{adapter}").model(torch.tensor([[5, 9, 10]])).logits
    assert_close(logits, torch.load(adapter.parent / "logits.pt"))
    assert (logits - eosin.load(f"hf:{folder}").model(torch.tensor([[5, 9, 10]])).logits).abs().max() > 0.1
    main(["audit", f"hf:{adapter}", "--prompts", str(prompts), "--max-steps", "5", "--decoders", "greedy", "--json"])
    assert json.loads(capsys.readouterr().out)["greedy"]["contexts"] == 4
    with pytest.raises(SystemExit) as end:  # no eos is wrong with the chat template
        main(["doctor", str(adapter)])
    assert end.value.code == 1
    assert "<|im_end|>" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 32}, "an adapter of another base"),
        ({"num_hidden_layers": 2}, "an adapter of another base"),
        (None, "which cannot be opened: there is no file or folder"),
    ],
)
def test_an_adapter_of_another_base_is_one_line(
    change: dict[str, int] | None, said: str, folder: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
):
    other = adapter.parent / "other"
    if change is not None:
        config = transformers.AutoConfig.from_pretrained(folder)
        config.update(change)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(other)
        tokenizer(adds_eos=False, chat=True).save_pretrained(other)
    settings = adapter / "adapter_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "base_model_name_or_path": str(other)}))
    with pytest.raises(SystemExit) as end:
        main(["decode", f"hf:{adapter}", "--prompt", "a", "--max-steps", "5"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_nonsense_is_one_line(folder: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"\xe4 \xf6\n")
    (tmp_path / "long.txt").write_text("a " * 100 + "\n")
    plain = tmp_path / "plain"
    transformers.LlamaForCausalLM.from_pretrained(folder).save_pretrained(plain)
    tokenizer(chat=False, eos_token=None).save_pretrained(plain)
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    (plain / "generation_config.json").write_text("{}")
    some = ["--prompts", str(prompts), "--max-steps", "10", "--decoders", "greedy"]
    for model, more, said in (
        (tmp_path / "empty", some, "holds no model: it has no config.json"),
        (folder, [*some, "--prompt-tokens", "0"], "must be a whole number of at least 1"),
        ("no/such-model-anywhere", some, "a hub id that is not in the cache?"),
        (plain, some, "no token ends a sequence"),
        (plain, [*some, "--eos", "2", "--chat"], "no chat template"),
        (folder, ["--max-steps", "10"], "comes without a corpus"),
        (folder, ["--prompts", str(tmp_path / "latin.txt"), "--max-steps", "10"], "is not UTF-8"),
        (
            folder,
            ["--prompts", str(tmp_path / "long.txt"), "--decoders", "greedy", "--max-steps", "10"],
            f"{POSITIONS} positions",
        ),
        (folder, ["--prompts", str(tmp_path / "long.txt"), "--decoders", "greedy"], f"{POSITIONS} positions"),
        (folder, [*some, "--max-steps", "100"], "take at most 60 steps"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["audit", f"hf:{model}", *more])
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(("multiplies", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_weights_keep_their_precision_where_the_cpu_multiplies_in_it(
    multiplies: bool, expected: torch.dtype, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(devices, "cpu_multiplies", lambda dtype: multiplies)
    half = tmp_path / "half"
    transformers.LlamaForCausalLM.from_pretrained(folder).to(torch.bfloat16).save_pretrained(half)
    tokenizer(adds_eos=False, chat=True).save_pretrained(half)
    model = eosin.load(f"hf:{half}")
    assert {p.dtype for p in model.parameters()} == {expected}
    assert {b.dtype for b in model.buffers()} == {torch.float32}  # rotary frequencies, whatever the weights
    assert {p.dtype for p in eosin.load(f"hf:{folder}").parameters()} == {torch.float32}  # never lowered unasked


def test_the_precision_is_that_of_the_model_unless_it_is_named(
    folder: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
):
    how = ["--prompts", str(prompts), "--max-steps", "5", "--decoders", "greedy", "--json"]
    for given, dtype in ([], "float32"), (["--dtype", "float64"], "float64"):
        main(["audit", f"hf:{folder}", *how, *given])
        (path,) = Path("audits").glob(f"*/*-{dtype}.jsonl")
        assert next(read_records(path)).signature.table["dtype"] == dtype
    capsys.readouterr()
    main(["report", f"hf:{folder}"])  # records are found by the name of the model
    assert "greedy" in capsys.readouterr().out
