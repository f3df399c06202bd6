"""Stop strings: a completion is cut after the first of them, whatever the decoder, the pool and the company."""

import pytest
import torch
from members import MODELS, VOCAB, crossed

import eosin
from eosin.causes import Cause
from eosin.decoding.decode import complete
from eosin.decoding.job import Job
from eosin.decoding.stopping import StopStrings
from eosin.errors import BadInput

LETTERS = "abcdefghijklmnopqrstuvwxyz"
STEPS = 20
CHOSEN = [
    each for each in MODELS if each.name in ("tanh-softmax", "loop", "script", "lively-lstm", "lively-transformer")
]


def text_of(tokens):
    return "".join(LETTERS[token] for token in tokens)


def cut(tokens: list[int], strings: tuple[str, ...]) -> tuple[list[int], bool]:
    """What is left of a completion, and whether a string ended it: by definition."""
    for length in range(1, len(tokens) + 1):
        if any(text_of(tokens[:length]).endswith(string) for string in strings):
            return tokens[:length], True
    return tokens, False


STRINGS = [("b",), ("ab", "cc"), ("dad",), ("zz",)]


@pytest.mark.parametrize(
    ("strings", "decoder", "pool"),
    crossed(STRINGS, ["greedy", "ancestral", "nucleus:0.6", "consistent-top-k:2"], [2, 100]),
)
def test_a_completion_is_cut_after_the_first_stop_string(strings: tuple[str, ...], decoder: str, pool: int):
    for specimen in CHOSEN:
        prefixes = torch.randint(0, VOCAB - 1, (9, 3), generator=torch.Generator().manual_seed(0))
        whole = list(complete(Job.create(specimen.model, prefixes, max_steps=STEPS, seed=5), decoder))
        stop = StopStrings(strings, text_of)
        job = Job.create(specimen.model, prefixes, max_steps=STEPS, seed=5, pool=pool, stop=stop)
        stopped = list(complete(job, decoder))
        expected = {each.index: (*cut(each.tokens.tolist(), strings), each) for each in whole}
        assert len(stopped) == len(expected)
        for found in stopped:
            tokens, came, before = expected[found.index]
            assert found.tokens.tolist() == tokens
            ended = bool(tokens) and tokens[-1] in specimen.model.eos_ids
            assert found.cause is (Cause.EOS if ended else Cause.STOP if came else before.cause)
            assert found.cause.ends or len(tokens) == STEPS


def test_a_string_at_the_limit_ends_in_time():
    specimen = next(each for each in MODELS if each.name == "loop")
    (whole,) = complete(Job.create(specimen.model, [[0]], max_steps=5), "greedy")
    last = text_of(whole.tokens.tolist())
    (made,) = complete(Job.create(specimen.model, [[0]], max_steps=5, stop=StopStrings((last,), text_of)), "greedy")
    assert whole.cause is not Cause.STOP
    assert (made.cause, made.steps) == (Cause.STOP, 5)


def test_an_audit_counts_them_as_ended_and_proves_nothing():
    specimen = next(each for each in MODELS if each.name == "loop")
    loop = text_of(completed_tokens(specimen))[-1]
    found = eosin.audit(specimen.model, [[0], [1]], ["greedy"], max_steps=30, stop=StopStrings((loop,), text_of))
    (record,) = found.records
    assert record.signature.table["stop"] == [loop]
    assert record.signature.table["proofs"] is False
    assert record.counts.causes[Cause.STOP] == 2
    assert record.counts.ratio(30).value == 0


def completed_tokens(specimen) -> list[int]:
    (made,) = complete(Job.create(specimen.model, [[0]], max_steps=30), "greedy")
    return made.tokens.tolist()


def test_what_they_cannot_end_is_refused():
    model, stop = MODELS[0].model, StopStrings(("a",), text_of)
    with pytest.raises(BadInput, match="end with eos only"):
        eosin.decode(model, [[0]], "beam:2", max_steps=3, stop=stop)
    with pytest.raises(BadInput, match="leave out the stop strings"):
        eosin.audit(model, [[0]], ["ancestral"], max_steps=3, survival=True, stop=stop)
    for wrong in ((), ("",)):
        with pytest.raises(BadInput, match="at least one letter"):
            StopStrings(wrong, text_of)
