"""Training speed beside the paper's way of training, in sequences a second, step by step in turns.

The paper's way, as its released code has it: float32, random batches of 32 sentences padded to the longest, logits at
every position of context, continuation and padding, cross-entropy over those that count, clipping, Adam.

    python benchmarks/paper_training.py [--core lstm] [--batches 40] [--precision float32] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from eosin.data.batches import gather
from eosin.data.corpus import Corpus, Recipe, load_corpus
from eosin.data.preparation import prepare
from eosin.devices import PRECISIONS, choose_precision
from eosin.training.config import Config
from eosin.training.memory import keep_memory
from eosin.training.trainer import Trainer

WIDTH, LAYERS, BATCH, CLIP = 256, 2, 32, 1.0
DROPOUT = {"tanh": 0.5, "lstm": 0.3}
LEAST = {"float32": 3.0, "bfloat16": 4.0}
IGNORED = -100


class PaperModel(nn.Module):
    """Embedding, recurrent layers of torch, an output layer."""

    def __init__(self, core: str, vocab: int):
        super().__init__()
        layers = {"tanh": nn.RNN, "lstm": nn.LSTM}[core]
        self.embedding = nn.Embedding(vocab, WIDTH)
        self.core = layers(WIDTH, WIDTH, LAYERS, batch_first=True, dropout=DROPOUT[core])
        self.dropout = nn.Dropout(DROPOUT[core])
        self.output = nn.Linear(WIDTH, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.core(self.dropout(self.embedding(tokens)))
        return self.output(self.dropout(hidden))


class PaperTraining:
    def __init__(self, core: str, corpus: Corpus):
        self.corpus = corpus
        self.model = PaperModel(core, corpus.tokenizer.vocab_size).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def learn(self, rows: Tensor) -> None:
        examples = [self.corpus.train[int(row)] for row in rows]
        sentences = [torch.cat([example.prefix, example.continuation]) for example in examples]
        targets = [sentence[1:].clone() for sentence in sentences]
        for target, example in zip(targets, examples, strict=True):
            target[: len(example.prefix) - 1] = IGNORED
        inputs = pad_sequence([sentence[:-1] for sentence in sentences], batch_first=True)
        logits = self.model(inputs)
        wanted = pad_sequence(targets, batch_first=True, padding_value=IGNORED)
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(core: str, corpus: Corpus, precision: str, batches: int) -> tuple[float, float]:
    """Sequences a second: ours, and the paper's way."""
    settings = {
        "core": {"kind": core, "width": WIDTH, "layers": LAYERS, "dropout": DROPOUT[core]},
        "head": {"kind": "softmax"},
        "training": {"batch": BATCH},
    }
    trainer = Trainer(Config.from_table(settings), corpus, torch.device("cpu"), precision)
    paper = PaperTraining(core, corpus)
    order = torch.randperm(len(corpus.train), generator=torch.Generator().manual_seed(0))
    ours = theirs = 0.0
    count = 0
    plan = trainer.plan_epoch()
    trainer.learn(gather(corpus.train, plan[0]))
    paper.learn(order[:BATCH])
    for number, rows in enumerate(plan[1 : batches + 1], 1):
        ours += seconds(lambda rows=rows: trainer.learn(gather(corpus.train, rows)))
        count += len(rows)
        random_rows = order[number * BATCH : (number + 1) * BATCH]
        theirs += seconds(lambda rows=random_rows: paper.learn(rows))
    return count / ours, batches * BATCH / theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", choices=list(DROPOUT), action="append", help="which core (default: both)")
    parser.add_argument("--batches", type=int, default=40, help="how many batches (default: 40)")
    parser.add_argument("--precision", choices=["auto", *PRECISIONS], default="auto", help="of our products")
    parser.add_argument("--data", type=Path, help="a prepared BPE corpus (default: make one)")
    options = parser.parse_args()
    precision = choose_precision(options.precision, torch.device("cpu"))
    slow = False
    with tempfile.TemporaryDirectory() as scratch, keep_memory():
        corpus = load_corpus(options.data) if options.data else prepare(Recipe(unknown="drop"), Path(scratch) / "bpe")
        for core in options.core or DROPOUT:
            ours, theirs = measure(core, corpus, precision, options.batches)
            ratio = ours / theirs
            slow |= ratio < LEAST[precision]
            print(
                f"{core}: {ours:.0f} sequences a second in {precision}, the paper's way {theirs:.0f}: "
                f"{ratio:.1f} times as many (at least {LEAST[precision]:.0f})"
            )
    sys.exit("a limit is missed" if slow else 0)


if __name__ == "__main__":
    main()
