"""Specifications: every decoder has one, reads back, and a wrong one says what is wrong."""

import math
import re
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from members import DECODERS

import eosin
from eosin.decoding.beam import Beam
from eosin.decoding.distribution import NextToken
from eosin.decoding.job import to_decoder
from eosin.decoding.samplers import Greedy, Sampler
from eosin.decoding.spec import decoder_names
from eosin.decoding.truncation import TRUNCATIONS, Consistent, Interval, Nucleus, Threshold, TopK, TopNSigma, shorten
from eosin.proofs.constructions import Coin

DOCUMENTED = [
    *("ancestral", "greedy", "beam:4", "beam:4,stop=first", "top-k:2", "nucleus:0.2", "min-p:0.1", "epsilon:3e-4"),
    *("eta:3e-4", "typical:0.95", "top-n-sigma:1", "consistent-nucleus:0.2", "ancestral,temperature=0.7"),
]


@pytest.mark.parametrize("spec", [*DECODERS, *DOCUMENTED])
def test_round_trip(spec: str):
    decoder = eosin.parse_decoder(spec)
    assert str(decoder) == spec
    assert eosin.parse_decoder(str(decoder)) == decoder


@pytest.mark.parametrize(
    ("spec", "decoder"),
    [
        ("greedy", Greedy()),
        ("ancestral", Sampler()),
        ("beam:4", Beam(4)),
        ("beam:4,stop=full", Beam(4)),
        ("beam:2,stop=first", Beam(2, "first")),
        ("top-k:2", Sampler(TopK(2))),
        ("consistent-nucleus:0.20", Sampler(Consistent(Nucleus(0.2)))),
        ("nucleus:2e-1,temperature=1", Sampler(Nucleus(0.2))),
    ],
)
def test_meaning(spec: str, decoder):
    assert eosin.parse_decoder(spec) == decoder


@given(st.floats(min_value=1e-12, max_value=1, exclude_min=True))
def test_any_value_reads_back(mu: float):
    decoder = Sampler(Nucleus(mu), temperature=mu)
    assert eosin.parse_decoder(str(decoder)) == decoder


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3e-4, "3e-4"),
        (1e-3, "1e-3"),
        (0.01, "0.01"),
        (0.95, "0.95"),
        (1, "1"),
        (1.0, "1"),
        (2.5, "2.5"),
        (1000, "1000"),
    ],
)
def test_numbers_are_written_as_people_write_them(number: float, text: str):
    assert shorten(number) == text


def test_every_rule_can_be_named():
    names = {*TRUNCATIONS, *(f"consistent-{name}" for name in TRUNCATIONS), "greedy", "ancestral", "beam"}
    assert names == set(decoder_names())


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nuclues:0.2", "did you mean 'nucleus'"),
        ("topk:2", "did you mean 'top-k'"),
        ("consistent-greedy", "did you mean 'consistent-"),
        ("xyzzy", "there are greedy, ancestral, beam"),
        ("", "there are greedy"),
        ("nucleus", "nucleus needs a value, as in 'nucleus:0.2'"),
        ("top-k", "top-k needs a value, as in 'top-k:2'"),
        ("greedy:1", "greedy takes no value"),
        ("ancestral:0.5", "ancestral takes no value"),
        ("nucleus:much", "'much' is not a number"),
        ("nucleus:1.5", "mu must lie in (0, 1], got 1.5"),
        ("nucleus:nan", "'nan' is not a number"),
        ("top-k:0", "k must be a whole number of at least 1, got 0"),
        ("top-k: 2", "' 2' is not a number"),
        ("top-k:2_0", "'2_0' is not a number"),
        ("top-k:1e400", "k must be a whole number of at least 1, got inf"),
        ("top-k:2.5", "k must be a whole number of at least 1, got 2.5"),
        ("beam", "needs a whole number as its width, as in 'beam:4'"),
        ("beam:2.5", "needs a whole number as its width"),
        ("beam:\u0663", "needs a whole number as its width"),
        ("beam:99999999999", "width must be a whole number from 1 to 1000000, got 99999999999"),
        ("beam:-1", "needs a whole number as its width"),
        ("beam:0", "width must be a whole number from 1 to 1000000, got 0"),
        ("beam:4,stop=soon", "stop must be 'full' (width finished) or 'first' (one finished), got 'soon'"),
        ("beam:4,stopp=first", "decoder 'beam:4,stopp=first': unknown option 'stopp': did you mean 'stop'?"),
        ("greedy,temperature=0.7", "this decoder takes none"),
        ("nucleus:0.2,temprature=1", "did you mean 'temperature'?"),
        ("nucleus:0.2,temperature", "options are written key=value"),
        ("nucleus:0.2,temperature=", "options are written key=value"),
        ("nucleus:0.2,temperature=cold", "'cold' is not a number"),
        ("nucleus:0.2,temperature=0", "temperature must lie between 1e-30 and 1e30, got 0"),
        ("nucleus:0.2,temperature=1,temperature=2", "temperature is given twice"),
    ],
)
def test_a_wrong_specification_says_what_is_wrong(spec: str, says: str):
    with pytest.raises(ValueError) as error:
        eosin.parse_decoder(spec)
    assert says in str(error.value)


@pytest.mark.parametrize("nothing", [Greedy, 5, None, b"greedy"])
def test_what_is_no_decoder(nothing):
    with pytest.raises(ValueError, match="decoder must be a specification"):
        to_decoder(nothing)


@pytest.mark.parametrize(
    ("spec", "printed"),
    [
        ("top-p:0.9", "nucleus:0.9"),
        ("top_p:0.9,temperature=0.7", "nucleus:0.9,temperature=0.7"),
        ("top_k:2", "top-k:2"),
        ("min_p:0.1", "min-p:0.1"),
        ("typical_p:0.2", "typical:0.2"),
        ("eta_cutoff:3e-4", "eta:3e-4"),
        ("top_h:0.4", "top-h:0.4"),
        ("consistent_top_p:0.9", "consistent-nucleus:0.9"),
    ],
)
def test_names_of_generate_are_understood(spec: str, printed: str):
    assert str(eosin.parse_decoder(spec)) == printed


@dataclass(frozen=True)
class Between(Threshold):
    """A rule of two values, the second of them optional, with a cached property and no `certain`."""

    name = "between"
    aliases = ("middle",)
    examples = ("0.1", "0.1:0.5")
    allowed = (Interval(0, 1), Interval(0, 1, "(]"))
    cut: float
    ratio: float = 0.25

    @cached_property
    def log_cut(self) -> float:
        return math.log(self.cut)

    def least(self, next_token: NextToken) -> torch.Tensor:
        return (next_token.best_log_prob + math.log(self.ratio)).clamp(max=self.log_cut)


def test_a_rule_of_two_values_that_is_registered_late(monkeypatch: pytest.MonkeyPatch):
    """After specifications have been parsed; its cached property is no value."""
    with pytest.raises(ValueError, match="unknown decoder"):
        eosin.parse_decoder("between:0.1")
    monkeypatch.setitem(TRUNCATIONS, "between", Between)
    for spec, printed in (
        ("between:0.1:0.5", "between:0.1:0.5"),
        ("consistent-middle:0.1", "consistent-between:0.1:0.25"),
    ):
        decoder = eosin.parse_decoder(spec)
        assert eosin.decode(Coin(0.5), [[1]], decoder, max_steps=5).lengths.min() >= 1
        assert str(decoder) == printed
        assert eosin.parse_decoder(printed) == decoder
    for wrong, says in (
        ("between", "between needs 1 or 2 values, as in 'between:0.1'"),
        ("between:0.1:0.2:0.3", "between needs 1 or 2 values"),
        ("between:2", "cut must lie in (0, 1), got 2"),
        ("between:0.1:2", "ratio must lie in (0, 1], got 2"),
        ("betwen:0.1", "did you mean 'between'"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            eosin.parse_decoder(wrong)


def test_large_numbers_are_written_short():
    assert str(TopNSigma(1e308)) == "top-n-sigma:1e+308"
