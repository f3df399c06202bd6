"""IgLM (Shuai et al., Cell Systems 2023): language models of antibodies, GPT-2 of 13 and 1.4 million parameters.

    eosin audit py:examples/published/iglm.py:load --prompts antibodies.txt --max-steps 400 --decoders greedy,top-k:5

A prompt names a chain and a species, and begins the sequence, as [HEAVY] [HUMAN] E V Q L. The package (53 MB) is
fetched at first; its licence allows academic use only. The models write a sequence with a [MASK] in it, [SEP], what
belongs in place of the mask, and [CLS]. That is the end for their own code too; but their configuration names an eos
outside the vocabulary, which `eosin doctor` finds.
"""

from functools import partial

from transformers import GPT2LMHeadModel
from transformers.utils import logging

from eosin.hub.causal_lm import CausalLM
from eosin.storage.packages import fetch_package

PACKAGE = "iglm==0.1.0", "6bb7b65c531583b10d3723dbfbc06e95b2cb30e3cc8cbf2fbc7eb22945e1c2be"


class Residues:
    def __init__(self, names):
        self.names = names

    def encode(self, text):
        return [self.names.index(name) for name in text.split()]

    def decode(self, tokens):
        return " ".join(self.names[token] for token in tokens)


def load_named(name):
    folder = fetch_package(*PACKAGE) / "iglm/trained_models"
    names = (folder / "vocab.txt").read_text(encoding="utf-8").split()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = GPT2LMHeadModel.from_pretrained(folder / name)
    return CausalLM(model.eval(), eos_ids=(names.index("[CLS]"),)), Residues(names)


load, load_small = partial(load_named, "IgLM"), partial(load_named, "IgLM-S")
