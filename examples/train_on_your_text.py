"""Train two small models on a text, with and without a self-terminating head, and ask: do they stop?

On so little text both end at once, mostly with a full stop. A model shows loops when it has learnt more.

python examples/train_on_your_text.py [FILE]        a sentence a line; without a file, part of WikiText-2
"""

import sys
import tempfile
from itertools import islice
from pathlib import Path

import eosin
from eosin.data.corpus import Recipe
from eosin.data.preparation import prepare
from eosin.data.sources import open_source
from eosin.training.config import Config
from eosin.training.loop import train

CONTEXTS, MAX_STEPS = 100, 500
HEADS = ({"kind": "softmax"}, {"kind": "self-terminating", "epsilon": 0.01})


def write_sentences(path: Path) -> Path:
    """Write the first sentences of WikiText-2 to a file."""
    sentences = open_source("wikitext-2-sentences").read_sentences("train", "line")
    path.write_text("\n".join(islice(sentences, 12 * CONTEXTS)), encoding="utf-8")
    return path


def main(text: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = text or write_sentences(Path(folder) / "sentences.txt")
        corpus = prepare(Recipe(source=str(text), tokenization="word"), Path(folder) / "corpus")
        for head in HEADS:
            settings = {
                "core": {"kind": "tanh", "width": 64},
                "head": head,
                "training": {"epochs": 4, "batch": 16, "learning_rate": 3e-3},
            }
            run = Path(folder) / head["kind"]
            result = train(Config.from_table(settings), corpus, run)
            completions = eosin.decode(
                eosin.load(run), corpus.take_contexts("train", CONTEXTS), "greedy", max_steps=MAX_STEPS
            )
            share = 1 - float(completions.terminated.double().mean())
            print(f"{head['kind']:18} test perplexity {result['test_perplexity']:8.1f}, not ended: {share:4.0%}")
            longest = max(completions.tokens, key=len)
            print(f"   the longest completion, {len(longest)} long: {corpus.tokenizer.decode(longest[:16])} ...")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
