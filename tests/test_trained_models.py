"""Proofs on models that were really trained, with vocabularies of more than ten thousand words.

Each recurrent core learns from paragraphs of WikiText-2 until its greedy completions loop. This takes minutes, so it is
run by `make test-slow`.
"""

import copy
from collections import Counter
from itertools import islice

import pytest
import torch
from texts import write_lines

import eosin
from eosin.causes import Cause
from eosin.data.corpus import Recipe
from eosin.data.preparation import prepare
from eosin.data.sources import open_source
from eosin.events import Event
from eosin.models.neural_lm import CORES
from eosin.models.recurrent import Recurrent
from eosin.proofs.drift import MOVES
from eosin.proofs.saved_cycles import cycles_path, read_certificates
from eosin.training.config import Config
from eosin.training.loop import train

pytestmark = pytest.mark.slow

LIMIT, CONTEXTS = 600, 600
RECURRENT = [name for name, core in CORES.items() if issubclass(core, Recurrent)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("corpus")
    paragraphs = (line for line in open_source("wikitext-2").read_sentences("train", "line") if len(line.split()) > 30)
    text = write_lines(folder / "text.txt", list(islice(paragraphs, 1_300)))
    made = prepare(Recipe(source=str(text), tokenization="word"), folder / "corpus")
    assert made.tokenizer.vocab_size >= 10_000
    return made


@pytest.fixture(scope="module", params=RECURRENT)
def trained(request: pytest.FixtureRequest, corpus, tmp_path_factory: pytest.TempPathFactory):
    """The kind of the core, and the model."""
    run = tmp_path_factory.mktemp("runs") / request.param
    settings = {
        "core": {"kind": request.param, "width": 64},
        "head": {"kind": "softmax"},
        "training": {"epochs": 1, "learning_rate": 2e-3, "batch": 8},
    }
    train(Config.from_table(settings), corpus, run)
    return request.param, eosin.load(run)


@pytest.fixture(scope="module")
def audited(trained, corpus, tmp_path_factory: pytest.TempPathFactory):
    """Contexts, the greedy audit, its completions, and the file of its records."""
    _, model = trained
    contexts = corpus.take_contexts("train", CONTEXTS)
    completions = {}

    def watch(event: Event) -> None:
        if event.kind == "completion":
            completions[event.facts["completion"].index] = event.facts["completion"]

    out = tmp_path_factory.mktemp("audit") / "records.jsonl"
    audit = eosin.audit(model, contexts, ["greedy"], max_steps=LIMIT, out=out, watch=watch)
    return contexts, audit, completions, out


def test_loops_are_proved(trained, audited):
    """docs/log.md says how many there are of which."""
    kind, _ = trained
    _, audit, _, _ = audited
    counts = audit.by_decoder["greedy"].counts
    looping, proved = counts.causes[Cause.LOOPING], counts.causes[Cause.PROVED]
    assert looping + proved >= 100
    if kind == "tanh":
        assert proved >= 0.9 * (looping + proved)
    # cells of the LSTM count the turns and those of the GRU settle over thousands of steps; that is said instead
    drifts = [loop.drift for loop in counts.loops.values() if loop.looping and loop.drift]
    assert drifts or not looping
    for _, counting, _, most in drifts:
        assert kind != "lstm" or counting > 0
        assert kind != "gru" or 1e-6 < abs(most) < MOVES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_proved_runs_on(trained, audited, dtype: torch.dtype):
    """Ten thousand steps from the place of the proof, without a single other token; a row for each loop first."""
    kind, model = trained
    contexts, _, completions, _ = audited
    proved = [completion for completion in completions.values() if completion.proof is not None]
    if kind != "tanh" and not proved:
        pytest.skip("cells move in every loop of it")
    proved.sort(key=lambda completion: completion.steps)
    by_loop = {tuple(sorted(completion.proof.cycle)): completion for completion in proved}
    rows = [*by_loop.values(), *proved][:4]
    model = model.to(dtype)
    try:
        run_on(model, contexts, rows, 10_000)
    finally:
        model.to(torch.float32)


@torch.inference_mode()
def run_on(model, contexts, rows, steps: int) -> None:
    longest = max(completion.steps for completion in rows)
    known = torch.tensor([(c.tokens.tolist()[:-1] + list(c.proof.cycle) * longest)[:longest] for c in rows])
    _, state = model.prefill(contexts[[completion.index for completion in rows]])
    for token in known[:, :-1].T:
        _, state = model.step(token, state)
    cycles = [completion.proof.cycle for completion in rows]
    place = [longest - completion.steps for completion in rows]
    token = known[:, -1]
    for step in range(1, steps + 1):
        logits, state = model.step(token, state)
        token = logits.dense().argmax(1)
        expected = [cycle[(at + step) % len(cycle)] for cycle, at in zip(cycles, place, strict=True)]
        assert token.tolist() == expected, step


def test_certificates_hold_when_they_are_checked_again(trained, audited):
    _, model = trained
    _, _, _, out = audited
    if not cycles_path(out).exists():
        pytest.skip("nothing was certified")
    certificates = list(read_certificates(cycles_path(out)))
    assert certificates
    for certificate in certificates[:5]:
        again = certificate.reprove(model)
        assert again is not None
        assert again.to_dict() == certificate.cycle.to_dict()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.output.bias[certificates[0].cycle.tokens[0]] -= 100.0
    assert certificates[0].reprove(other) is None


@pytest.mark.parametrize("spec", ["greedy", "nucleus:0.4", "beam:3"])
def test_order_pool_and_company_change_no_bit(trained, corpus, spec: str):
    _, model = trained
    contexts = corpus.take_contexts("train", 80)
    generator = torch.Generator().manual_seed(0)
    found = [completions_by_index(model, contexts, range(80), spec, pool=1024)]
    for pool in (5, 37):
        order = torch.randperm(80, generator=generator).tolist()
        found.append(completions_by_index(model, contexts, order, spec, pool))
    some = range(40, 60)
    alone = completions_by_index(model, contexts, some, spec, pool=8)
    assert all(other == found[0] for other in found[1:])
    assert alone == {index: found[0][index] for index in some}


def completions_by_index(model, contexts, order, spec: str, pool: int):
    made = eosin.decode(model, contexts[list(order)], spec, max_steps=25, seed=4, pool=pool, indices=list(order))
    return dict(zip(order, zip(made.tokens, made.log_prob.tolist(), strict=True), strict=True))


def test_proofs_change_no_count(trained, audited):
    _, model = trained
    contexts, audit, completions, _ = audited
    proved = audit.by_decoder["greedy"].counts
    plain = eosin.audit(model, contexts[:200], ["greedy"], max_steps=LIMIT, proofs=False).by_decoder["greedy"].counts
    expected = Counter(completions[i].steps for i in range(200) if completions[i].terminated)
    assert plain.ended == expected
    assert [plain.unended[i] for i in range(200)] == [proved.unended[i] for i in range(200)]
