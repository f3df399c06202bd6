"""The decoders of a generation config draw from the same tokens as `generate`."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
from distributions import surveyed  # noqa: E402
from transformers import LogitsProcessorList  # noqa: E402
from transformers.generation import logits_process as warpers  # noqa: E402

from eosin.decoding.truncation import keep_mask_by_line  # noqa: E402
from eosin.hub.sampling import TopKNucleus, build_sampler, list_decoders, list_ignored  # noqa: E402

VOCAB = 500
SETTINGS = {
    "nothing": ({}, "top-k:50"),
    "top_k": ({"top_k": 7}, "top-k:7"),
    "top_p": ({"top_k": 0, "top_p": 0.9}, "nucleus:0.9"),
    "both": ({"top_k": 20, "top_p": 0.8}, "top-k-nucleus:20:0.8"),
    "Llama": ({"temperature": 0.6, "top_p": 0.9}, "top-k-nucleus:50:0.9,temperature=0.6"),
    "many": ({"top_k": 400, "top_p": 0.7}, "top-k-nucleus:400:0.7"),
    "more than there are": ({"top_k": 1_000, "top_p": 0.7}, "nucleus:0.7"),
    "all": ({"top_k": 0, "temperature": 1.3}, "ancestral,temperature=1.3"),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_the_kept_tokens_are_those_of_generate(name: str, spread: float):
    settings, expected = SETTINGS[name]
    generation = transformers.GenerationConfig(do_sample=True, **settings)
    sampler = build_sampler(generation, VOCAB)
    assert str(sampler) == expected
    logits = spread * torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(0))
    scores = LogitsProcessorList()
    temperature, top_k, top_p = (getattr(generation, each) for each in ("temperature", "top_k", "top_p"))
    if temperature:
        scores.append(warpers.TemperatureLogitsWarper(temperature))
    if top_k != 0:
        scores.append(warpers.TopKLogitsWarper(50 if top_k is None else top_k))
    if top_p:
        scores.append(warpers.TopPLogitsWarper(top_p))
    theirs = scores(torch.zeros(40, 1, dtype=torch.long), logits).isfinite()
    next_token = surveyed(logits)
    assert torch.equal(sampler.kept(next_token), theirs)
    if sampler.truncation is not None:
        by_line = keep_mask_by_line(sampler.truncation, next_token.at(sampler.temperature))
        assert torch.equal(by_line, theirs)


@pytest.mark.parametrize("k", [2, 50])
@pytest.mark.parametrize("mu", [0.3, 0.9])
def test_what_is_certain_is_kept(k: int, mu: float):
    rule = TopKNucleus(k, mu)
    logits = 2 * torch.randn(200, VOCAB, generator=torch.Generator().manual_seed(1))
    next_token = surveyed(logits)
    certain = logits.double().softmax(-1) > rule.certain(VOCAB)
    assert certain.any()
    assert not (certain & ~keep_mask_by_line(rule, next_token)).any()


def test_the_decoders_are_greedy_the_sampling_and_its_eos_keeping_form():
    generation = transformers.GenerationConfig(top_p=0.9, repetition_penalty=1.1)
    assert list(map(str, list_decoders(generation, VOCAB))) == [
        "greedy", "top-k-nucleus:50:0.9", "consistent-top-k-nucleus:50:0.9",
    ]  # fmt: skip
    assert list(map(str, list_decoders(transformers.GenerationConfig(top_k=0), VOCAB))) == ["greedy", "ancestral"]
    assert list(list_ignored(generation)) == ["repetition_penalty=1.1"]
    assert list(list_ignored(transformers.GenerationConfig(do_sample=True, top_k=5, temperature=0.7))) == []
