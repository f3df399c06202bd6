"""What tells models apart: two that differ in anything never share records, and one that is the same always does."""

import cmath
import copy
import functools
import json
import logging
import math
import random
import re
import subprocess
import sys
import textwrap
import threading
import types
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from members import MODELS, neural
from torch import nn

import eosin
from eosin.auditing.identity import Inventory, hash_behaviour, identify, is_installed
from eosin.decoding.samplers import Sampler
from eosin.decoding.truncation import MinP
from eosin.errors import BadInput
from eosin.states import TensorState


class Table:
    """Says what a table of plain tensors says; it has no parameters, and no state but the last token."""

    vocab_size, eos_ids = 3, (0,)

    def __init__(self, logits: torch.Tensor, **more: object):
        self.logits = logits
        self.__dict__.update(more)

    def prefill(self, prefix):
        return self.step(prefix[:, -1], None)

    def step(self, token, state):
        return self.logits[token], TensorState((token,))


ENDS = torch.tensor([[9.0, 0.0, 0.0]] * 3)
GOES_ON = torch.tensor([[0.0, 9.0, 0.0]] * 3)


class Slow(nn.Module):
    """A head with a plain number, as in docs/adding.md."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length

    memory_shape, logit_favors_eos = (), True

    def forward(self, eos_logits, memory):
        steps = memory[:, None] + torch.arange(1, eos_logits.shape[1] + 1)
        return (1 - steps / self.length).clamp(min=0).log(), steps


class Buffered(Slow):
    def __init__(self, length: int, persistent: bool):
        super().__init__(100)
        self.register_buffer("slope", torch.tensor(float(length)), persistent=persistent)


def with_head(head: nn.Module) -> eosin.NeuralLM:
    model = neural("tanh", "softmax")
    model.head = head
    return model


def with_hook(add: float) -> eosin.NeuralLM:
    model = neural("tanh", "softmax")
    model.core.register_forward_pre_hook(lambda core, given: (given[0] + add, *given[1:]))
    return model


SCALE = 1.0


def scaled(logits):
    return logits * SCALE


class Scaled(Table):
    def step(self, token, state):
        return scaled(self.logits[token]), TensorState((token,))


def by_global(scale: float):
    model = Scaled(ENDS)
    globals()["SCALE"] = scale
    return model


def subclass(bonus: float) -> Table:
    class Other(Table):
        def step(self, token, state):
            return self.logits[token] + bonus, TensorState((token,))

    return Other(ENDS)


class Mode(Enum):
    ONE = 1
    TWO = 2


@dataclass(frozen=True)
class Setting:
    value: object


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value


class Named(dict):
    """A dictionary with attributes."""


def named(value: object) -> Named:
    it = Named(a=1)
    it.value = value
    return it


class Hiding:
    """Says that it would be copied from less than it has."""

    def __init__(self, value: object):
        self.value = value

    def __getstate__(self):
        return {}


class Referred(Slotted):
    """Copied by its name."""

    def __reduce__(self):
        return "REFERRED"


class Whole(int):
    """A number with attributes."""

    def __new__(cls, value: object):
        made = super().__new__(cls, 1)
        made.value = value
        return made


class Quiet(Table):
    not_in_identity = ("more",)


def with_attribute(value: object):
    def rule():
        return rule.value

    rule.value = value
    return rule


def of_class(bonus: float) -> Table:
    meta = type("Meta", (type,), {"bonus": bonus})
    return meta("Made", (Table,), {})(ENDS)


def chain(length: int, back_to: int) -> Slotted:
    """Links in a row, of which the last leads back to another."""
    links = [Slotted(None) for _ in range(length)]
    for link, following in zip(links, [*links[1:], links[back_to]], strict=True):
        link.value = following
    return links[0]


def with_part(name: str, value: object) -> eosin.NeuralLM:
    head = Slow(100)
    setattr(head, name, value)
    return with_head(head)


class Ordered(nn.Module):
    """Two layers of one shape, used in an order that only a plain list knows."""

    vocab_size, eos_ids = 3, (0,)
    prefill, step = Table.prefill, Table.step

    def __init__(self, order: str, of: str = "layers"):
        super().__init__()
        self.logits = ENDS
        self.a, self.b = (nn.Linear(3, 3, device="meta").to_empty(device="cpu") for _ in "ab")
        for number, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, number)
        layers = [getattr(self, name) for name in order]
        self.order = layers if of == "layers" else [layer.weight for layer in layers]


def in_disguise(scale: float):
    """A function that passes for one of torch."""
    made = (lambda values: values * 2) if scale == 2 else (lambda values: values * 3)
    return functools.wraps(nn.functional.relu)(made)


PAIRS = {
    "the order of parts": (lambda: Ordered("ab"), lambda: Ordered("ba")),
    "the order of weights": (lambda: Ordered("ab", "weights"), lambda: Ordered("ba", "weights")),
    "a function in disguise": (lambda: Table(ENDS, f=in_disguise(2)), lambda: Table(ENDS, f=in_disguise(3))),
    "a function of the same name": (lambda: Table(ENDS, f=math.sqrt), lambda: Table(ENDS, f=cmath.sqrt)),
    "the mode of a part that nothing evaluates": (
        lambda: Table(ENDS, net=nn.BatchNorm1d(3).train()),
        lambda: Table(ENDS, net=nn.BatchNorm1d(3).eval()),
    ),
    "tensors": (lambda: Table(ENDS), lambda: Table(GOES_ON)),
    "one bit of a tensor": (lambda: Table(ENDS), lambda: Table(torch.nextafter(ENDS, GOES_ON))),
    "the type of a tensor": (lambda: Table(ENDS), lambda: Table(ENDS.double())),
    "a number of a head": (lambda: with_head(Slow(100)), lambda: with_head(Slow(101))),
    "a buffer": (lambda: with_head(Buffered(1, True)), lambda: with_head(Buffered(2, True))),
    "a buffer that is not saved": (lambda: with_head(Buffered(1, False)), lambda: with_head(Buffered(2, False))),
    "weights": (lambda: neural("tanh", "softmax", seed=1), lambda: neural("tanh", "softmax", seed=2)),
    "epsilon": (lambda: eosin.Floor(Table(ENDS), 0.1), lambda: eosin.Floor(Table(ENDS), 0.01)),
    "a grace longer than any trial": (
        lambda: eosin.Floor(Table(ENDS), 0.1, 10**6),
        lambda: eosin.Floor(Table(ENDS), 0.1, 10**6 + 1),
    ),
    "a hook": (lambda: with_hook(0.0), lambda: with_hook(1e-9)),
    "a lambda": (lambda: Table(ENDS, f=lambda x: x), lambda: Table(ENDS, f=lambda x: x + 1)),
    "what a lambda holds": (lambda: closing_over(1), lambda: closing_over(2)),
    "a default": (lambda: Table(ENDS, f=lambda x=1: x), lambda: Table(ENDS, f=lambda x=2: x)),
    "a global that a function reads": (lambda: by_global(1.0), lambda: by_global(2.0)),
    "the code of a class": (lambda: subclass(0.0), lambda: subclass(1.0)),
    "a list": (lambda: Table(ENDS, more=[1, 2]), lambda: Table(ENDS, more=[2, 1])),
    "how a list is divided": (lambda: Table(ENDS, more=[[1], 2]), lambda: Table(ENDS, more=[[1, 2]])),
    "a tuple and a list": (lambda: Table(ENDS, more=[1]), lambda: Table(ENDS, more=(1,))),
    "a number and its text": (lambda: Table(ENDS, more=1), lambda: Table(ENDS, more="1")),
    "true and one": (lambda: Table(ENDS, more=1), lambda: Table(ENDS, more=True)),
    "zeros": (lambda: Table(ENDS, more=0.0), lambda: Table(ENDS, more=-0.0)),
    "a key": (lambda: Table(ENDS, more={"a": 1}), lambda: Table(ENDS, more={"b": 1})),
    "a set": (lambda: Table(ENDS, more={"a", "b"}), lambda: Table(ENDS, more={"a", "c"})),
    "an enumeration": (lambda: Table(ENDS, more=Mode.ONE), lambda: Table(ENDS, more=Mode.TWO)),
    "a dataclass": (lambda: Table(ENDS, more=Setting(1)), lambda: Table(ENDS, more=Setting(2))),
    "a slot": (lambda: Table(ENDS, more=Slotted(1)), lambda: Table(ENDS, more=Slotted(2))),
    "an attribute of a dictionary": (lambda: Table(ENDS, more=named(1)), lambda: Table(ENDS, more=named(2))),
    "an array": (lambda: Table(ENDS, more=np.arange(3)), lambda: Table(ENDS, more=np.arange(3)[::-1])),
    "the state of a generator": (
        lambda: Table(ENDS, more=random.Random(0)),
        lambda: Table(ENDS, more=random.Random(1)),
    ),
    "a partial": (
        lambda: Table(ENDS, more=functools.partial(max, 1)),
        lambda: Table(ENDS, more=functools.partial(max, 2)),
    ),
    "a method": (lambda: Table(ENDS, more=Table(ENDS).step), lambda: Table(ENDS, more=Table(GOES_ON).step)),
    "deep inside": (
        lambda: Table(ENDS, more={"a": [deque([Setting((Slotted(ENDS),))])]}),
        lambda: Table(ENDS, more={"a": [deque([Setting((Slotted(GOES_ON),))])]}),
    ),
    "a generator of numpy": (
        lambda: Table(ENDS, more=np.random.default_rng(0)),
        lambda: Table(ENDS, more=np.random.default_rng(1)),
    ),
    "a regular expression": (lambda: Table(ENDS, more=re.compile("a")), lambda: Table(ENDS, more=re.compile("b"))),
    "an attribute of a function": (
        lambda: Table(ENDS, f=with_attribute(1)),
        lambda: Table(ENDS, f=with_attribute(2)),
    ),
    "the class of a class": (lambda: of_class(0.0), lambda: of_class(1.0)),
    "what a copy would not have": (lambda: Table(ENDS, more=Hiding(1)), lambda: Table(ENDS, more=Hiding(2))),
    "what is copied by name": (lambda: Table(ENDS, more=Referred(1)), lambda: Table(ENDS, more=Referred(2))),
    "an attribute of a number": (lambda: Table(ENDS, more=Whole(1)), lambda: Table(ENDS, more=Whole(2))),
    "where a ring closes": (lambda: Table(ENDS, more=chain(9, 0)), lambda: Table(ENDS, more=chain(9, 8))),
    "an attribute that is called hooks": (
        lambda: with_part("hooks", [max]),
        lambda: with_part("hooks", [min]),
    ),
    "an attribute called as torch's are": (
        lambda: with_part("_forward_scale", 1.0),
        lambda: with_part("_forward_scale", 2.0),
    ),
    "what another part ignores": (
        lambda: Table(ENDS, one=Quiet(ENDS), two=Table(ENDS, more=1)),
        lambda: Table(ENDS, one=Quiet(ENDS), two=Table(ENDS, more=2)),
    ),
    "a default of a dictionary": (
        lambda: Table(ENDS, more=defaultdict(int)),
        lambda: Table(ENDS, more=defaultdict(list)),
    ),
}


def closing_over(value: int) -> Table:
    return Table(ENDS, f=lambda: value)


@pytest.mark.parametrize("pair", PAIRS)
def test_models_that_differ_in_anything_are_told_apart(pair: str):
    one, other = PAIRS[pair]
    told = [json.dumps(identify(make()), sort_keys=True) for make in (one, other, one)]
    assert told[0] == told[2]
    assert told[0] != told[1]


@pytest.mark.parametrize("pair", PAIRS)
def test_records_of_one_are_never_given_for_the_other(pair: str, tmp_path: Path):
    one, other = PAIRS[pair]
    out = tmp_path / "records.jsonl"

    def audited(model) -> str:
        return str(eosin.audit(model, [[1], [2]], ["greedy"], max_steps=6, out=out, proofs=False))

    first = audited(one())
    assert audited(one()) == first
    before = out.read_bytes()
    with pytest.raises(BadInput, match="another audit: model is"):
        audited(other())
    assert out.read_bytes() == before


@pytest.mark.parametrize("member", MODELS, ids=str)
def test_a_copy_is_the_same_model_and_decoding_changes_nothing(member):
    model = member.model
    before = identify(model)
    eosin.decode(model, [[1, 2]] * 3, "nucleus:0.5", max_steps=5)
    eosin.audit(model, [[1, 2]] * 3, ["greedy"], max_steps=5)
    assert identify(model) == before == identify(copy.deepcopy(model))
    assert "unreadable" not in before


def test_training_mode_compilation_and_sharing_make_no_difference():
    model, shared = neural("lstm", "softmax"), [1, 2]
    before = identify(model)
    assert identify(model.train()) == before
    model.core._compiled_call_impl = max  # as model.core.compile() leaves something there
    assert identify(model) == before
    parts = [Table(ENDS, a=shared, b=shared), Table(ENDS, a=shared, b=list(shared))]
    assert identify(parts[0]) == identify(parts[1])


def test_what_refers_to_itself_is_read_to_its_end():
    model = Table(ENDS)
    model.me, model.ring = model, [1]
    model.ring.append(model.ring)
    assert identify(model) == identify(model)


@pytest.mark.parametrize(
    "thing",
    [(n for n in range(3)), threading.Lock(), open(__file__, encoding="utf-8")],  # noqa: SIM115
    ids=lambda thing: type(thing).__name__,
)
def test_what_cannot_be_read_must_be_named(thing: object, tmp_path: Path):
    model, out = Table(ENDS, rule={"source": thing}), tmp_path / "records.jsonl"
    assert identify(model)["unreadable"] == [f"model.rule.source ({type(thing).__name__})"]
    asked = {"max_steps": 5, "out": out, "proofs": False}
    eosin.audit(model, [[1]], ["greedy"], **asked)
    with pytest.raises(BadInput, match=r"distinguished from others: model.rule.source .* give the model a name"):
        eosin.audit(model, [[1]], ["greedy"], **asked)
    named = tmp_path / "named.jsonl"
    eosin.audit(model, [[1]], ["greedy"], **asked | {"out": named}, name="table of 2026")
    again = eosin.audit(model, [[1]], ["greedy", "top-k:2"], **asked | {"out": named}, name="table of 2026")
    assert again.by_decoder.keys() == {"greedy", "top-k:2"}
    with pytest.raises(BadInput, match="another audit: model is"):
        eosin.audit(model, [[1]], ["greedy"], **asked | {"out": named}, name="another")


def test_what_is_plain_can_be_read():
    things = [1, "a", None, Fraction(1, 2), OrderedDict(a=1), functools.lru_cache(max), Path("x"), np.float32(1), len]
    inventory = Inventory()
    inventory.read(things, "things")
    assert inventory.unreadable == []


def test_what_is_nested_too_deeply_must_be_named():
    deep = Table(ENDS)
    for _ in range(1000):
        deep = Table(ENDS, more=deep)
    assert identify(deep)["unreadable"][0].startswith("model.more.more")


def test_what_is_installed_is_told_by_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A module of one's own may have the name of a standard one; packages of a user lie elsewhere."""
    assert all(map(is_installed, ("torch.nn", "json.decoder", "sys", "builtins", "eosin.decoding", "zipimport")))
    assert not any(map(is_installed, ("__main__", "test_identity", "no_such_module")))
    for name, place, installed in (
        ("token", tmp_path / "token.py", False),
        ("mine", tmp_path / "mine" / "__init__.py", False),
        ("theirs", tmp_path / ".local/lib/python3.11/site-packages/theirs/__init__.py", True),
        ("debians", Path("/usr/lib/python3/dist-packages/debians.py"), True),
    ):
        module = types.ModuleType(name)
        module.__file__ = str(place)
        monkeypatch.setitem(sys.modules, name, module)
        assert is_installed(name) == installed


def rule_of_ones_own(factor: float, name: str = "own"):
    @dataclass(frozen=True)
    class Own(MinP):
        def least(self, next_token):
            return next_token.best_log_prob + math.log(self.ratio * factor)

    Own.name = name
    return Sampler(Own(0.5))


@pytest.mark.parametrize("name", ["own", "min-p"])
def test_records_of_another_decoder_of_the_same_name_are_not_given(name: str, tmp_path: Path):
    model = Table(torch.tensor([[0.0, 4.0, 2.0]] * 3))
    asked = {"max_steps": 40, "out": tmp_path / "records.jsonl"}
    rule, other = rule_of_ones_own(1.0, name), rule_of_ones_own(1e-6, name)
    first = eosin.audit(model, [[1], [2]], [rule], **asked)
    again = eosin.audit(model, [[1], [2]], [rule_of_ones_own(1.0, name), "greedy"], **asked)
    assert again.records[0].counts == first.records[0].counts
    with pytest.raises(BadInput, match=f"the code of {name}:0.5 has changed since .*, or delete that one"):
        eosin.audit(model, [[1], [2]], [other], **asked)
    with pytest.raises(BadInput, match=f"{name}:0.5 is the name of two different decoders"):
        eosin.audit(model, [[1], [2]], [rule, other], max_steps=40)


def test_an_audit_with_a_rule_of_ones_own_goes_on_where_loops_were_certified(tmp_path: Path):
    model = neural("tanh", "softmax", eos_bias=-30.0)
    model.output.bias.data[4] += 30
    asked = {"max_steps": 60, "out": tmp_path / "records.jsonl"}
    first = eosin.audit(model, [[1], [2]], [rule_of_ones_own(1.0)], **asked)
    assert set(first.by_decoder["own:0.5"].counts.causes) == {"proved infinite"}
    again = eosin.audit(model, [[1], [2]], [rule_of_ones_own(1.0), "greedy"], **asked)
    assert again.by_decoder.keys() == {"own:0.5", "greedy"}


def test_a_model_that_does_something_else_is_another():
    """What a step reads from elsewhere is in no attribute."""
    elsewhere = {"logits": ENDS}

    class Reader(Table):
        def step(self, token, state):
            return torch.load_it(token), TensorState((token,))

    torch.load_it = lambda token: elsewhere["logits"][token]
    try:
        first = hash_behaviour(Reader(ENDS), torch.tensor([[1]]))
        elsewhere["logits"] = GOES_ON
        assert hash_behaviour(Reader(ENDS), torch.tensor([[1]])) != first
    finally:
        del torch.load_it


def test_another_process_tells_the_same(tmp_path: Path):
    """Hashes of strings, and so the order of sets, change from process to process; addresses do as well."""
    (tmp_path / "toy.py").write_text(
        textwrap.dedent("""
        import json, torch, eosin
        from importlib.util import find_spec
        from eosin.auditing.identity import identify

        RULES = {"a", "b", "c"}

        def rule(x, to=RULES):
            return x if "a" in to else sorted({"d", "e"})

        class Toy:
            vocab_size, eos_ids = 3, (0,)

            def __init__(self):
                self.words, self.rule, self.more = {"x", "y", "z"}, rule, lambda x: rule(x, RULES)

        torch.manual_seed(0)
        lstm = eosin.NeuralLM(eosin.CORES["lstm"](width=4), eosin.HEADS["softmax"](), vocab_size=9, eos_id=2)
        told = [identify(Toy()), identify(eosin.Floor(lstm, 0.1))]
        if find_spec("transformers"):
            from transformers import LlamaConfig, LlamaForCausalLM
            from eosin.hub.causal_lm import CausalLM

            config = LlamaConfig(
                vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
            )
            told.append(identify(CausalLM(LlamaForCausalLM(config), (2,))))
        print(json.dumps(told))
        """),
        encoding="utf-8",
    )
    told = [
        subprocess.run(
            [sys.executable, "toy.py"],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": str(seed), "PATH": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    ]
    assert told[0] == told[1]
    assert b"unreadable" not in told[0]


def test_records_of_an_earlier_version_are_kept_and_the_audit_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """They knew a model by its class and parameters only."""
    out, model = (
        tmp_path / "records.jsonl",
        neural("tanh", "softmax", vocab=40, width=12, seed=1, scale=2.0, eos_bias=-4.0),
    )
    contexts = torch.randint(3, 40, (12, 3), generator=torch.Generator().manual_seed(0))
    first = eosin.audit(model, contexts, ["greedy"], max_steps=60, out=out)
    cycles = out.with_suffix(".cycles")
    assert cycles.exists()
    for path in (out, cycles):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            told = line.get("signature", line)["model"]
            told["made"] = told.pop("parts")
            told.pop("behaviour")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    before = {path: path.read_bytes() for path in (out, cycles)}
    with caplog.at_level(logging.WARNING):
        again = eosin.audit(model, contexts, ["greedy"], max_steps=60, out=out)
    assert "holds records of another version of eosin: this audit starts over" in caplog.text
    assert str(again) == str(first)
    for path, content in before.items():
        assert path.with_name(f"{path.name}.1.kept").read_bytes() == content
        assert path.read_bytes() != content
    caplog.clear()
    assert str(eosin.audit(model, contexts, ["greedy"], max_steps=60, out=out)) == str(first)
    assert not caplog.text
