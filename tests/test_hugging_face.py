"""The well-known library on the same logits: its warpers keep what our rules keep, its beam search scores as ours."""

import pytest
import torch
from kept_sets import lined, listed, surveyed
from torch.testing import assert_close

import eosin
from eosin.decoding.scoring import score_by_steps
from eosin.decoding.truncation import TRUNCATIONS

transformers = pytest.importorskip("transformers")
from transformers.generation import logits_process as warpers  # noqa: E402

WARPERS = [
    *(("top-k", k, warpers.TopKLogitsWarper(k)) for k in (1, 5, 50, 300)),
    *(("nucleus", mu, warpers.TopPLogitsWarper(mu)) for mu in (0.1, 0.5, 0.9, 0.99)),
    *(("min-p", ratio, warpers.MinPLogitsWarper(ratio)) for ratio in (0.01, 0.1, 0.5)),
    *(("typical", mass, warpers.TypicalLogitsWarper(mass)) for mass in (0.2, 0.5, 0.95)),
    *(("epsilon", cut, warpers.EpsilonLogitsWarper(cut)) for cut in (3e-4, 0.01, 0.3)),
    *(("eta", cut, warpers.EtaLogitsWarper(cut)) for cut in (3e-4, 0.01, 0.3)),
]


@pytest.mark.parametrize(("name", "value", "warper"), WARPERS, ids=[f"{name}:{value}" for name, value, _ in WARPERS])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_warper_keeps_the_same_tokens(name: str, value: float, warper, temperature: float):
    """Its nucleus reaches mu where ours exceeds it; on real-valued logits nobody can tell."""
    generator = torch.Generator().manual_seed(int(1000 * value))
    logits = torch.randn(40, 600, generator=generator) * torch.logspace(-1, 1, 40)[:, None]
    warped = warper(torch.zeros(40, 1, dtype=torch.int64), logits.double() / temperature)
    theirs = [set(row.isfinite().nonzero()[:, 0].tolist()) for row in warped]
    asked = surveyed(logits.double(), (7,), temperature)
    rule = TRUNCATIONS[name](value)
    assert lined(rule, asked) == theirs
    assert all(mine in (None, other) for mine, other in zip(listed(rule, asked), theirs, strict=True))


class Plain:
    """A causal language model of transformers, in ten lines: its state is the text so far, read anew at every step."""

    def __init__(self, model, eos_id: int):
        self.model, self.vocab_size, self.eos_ids = model, model.config.vocab_size, (eos_id,)

    def prefill(self, prefix):
        return self.model(prefix).logits[:, -1], Text(prefix)

    def step(self, token, state):
        return self.prefill(torch.cat([state.tokens, token[:, None]], dim=1))


class Text:
    def __init__(self, tokens):
        self.tokens = tokens

    def select(self, rows):
        return Text(self.tokens[rows])


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=64, n_embd=32, n_layer=2, n_head=2, eos_token_id=5, bos_token_id=0, pad_token_id=5
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.double()


CONTEXTS = torch.randint(6, 60, (12, 4), generator=torch.Generator().manual_seed(3))


def generated(gpt2, **settings):
    return gpt2.generate(
        CONTEXTS,
        attention_mask=torch.ones_like(CONTEXTS),
        max_new_tokens=20,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )


def continuation(sequence: torch.Tensor) -> list[int]:
    tokens = sequence[CONTEXTS.shape[1] :].tolist()
    return tokens[: tokens.index(5) + 1] if 5 in tokens else tokens


def test_greedy_is_generate(gpt2):
    theirs = generated(gpt2)
    mine = eosin.decode(Plain(gpt2, 5), CONTEXTS, "greedy", max_steps=20)
    assert mine.tokens == [continuation(sequence) for sequence in theirs.sequences]


def test_a_hypothesis_has_the_score_that_its_beam_search_gives_it(gpt2):
    theirs = generated(gpt2, num_beams=4, length_penalty=0.0, early_stopping=False)
    ended = 0
    for context, sequence, score in zip(CONTEXTS, theirs.sequences, theirs.sequences_scores, strict=True):
        tokens = continuation(sequence)
        mine = score_by_steps(Plain(gpt2, 5), context[None], torch.tensor([tokens])).sum().detach()
        assert_close(float(mine), float(score), rtol=1e-5, atol=1e-5)
        ended += tokens[-1] == 5
    assert ended, "no hypothesis of the example ends"


def test_our_beam_search_scores_its_hypotheses_as_the_model_does(gpt2):
    found = eosin.decode(Plain(gpt2, 5), CONTEXTS, "beam:4", max_steps=20)
    for context, tokens, log_prob in zip(CONTEXTS, found.tokens, found.log_prob, strict=True):
        score = score_by_steps(Plain(gpt2, 5), context[None], torch.tensor([tokens])).sum().detach()
        assert_close(float(score), float(log_prob))
