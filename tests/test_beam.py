"""Beam search: greedy at width one, brute force when exhaustive, and both stopping rules. See also test_loop."""

import itertools

import pytest
import torch
from members import NEURAL, Specimen, neural, prefixes
from torch.testing import assert_close

import eosin
from eosin.decoding.beam import Beam
from eosin.proofs.constructions import Coin, Repeater


def all_finished(model, prefix: list[int], longest: int) -> list[tuple[float, list[int]]]:
    """Every sequence of at most so many tokens that ends with eos, with its log-probability, best first."""
    (eos,) = model.eos_ids
    others = [token for token in range(model.vocab_size) if token != eos]
    found = []
    for length in range(longest):
        for words in itertools.product(others, repeat=length):
            tokens = [*words, eos]
            score = model.score(torch.tensor([prefix]), torch.tensor([tokens])).sum()
            found.append((float(score.detach()), tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("specimen", NEURAL, ids=str)
def test_width_one_is_greedy(specimen: Specimen):
    model = specimen.model
    for spec in ("beam:1", "beam:1,stop=first"):
        beam, greedy = (eosin.decode(model, prefixes(20), s, max_steps=15) for s in (spec, "greedy"))
        assert beam.tokens == greedy.tokens
        assert torch.equal(beam.terminated, greedy.terminated)
        assert_close(beam.log_prob, greedy.log_prob)


@pytest.mark.parametrize("core", ["tanh", "lstm", "gru", "transformer"])
@pytest.mark.parametrize("head", ["softmax", "self-terminating", "non-monotonic"])
def test_exhaustive_beam_is_brute_force(core: str, head: str):
    model = neural(core, head, vocab=4, eos=1)
    contexts = prefixes(5, vocab=4).tolist()
    wide = 4**4
    found = eosin.decode(model, contexts, f"beam:{wide}", max_steps=4)
    for row, prefix in enumerate(contexts):
        score, tokens = all_finished(model, prefix, 4)[0]
        assert found.tokens[row] == tokens
        assert_close(float(found.log_prob[row]), score)
    assert not found.terminated.any()  # there are not so many sequences: the limit ended the search


def test_the_search_ends_when_width_are_finished():
    """Two tokens, eos first: at each step one hypothesis finishes, so width 3 ends at the third."""
    model = Coin(0.6)
    for width in (1, 2, 3, 7):
        found = eosin.decode(model, [[1]] * 3, f"beam:{width}", max_steps=width)
        assert found.terminated.all()
        assert found.tokens == [[0]] * 3
        assert found.steps.tolist() == [width] * 3  # though the best hypothesis was finished at the first step
        if width > 1:
            early = eosin.decode(model, [[1]], f"beam:{width}", max_steps=width - 1)
            assert not early.terminated.any()
            assert early.tokens == [[0]]  # the best finished one all the same, marked as not terminated
        first = eosin.decode(model, [[1]], f"beam:{width},stop=first", max_steps=1)
        assert first.terminated.all()


def test_the_two_rules_differ():
    """The first to finish need not be the best of those that finish."""
    model = neural("transformer", "softmax", vocab=30, gain=4.0, eos_bias=1.0)
    full, first = (
        eosin.decode(model, prefixes(60, vocab=30), f"beam:4{rule}", max_steps=30) for rule in ("", ",stop=first")
    )
    assert full.tokens != first.tokens
    both = full.terminated & first.terminated
    assert (full.log_prob[both] >= first.log_prob[both] - 1e-12).all()
    assert (full.log_prob[both] > first.log_prob[both] + 1e-6).any()


def test_a_beam_that_never_ends():
    found = eosin.decode(Repeater(3, p=0.0), [[1], [2]], "beam:3", max_steps=50)
    assert not found.terminated.any()
    assert found.lengths.tolist() == [50, 50]
    assert_close(found.log_prob, torch.zeros(2, dtype=torch.float64))


def test_a_search_with_nothing_left_to_expand_has_ended():
    """A certain line: one hypothesis in all, so three never finish, but there is nothing to search any more."""
    found = eosin.decode(Repeater(1, p=0.0), [[1]], "beam:3", max_steps=5)
    assert not found.terminated.any()

    class Certain(Coin):
        def __init__(self):
            super().__init__(1.0)

    ended = eosin.decode(Certain(), [[1]], "beam:3", max_steps=5)
    assert ended.terminated.all()
    assert ended.tokens == [[0]]


def test_a_beam_wider_than_the_vocabulary():
    model = neural("gru", "softmax", vocab=3, eos=0)
    assert len(eosin.decode(model, prefixes(4, vocab=3), "beam:20", max_steps=10).tokens) == 4


def test_every_hypothesis_goes_on_from_its_own_memory():
    """Where the paper's own LSTM beam search went wrong: a hypothesis's score must be what the model says of it."""
    for core in ("lstm", "transformer"):
        model = neural(core, "softmax", vocab=30, gain=4.0, eos_bias=1.0)
        contexts = prefixes(30, vocab=30)
        found = eosin.decode(model, contexts, "beam:5", max_steps=25)
        assert len(set(found.lengths.tolist())) > 2
        for prefix, tokens, log_prob in zip(contexts, found.tokens, found.log_prob, strict=True):
            score = model.score(prefix[None], torch.tensor([tokens])).sum().detach()
            assert_close(float(score), float(log_prob))


@pytest.mark.parametrize(("width", "stop"), [(0, "full"), (-1, "full"), (2, "never")])
def test_bad_settings(width: int, stop: str):
    with pytest.raises(ValueError, match=r"beam: (width|stop) must be"):
        Beam(width, stop)


def test_the_default_device_is_not_asked_for():
    """Everything is made where the contexts are."""
    model = neural("tanh", "softmax")
    expected = eosin.decode(model, [[1, 2], [4]], "beam:3", max_steps=5).tokens
    with torch.device("meta"):
        assert eosin.decode(model, [[1, 2], [4]], "beam:3", max_steps=5).tokens == expected
