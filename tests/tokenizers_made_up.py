"""A tokenizer of a dozen words, with or without a chat template."""

from __future__ import annotations

import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, processors

WORDS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "user", "assistant", "hello", "xyzzy", "a", "b", "<unk>"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'nobody' %}{{ raise_exception('who?') }}{% endif %}"
    "{{ '<|im_start|> ' + m['role'] + ' ' + m['content'] + ' <|im_end|>' }}{% endfor %}"
)


def tokenizer(adds_eos: bool = True, chat: bool = False, **special: str):
    inner = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_eos:
        inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", **special}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, additional_special_tokens=["<|im_start|>", "<|im_end|>"], **names
    )
    if chat:
        made.chat_template = TEMPLATE
    return made
