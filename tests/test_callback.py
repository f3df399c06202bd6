"""Audits during a training of transformers: they say what an audit says, and change nothing of the training."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from tokenizers_made_up import WORDS, tokenizer  # noqa: E402

import eosin  # noqa: E402
from eosin.errors import BadInput  # noqa: E402
from eosin.hub import CausalLM, TerminationCallback  # noqa: E402

STEPS, L = 5, 12
PROMPTS = ["hello a", "a b b", [{"role": "user", "content": "a"}]]


def build_model(adapted: bool = False) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        eos_token_id=2, pad_token_id=0, max_position_embeddings=64, attention_dropout=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    if not adapted:
        return model
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))


def build_trainer(folder: Path, adapted: bool = False, **settings: object) -> transformers.Trainer:
    ids = torch.randint(5, 11, (8, 6), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in ids]
    usual = {"max_steps": STEPS, "learning_rate": 0.05, "logging_steps": 1, "per_device_train_batch_size": 4}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    arguments = transformers.TrainingArguments(str(folder), **{**usual, **quiet, **settings})
    return transformers.Trainer(
        build_model(adapted), arguments, train_dataset=data, processing_class=tokenizer(adds_eos=False, chat=True)
    )


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}, {"bf16": True}], ids=str)
def test_the_log_says_what_an_audit_says(adapted: bool, settings: dict[str, object], tmp_path: Path):
    trainer = build_trainer(tmp_path, adapted, **settings)
    decoders = ["greedy", "nucleus:0.5"]
    callback = TerminationCallback(trainer, PROMPTS, every=2, max_steps=L, decoders=decoders)
    trainer.add_callback(callback)
    trainer.train()
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "eosin/greedy/r_L" in entry}
    assert sorted(logged) == [2, 4, 5]
    inner = trainer.model.get_base_model() if adapted else trainer.model
    audit = eosin.audit(CausalLM(inner.eval(), (2, 4)), callback.prefixes, decoders, max_steps=L)
    for decoder, record in audit.by_decoder.items():
        low, high = record.ratio.interval()
        for name, value in {"r_L": record.ratio.value, "r_L 95% low": low, "r_L 95% high": high}.items():
            assert logged[STEPS][f"eosin/{decoder}/{name}"] == value
        for cause, count in record.counts.causes.items():
            assert logged[STEPS][f"eosin/{decoder}/{cause}"] == count / len(PROMPTS)


def test_the_training_is_the_same_with_audits_and_without(tmp_path: Path):
    weights = []
    for audited in (False, True):
        trainer = build_trainer(tmp_path)
        if audited:
            trainer.add_callback(TerminationCallback(trainer, PROMPTS, every=1, max_steps=L))
        trainer.train()
        weights.append(trainer.model.state_dict())
        assert trainer.model.training
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompts": []}, "give a prompt or more"),
        ({"every": 0}, "a number of steps from 1 on"),
        ({"decoders": ["gredy"]}, "did you mean 'greedy'"),
        ({"prompts": [""]}, "has no token"),
        ({"max_steps": 100}, "at most"),
    ],
)
def test_nonsense_is_refused_before_training(changes: dict[str, object], said: str, tmp_path: Path):
    with pytest.raises(BadInput, match=said):
        TerminationCallback(build_trainer(tmp_path), **{"prompts": PROMPTS, "every": 2, "max_steps": L, **changes})
