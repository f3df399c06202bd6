"""What surrounds a call changes nothing: autocast, default precisions and devices, gradients, modes of torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from members import crossed, neural, prefixes

import eosin
from eosin.guarantees.certificate import certify, find_floor
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES
from eosin.proofs.cycles import norm_bound
from eosin.proofs.saved_cycles import cycles_path, read_certificates


@contextmanager
def switched(switch, on, off) -> Iterator[None]:
    switch(on)
    try:
        yield
    finally:
        switch(off)


def default_dtype(dtype: torch.dtype):
    return lambda: switched(torch.set_default_dtype, dtype, torch.float32)


def products_of_mkldnn(precision: str):
    """The setting that torch has since 2.9; where it is in use, the one for all products raises an error."""
    return lambda: switched(partial(setattr, torch.backends.mkldnn.matmul, "fp32_precision"), precision, "none")


SURROUNDINGS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "float64 by default": default_dtype(torch.float64),
    "bfloat16 by default": default_dtype(torch.bfloat16),
    "float16 by default": default_dtype(torch.float16),
    "meta by default": lambda: torch.device("meta"),
    "medium products": lambda: switched(torch.set_float32_matmul_precision, "medium", "highest"),
    **({"products of mkldnn": products_of_mkldnn("bf16")} if hasattr(torch.backends, "fp32_precision") else {}),
    "flushed denormals": lambda: switched(torch.set_flush_denormal, True, False),
}
SPECS = ["greedy", "beam:3", "nucleus:0.4", "consistent-typical:0.2,temperature=1.5", "min-p:0.1"]
MATRIX = torch.randn(60, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
CONTEXTS = prefixes(12, vocab=40).tolist()


@pytest.fixture(params=SURROUNDINGS)
def surroundings(request: pytest.FixtureRequest):
    return SURROUNDINGS[request.param]


@cache
def model_of(core: str, head: str = "softmax"):
    return neural(core, head, vocab=40, width=24, scale=2.0, eos_bias=-4.0, dtype=torch.float32)


def same_in(surroundings, result, *arguments) -> bool:
    expected = in_no_surroundings(result, *arguments)
    with surroundings():
        return result(*arguments) == expected


@cache
def in_no_surroundings(result, *arguments):
    return result(*arguments)


def decoded(core: str, head: str, spec: str, floored: bool = False):
    model = eosin.Floor(model_of(core, head), epsilon=0.05) if floored else model_of(core, head)
    made = eosin.decode(model, CONTEXTS, spec, max_steps=12, pool=8)
    return made.tokens, made.log_prob.tolist(), made.steps.tolist()


@pytest.mark.parametrize(("surroundings", "core"), crossed(list(SURROUNDINGS), list(CORES)), indirect=["surroundings"])
def test_decodings(surroundings, core: str):
    for spec in SPECS:
        assert same_in(surroundings, decoded, core, "softmax", spec)


@pytest.mark.parametrize(
    ("surroundings", "head"), crossed(list(SURROUNDINGS), [*HEADS, "floor"]), indirect=["surroundings"]
)
def test_decodings_of_heads_and_floors(surroundings, head: str):
    kind = "softmax" if head == "floor" else head
    assert same_in(surroundings, decoded, "lstm", kind, "nucleus:0.4", head == "floor")


def audited(core: str, out: Path):
    audit = eosin.audit(model_of(core), CONTEXTS, ["greedy"], max_steps=150, out=out)
    certificates = list(read_certificates(cycles_path(out))) if cycles_path(out).exists() else []
    checked = [certificate.reprove(model_of(core)).to_dict() for certificate in certificates]
    out.unlink()
    cycles_path(out).unlink(missing_ok=True)
    return [record.to_line() for record in audit.records], [each.to_line() for each in certificates], checked


@pytest.mark.parametrize(
    ("surroundings", "core"), crossed(list(SURROUNDINGS), ["tanh", "lstm", "gru"]), indirect=["surroundings"]
)
def test_proofs_and_checks(surroundings, core: str, tmp_path_factory: pytest.TempPathFactory):
    assert same_in(surroundings, audited, core, tmp_path_factory.getbasetemp() / "records.jsonl")


def test_there_are_proofs_to_compare(tmp_path: Path):
    _, certificates, checked = audited("tanh", tmp_path / "records.jsonl")
    assert certificates
    assert len(checked) == len(certificates)


def survival():
    audit = eosin.audit(model_of("gru"), CONTEXTS, ["nucleus:0.9"], max_steps=30, survival=True)
    return [record.to_line() for record in audit.records]


def trace():
    return eosin.trace(model_of("lstm"), [1, 2, 5], "nucleus:0.4", max_steps=20)


def bound_of_norm():
    return norm_bound(MATRIX)


@pytest.mark.parametrize(
    ("surroundings", "result"), crossed(list(SURROUNDINGS), [survival, trace, bound_of_norm]), indirect=["surroundings"]
)
def test_other_results(surroundings, result):
    assert same_in(surroundings, result)


def guarantees(head: str):
    model = model_of("gru", head)
    floor = find_floor(model, "nucleus:0.4", 200)
    return [certify(model, spec) for spec in SPECS], floor.epsilon


@pytest.mark.parametrize("head", HEADS)
def test_certificates(surroundings, head: str):
    assert same_in(surroundings, guarantees, head)


def test_a_bound_on_a_norm_is_one_under_autocast():
    """In bfloat16 it came to 0.9965 of some norms."""
    for size in range(40, 80):
        matrix = torch.ones(size, size, dtype=torch.float64)
        with torch.autocast("cpu", torch.bfloat16):
            assert size <= norm_bound(matrix) <= 1.001 * size


def test_a_model_may_enter_autocast_itself():
    class Half(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.vocab_size, self.eos_ids = model, model.vocab_size, model.eos_ids
            self.seen = []

        def prefill(self, prefix):
            with torch.autocast("cpu", torch.bfloat16):
                self.seen.append(torch.ones(2, 2).mm(torch.ones(2, 2)).dtype)
            return self.model.prefill(prefix)

        def step(self, token, state):
            return self.model.step(token, state)

    model = Half(model_of("tanh"))
    eosin.decode(model, CONTEXTS, "greedy", max_steps=2)
    assert set(model.seen) == {torch.bfloat16}
    with torch.autocast("cpu", torch.bfloat16):
        eosin.decode(model, CONTEXTS, "greedy", max_steps=2)
        assert torch.is_autocast_enabled("cpu")
