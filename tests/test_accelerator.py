"""On an accelerator: the tokens, records and losses of the CPU, with and without float64, and steps that cost little.

The accelerator is simulated, so this says nothing of its kernels, its memory and its rounding.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from command_line import run
from count_operations import count_step, tabulate_places
from members import DECODERS, crossed, neural
from simulated_accelerator import NAME, Counts, simulated_accelerator
from texts import real_sentences, write_lines
from torch.testing import assert_close

import eosin
from eosin.causes import Cause
from eosin.data.corpus import Corpus, Recipe
from eosin.data.preparation import prepare
from eosin.devices import choose_device, device_of
from eosin.errors import BadInput
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES
from eosin.proofs.saved_cycles import cycles_path, read_certificates
from eosin.training.config import Config
from eosin.training.loop import train

VOCAB = 1_100
"""More than one block of logits, and more tokens than a kept set can list."""
STEPS = 6
MODELS = [f"{core}-{head}" for core in CORES for head in HEADS]
KINDS = ["float64", "no-float64"]
"""Of accelerators."""


@pytest.fixture(params=KINDS)
def counts(request: pytest.FixtureRequest) -> Iterator[Counts]:
    """An accelerator is there; what it does is counted."""
    with simulated_accelerator(float64=request.param == "float64") as counts:
        yield counts


def crossed_with_kinds(names: str, *tables: Sequence[object]) -> pytest.MarkDecorator:
    """Tests of all combinations of kinds of accelerators and members of tables; the fast ones are few."""
    return pytest.mark.parametrize(f"counts, {names}", crossed(KINDS, *tables), indirect=["counts"])


def make(model: str) -> eosin.NeuralLM:
    core, _, head = model.partition("-")
    return neural(core, head, vocab=VOCAB, eos_bias=4.0, dtype=torch.float32)


def contexts(count: int = 5, vocab: int = VOCAB) -> list[list[int]]:
    """Of two lengths."""
    tokens = torch.randint(vocab, (count, 4), generator=torch.Generator().manual_seed(1)).tolist()
    return [row[: 3 + place % 2] for place, row in enumerate(tokens)]


def there(model):
    return copy.deepcopy(model).to(NAME)


# the device


def test_the_device_is_strict():
    with simulated_accelerator() as counts:
        host, there = torch.rand(3, 2), torch.rand(3, 2).to(NAME)
        assert there.device.type == torch.accelerator.current_accelerator(check_available=True).type == NAME
        assert torch.equal((there + 1 + torch.tensor(0.5))[torch.tensor([0, 2])].cpu(), (there.cpu() + 1.5)[[0, 2]])
        for mix in (lambda: there + host, lambda: host[(there > 0).long()], lambda: host + there[0, 0]):
            with pytest.raises(RuntimeError, match="on one device"):
                mix()
        waiting = [
            lambda: there.cpu(), lambda: torch.empty(3, 2).copy_(there), there.tolist, lambda: float(there[0, 0]),
            lambda: bool(there.any()), lambda: torch.equal(there, there), lambda: there[there > 0], there.nonzero,
            lambda: there.masked_select(there > 0),
        ]  # fmt: skip
        for ask in waiting:
            before = counts.waited
            ask()
            assert counts.waited == before + 1
        before = counts.waited
        there[there > 0.5] = 0.0
        there.copy_(host)
        there[0] = torch.tensor([1.0, 2.0], device=NAME)
        assert counts.waited == before
    with simulated_accelerator(float64=False):
        assert torch.ones(2, dtype=torch.float64).to(NAME, torch.float32).cpu().double().sum() == 2
        for double in (lambda: torch.ones(2, device=NAME).double(), lambda: torch.ones(2).to(NAME).to("cpu", float)):
            with pytest.raises(TypeError, match="no float64"):
                double()
    assert not torch.accelerator.is_available()
    with pytest.raises(RuntimeError, match="no device"):
        torch.ones(2, device=NAME)


def test_an_accelerator_is_the_default(counts: Counts):
    assert choose_device("auto").type == choose_device(NAME).type == NAME
    assert device_of(eosin.load("demo")).type == NAME
    assert choose_device("cpu").type == "cpu"


def test_without_an_accelerator_the_default_is_the_cpu():
    assert choose_device("auto").type != NAME
    with pytest.raises(BadInput, match="device 'sim' cannot be used"):
        choose_device(NAME)


def test_weights_in_float64_are_refused_where_there_is_none(capsys: pytest.CaptureFixture[str]):
    with simulated_accelerator(float64=False):
        assert run("decode", "demo", "--context", "0", "--device", NAME, "--dtype", "float64") == 2
    assert "float64" in capsys.readouterr().err


# the same


@crossed_with_kinds("spec, model", DECODERS, MODELS)
def test_tokens_are_those_of_the_cpu(counts: Counts, spec: str, model: str):
    here = make(model)
    expected = eosin.decode(here, contexts(), spec, max_steps=STEPS, seed=2, pool=4)
    found = eosin.decode(there(here), contexts(), spec, max_steps=STEPS, seed=2, pool=4)
    assert found.tokens == expected.tokens
    assert found.terminated.tolist() == expected.terminated.tolist()
    assert_close(found.log_prob, expected.log_prob, rtol=1e-4, atol=1e-4)
    assert counts.launches


def test_prefixes_are_moved_to_the_model(counts: Counts):
    model, prefixes = make("tanh-softmax"), torch.tensor([row[:3] for row in contexts()])
    expected = eosin.decode(model, prefixes, "greedy", max_steps=STEPS).tokens
    for each, given in ((there(model), prefixes), (there(model), prefixes.to(NAME)), (model, prefixes.to(NAME))):
        assert eosin.decode(each, given, "greedy", max_steps=STEPS).tokens == expected


def test_some_rows_end_and_some_do_not():
    """Or the test above would say little."""
    ended = [eosin.decode(make(model), contexts(), "ancestral", max_steps=STEPS).terminated for model in MODELS]
    assert 0 < torch.cat(ended).double().mean() < 1


@pytest.mark.parametrize("spec", ["greedy", "nucleus:0.9", "beam:2"])
def test_floors_and_traces_are_those_of_the_cpu(counts: Counts, spec: str):
    floor = eosin.Floor(make("gru-self-terminating"), epsilon=0.05, grace=2)
    expected = eosin.trace(floor, contexts()[0], spec, max_steps=STEPS)
    found = eosin.trace(there(floor), contexts()[0], spec, max_steps=STEPS)
    assert [(step.token, step.eos_rank, step.kept, step.removed_by) for step in found.steps] == [
        (step.token, step.eos_rank, step.kept, step.removed_by) for step in expected.steps
    ]


@pytest.mark.parametrize("spec", ["ancestral", "consistent-nucleus:0.9"])
def test_survival_is_that_of_the_cpu(counts: Counts, spec: str):
    model = make("lstm-softmax")
    expected, found = (
        eosin.audit(each, contexts(), [spec], max_steps=10, survival=True, pool=4).by_decoder[spec].counts
        for each in (model, there(model))
    )
    assert found.weights.keys() == expected.weights.keys()
    for limit, sums in expected.weights.items():
        assert found.weights[limit] == pytest.approx(sums, rel=1e-3)


@crossed_with_kinds("spec", ["greedy", "nucleus:0.2"])
def test_what_is_proved_is_what_is_proved_on_the_cpu(counts: Counts, tmp_path: Path, spec: str):
    """Rounding decides when a row is proved, and nothing else."""
    model = neural("lstm", "softmax", vocab=300, seed=5, scale=4.0, eos_bias=-30.0, dtype=torch.float32)
    files = [tmp_path / f"{device}.jsonl" for device in ("cpu", NAME)]
    expected, found = (
        eosin.audit(each, contexts(vocab=300), [spec], max_steps=60, out=file).by_decoder[spec]
        for each, file in zip((model, there(model)), files, strict=True)
    )
    assert expected.counts.causes == found.counts.causes == {Cause.PROVED: 5}
    assert found.signature.table["model"]["weights"] == expected.signature.table["model"]["weights"]
    assert found.counts.hashes == expected.counts.hashes
    loops = [
        {cycle: (loop.onset, loop.proofs) for cycle, loop in each.counts.loops.items()} for each in (found, expected)
    ]
    assert loops[0] == loops[1]
    proved = [[each.cycle.tokens for each in read_certificates(cycles_path(file))] for file in files]
    assert proved[0] == proved[1] != []


@crossed_with_kinds("model", MODELS)
def test_certificates_are_those_of_the_cpu(counts: Counts, model: str):
    for here in (make(model), eosin.Floor(make(model), epsilon=0.05)):
        for spec in ("greedy", "beam:3", "consistent-nucleus:0.9", "nucleus:0.9", "min-p:0.1,temperature=0.7"):
            assert str(eosin.certify(there(here), spec)) == str(eosin.certify(here, spec))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Of short sentences."""
    folder = tmp_path_factory.mktemp("corpus")
    text = write_lines(folder / "text.txt", [" ".join(line.split()[:14]) for line in real_sentences(80)])
    return prepare(Recipe(source=str(text), tokenization="word"), folder / "corpus")


@crossed_with_kinds("core, head", list(CORES), list(HEADS))
def test_losses_are_those_of_the_cpu(counts: Counts, corpus: Corpus, tmp_path: Path, core: str, head: str):
    """Two steps of training and all around them."""
    sections = {"core": {"kind": core, "width": 16}, "head": {"kind": head}, "training": {"epochs": 1, "batch": 64}}
    config, folders = Config.from_table(sections), {device: tmp_path / device for device in ("cpu", NAME)}
    expected, found = (
        train(config, corpus, folder, device=device, precision="float32") for device, folder in folders.items()
    )
    assert found == pytest.approx(expected, rel=1e-3)
    weights, same = (eosin.load(folder).to("cpu").state_dict() for folder in folders.values())
    assert_close(same, weights, rtol=1e-2, atol=1e-4)


# models of Hugging Face


def make_pretrained(name: str):
    """A small GPT-2 or Llama with random weights, and an eos that is now and then the most probable token."""
    transformers = pytest.importorskip("transformers")
    from eosin.hub.causal_lm import CausalLM
    from eosin.hub.heads import add_head

    style, _, head = name.partition("-")
    sizes = {"vocab_size": 60, "eos_token_id": 3, "bos_token_id": 1, "pad_token_id": 0}
    if style == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes)
    else:
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, **sizes,
        )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.mul_(4)
    return CausalLM((add_head(model, head, epsilon=0.02) if head else model).eval(), (3,))


@crossed_with_kinds("name", ["gpt2", "llama", "gpt2-st", "llama-nmst"])
def test_models_of_hugging_face_give_the_tokens_of_the_cpu(counts: Counts, name: str):
    here = make_pretrained(name)
    for spec in ("greedy", "nucleus:0.9", "beam:3"):
        expected, found = (
            eosin.decode(each, contexts(vocab=60), spec, max_steps=STEPS) for each in (here, there(here))
        )
        assert found.tokens == expected.tokens
        assert str(eosin.certify(there(here), spec)) == str(eosin.certify(here, spec))


@crossed_with_kinds("name", ["gpt2", "llama-st"])
def test_half_precision_gives_the_tokens_of_the_cpu(counts: Counts, name: str):
    here = make_pretrained(name).to(torch.bfloat16)
    here.model.set_attn_implementation("eager")  # the fused one rounds otherwise than its formula
    for spec in ("greedy", "nucleus:0.9"):
        expected, found = (
            eosin.decode(each, contexts(vocab=60), spec, max_steps=STEPS) for each in (here, there(here))
        )
        assert found.tokens == expected.tokens


# what a step costs

BUDGETS = {
    "greedy": (80, 2),
    "ancestral": (160, 2),
    "top-k:2": (160, 3),
    "nucleus:0.2": (160, 3),
    "nucleus:0.95": (320, 4),
    "consistent-nucleus:0.9": (320, 4),
    "typical:0.9": (320, 4),
    "beam:4": (160, 3),
    "audit": (math.inf, 12),
}
"""Operations launched and waits for the device of one step, as `count_operations` counts them."""
WITHOUT_FLOAT64 = 2
"""So many waits more where the arithmetic of decoding is done on the CPU."""


@pytest.mark.parametrize(("what", "kind"), crossed(BUDGETS, KINDS))
def test_a_step_keeps_to_its_budget(what: str, kind: str):
    most_launched, most_waited = BUDGETS[what]
    step = count_step(what, float64=kind == "float64")
    launched, waited = step.launched, step.waited
    assert waited <= most_waited + (0 if kind == "float64" else WITHOUT_FLOAT64), tabulate_places("waits", step.waits)
    assert launched <= most_launched, tabulate_places("launches", step.launches)
