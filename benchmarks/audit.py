"""How fast audits are, on a trained tanh-RNN whose rows loop. Run it when nothing else runs.

The model is the paper's BPE tanh-RNN (vocabulary 19,483, width 256) after two epochs; it is trained once, which takes
about eight minutes an epoch on two cores, and kept in the user's cache folder. Everything is measured in one run:

- a greedy audit against the bare matrix products of the tokens that it produced, in the batches in which it did;
- what proofs save: the contexts that are proved infinite, audited with proofs and without;
- audits against the textbook loop: batches of 32, every row to the limit, a full sort for nucleus sampling, and
  `multinomial` over the vocabulary; 100 steps of it are timed and scaled up;
- ten times the contexts: time and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

import eosin
from eosin.decoding.job import Context
from eosin.decoding.loop import Cohort, Loop, padded_size
from eosin.loading import open_run
from eosin.models.neural_lm import NeuralLM

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eosin"
RUN = CACHE / "bpe-tanh-two-epochs"
LIMIT, CONTEXTS, BATCH = 1500, 2000, 32
PROMISED = {"greedy audit, of the bare products": 1.5, "ten times the contexts": 10.5, "memory for them": 1.1}
"""What a ratio may not exceed."""
AT_LEAST = {
    "saved by proofs": 10,
    "greedy against the textbook loop": 30,
    "nucleus:0.4 against the textbook loop": 100,
    "ancestral against the textbook loop": 100,
}


def trained() -> Path:
    if not (RUN / "finished").exists():
        quickly = ["--set", "training.epochs=2", "--set", "training.torch_start=false"]
        command = ["train", "bpe-tanh-softmax", "--out", str(RUN), *quickly]
        print(f"training the model once: eosin {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, "-m", "eosin", *command], cwd=make(CACHE), check=True)
        (RUN / "finished").touch()
    return RUN


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def counting_rows() -> Iterator[Counter[int]]:
    """How many rows each step of the loop has."""
    rows: Counter[int] = Counter()
    enter, step = Loop.enter, Loop.step

    def counted(loop: Loop, cohort: Cohort) -> Cohort:
        rows[len(cohort.token)] += 1
        return step(loop, cohort)

    def entered(loop: Loop, contexts: list[Context]) -> Cohort:
        rows[padded_size(len(contexts))] += 1
        return enter(loop, contexts)

    Loop.enter, Loop.step = entered, counted
    yield rows
    Loop.enter, Loop.step = enter, step


def product_seconds(model: NeuralLM, rows: int, times: int = 5) -> float:
    hidden, buffer = torch.randn(rows, model.core.width), torch.empty(rows, model.vocab_size)
    weight = model.output.weight.detach()
    return min(seconds(lambda: torch.mm(hidden, weight.T, out=buffer)) for _ in range(times))


def greedy_against_products(model: NeuralLM, contexts: Tensor) -> float:
    with counting_rows() as counted:
        took = seconds(lambda: eosin.audit(model, contexts, ["greedy"], max_steps=LIMIT))
    bare = sum(count * product_seconds(model, rows) for rows, count in counted.items())
    steps = sum(counted.values())
    print(f"greedy audit of {len(contexts):,} contexts: {took:.1f} s, {steps:,} steps; bare products {bare:.1f} s")
    return took / bare


def saved_by_proofs(model: NeuralLM, contexts: Tensor) -> float:
    proved = []
    eosin.audit(
        model, contexts, ["greedy"], max_steps=LIMIT, watch=lambda c, _: proved.append(c.index) if c.proof else None
    )
    some = contexts[sorted(proved)]
    times = {
        proofs: seconds(lambda proofs=proofs: eosin.audit(model, some, ["greedy"], max_steps=LIMIT, proofs=proofs))
        for proofs in (True, False)
    }
    print(f"{len(some):,} proved contexts: {times[True]:.1f} s with proofs, {times[False]:.1f} s without")
    return times[False] / times[True]


def textbook_greedy(probs: Tensor) -> Tensor:
    return probs.argmax(-1)


def textbook_ancestral(probs: Tensor) -> Tensor:
    return torch.multinomial(probs, 1)[:, 0]


def textbook_nucleus(probs: Tensor, mu: float = 0.4) -> Tensor:
    ordered, ids = probs.sort(dim=-1, descending=True)
    kept = ordered.cumsum(-1) - ordered < mu
    return ids.gather(1, torch.multinomial(ordered * kept, 1))[:, 0]


TEXTBOOK = {"greedy": textbook_greedy, "nucleus:0.4": textbook_nucleus, "ancestral": textbook_ancestral}


@torch.inference_mode()
def textbook_seconds(model: NeuralLM, contexts: Tensor, choose: Callable[[Tensor], Tensor], steps: int = 100) -> float:
    """The time for all contexts, scaled up from some steps of one batch."""
    logits, state = model.prefill(contexts[:BATCH])

    def run() -> None:
        nonlocal logits, state
        for _ in range(steps):
            token = choose(logits.dense().softmax(-1))
            logits, state = model.step(token, state)

    return seconds(run) / steps * LIMIT * -(-len(contexts) // BATCH)


def alone(count: int) -> tuple[float, float]:
    """Seconds and peak memory in MB of an audit of so many contexts, in a process of its own."""
    command = [sys.executable, __file__, "--alone", str(count)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(json.loads(said))


def audit_alone(count: int) -> None:
    import resource

    model, contexts = eosin.load(RUN), open_run(RUN).corpus.take_contexts("train", count)
    took = seconds(lambda: eosin.audit(model, contexts, ["greedy"], max_steps=LIMIT))
    print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        audit_alone(arguments.alone)
        return
    model = eosin.load(trained())
    contexts = open_run(RUN).corpus.take_contexts("test", CONTEXTS)
    print(f"vocabulary {model.vocab_size:,}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(eosin.audit(model, contexts, ["greedy", "nucleus:0.4", "ancestral"], max_steps=LIMIT))
    found = {}
    found["greedy audit, of the bare products"] = greedy_against_products(model, contexts)
    found["saved by proofs"] = saved_by_proofs(model, contexts)
    for spec, choose in TEXTBOOK.items():
        ours = seconds(lambda spec=spec: eosin.audit(model, contexts, [spec], max_steps=LIMIT))
        theirs = textbook_seconds(model, contexts, choose)
        print(f"{spec}: {ours:.1f} s, the textbook loop {theirs:,.0f} s")
        found[f"{spec} against the textbook loop"] = theirs / ours
    (few, few_memory), (many, many_memory) = alone(CONTEXTS), alone(10 * CONTEXTS)
    print(f"{CONTEXTS:,} contexts: {few:.1f} s, {few_memory:,.0f} MB")
    print(f"{10 * CONTEXTS:,} contexts: {many:.1f} s, {many_memory:,.0f} MB")
    found |= {"ten times the contexts": many / few, "memory for them": many_memory / few_memory}
    report(found)


def report(found: dict[str, float]) -> None:
    print()
    failed = []
    for name, ratio in found.items():
        most, least = PROMISED.get(name), AT_LEAST.get(name)
        limit = f"at most {most}" if most else f"at least {least}"
        if (most and ratio > most) or (least and ratio < least):
            failed.append(name)
        print(f"{name:42} {ratio:8.2f}   {limit}")
    if failed:
        raise SystemExit(f"not as promised: {', '.join(failed)}")


if __name__ == "__main__":
    main()
