"""eosin doctor: each check finds its own fault, and a healthy model has none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from tokenizers_made_up import WORDS, tokenizer  # noqa: E402

from eosin.cli.main import main  # noqa: E402
from eosin.hub.doctor import CHECKS, Finding, ModelFiles, examine, read_model_files  # noqa: E402


def healthy(**settings: object) -> ModelFiles:
    config = transformers.LlamaConfig(vocab_size=len(WORDS), eos_token_id=2, pad_token_id=0, max_position_embeddings=64)
    generation = transformers.GenerationConfig(eos_token_id=2, pad_token_id=0, max_new_tokens=50)
    return replace(ModelFiles(tokenizer(), config, generation), **settings)


def with_generation(**settings: object) -> ModelFiles:
    return healthy(generation=transformers.GenerationConfig(**{"eos_token_id": 2, "max_new_tokens": 50, **settings}))


def with_template(template: str) -> Any:
    made = tokenizer()
    made.chat_template = template
    return made


FAULTS = {
    "find_missing_tokenizer": healthy(tokenizer=None),
    "find_missing_eos": healthy(
        tokenizer=tokenizer(eos_token=None),
        config=transformers.LlamaConfig(eos_token_id=None),
        generation=transformers.GenerationConfig(),
    ),
    "find_disagreeing_eos": with_generation(eos_token_id=4),
    "find_unknown_eos": with_generation(eos_token_id=[2, 99]),
    "find_unlisted_turn_end": healthy(tokenizer=tokenizer(chat=True)),
    "find_open_turn": healthy(tokenizer=with_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")),
    "find_padding_as_eos": healthy(tokenizer=tokenizer(pad_token="</s>")),
    "find_untrained_eos": healthy(examples=[[7, 9], [9, 10], [7, 2]]),
    "find_truncated_eos": healthy(examples=[[7, 9, 9, 9, 2]] * 3, max_length=3),
    "find_penalised_eos": with_generation(repetition_penalty=1.2),
    "find_banned_eos": with_generation(bad_words_ids=[[2]]),
    "find_incomplete_sampling": with_generation(do_sample=True),
    "find_forced_eos": with_generation(forced_eos_token_id=2),
    "find_longest_output": healthy(),
}


def test_every_check_has_a_fault():
    assert [check.__name__ for check in CHECKS] == list(FAULTS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_finds_its_fault_and_nothing_in_a_healthy_model(check):
    (found, *_) = check(FAULTS[check.__name__])
    assert found.what
    assert found.why
    assert found.fix
    if check.__name__ not in ("find_longest_output", "find_incomplete_sampling"):
        assert list(check(healthy(examples=[[7, 2], [9, 10, 2]], max_length=30))) == []


@pytest.mark.parametrize(
    "generation",
    [{"min_new_tokens": "40"}, {"repetition_penalty": "1.2"}, {"bad_words_ids": [0]}, {"suppress_tokens": 5}],
)
def test_a_value_of_the_wrong_kind_is_a_finding(generation: dict[str, object]):
    files = healthy()
    for name, value in generation.items():
        setattr(files.generation, name, value)
    assert any("failed" in finding.what for finding in examine(files))


def test_a_healthy_model_has_nothing_wrong():
    assert not any(finding.wrong for finding in examine(healthy()))


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        (healthy(tokenizer=tokenizer(pad_token="</s>")), False),
        (healthy(tokenizer=tokenizer(pad_token="</s>"), examples=[[7, 9]]), False),
        (healthy(tokenizer=tokenizer(pad_token="</s>"), examples=[[7, 2], [9, 10]]), True),
        (healthy(examples=[[7, 2], [9, 2]]), None),
    ],
)
def test_padding_as_eos_is_wrong_where_a_training_set_shows_harm(files: ModelFiles, wrong: bool | None):
    found = [finding for finding in examine(files) if "padding" in finding.what]
    assert [finding.wrong for finding in found] == ([] if wrong is None else [wrong])


def test_a_light_penalty_is_a_note():
    assert examine(with_generation(repetition_penalty=1.2))[0].wrong
    assert not any(finding.wrong for finding in examine(with_generation(repetition_penalty=1.1)))


@pytest.mark.parametrize(("name", "said"), [("demo", "may not end"), ("demo-st", "ends by step 693")])
def test_a_run_has_nothing_wrong(name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["doctor", name])
    assert f"greedy decoding {said}" in capsys.readouterr().out
    (tmp_path / "train.txt").write_text("a b\n")
    with pytest.raises(SystemExit):
        main(["doctor", name, "--train", str(tmp_path / "train.txt")])
    assert "leave it out" in capsys.readouterr().err


def test_long_minima_are_wrong_and_short_ones_worth_knowing():
    assert examine(with_generation(min_new_tokens=100))[0].wrong
    assert not any(finding.wrong for finding in examine(with_generation(min_new_tokens=5)))


def saved(folder: Path, files: ModelFiles) -> Path:
    for part in (files.tokenizer, files.config, files.generation):
        part.save_pretrained(folder)
    return folder


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["doctor", str(saved(tmp_path / "healthy", healthy()))])
    assert "0 things are wrong" in capsys.readouterr().out
    sick = saved(tmp_path / "sick", healthy(tokenizer=tokenizer(chat=True)))
    with pytest.raises(SystemExit) as end:
        main(["doctor", str(sick), "--json"])
    assert end.value.code == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "<|im_end|>" in found[0]["what"]
    assert "4" in found[0]["fix"]


def test_a_training_set_is_read(tmp_path: Path):
    folder = saved(tmp_path / "model", healthy(tokenizer=tokenizer(chat=True, adds_eos=False)))
    lines = [{"text": "a b </s>"}, {"text": "a"}, {"messages": [{"role": "user", "content": "a"}]}]
    lines += [{"prompt": "a", "completion": " b"}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = read_model_files(str(folder), tmp_path / "train.jsonl")
    assert [ids[-1] for ids in files.examples] == [2, 9, 4, 10]
    (tmp_path / "train.txt").write_text("a b\nb\n")
    assert len(read_model_files(str(folder), tmp_path / "train.txt").examples) == 2


def model_folder(folder: Path, kind: str = "gpt2", **files: dict[str, object]) -> Path:
    """Configurations with a vocabulary of 33 tokens, and an eos that is none of them unless another is named."""
    folder.mkdir()
    said = {"config": {"model_type": kind, "vocab_size": 33, "eos_token_id": 50256}, **files}
    for name, table in said.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    return folder


def found_in(folder: Path) -> dict[str, Finding]:
    """The first finding of each check that has one."""
    files = read_model_files(str(folder))
    return {check.__name__: found[0] for check in CHECKS if (found := list(check(files)))}


def test_a_tokenizer_that_transformers_makes_up_is_not_believed(tmp_path: Path):
    for kind in ("gpt2", "gpt_neox", "qwen2", "gemma", "bert", "llama"):
        folder = model_folder(tmp_path / kind, kind)
        assert read_model_files(str(folder)).tokenizer is None
        found = found_in(folder)
        assert "no tokenizer files" in found["find_missing_tokenizer"].what
        assert not found["find_missing_tokenizer"].wrong
        assert (
            "eos 50256 (config, generation config) is no token of the model, which has 33"
            in found["find_unknown_eos"].what
        )
        assert "no other token is named" in found["find_unknown_eos"].why
        assert found["find_unknown_eos"].wrong
        assert "find_disagreeing_eos" not in found
        assert not any("50256" in each.fix for each in found.values())


def test_a_tokenizer_without_its_vocabulary_is_none(tmp_path: Path):
    said = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    assert read_model_files(str(model_folder(tmp_path / "model", tokenizer_config=said))).tokenizer is None


def test_a_tokenizer_of_bytes_needs_no_vocabulary(tmp_path: Path):
    folder = model_folder(tmp_path / "model")
    transformers.ByT5Tokenizer().save_pretrained(folder)
    assert read_model_files(str(folder)).endings_by_source["tokenizer"] == (1,)


def test_a_vocabulary_of_its_own_kind_is_read(tmp_path: Path):
    folder = model_folder(tmp_path / "model", vocab={"<|endoftext|>": 7, "a": 0})
    (folder / "merges.txt").write_text("")
    assert read_model_files(str(folder)).endings_by_source["tokenizer"] == (7,)


def test_no_token_is_advised_that_the_model_has_not(tmp_path: Path):
    """Neither the one of the config nor the one of the tokenizer."""
    folder = model_folder(tmp_path / "model", generation_config={"eos_token_id": [3, 50256]})
    found = found_in(folder)
    assert found["find_disagreeing_eos"].fix == "set generation_config.eos_token_id = [3]"
    assert not found["find_disagreeing_eos"].wrong
    assert found["find_unknown_eos"].fix.endswith("[3]")
    tokenizer().save_pretrained(folder)
    found = found_in(folder)
    assert found["find_disagreeing_eos"].fix == "set generation_config.eos_token_id = [2, 3]"
    assert found["find_disagreeing_eos"].wrong
    small = healthy(tokenizer=tokenizer(chat=True), config=transformers.LlamaConfig(vocab_size=4, eos_token_id=2))
    assert not any("4" in each.fix for each in examine(small))
    assert any("eos 4 (chat template) is no token" in each.what and each.wrong for each in examine(small))


def test_a_negative_eos_is_found_where_the_size_is_unknown():
    class Sizeless(transformers.PretrainedConfig):
        pass

    files = healthy(config=Sizeless(eos_token_id=-1))
    (found,) = [each for each in examine(files) if "eos -1" in each.what and "no token of the model" in each.what]
    assert found.wrong


def test_without_a_tokenizer_nothing_is_made_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = model_folder(tmp_path / "model")
    (tmp_path / "train.txt").write_text("a b\n")
    for arguments in (
        ["doctor", str(folder), "--train", str(tmp_path / "train.txt")],
        ["audit", f"hf:{folder}", "--prompts", str(tmp_path / "train.txt"), "--max-steps", "5"],
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
        assert "has no tokenizer files" in capsys.readouterr().err


def test_nonsense_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = str(saved(tmp_path / "model", healthy()))
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"\xe4\xf6")
    (tmp_path / "blank.jsonl").write_text('{"text": "a"}\n{"text": ""}\n')
    (tmp_path / "odd.jsonl").write_text('{"words": 3}')
    for arguments, said in (
        ([str(tmp_path / "empty")], "holds no model: it has no config.json"),
        (["no/such-model-anywhere"], "there is no file or folder no/such-model-anywhere"),
        ([folder, "--train", str(tmp_path / "nothing")], "there is no file"),
        ([folder, "--train", str(tmp_path / "latin.txt")], "is not UTF-8"),
        ([folder, "--train", str(tmp_path / "odd.jsonl")], "is no example"),
        ([folder, "--train", str(tmp_path / "blank.jsonl")], "line 2"),
        ([folder, "--max-length", "0"], "at least 1"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["doctor", *arguments])
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
