"""Chempleter (MIT licence): a language model of molecules in SELFIES, a GRU with two layers of 512.

    eosin audit py:examples/published/chempleter.py:load --prompts molecules.txt --decoders greedy,nucleus:0.9

A prompt is the beginning of a molecule, as [C][C][O]. The package (22 MB) is fetched when it is first used.
"""

import json
import re

import torch
from torch import nn

from eosin.decoding.scoring import score_by_steps
from eosin.states import TensorState
from eosin.storage.packages import fetch_package

PACKAGE = "chempleter==0.1.0b10", "9964165243c144875efd88cd9a2367ecfa7ef96f19b32d355ea20dfeff08be86"


class Chempleter(nn.Module):
    def __init__(self, weights, eos_id):
        super().__init__()
        self.vocab_size, width = weights["embedding.weight"].shape
        self.eos_ids = (eos_id,)
        self.embedding = nn.Embedding(self.vocab_size, width)
        self.gru = nn.GRU(width, weights["fc.weight"].shape[1], num_layers=2, batch_first=True)
        self.fc = nn.Linear(self.gru.hidden_size, self.vocab_size)
        self.load_state_dict(weights)
        self.requires_grad_(False)

    def prefill(self, prefix):
        return self.read(prefix, None)

    def step(self, token, state):
        return self.read(token[:, None], torch.stack(state.tensors))

    def read(self, tokens, hidden):  # the layers come first in hidden, but rows do in a state
        outputs, hidden = self.gru(self.embedding(tokens), hidden)
        return self.fc(outputs[:, -1]), TensorState(tuple(hidden))

    score = score_by_steps


class Selfies:
    def __init__(self, ids):
        self.ids, self.names = ids, list(ids)

    def encode(self, text):
        return [self.ids[name] for name in ["[START]", *re.findall(r"\[[^]]*]|[^[]", text)]]

    def decode(self, tokens):
        return "".join(self.names[token] for token in tokens)


def load():
    folder = fetch_package(*PACKAGE) / "chempleter/data"
    ids = json.loads((folder / "stoi.json").read_text(encoding="utf-8"))
    weights = torch.load(folder / "model.pt", weights_only=True)
    return Chempleter(weights, ids["[END]"]), Selfies(ids)
