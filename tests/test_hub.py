"""Causal language models of transformers: decoded, bounded and mended as any other model."""

import copy
import json
import math
import string
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
from torch.testing import assert_close

import eosin
from eosin.auditing.identity import identify
from eosin.decoding.decode import complete
from eosin.decoding.job import Job
from eosin.decoding.stopping import StopStrings
from eosin.hub.attention import NAME, use_grouped_attention
from eosin.hub.cache import ROOM, CacheState
from eosin.hub.causal_lm import CausalLM
from eosin.hub.generation import TRUNCATING_PROCESSORS, EosKeepingProcessor, TerminationFloor, consistent
from eosin.hub.norms import bound_log_odds, find_last_norm, read_gain_and_bias

transformers = pytest.importorskip("transformers")
from transformers.generation.logits_process import LogitsProcessorList  # noqa: E402

VOCAB, EOS = 60, 3
SMALL = {"vocab_size": VOCAB, "eos_token_id": EOS, "bos_token_id": 1, "pad_token_id": 0}
LAYERS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def gpt2():
    return transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **SMALL)


def llama():
    return transformers.LlamaConfig(**LAYERS, **SMALL)


def gemma():
    return transformers.GemmaConfig(**LAYERS, head_dim=8, **SMALL)


def gemma2():
    return transformers.Gemma2Config(**LAYERS, head_dim=8, sliding_window=6, **SMALL)


STYLES = {"gpt2": gpt2, "llama": llama, "gemma": gemma, "gemma2": gemma2}


@pytest.fixture(params=STYLES, scope="module")
def lm(request: pytest.FixtureRequest) -> CausalLM:
    """With an eos that is now and then the most probable token."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = transformers.AutoModelForCausalLM.from_config(STYLES[request.param]()).eval()
        for parameter in model.parameters():
            parameter.data.mul_(4)
    return CausalLM(model, (EOS,))


def prompts(count: int = 12, length: int = 5) -> torch.Tensor:
    return torch.randint(4, VOCAB, (count, length), generator=torch.Generator().manual_seed(1))


def generated(lm: CausalLM, prefix: torch.Tensor, **how: object) -> list[list[int]]:
    usual = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    with torch.no_grad():
        made = lm.model.generate(prefix, attention_mask=torch.ones_like(prefix), **{**usual, **how})
    rows = [row[prefix.shape[1] :].tolist() for row in made]
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


def test_greedy_is_generate_token_for_token(lm: CausalLM):
    prefix = prompts()
    ours = eosin.decode(lm, prefix, "greedy", max_steps=20)
    assert ours.tokens == generated(lm, prefix)


def test_some_rows_end_and_some_do_not(lm: CausalLM):
    """Or the other tests would say little."""
    ends = eosin.decode(lm, prompts(60), "nucleus:0.9", max_steps=20).terminated
    assert 0 < int(ends.sum()) < 60


@pytest.mark.parametrize("pool", [1, 3, 100])
def test_prompts_of_different_lengths_do_not_disturb_each_other(lm: CausalLM, pool: int):
    several = [prompts(1, length)[0].tolist() for length in (1, 2, 2, 5, 7, 9, 12)]
    alone = [eosin.decode(lm, [prompt], "greedy", max_steps=15).tokens[0] for prompt in several]
    assert eosin.decode(lm, several, "greedy", max_steps=15, pool=pool).tokens == alone


def test_a_pool_that_is_filled_up_again_does_not_grow(lm: CausalLM, monkeypatch: pytest.MonkeyPatch):
    lengths = []
    step = lm.step

    def watched(token, state):
        lengths.append(state.length)
        return step(token, state)

    monkeypatch.setattr(lm, "step", watched)
    few = eosin.decode(lm, prompts(90), "consistent-nucleus:0.9", max_steps=15, seed=1, pool=4).tokens
    assert max(lengths) <= 5 + 15
    assert few == eosin.decode(lm, prompts(90), "consistent-nucleus:0.9", max_steps=15, seed=1, pool=90).tokens


def test_what_tells_models_apart(lm: CausalLM):
    heads = [{"kind": "st"}, {"kind": "st", "epsilon": 0.03}, {"kind": "nmst"}, {"kind": "nmst", "count_prompt": True}]
    models = [lm, *(CausalLM(headed(lm, **head), lm.eos_ids) for head in heads)]
    assert len({json.dumps(identify(model), sort_keys=True) for model in models}) == len(models)
    assert identify(lm) == identify(CausalLM(copy.deepcopy(lm.model), lm.eos_ids))


def test_double_precision_stays(lm: CausalLM):
    double = CausalLM(copy.deepcopy(lm.model).double(), lm.eos_ids)
    with torch.no_grad():
        assert double.prefill(prompts(2))[0].dtype == torch.float64
        assert double.score(prompts(2), prompts(2, 3)).dtype == torch.float64


def test_hybrid_caches_are_refused():
    config = transformers.FalconH1Config(
        **{**LAYERS, "num_key_value_heads": 4},
        **SMALL,
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_d_state=8,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(eosin.errors.BadInput, match="keys and values alone"):
        eosin.decode(CausalLM(model, (EOS,)), prompts(2), "greedy", max_steps=3)


@torch.inference_mode()
def test_states_stay_what_they_were(lm: CausalLM):
    """Whatever was continued from the same state before, and however often it grew, got other rows or lost some."""

    def read(tokens: torch.Tensor, state: CacheState) -> tuple[torch.Tensor, CacheState]:
        for place in range(tokens.shape[1]):
            logits, state = lm.step(tokens[:, place], state)
        return logits, state

    begun = read(prompts(4, ROOM + 5), lm.prefill(prompts(4, 3))[1])[1]
    first, second = prompts(4, 3), prompts(4, 3).flip(0)
    expected = [read(tokens, copy.deepcopy(begun))[0] for tokens in (first, second)]
    kept = torch.tensor([2, 0])
    assert torch.equal(read(first, begun)[0], expected[0])
    assert torch.equal(read(second, begun)[0], expected[1])
    one = read(first[:, :1], begun)[1]
    read(second, begun)  # after what `one` continues too
    assert torch.equal(read(first[:, 1:], one)[0], expected[0])
    shorter = begun.select(kept)
    assert_close(read(second[kept], shorter)[0], expected[1][kept])
    assert torch.equal(read(first, begun)[0], expected[0])
    if shorter.joinable:
        joined = shorter.join(lm.prefill(prompts(2, 5))[1])
        assert_close(read(torch.cat([second[kept], first[:2]]), joined)[0][:2], expected[1][kept])
        assert_close(read(first[kept], joined.select(torch.tensor([0, 1])))[0], expected[0][kept])


def test_grouped_attention_changes_nothing_but_the_time(lm: CausalLM):
    grouped = CausalLM(copy.deepcopy(lm.model), lm.eos_ids)
    use_grouped_attention(grouped.model)
    several = [prompts(1, length)[0].tolist() for length in (1, 2, 2, 5, 7, 9, 12)]
    mine, theirs = (eosin.decode(each, several, "nucleus:0.9", max_steps=15, pool=3) for each in (grouped, lm))
    assert mine.tokens == theirs.tokens
    assert torch.equal(mine.log_prob, theirs.log_prob)
    shares_keys = lm.model.config.model_type in ("llama", "gemma")
    assert (grouped.model.base_model.config._attn_implementation == NAME) == shares_keys


def test_a_state_is_a_value(lm: CausalLM):
    """Reading on does not change what a state was."""
    with torch.no_grad():
        _, state = lm.prefill(prompts(4))
        one, _ = lm.step(torch.tensor([5, 6, 7, 8]), state)
        lm.step(torch.tensor([9, 9, 9, 9]), state)
        again, _ = lm.step(torch.tensor([5, 6, 7, 8]), state)
        rows = torch.tensor([2, 0, 2])
        picked, _ = lm.step(torch.tensor([7, 5, 7]), state.select(rows))
    assert torch.equal(one, again)
    assert_close(picked, one[rows])


def test_joined_rows_are_as_they_were(lm: CausalLM):
    with torch.no_grad():
        _, short = lm.prefill(prompts(2, 3))
        _, long = lm.prefill(prompts(3, 9))
        if not short.joinable:
            pytest.skip("a layer keeps a window of the past only")
        tokens = torch.tensor([4, 5, 6, 7, 8])
        both, state = lm.step(tokens, short.join(long))
        assert_close(both[:2], lm.step(tokens[:2], short)[0], atol=1e-4, rtol=1e-4)
        assert_close(both[2:], lm.step(tokens[2:], long)[0], atol=1e-4, rtol=1e-4)
        after, _ = lm.step(tokens, state)
        alone = lm.step(tokens[:2], lm.step(tokens[:2], short)[1])[0]
        assert_close(after[:2], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", [None, "st", "nmst", "st, prompt counted", "nmst, prompt counted"])
def test_scores_are_those_of_steps(lm: CausalLM, head: str | None):
    if head:
        lm = CausalLM(headed(lm, head.partition(",")[0], count_prompt="prompt" in head), lm.eos_ids)
    prefix, continuation = prompts(3), prompts(3, 6)
    with torch.no_grad():
        scores = lm.score(prefix, continuation)
        logits, state = lm.prefill(prefix)
        for place in range(continuation.shape[1]):
            token = continuation[:, place]
            expected = logits.log_softmax(-1)[torch.arange(3), token]
            assert_close(scores[:, place], expected, atol=1e-4, rtol=1e-4)
            logits, state = lm.step(token, state)


def test_the_score_of_a_beam_is_that_of_its_tokens(lm: CausalLM):
    prefix = prompts(4)
    for row in prefix:
        (ours,) = complete(Job.create(lm, [row.tolist()], max_steps=12), "beam:3")
        if not ours.cause.ends:
            continue
        with torch.no_grad():
            score = lm.score(row[None], ours.tokens[None])[0].sum().item()
        assert_close(score, ours.log_prob, atol=1e-3, rtol=1e-4)


def test_hypotheses_get_the_scores_of_generate(lm: CausalLM):
    prefix, compared = prompts(8), 0
    for row in prefix:
        with torch.no_grad():
            made = lm.model.generate(
                row[None], attention_mask=torch.ones_like(row[None]), do_sample=False, num_beams=3,
                num_return_sequences=3, early_stopping=True, length_penalty=0.0, max_new_tokens=12, pad_token_id=0,
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        theirs = {}
        for tokens, score in zip(made.sequences[:, len(row) :].tolist(), made.sequences_scores.tolist(), strict=True):
            ended = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
            with torch.no_grad():
                ours = lm.score(row[None], torch.tensor([ended]))[0].sum().item()
            assert_close(ours, score, atol=1e-3, rtol=1e-4)
            theirs[tuple(ended)] = score
        (found,) = complete(Job.create(lm, [row.tolist()], max_steps=12), "beam:3")
        if tuple(found.tokens.tolist()) in theirs:
            assert_close(found.log_prob, theirs[tuple(found.tokens.tolist())], atol=1e-3, rtol=1e-4)
            compared += 1
    assert compared >= 6  # where all three hypotheses end in the same step the two may differ in which they keep


def test_stop_strings_end_as_in_generate(lm: CausalLM):
    words = (string.ascii_letters + string.digits)[:VOCAB]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    prefix = prompts()
    plain = eosin.decode(lm, prefix, "greedy", max_steps=20)
    strings = tuple(words[row[1]] + words[row[2]] for row in plain.tokens[:4] if len(row) > 3)
    stop = StopStrings(strings, lambda tokens: "".join(words[token] for token in tokens))
    ours = eosin.decode(lm, prefix, "greedy", max_steps=20, stop=stop)
    for row, tokens in zip(prefix, ours.tokens, strict=True):
        if any(each.startswith(words[row[-1]]) for each in strings):
            continue  # generate also stops at a string that begins in the prompt
        (theirs,) = generated(lm, row[None], stop_strings=list(strings), tokenizer=tokenizer)
        assert tokens == theirs
    assert any(len(stopped) < len(whole) for stopped, whole in zip(ours.tokens, plain.tokens, strict=True))


@pytest.mark.parametrize("spec", ["nucleus:0.5", "consistent-top-k:3", "typical:0.5", "min-p:0.2,temperature=0.7"])
def test_every_decoder_works(lm: CausalLM, spec: str):
    made = eosin.decode(lm, prompts(6), spec, max_steps=10, seed=3)
    again = eosin.decode(lm, prompts(6), spec, max_steps=10, seed=3)
    assert made.tokens == again.tokens


def test_a_floor_under_it_makes_it_end(lm: CausalLM):
    floor = eosin.Floor(lm, epsilon=0.1)
    assert eosin.decode(floor, prompts(6), "greedy", max_steps=floor.greedy_bound).terminated.all()


# Lemma 3.2


def test_the_final_norm_bounds_the_logits(lm: CausalLM):
    bound = bound_log_odds(lm.model, (EOS,))
    if lm.model.config.model_type == "gemma2":
        assert bound == -float("inf")
        return
    gain, bias = read_gain_and_bias(find_last_norm(lm.model))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        logits = lm.model(torch.randint(VOCAB, (64, 30), generator=generator)).logits.double()
    others = logits.index_fill(-1, torch.tensor([EOS]), -float("inf")).logsumexp(-1)
    least = float((logits[..., EOS] - others).min())
    assert bound <= least
    with torch.no_grad():
        norm = lm.model.base_model.ln_f if hasattr(lm.model.base_model, "ln_f") else lm.model.base_model.norm
        x = torch.randn(200, len(gain), generator=generator) * 5
        n = (norm(x).double() - bias) / gain
    assert float(n.norm(dim=1).max()) <= len(gain) ** 0.5 * (1 + 1e-4)
    certificate = eosin.certify(lm, "consistent-nucleus:0.2")
    assert certificate.consistent
    assert eosin.certify(lm, "nucleus:0.2").consistent is None


@pytest.mark.parametrize(
    "config",
    [
        transformers.CohereConfig(**LAYERS, **SMALL, logit_scale=5.0),
        transformers.GraniteConfig(**LAYERS, **SMALL, logits_scaling=0.25),
    ],
    ids=lambda config: config.model_type,
)
def test_logits_that_are_scaled_are_bounded(config):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    bound = bound_log_odds(model, (EOS,))
    with torch.no_grad():
        logits = model(torch.randint(VOCAB, (64, 30), generator=torch.Generator().manual_seed(0))).logits.double()
    others = logits.index_fill(-1, torch.tensor([EOS]), -float("inf")).logsumexp(-1)
    least = float((logits[..., EOS] - others).min())
    assert -float("inf") < bound <= least


# in generate


SETTINGS = [
    {"top_k": 3},
    {"top_p": 0.2},
    {"min_p": 0.5, "top_k": 0},
    {"typical_p": 0.3, "top_k": 0},
    {"epsilon_cutoff": 0.05, "top_k": 0},
    {"eta_cutoff": 0.05, "top_k": 0},
    {"top_h": 0.3, "top_k": 0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: next(iter(each)))
def test_every_truncation_keeps_eos(lm: CausalLM, settings: dict[str, float]):
    prefix = prompts(8)
    torch.manual_seed(0)
    with torch.no_grad():
        made = lm.model.generate(
            prefix,
            attention_mask=torch.ones_like(prefix),
            do_sample=True,
            max_new_tokens=12,
            pad_token_id=0,
            custom_generate=consistent,
            output_scores=True,
            return_dict_in_generate=True,
            **settings,
        )
    assert all(step[:, EOS].isfinite().all() for step in made.scores)
    assert any((~step.isfinite()).any() for step in made.scores)


def test_what_is_kept_beside_eos_is_what_the_warper_keeps():
    scores = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(2)) * 3
    for warper in (
        TRUNCATING_PROCESSORS[0](4),
        TRUNCATING_PROCESSORS[1](0.5),
        TRUNCATING_PROCESSORS[2](0.3),
        TRUNCATING_PROCESSORS[3](0.4),
    ):
        plain, kept = (
            warper(prompts(5), scores.clone()),
            EosKeepingProcessor(warper, torch.tensor([EOS]))(prompts(5), scores.clone()),
        )
        others = torch.arange(VOCAB) != EOS
        assert torch.equal(plain[:, others], kept[:, others])
        assert torch.equal(kept[:, EOS], scores[:, EOS])


def test_greedy_and_beams_go_through_consistent_too(lm: CausalLM):
    prefix = prompts(4)
    assert generated(lm, prefix, custom_generate=consistent) == generated(lm, prefix)
    beams = {"num_beams": 3, "early_stopping": False}
    assert generated(lm, prefix, custom_generate=consistent, **beams) == generated(lm, prefix, **beams)


def test_streaming_goes_through_consistent(lm: CausalLM):
    heard = []

    class Streamer:
        def put(self, value):
            heard.append(value)

        def end(self):
            heard.append("end")

    generated(lm, prompts(1), do_sample=True, top_k=2, custom_generate=consistent, stream_to=Streamer())
    assert heard[-1] == "end"
    assert len(heard) > 2


@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=["greedy", "beam", "top-k"]
)
def test_the_floor_ends_generate_as_it_ends_decode(lm: CausalLM, how: dict[str, object]):
    floor = TerminationFloor(EOS, epsilon=0.1)
    bound = eosin.Floor(lm, epsilon=0.1).greedy_bound
    prefix = prompts(5)
    for _ in range(2):  # the processor begins anew with every prompt
        made = generated(lm, prefix, max_new_tokens=60, logits_processor=LogitsProcessorList([floor]), **how)
        assert all(row[-1] == EOS for row in made)
        if not how:
            assert made == eosin.decode(eosin.Floor(lm, epsilon=0.1), prefix, "greedy", max_steps=60).tokens
            assert max(map(len, made)) <= bound


def test_the_floor_returns_log_probabilities_and_leaves_ratios():
    scores = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    floor = TerminationFloor([EOS, 7], epsilon=0.2, grace=2, prompt_length=5)
    for length in (5, 6, 7, 8, 30):
        raised = floor(torch.zeros(4, length, dtype=torch.long), scores)
        assert_close(raised.exp().sum(1), torch.ones(4))
        before = scores.log_softmax(-1)
        p, q = (x[:, [EOS, 7]].exp().sum(1) for x in (before, raised))
        later = max(0, length - 5 + 1 - 2)
        assert_close(1 - q, (1 - p) * 0.8**later, atol=1e-6, rtol=1e-5)
        others = [token for token in range(VOCAB) if token not in (EOS, 7)]
        assert_close(raised[:, others] - raised[:, others[:1]], before[:, others] - before[:, others[:1]])


def test_a_floor_counts_from_its_prompt_in_every_use(lm: CausalLM):
    def floored(length: int, floor: TerminationFloor, **how: object) -> list[list[int]]:
        return generated(lm, prompts(1, length), max_new_tokens=60, logits_processor=[floor], **how)

    used = TerminationFloor(EOS, epsilon=0.05)
    for length in (5, 40, 40, 6):
        assert floored(length, used) == floored(length, TerminationFloor(EOS, epsilon=0.05))
    plain = floored(5, TerminationFloor(EOS, epsilon=0.05))
    if lm.model.config.model_type != "gemma2":  # whose cache cannot be cropped
        assert floored(5, TerminationFloor(EOS, epsilon=0.05), prompt_lookup_num_tokens=3) == plain


def test_a_budget_is_kept(lm: CausalLM):
    floor = TerminationFloor(EOS, budget=40)
    assert 0 < floor.grace <= 20
    made = generated(lm, prompts(8), max_new_tokens=60, do_sample=True, logits_processor=LogitsProcessorList([floor]))
    assert max(map(len, made)) <= 40
    assert all(row[-1] == EOS for row in made)


def test_nonsense_is_refused():
    for wrong in ({}, {"epsilon": 0.1, "budget": 9}, {"epsilon": 2.0}, {"epsilon": 0.1, "grace": -1}):
        with pytest.raises(eosin.errors.BadInput):
            TerminationFloor(EOS, **wrong)
    with pytest.raises(eosin.errors.BadInput, match="no token ends"):
        CausalLM(torch.nn.Linear(1, 1), ())


# self-terminating heads


def headed(lm: CausalLM, kind: str, epsilon: float = 0.02, **how: bool):
    from eosin.hub.heads import add_head

    return add_head(copy.deepcopy(lm.model), kind, epsilon=epsilon, **how).eval()


def survivals(model, tokens: torch.Tensor, start: int, kind: str, epsilon: float) -> torch.Tensor:
    """1 - p(eos) at each position from `start` on, by the definition, one position after the other."""
    with torch.no_grad():
        probs = model.inner(tokens).logits.double().softmax(-1)[..., EOS]
    product, rows = torch.ones(len(tokens), dtype=torch.float64), []
    for step, place in enumerate(range(start, tokens.shape[1]), 1):
        product = product * (1 - probs[:, place]) * (1 - epsilon)
        rows.append(product if kind == "st" else (1 - probs[:, place]) * (1 - epsilon) ** step)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("kind", ["st", "nmst"])
def test_a_head_is_its_definition_and_leaves_the_other_tokens_alone(lm: CausalLM, kind: str):
    model, tokens = headed(lm, kind), prompts(4, 9)
    with torch.no_grad():
        logits = model(tokens).logits.double()
        plain = model.inner(tokens).logits.double()
    assert_close(1 - logits.softmax(-1)[..., EOS], survivals(model, tokens, 0, kind, 0.02), atol=1e-5, rtol=1e-4)
    others = torch.arange(VOCAB) != EOS
    assert_close(logits[..., others].softmax(-1), plain[..., others].softmax(-1), atol=1e-5, rtol=1e-4)


def test_a_head_ends_with_the_tokens_that_generate_stops_at(lm: CausalLM):
    from eosin.hub.heads import add_head

    model = add_head(copy.deepcopy(lm.model), "self-terminating", epsilon=0.3, eos_ids=[7, 9]).eval()
    assert model.generation_config.eos_token_id == [7, 9]
    assert lm.model.generation_config.eos_token_id == EOS
    with torch.no_grad():
        made = model.generate(
            prompts(4), attention_mask=torch.ones(4, 5), max_new_tokens=30, do_sample=False, pad_token_id=0
        )
    assert made.shape[1] < 5 + 30
    right, wrong = CausalLM(model, (7, 9)), CausalLM(model, (EOS,))
    assert eosin.certify(right, "greedy").ends_by is not None
    assert "by a self-terminating head" in right.promise().grounds
    assert eosin.certify(wrong, "greedy").ends_by is None


def test_a_head_needs_its_cache_in_generate(lm: CausalLM):
    model = headed(lm, "st")
    for how in ({"use_cache": False}, {"prefill_chunk_size": 2}):
        with pytest.raises(eosin.errors.BadInput, match="leave"):
            model.generate(prompts(2), attention_mask=torch.ones(2, 5), max_new_tokens=3, **how)


def test_a_vocabulary_that_has_grown_is_saved_and_loaded(lm: CausalLM, tmp_path: Path):
    model = headed(lm, "nmst")
    model.resize_token_embeddings(VOCAB + 4)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(model(prompts(2)).logits, again(prompts(2)).logits)


@pytest.mark.parametrize("kind", ["st", "nmst"])
def test_cached_steps_are_the_whole_sequence(lm: CausalLM, kind: str):
    model, tokens = headed(lm, kind), prompts(4, 10)
    with torch.no_grad():
        first = model(tokens[:, :6], logits_to_keep=1, use_cache=True)
        steps, cache = [first.logits[:, -1]], first.past_key_values
        for place in range(6, 10):
            answer = model(tokens[:, place : place + 1], past_key_values=cache, logits_to_keep=1, use_cache=True)
            steps.append(answer.logits[:, -1])
    ended = 1 - torch.stack(steps, 1).double().softmax(-1)[..., EOS]
    assert_close(ended, survivals(model, tokens, 5, kind, 0.02), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["st", "nmst"])
def test_labels_say_where_the_count_begins(lm: CausalLM, kind: str):
    model, tokens = headed(lm, kind), prompts(2, 9)
    tokens[:, -1] = EOS
    labels = tokens.clone()
    labels[0, :4] = -100
    labels[1, :6] = -100
    answer = model(tokens, labels=labels)
    expected = []
    for row, first in ((0, 4), (1, 6)):
        ended = survivals(model, tokens[row : row + 1], first - 1, kind, 0.02)[0]
        with torch.no_grad():
            among = model.inner(tokens[row : row + 1]).logits[0].double()
        among[:, EOS] = -float("inf")
        among = among.log_softmax(-1)
        for step, place in enumerate(range(first, 9)):
            token = tokens[row, place]
            chosen = torch.log(1 - ended[step]) if token == EOS else ended[step].log() + among[place - 1, token]
            expected.append(-chosen)
    assert_close(answer.loss.double(), torch.stack(expected).mean(), atol=1e-4, rtol=1e-4)
    answer.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_nmst_begins_as_the_pretrained_model(lm: CausalLM):
    model, tokens = headed(lm, "nmst", epsilon=1e-9), prompts(3, 8)
    with torch.no_grad():
        assert_close(model(tokens).logits.softmax(-1), model.inner(tokens).logits.softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["st", "nmst"])
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True}, {"prompt_lookup_num_tokens": 2}], ids=str)
def test_it_ends_in_generate_as_its_theorem_says(lm: CausalLM, kind: str, how: dict[str, object]):
    if "prompt_lookup_num_tokens" in how and lm.model.config.model_type == "gemma2":
        pytest.skip("a sliding window cannot be cropped")
    model = headed(lm, kind, epsilon=0.1)
    prefix = prompts(1 if "prompt_lookup_num_tokens" in how else 5)
    with torch.no_grad():
        made = model.generate(
            prefix,
            attention_mask=torch.ones_like(prefix),
            max_new_tokens=80,
            pad_token_id=0,
            **{"do_sample": False, **how},
        )
    rows = [row[prefix.shape[1] :].tolist() for row in made]
    assert all(EOS in row for row in rows)
    if not how or "prompt_lookup_num_tokens" in how:
        ours = eosin.decode(CausalLM(model, (EOS,)), prefix, "greedy", max_steps=80).tokens
        assert [row[: row.index(EOS) + 1] for row in rows] == ours
        assert max(map(len, ours)) <= 7 + 1  # ln 2 / -ln 0.9


@pytest.mark.parametrize("kind", ["st", "nmst"])
def test_left_padding_does_not_matter(lm: CausalLM, kind: str):
    model = headed(lm, kind, epsilon=0.05)
    prefix = prompts(3, 5)
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    lengths = (5, 3, 2)
    padded = torch.stack([torch.nn.functional.pad(row[:n], (9 - n, 0)) for row, n in zip(prefix, lengths, strict=True)])
    mask = (torch.arange(9) >= 9 - torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        other = model.generate(padded, attention_mask=mask, **how)[:, 9:].tolist()
        for row, n, beside in zip(prefix, lengths, other, strict=True):
            alone = model.generate(row[None, :n], attention_mask=torch.ones(1, n), **how)[0, n:].tolist()
            assert beside[: len(alone)] == alone


class TwoNumbers(torch.nn.Module):
    """1 - p_t = (1 - sigmoid(m_t)) 0.9^t, where m_t is the mean of the eos logit so far: two numbers of memory."""

    memory_shape, logit_favors_eos = (2,), True
    examples = ({"base": 0.9},)

    def __init__(self, base: float = 0.9):
        super().__init__()
        self.base = base

    def forward(self, eos_logits, memory):
        steps = memory[:, None, 0] + torch.arange(1, eos_logits.shape[1] + 1)
        sums = memory[:, None, 1] + eos_logits.double().cumsum(1)
        log_survival = steps * math.log(self.base) + torch.nn.functional.logsigmoid(-sums / steps)
        return log_survival, torch.stack([steps, sums], dim=-1)


def test_a_new_head_of_the_table_goes_on_pretrained_models(
    lm: CausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(eosin.HEADS, "two-numbers", TwoNumbers)
    from eosin.hub.heads import add_head

    model, tokens = add_head(copy.deepcopy(lm.model), "two-numbers", base=0.8).eval(), prompts(3, 9)
    with torch.no_grad():
        odds = model.inner(tokens).logits.double().softmax(-1)[..., EOS].logit()
    steps = torch.arange(1, 10)
    expected = 0.8**steps * (-odds.cumsum(1) / steps).sigmoid()
    with torch.no_grad():
        assert_close(1 - model(tokens).logits.double().softmax(-1)[..., EOS], expected, atol=1e-5, rtol=1e-4)
        kept = CausalLM(model, (EOS,))
        logits, state = kept.prefill(tokens[:, :1])
        for place, step in enumerate(steps.tolist()):
            assert_close(logits.double().softmax(-1)[:, EOS], 1 - expected[:, place], atol=1e-5, rtol=1e-4)
            if step < 9:
                logits, state = kept.step(tokens[:, step], state)
        assert eosin.certify(kept, "greedy").consistent is None
        model.save_pretrained(tmp_path)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        assert torch.equal(model(tokens).logits, again(tokens).logits)
    model(tokens, labels=tokens).loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_importing_the_package_is_enough_to_open_a_model_with_a_head(tmp_path: Path):
    """In a fresh process; a head of one's own is registered before the model is opened."""
    from eosin.hub.heads import add_head

    add_head(transformers.AutoModelForCausalLM.from_config(gpt2()), "nmst").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "head": {"kind": "mine", "epsilon": 0.5}}))
    code = (
        "import eosin.hub, transformers; eosin.HEADS['mine'] = eosin.HEADS['non-monotonic']; "
        f"print(transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}).head.epsilon)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.stdout.strip() == "0.5", made.stderr


def test_a_configuration_of_an_earlier_version_is_read(tmp_path: Path):
    from eosin.hub.heads import SelfTerminatingConfig, SelfTerminatingForCausalLM

    for kind in ("st", "nmst"):
        old = {"model_type": "eosin-self-terminating", "kind": kind, "epsilon": 0.03, "eos_ids": [EOS], "inner": {}}
        (tmp_path / "config.json").write_text(json.dumps(old))
        config = transformers.AutoConfig.from_pretrained(tmp_path)
        assert isinstance(config, SelfTerminatingConfig)
        assert config.head == {"kind": kind, "epsilon": 0.03}
    for wrong, said in (
        ({"kind": "softmax"}, "rewrites eos"),
        ({"kind": "st", "epsilon": 2.0}, "epsilon must lie"),
        ({"kind": "nmts"}, "is not a kind of head"),
    ):
        with pytest.raises(eosin.errors.BadInput, match=said):
            SelfTerminatingForCausalLM(SelfTerminatingConfig(head=wrong), torch.nn.Linear(1, 1))


def test_it_is_saved_and_loaded(lm: CausalLM, tmp_path: Path):
    model = headed(lm, "st", epsilon=0.03)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = prompts(3, 7)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, again(tokens).logits)
    assert (again.config.head, again.config.eos_ids) == ({"kind": "st", "epsilon": 0.03}, [EOS])
    assert eosin.certify(CausalLM(again, (EOS,)), "greedy").ends_by == math.floor(math.log(2) / -math.log(0.97)) + 1


@pytest.mark.parametrize("lora", [False, True])
def test_it_trains_with_the_ordinary_trainer_and_with_lora(lm: CausalLM, lora: bool, tmp_path: Path):
    peft = pytest.importorskip("peft")
    model = headed(lm, "nmst" if lora else "st")
    old = lm.model.config.model_type == "gpt2"
    targets = {"target_modules": ["c_attn"] if old else ["q_proj", "v_proj"], "fan_in_fan_out": old}
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **targets)) if lora else model
    examples = [{"input_ids": row, "labels": row.clone()} for row in prompts(16, 8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[],
        logging_steps=1, use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(model=adapted, args=arguments, train_dataset=examples)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
