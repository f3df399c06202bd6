"""What does a head cost, and where? The loss of a model in two split_loss: where sentences end, and their words.

    log p(word) = log(1 - p(eos)) + log p(word | the sentence goes on)

The first term, and log p(eos) at the end, say how well a model knows where a sentence ends; a head changes these alone.
The second is the softmax over the words, which has the same form under every head.

python examples/where_the_perplexity_is.py [RUN ...]        without a run, the two that come with Eosin
"""

import math
import sys
from pathlib import Path

import torch

import eosin
from eosin.data.corpus import Sentence
from eosin.loading import open_run
from eosin.logits import log1mexp

SENTENCES = 3000


@torch.inference_mode()
def split_loss(model: eosin.NeuralLM, sentence: Sentence) -> tuple[float, float]:
    """Nats for where a sentence ends, and for its words."""
    (eos,) = model.eos_ids
    words = sentence.continuation[:-1]
    tokens = torch.cat([sentence.prefix, words])[None]
    logits, _ = model(tokens, model.initial(1), context=len(sentence.prefix) - 1)
    log_probs = logits.dense()[0].double().log_softmax(-1)
    log_ends, log_goes_on = log_probs[-1, eos], log1mexp(log_probs[:-1, eos])
    log_words = log_probs[torch.arange(len(words)), words] - log_goes_on
    return -float(log_ends + log_goes_on.sum()), -float(log_words.sum())


def main(*runs: str) -> None:
    print(f"{'':24}{'perplexity':>12}{'of words':>12}{'nats a sentence for its end':>30}")
    for run in runs or ("demo", "demo-st"):
        opened = open_run(run)
        model, test = opened.model, opened.corpus.splits["test"]
        sentences = [test[index] for index in range(min(SENTENCES, len(test)))]
        ends, words = map(sum, zip(*(split_loss(model, sentence) for sentence in sentences), strict=True))
        count = sum(len(sentence.continuation) - 1 for sentence in sentences)
        whole = math.exp((ends + words) / (count + len(sentences)))
        print(
            f"{Path(run).name:24}{whole:12.2f}{math.exp(words / count):12.2f}{ends / len(sentences):30.3f}", flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
