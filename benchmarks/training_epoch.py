"""The speed of training: an epoch of the paper's BPE models against the matrix products that it cannot do without.

Batches of an epoch are taken in turns: one training step (batch, forward, loss, backward, clipping, Adam), then the
same products alone, into buffers that are reused. Both are summed over the sample, so the ratio is that of an epoch.

    python benchmarks/training_epoch.py [--core lstm] [--batches 60] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from eosin.data.batches import Batch, gather
from eosin.data.corpus import Recipe, load_corpus
from eosin.data.preparation import prepare
from eosin.training.config import Config
from eosin.training.evaluation import EVALUATION_BATCH, negative_log_likelihood
from eosin.training.memory import keep_memory
from eosin.training.trainer import Trainer

GATES = {"tanh": 1, "gru": 3, "lstm": 4}
LAYERS, WIDTH = 2, 256
LIMIT, MEMORY_LIMIT = 1.3, 3e9
LOAD_LIMIT, PREPARE_LIMIT = 2.0, 30.0


class Products:
    """Forward and backward of the output layer and of the recurrent layers, as matrix products and nothing else."""

    def __init__(self, vocab: int, gates: int, most_tokens: int, most_inputs: int):
        self.hidden = torch.randn(most_inputs, WIDTH)
        self.hidden_gradient = torch.empty(most_inputs, WIDTH)
        self.output = torch.randn(vocab, WIDTH)
        self.output_gradient = torch.empty(vocab, WIDTH)
        self.logits = torch.empty(most_tokens * vocab)
        self.gates = gates
        self.weight = torch.randn(gates * WIDTH, WIDTH)
        self.weight_gradient = torch.empty(gates * WIDTH, WIDTH)
        self.activations = torch.randn(most_inputs, gates * WIDTH)

    def run(self, batch: Batch) -> None:
        self._output_layer(batch.tokens)
        inputs = batch.prefix.shape[1] + batch.continuation.shape[1] - 1
        for _ in range(LAYERS):
            self._recurrent_layer(len(batch.prefix), inputs)

    def _output_layer(self, tokens: int) -> None:
        hidden, gradient = self.hidden[:tokens], self.hidden_gradient[:tokens]
        logits = self.logits[: tokens * len(self.output)].view(tokens, -1)
        torch.mm(hidden, self.output.T, out=logits)
        torch.mm(logits, self.output, out=gradient)
        torch.mm(logits.T, hidden, out=self.output_gradient)

    def _recurrent_layer(self, rows: int, inputs: int) -> None:
        hidden, gradient = self.hidden[: rows * inputs], self.hidden_gradient[: rows * inputs]
        activations = self.activations[: rows * inputs]
        torch.mm(hidden, self.weight.T, out=activations)
        for _ in range(inputs):
            torch.mm(hidden[:rows], self.weight.T, out=activations[:rows])
        for _ in range(inputs):
            torch.mm(activations[:rows], self.weight, out=gradient[:rows])
        torch.mm(activations, self.weight, out=gradient)
        for _ in range(2):
            torch.mm(activations.T, hidden, out=self.weight_gradient)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(core: str, head: str, data: Path, count: int) -> tuple[float, float]:
    """Minutes of an epoch, and its ratio to the products."""
    corpus = load_corpus(data)
    model = {"core": {"kind": core, "width": WIDTH, "layers": LAYERS, "dropout": 0.3}, "head": {"kind": head}}
    trainer = Trainer(Config.from_table(model), corpus, torch.device("cpu"), "float32")
    plan = trainer.plan_epoch()
    sample = [gather(corpus.train, rows) for rows in plan[:count]]
    most_inputs = max(len(b.prefix) * (b.prefix.shape[1] + b.continuation.shape[1]) for b in sample)
    products = Products(corpus.tokenizer.vocab_size, GATES[core], max(b.tokens for b in sample), most_inputs)
    trainer.learn(sample[0])
    products.run(sample[0])
    whole = bare = 0.0
    for rows, batch in zip(plan, sample, strict=False):
        whole += timed(lambda rows=rows: trainer.learn(gather(corpus.train, rows)))
        bare += timed(lambda batch=batch: products.run(batch))
    # for peak memory: the longest sentences in training, and in evaluation
    longest = corpus.train.lengths.argsort()
    trainer.learn(gather(corpus.train, longest[-trainer.settings.batch :]))
    with torch.inference_mode():
        negative_log_likelihood(trainer.model, gather(corpus.train, longest[-EVALUATION_BATCH:]))
    tokens = sum(batch.tokens for batch in sample)
    epoch = whole / tokens * int(corpus.train.lengths.sum())
    return epoch / 60, whole / bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", choices=list(GATES), action="append", help="which core (default: tanh and lstm)")
    parser.add_argument("--head", default="softmax", help="which head (default: softmax)")
    parser.add_argument("--batches", type=int, default=60, help="how many batches of the epoch (default: 60)")
    parser.add_argument("--data", type=Path, help="a prepared BPE corpus (default: make one, and time that)")
    options = parser.parse_args()
    slow = []
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch) / "bpe"
        if not options.data:
            preparing = sum(
                timed(lambda tokens=tokens: prepare(Recipe(tokenization=tokens), Path(scratch) / tokens))
                for tokens in ("word", "bpe")
            )
            print(f"preparing WikiText-2, word and BPE: {preparing:.1f} s (limit {PREPARE_LIMIT:.0f})")
            slow += [preparing > PREPARE_LIMIT]
        loading = timed(lambda: load_corpus(data))
        print(f"loading it: {loading:.2f} s (limit {LOAD_LIMIT:.0f})")
        slow += [loading > LOAD_LIMIT]
        for core in options.core or ["tanh", "lstm"]:
            with keep_memory():
                minutes, ratio = measure(core, options.head, data, options.batches)
            print(
                f"{core} + {options.head}: {minutes:.1f} minutes an epoch, {ratio:.2f} of its products (limit {LIMIT})"
            )
            slow += [ratio > LIMIT]
    memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory: {memory / 1e9:.2f} GB (limit {MEMORY_LIMIT / 1e9:.0f})")
    sys.exit("a limit is exceeded" if any(slow) or memory > MEMORY_LIMIT else 0)


if __name__ == "__main__":
    main()
