"""Training: the loss is the likelihood, the schedule is the paper's, and a kill changes nothing."""

import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from members import neural
from texts import real_sentences, small_corpus, write_lines
from torch.testing import assert_close
from watches import stop_after

import eosin
from eosin import devices
from eosin.data.batches import gather, plan_by_length
from eosin.data.corpus import Corpus
from eosin.data.tokenizer import Tokenizer
from eosin.errors import BadInput
from eosin.events import Event, Stopped
from eosin.loading import open_run
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES
from eosin.settings import get_parameters
from eosin.storage.tensors import load_tensors, save_tensors
from eosin.training.config import Config
from eosin.training.evaluation import Likelihood, evaluate, negative_log_likelihood
from eosin.training.loop import train
from eosin.training.memory import keep_memory
from eosin.training.run import RESUME
from eosin.training.trainer import Trainer

CPU = torch.device("cpu")
TINY = {
    "core": {"kind": "tanh", "width": 16, "dropout": 0.2},
    "head": {"kind": "softmax"},
    "training": {"epochs": 3, "log_every": 2},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("corpus"), count=200, vocab_size=300)


def config(**sections: dict) -> Config:
    merged = {name: {**TINY.get(name, {}), **sections.get(name, {})} for name in {**TINY, **sections}}
    known = get_parameters(CORES[merged["core"]["kind"]])  # a core of one's own has no dropout
    merged["core"] = {name: value for name, value in merged["core"].items() if name in {"kind", *known}}
    return Config.from_table(merged)


def log_of(folder: Path) -> list[dict]:
    """The log without timings."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in event.items() if key != "seconds"} for event in events]


# the loss


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("core", CORES)
def test_perplexity_is_that_of_single_sentences(corpus: Corpus, core: str, head: str):
    model = neural(core, head, vocab=corpus.tokenizer.vocab_size, eos=2)
    split = corpus.splits["valid"]
    nats, tokens = 0.0, 0
    for example in split:
        scores = model.score(example.prefix[None], example.continuation[None])
        nats -= float(scores.detach().sum())
        tokens += len(example.continuation)
    found = evaluate(model, split, CPU)
    assert found.tokens == tokens
    assert found.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-6)


def test_a_uniform_model_has_the_size_of_the_vocabulary_as_perplexity(corpus: Corpus):
    model = neural("lstm", "softmax", vocab=corpus.tokenizer.vocab_size, eos=2)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
    assert evaluate(model, corpus.train, CPU).perplexity == pytest.approx(corpus.tokenizer.vocab_size)


def test_likelihoods_add_up():
    assert Likelihood(3.0, 2) + Likelihood(1.0, 2) == Likelihood(4.0, 4)
    assert Likelihood(1e6, 1).perplexity == math.inf


def test_padding_is_worth_nothing(corpus: Corpus):
    """A batch costs what its sentences cost alone, whatever they are beside."""
    model = neural("gru", "self-terminating", vocab=corpus.tokenizer.vocab_size, eos=2)
    rows = corpus.train.lengths.argsort()[[0, -1, 5, -7]]
    together = negative_log_likelihood(model, gather(corpus.train, rows))
    alone = sum(negative_log_likelihood(model, gather(corpus.train, rows[i : i + 1])) for i in range(4))
    assert_close(together, alone)


def test_a_model_that_can_only_score_has_a_perplexity_too(corpus: Corpus):
    model = neural("tanh", "softmax", vocab=corpus.tokenizer.vocab_size, eos=2)
    floored = eosin.Floor(model, epsilon=1e-12)
    split = corpus.splits["valid"]
    assert evaluate(floored, split, CPU).loss == pytest.approx(evaluate(model, split, CPU).loss, rel=1e-6)


def test_evaluation_neither_drops_out_nor_leaves_the_model_changed(corpus: Corpus):
    trainer = Trainer(config(core={"dropout": 0.9}), corpus, CPU, "float32")
    first, second = (evaluate(trainer.model, corpus.splits["test"], CPU) for _ in range(2))
    assert first == second
    assert trainer.model.training


# steps


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_step_is_adam_on_the_clipped_mean_gradient(corpus: Corpus, core: str, head: str, tied: bool):
    settings = config(
        core={"kind": core, "dropout": 0.0},
        head={"kind": head, **HEADS[head].examples[0]},
        output={"tied": tied},
        training={"clip": 0.1},
    )
    trainer, reference = (Trainer(settings, corpus, CPU, "float32") for _ in range(2))
    parameters = [p for p in reference.model.parameters() if p.requires_grad]
    adam = torch.optim.Adam(parameters, lr=1e-3)
    for rows in trainer.plan_epoch()[:3]:
        batch = gather(corpus.train, rows)
        likelihood, norm = trainer.learn(batch)
        scores = reference.model.score(batch.prefix, batch.continuation)
        loss = -scores[batch.wanted].mean()
        adam.zero_grad()
        loss.backward()
        expected = torch.nn.utils.clip_grad_norm_(parameters, 0.1)
        adam.step()
        assert likelihood.loss == pytest.approx(float(loss.detach()), rel=1e-4)
        assert norm == pytest.approx(float(expected), rel=1e-3)
    for mine, theirs in zip(trainer.trained.values(), parameters, strict=True):
        assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


def test_the_seed_decides_and_the_world_is_left_alone(corpus: Corpus):
    def steps(seed: int, noise: int) -> torch.Tensor:
        torch.manual_seed(noise)
        before = torch.random.get_rng_state()
        trainer = Trainer(config(training={"seed": seed}), corpus, CPU, "float32")
        for rows in trainer.plan_epoch()[:2]:
            trainer.learn(gather(corpus.train, rows))
        assert torch.equal(torch.random.get_rng_state(), before)
        return torch.cat([p.detach().flatten() for p in trainer.trained.values()])

    assert torch.equal(steps(0, noise=1), steps(0, noise=2))
    assert not torch.equal(steps(0, noise=1), steps(1, noise=1))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="it is glibc that is asked to keep memory")
def test_memory_is_not_taken_anew_in_every_step_and_given_back_in_the_end():
    size = 16_000_000  # 15,625 pages

    def pages_taken() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(size)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def resident() -> int:
        return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])

    with keep_memory():
        pages_taken()
        assert pages_taken() < 1000
        inside = resident()
    assert resident() < inside - 3 * size


def test_dropout_changes_from_step_to_step(corpus: Corpus):
    trainer = Trainer(config(core={"dropout": 0.5}, training={"learning_rate": 1e-30}), corpus, CPU, "float32")
    batch = gather(corpus.train, trainer.plan_epoch()[0])
    losses = {trainer.learn(batch)[0].loss for _ in range(3)}
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("core", "precision"), [(core, "bfloat16") for core in CORES] + [("tanh", "float16"), ("transformer", "float16")]
)
def test_mixed_precision_learns(corpus: Corpus, core: str, precision: str):
    full, mixed = (Trainer(config(core={"kind": core}), corpus, CPU, p) for p in ("float32", precision))
    batch = gather(corpus.train, full.plan_epoch()[0])
    for _ in range(3):
        expected, _ = full.learn(batch)
        found, _ = mixed.learn(batch)
        assert found.loss == pytest.approx(expected.loss, rel=0.02)
    assert all(p.dtype is torch.float32 for p in mixed.trained.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_cuda_learns_as_the_cpu_does(corpus: Corpus, precision: str):
    host, device = Trainer(config(), corpus, CPU), Trainer(config(), corpus, torch.device("cuda"), precision)
    batch = gather(corpus.train, host.plan_epoch()[0])
    for _ in range(3):
        assert device.learn(batch)[0].loss == pytest.approx(host.learn(batch)[0].loss, rel=0.05)


def test_steps_that_the_scaler_leaves_out_are_none_of_adam_s(corpus: Corpus):
    """A scale far too large makes the first gradients infinite; a restored trainer goes on exactly as this one."""
    trainer, again = (Trainer(config(), corpus, CPU, "float16") for _ in range(2))
    batch = gather(corpus.train, trainer.plan_epoch()[0])
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    norms = [trainer.learn(batch)[1] for _ in range(30)]
    assert not math.isfinite(norms[0])
    assert math.isfinite(norms[-1])
    tensors, notes = trainer.get_state()
    again.restore({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(notes)))
    for _ in range(2):
        assert trainer.learn(batch) == again.learn(batch)
    for mine, theirs in zip(trainer.trained.values(), again.trained.values(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_loss_that_is_no_number_ends_training(corpus: Corpus, tmp_path: Path):
    with pytest.raises(BadInput, match="choose a smaller learning_rate"):
        train(config(training={"learning_rate": 1e38}), corpus, tmp_path / "run")


# runs


def test_a_run_learns_and_can_be_loaded(corpus: Corpus, tmp_path: Path):
    folder = tmp_path / "run"
    settings = config(head={"kind": "self-terminating", "epsilon": 1e-2}, training={"epochs": 6, "learning_rate": 0.01})
    result = train(settings, corpus, folder)
    events = log_of(folder)
    epochs = [event for event in events if event["event"] == "epoch"]
    assert epochs[-1]["valid_perplexity"] < 0.8 * epochs[0]["valid_perplexity"]
    model = eosin.load(folder)
    assert not model.training
    for split in corpus.splits:
        again = evaluate(model, corpus.splits[split], CPU).perplexity
        assert again == pytest.approx(result[f"{split}_perplexity"], rel=1e-6)
    assert result["valid_perplexity"] == pytest.approx(min(e["valid_perplexity"] for e in epochs), rel=1e-6)
    assert events[-1]["event"] == "end"
    assert events[-1]["test_perplexity"] == result["test_perplexity"]
    assert Tokenizer.load(folder).to_json() == corpus.tokenizer.to_json()
    completions = eosin.decode(model, corpus.take_contexts("test"), "greedy", max_steps=100)
    assert completions.terminated.all()  # self-terminating: by step 69


def test_the_rate_is_halved_and_training_ends_when_nothing_gets_better(corpus: Corpus, tmp_path: Path, monkeypatch):
    """Validation as in a script: better in epochs 1, 2 and 5, then never."""
    losses = iter([5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.1, 3.2])
    real = evaluate

    def scripted(model, split, device, watch=None, count=None, label=""):
        if split is corpus.splits["valid"] and (loss := next(losses, None)) is not None:
            return Likelihood(loss, 1)
        return real(model, split, device)

    monkeypatch.setattr("eosin.training.trainer.evaluate", scripted)
    folder = tmp_path / "run"
    train(config(training={"epochs": 50, "patience": 3, "learning_rate": 0.01}), corpus, folder)
    epochs = [event for event in log_of(folder) if event["event"] == "epoch"]
    assert [event["best_epoch"] for event in epochs] == [1, 2, 2, 2, 5, 5, 5, 5]
    assert [round(0.01 / event["rate"]) for event in epochs] == [1, 1, 1, 2, 4, 4, 8, 16]
    _, notes = load_tensors(folder / "weights.safetensors")
    assert notes["epoch"] == 5


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates at which Adam steps."""
    rates, real = [], torch.optim.Adam.step

    def watched(adam, *arguments):
        rates.append(adam.param_groups[0]["lr"])
        return real(adam, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    return rates


def test_a_falling_rate_is_a_line_to_zero_at_the_last_step(corpus: Corpus, tmp_path: Path, used: list[float]):
    """And Adam steps at the rate that is told."""
    settings = {"falling": True, "learning_rate": 0.01, "anneal": 1.0, "epochs": 3, "log_every": 1}
    train(config(training=settings), corpus, tmp_path / "run")
    steps = 3 * len(plan_by_length(corpus.train.lengths, 32))
    assert used == pytest.approx([0.01 * (1 - step / steps) for step in range(steps)])
    told = [event["rate"] for event in log_of(tmp_path / "run") if event["event"] == "step"]
    assert told == pytest.approx([*used[1:], 0])


@pytest.mark.parametrize("falling", [False, True])
def test_a_rate_rises_in_a_line_to_its_full_height(falling: bool, corpus: Corpus, tmp_path: Path, used: list[float]):
    settings = {"warmup": 4, "falling": falling, "learning_rate": 0.01, "anneal": 1.0, "epochs": 3}
    train(config(training=settings), corpus, tmp_path / "run")
    steps = 3 * len(plan_by_length(corpus.train.lengths, 32))
    full = [0.01 * (1 - step / steps if falling else 1) for step in range(steps)]
    assert steps > 6
    assert used[:4] == pytest.approx([rate * share for rate, share in zip(full, (0.25, 0.5, 0.75, 1), strict=False)])
    assert used[4:] == pytest.approx(full[4:])


def test_the_log_has_every_number(corpus: Corpus, tmp_path: Path):
    train(config(), corpus, tmp_path / "run")
    events = log_of(tmp_path / "run")
    batches = len(plan_by_length(corpus.train.lengths, 32))
    assert [event["event"] for event in events].count("epoch") == 3
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(2, 3 * batches + 1, 2))
    assert all(event.keys() == {"event", "step", "epoch", "loss", "gradient_norm", "rate"} for event in steps)
    assert all(math.isfinite(event["loss"]) for event in steps)


def test_tensorboard_gets_the_curves(corpus: Corpus, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(config(), corpus, tmp_path / "run")
    curves = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    curves.Reload()
    logged = [e["valid_perplexity"] for e in log_of(tmp_path / "run") if e["event"] == "epoch"]
    assert [point.value for point in curves.Scalars("epoch/valid_perplexity")] == pytest.approx(logged)
    assert "step/loss" in curves.Tags()["scalars"]


def test_tensorboard_has_every_point_once_after_a_stop(corpus: Corpus, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Stopped):
        train(config(), corpus, tmp_path / "run", watch=stop_after(9))
    train(config(), corpus, tmp_path / "run")
    curves = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    curves.Reload()
    steps = [event["step"] for event in log_of(tmp_path / "run") if event["event"] == "epoch"]
    assert [point.step for point in curves.Scalars("epoch/valid_loss")] == steps


def test_a_finished_run_is_not_done_again(corpus: Corpus, tmp_path: Path):
    first = train(config(), corpus, tmp_path / "run")
    before = contents(tmp_path / "run")
    assert train(config(), corpus, tmp_path / "run") == first
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


@pytest.mark.parametrize("after", [0, 1, 4, 8])
def test_a_run_that_was_stopped_goes_on(corpus: Corpus, tmp_path: Path, after: int):
    whole = train(config(), corpus, tmp_path / "whole")
    result = None
    while result is None:
        watch = stop_after(after)
        after += 1  # the last evaluation has to get through some day
        with suppress(Stopped):
            result = train(config(), corpus, tmp_path / "run", watch=watch)
    assert result == whole
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")
    assert (tmp_path / "run/weights.safetensors").read_bytes() == (tmp_path / "whole/weights.safetensors").read_bytes()


# kills: a child process ends itself with SIGKILL, so that nothing can be tidied up

CHILD = """
import os, pathlib, signal, sys
from eosin.cli import main as cli
from eosin.training import log, loop, trainer

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(real, where, concerned=lambda *arguments, **named: True):
    calls = 0
    def replaced(*arguments, **named):
        nonlocal calls
        calls += concerned(*arguments, **named)
        if calls == NUMBER:
            where(real, *arguments, **named)
            die()
        return real(*arguments, **named)
    return replaced

def before(real, *arguments, **named):
    pass

def after(real, *arguments, **named):
    real(*arguments, **named)

def halfway(real, path, content):
    real(path, content[: len(content) // 2])

def of(name):
    def concerned(*arguments, **named):
        return any(name in str(argument) for argument in (*arguments, *named.values()))
    return concerned

def half_a_line(real, lines, event):
    with lines.path.open("a") as file:
        file.write('{"event": "st')

POINT, NUMBER = sys.argv[1], int(sys.argv[2])
if POINT == "in a step":
    trainer.Trainer._clip = dying(trainer.Trainer._clip, before)
elif POINT == "after a step":
    trainer.Trainer.learn = dying(trainer.Trainer.learn, after)
elif POINT == "in the middle of a file":
    pathlib.Path.write_bytes = dying(pathlib.Path.write_bytes, halfway)
elif POINT == "before a file gets its name":
    os.replace = dying(os.replace, before)
elif POINT == "after a file got its name":
    os.replace = dying(os.replace, after)
elif POINT == "in a line of the log":
    log.Log.write = dying(log.Log.write, half_a_line)
elif POINT == "in validation":
    trainer.evaluate = dying(trainer.evaluate, before)
elif POINT == "in the middle of the weights":
    pathlib.Path.write_bytes = dying(pathlib.Path.write_bytes, halfway, of("weights"))
elif POINT == "between the weights and the state":
    os.replace = dying(os.replace, after, of("weights"))
elif POINT == "after an epoch is logged":
    log.Log.write = dying(log.Log.write, after, of("kind='epoch'"))
elif POINT == "after the end is logged":
    log.Log.write = dying(log.Log.write, after, of("kind='end'"))
elif POINT == "in the middle of the state":
    pathlib.Path.write_bytes = dying(pathlib.Path.write_bytes, halfway, of("resume"))
cli.main(sys.argv[3:])
"""
POINTS = {
    "in a step": [1, 9],
    "after a step": [7],
    "in the middle of a file": [1, 3],
    "before a file gets its name": [1, 4],
    "after a file got its name": [2, 3],
    "in a line of the log": [1, 4],
    "in validation": [1, 2],
    "in the middle of the weights": [1, 2],
    "between the weights and the state": [1, 2],
    "after an epoch is logged": [1, 1],
    "after the end is logged": [1],
    "in the middle of the state": [1, 4, 7],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, settings, and a run of them that nobody killed."""
    folder = tmp_path_factory.mktemp("kills")
    write_lines(folder / "text.txt", real_sentences(150))
    sections = {"core": '"lstm"\nwidth = 12\ndropout = 0.3', "head": '"self-terminating"'}
    text = "".join(f"[{name}]\nkind = {value}\n" for name, value in sections.items())
    text += '[data]\nsource = "text.txt"\nvocab_size = 320\n[training]\nepochs = 3\nlog_every = 1\n'
    (folder / "settings.toml").write_text(text, encoding="utf-8")
    assert child(folder, "nowhere", 0, "whole").returncode == 0
    return folder


def child(folder: Path, point: str, number: int, run: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, point, str(number)]
    arguments = ["train", "settings.toml", "--out", run, "--save-every", "0", "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, env=environment)


KILLS = [
    pytest.param(point, numbers, id=point, marks=() if place == 0 else pytest.mark.slow)
    for place, (point, numbers) in enumerate(POINTS.items())
]
"""One of them with every test run."""


@pytest.mark.parametrize(("point", "numbers"), KILLS)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(place: Path, point: str, numbers: list[int]):
    run = "killed " + point
    for number in numbers:
        assert child(place, point, number, run).returncode == -signal.SIGKILL
    assert child(place, "nowhere", 0, run).returncode == 0
    assert log_of(place / run) == log_of(place / "whole")
    for name in ("weights.safetensors", "config.toml", "tokenizer.json"):
        assert (place / run / name).read_bytes() == (place / "whole" / name).read_bytes()
    assert not list((place / run).glob("*.partial"))


def test_the_state_is_let_go_when_the_run_is_over(place: Path):
    tensors, notes = load_tensors(place / "whole" / RESUME)
    assert not tensors
    assert notes["result"]


# damage


@pytest.fixture
def stopped(corpus: Corpus, tmp_path: Path) -> Path:
    """A run in its second epoch."""
    with pytest.raises(Stopped):
        train(config(), corpus, tmp_path / "run", watch=stop_after(9))
    return tmp_path / "run"


def refused(stopped: Path, corpus: Corpus, says: str, **sections: dict) -> None:
    before = contents(stopped)
    with pytest.raises(BadInput) as error:
        train(config(**sections), corpus, stopped)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(stopped) == before


@pytest.mark.parametrize("name", [RESUME, "weights.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "alter", "empty", "header"])
def test_a_damaged_checkpoint_is_refused_and_left_as_it_is(stopped: Path, corpus: Corpus, name: str, damage: str):
    path = stopped / name
    content = path.read_bytes()
    last = len(content) - 5
    changed = {
        "truncate": content[: len(content) // 2],
        "alter": content[:last] + bytes([content[last] ^ 1]) + content[last + 1 :],
        "empty": b"",
        "header": b"\xff" * 8 + content[8:],
    }[damage]
    path.write_bytes(changed)
    refused(stopped, corpus, "put back a good copy")
    if name != RESUME:
        with pytest.raises(BadInput, match="put back a good copy"):
            eosin.load(stopped)
    assert path.read_bytes() == changed


@pytest.mark.parametrize("over", [False, True], ids=["under way", "over"])
@pytest.mark.parametrize("name", [RESUME, "weights.safetensors", "log.jsonl", "config.toml", "tokenizer.json"])
def test_a_missing_file_is_refused_and_the_others_are_left(stopped: Path, corpus: Corpus, name: str, over: bool):
    if over:
        train(config(), corpus, stopped)
    (stopped / name).unlink()
    before = contents(stopped)
    with pytest.raises(BadInput):
        train(config(), corpus, stopped)
    assert contents(stopped) == before


@pytest.mark.parametrize("name", [RESUME, "weights.safetensors"])
def test_a_file_of_another_run_is_refused(stopped: Path, corpus: Corpus, tmp_path: Path, name: str):
    with pytest.raises(Stopped):
        train(config(training={"seed": 1}), corpus, tmp_path / "other", watch=stop_after(9))
    (stopped / name).write_bytes((tmp_path / "other" / name).read_bytes())
    refused(stopped, corpus, "belongs to a different run")
    save_tensors(stopped / name, {}, {})
    refused(stopped, corpus, "belongs to a different run")


def test_old_weights_are_refused(stopped: Path, corpus: Corpus):
    tensors, notes = load_tensors(stopped / "weights.safetensors")
    save_tensors(stopped / "weights.safetensors", tensors, {**notes, "epoch": 7})
    refused(stopped, corpus, "is of epoch 7, but the best was epoch 1")


def test_a_precision_that_there_is_not_is_refused(tmp_path: Path, corpus: Corpus):
    with pytest.raises(BadInput, match="'bf16' is not a precision; did you mean 'bfloat16'"):
        train(config(), corpus, tmp_path / "run", precision="bf16")


@pytest.mark.parametrize(
    ("flags", "capability", "usual"),
    [
        ("fpu avx512f avx512_bf16", "AVX512", "bfloat16"),
        ("fpu avx512f amx_bf16", "AVX512_VNNI", "bfloat16"),
        ("fpu avx512f avx512_bf16", "AVX2", "float32"),  # torch is told to do without
        ("fpu avx512f avx512bw", "AVX512", "float32"),
        ("fpu avx2", "AVX2", "float32"),
        ("fp asimd bf16", "DEFAULT", "bfloat16"),
    ],
)
def test_the_usual_precision_is_what_the_cpu_multiplies_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, capability: str, usual: str
):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\n{'Features' if 'asimd' in flags else 'flags'}\t: {flags}\n")
    monkeypatch.setattr(devices, "CPU_INFO", cpuinfo)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    devices.cpu_multiplies.cache_clear()
    try:
        assert devices.choose_precision("auto", CPU) == usual
        assert devices.choose_precision("auto", CPU, before="float16") == "float16"
        assert devices.choose_precision("float32", CPU) == "float32"
    finally:
        devices.cpu_multiplies.cache_clear()


def test_the_log_begins_with_what_decides_the_bits(tmp_path: Path, corpus: Corpus):
    train(config(), corpus, tmp_path / "run", precision="bfloat16", threads=1)
    begin = log_of(tmp_path / "run")[0]
    assert begin == {"event": "begin", "step": 0, "device": "cpu", "precision": "bfloat16", "threads": 1}


def test_another_precision_is_refused(stopped: Path, corpus: Corpus):
    before, begun = contents(stopped), devices.fastest_precision(CPU)
    with pytest.raises(BadInput, match=f"was begun in {begun} and goes on in it"):
        train(config(), corpus, stopped, precision="bfloat16" if begun == "float32" else "float32")
    assert contents(stopped) == before


def test_a_run_knows_its_corpus(stopped: Path, corpus: Corpus):
    assert open_run(stopped).corpus.digest == corpus.digest
    text = (stopped / "corpus.toml").read_text(encoding="utf-8")
    (stopped / "corpus.toml").write_text(text.replace(corpus.digest[:5], "00000"), encoding="utf-8")
    with pytest.raises(BadInput, match="is not the corpus that"):
        assert open_run(stopped).corpus


def test_the_number_of_threads_is_given_back(stopped: Path, corpus: Corpus):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        train(config(), corpus, stopped, threads=before)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_other_settings_are_refused(stopped: Path, corpus: Corpus):
    refused(stopped, corpus, "core.width is 16 there and 17 here", core={"width": 17})
    refused(stopped, corpus, "training.seed is 0 there and 1 here", training={"seed": 1})
    refused(stopped, corpus, "head.kind is 'softmax' there and 'non-monotonic' here", head={"kind": "non-monotonic"})


def test_a_changed_corpus_is_refused(stopped: Path, corpus: Corpus, tmp_path: Path):
    folder = tmp_path / "other"
    folder.mkdir()
    other = small_corpus(folder, count=190, vocab_size=300)
    other = Corpus(corpus.recipe, corpus.tokenizer, other.splits, other.digest)
    refused(stopped, other, "belongs to a different corpus")


def test_a_changed_tokenizer_is_refused(stopped: Path, corpus: Corpus):
    text = (stopped / "tokenizer.json").read_text(encoding="utf-8")
    (stopped / "tokenizer.json").write_text(text.replace('"the"', '"teh"'), encoding="utf-8")
    refused(stopped, corpus, "is not the tokenizer of the corpus")


def test_a_log_that_was_cut_is_refused(stopped: Path, corpus: Corpus):
    with (stopped / "log.jsonl").open("r+b") as file:
        file.truncate(10)
    refused(stopped, corpus, "put back the whole log")


def test_a_config_of_another_model_is_refused(stopped: Path):
    text = (stopped / "config.toml").read_text(encoding="utf-8")
    (stopped / "config.toml").write_text(text.replace("width = 16", "width = 32"), encoding="utf-8")
    with pytest.raises(BadInput, match="belongs to another model"):
        eosin.load(stopped)


def test_weights_of_another_model_are_refused(stopped: Path):
    tensors, notes = load_tensors(stopped / "weights.safetensors")
    notes["model"]["core"]["layers"] = 3
    save_tensors(stopped / "weights.safetensors", tensors, notes)
    with pytest.raises(BadInput, match="belongs to another model"):
        eosin.load(stopped)


def test_a_config_that_is_no_config(stopped: Path):
    (stopped / "config.toml").write_text("core = 3", encoding="utf-8")
    with pytest.raises(BadInput, match="core should be a section, and is 3"):
        eosin.load(stopped)


def test_places_that_are_no_runs(tmp_path: Path, corpus: Corpus):
    (tmp_path / "file").write_text("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("dear")
    for name, says in (("file", "is a file"), ("folder", "is not a run: it holds 'letter.txt'")):
        with pytest.raises(BadInput, match=says):
            train(config(), corpus, tmp_path / name)
        with pytest.raises(BadInput, match="is not a run directory"):
            eosin.load(tmp_path / name)
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["letter.txt"]


def test_weights_that_are_not_there_yet(tmp_path: Path, corpus: Corpus):
    with pytest.raises(Stopped):
        train(config(), corpus, tmp_path / "run", watch=stop_after(0))
    with pytest.raises(BadInput, match="its first epoch is not over"):
        eosin.load(tmp_path / "run")


def test_a_run_belongs_to_one_process(tmp_path: Path, corpus: Corpus):
    def nested(event: Event) -> None:
        with pytest.raises(BadInput, match="another process is training in"):
            train(config(), corpus, tmp_path / "run")
        raise Stopped

    with pytest.raises(Stopped):
        train(config(), corpus, tmp_path / "run", watch=nested)


def test_fewer_sentences_than_a_batch(tmp_path: Path, corpus: Corpus):
    with pytest.raises(BadInput, match="there are 180 sentences to train on, fewer than a batch of 512"):
        train(config(training={"batch": 512}), corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there(tmp_path: Path, corpus: Corpus):
    with pytest.raises(BadInput, match="device 'abacus' cannot be used"):
        train(config(), corpus, tmp_path / "run", device="abacus")
