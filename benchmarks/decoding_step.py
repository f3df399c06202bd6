"""How much one decoding step costs beyond the output layer's matrix product. Run it when nothing else runs.

A step is everything: reading a token, the recurrent layers, the output layer, the choice and the bookkeeping. It is
compared with the bare product of the output layer's shape into a reused buffer, timed in turns within one run.
The model has random weights and an output bias that makes its distributions about as wide as those of a trained model
(the entropy is printed): on flat distributions a nucleus would be thousands of tokens wide.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from eosin.decoding.job import Job
from eosin.decoding.loop import Cohort, Loop
from eosin.decoding.spec import parse_decoder
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES, NeuralLM

DECODERS = {
    "greedy": 1.5,
    "top-k:2": 1.5,
    "top-k:50": 1.5,
    "top-k:100": 1.5,
    "nucleus:0.2": 2.0,
    "nucleus:0.4": 2.0,
    "consistent-nucleus:0.2": 2.0,
    "ancestral": 2.0,
    "ancestral,temperature=0.7": None,
    "nucleus:0.9": None,
    "min-p:0.1": None,
    "epsilon:3e-4": None,
    "eta:3e-4": None,
    "typical:0.95": None,
    "top-n-sigma:1": None,
    "beam:4": None,
}
"""What is timed, and the ratio that it may not exceed where one is promised."""


def zipfian(core: str, head: str, vocab_size: int, width: int, exponent: float) -> NeuralLM:
    torch.manual_seed(0)
    settings = {} if head == "softmax" else {"epsilon": 1e-4}
    model = NeuralLM(CORES[core](width, layers=2), HEADS[head](**settings), vocab_size, eos_id=2)
    with torch.no_grad():
        model.output.weight.normal_(0, 1.6 / width**0.5)
        model.output.bias.copy_(-exponent * (torch.arange(vocab_size) + 2.7).log())
        model.output.bias[2] = 20.0 if head == "self-terminating" else -20.0  # rows should stay: the batch is the point
    return model.eval()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Stepper:
    """A cohort of full width that can be stepped again and again."""

    def __init__(self, model: NeuralLM, spec: str, batch: int):
        decoder = parse_decoder(spec)
        contexts = batch // decoder.rows_per_context
        prefixes = torch.randint(3, model.vocab_size, (contexts, 10), generator=torch.Generator().manual_seed(1))
        job = Job.create(model, prefixes, max_steps=100_000)
        self.loop = Loop(job, decoder)
        self.cohort: Cohort = self.loop.enter(list(job.contexts))

    def step(self) -> None:
        self.cohort = self.loop.step(self.cohort)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=19_483)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--core", choices=sorted(CORES), default="tanh")
    parser.add_argument("--head", choices=sorted(HEADS), default="softmax")
    parser.add_argument("--exponent", type=float, default=1.35, help="of Zipf's law: 1.35 gives 5.3 nats, 1.1 gives 7")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()

    model = zipfian(arguments.core, arguments.head, arguments.vocab, arguments.width, arguments.exponent)
    hidden = torch.randn(arguments.batch, arguments.width)
    buffer = torch.empty(arguments.batch, arguments.vocab)
    weight = model.output.weight.detach()

    def bare() -> None:
        torch.mm(hidden, weight.T, out=buffer)

    print(f"{vars(arguments)}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    with torch.inference_mode():
        prefixes = torch.randint(3, arguments.vocab, (64, 10))
        probs = model.prefill(prefixes)[0].dense().softmax(-1)
        print(f"mean entropy of the next token: {torch.special.entr(probs).sum(-1).mean():.2f} nats\n")
        print(f"{'decoder':28} {'ms a step':>10} {'of bare':>8} {'limit':>6}")
        failed = False
        for spec, limit in DECODERS.items():
            stepper = Stepper(model, spec, arguments.batch)
            for _ in range(4):
                stepper.step(), bare()
            times = [(seconds(bare), seconds(stepper.step)) for _ in range(arguments.rounds)]
            product, step = (statistics.median(column) for column in zip(*times, strict=True))
            failed |= limit is not None and step > limit * product
            shown = "" if limit is None else f"{limit:.1f}"
            print(f"{spec:28} {1e3 * step:10.1f} {step / product:8.2f} {shown:>6}", flush=True)
    if failed:
        raise SystemExit("a step took longer than promised")


if __name__ == "__main__":
    main()
