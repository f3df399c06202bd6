# ruff: noqa: RUF001 (special tokens have the characters that they have)
"""The best-known families of models, small: their special tokens, chat templates and eos, and a few words.

Templates are written anew with what they put around messages. Ids are places in the vocabulary, so tokens have names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
import transformers
from tokenizers import AddedToken, models, pre_tokenizers

WORDS = ["hello", "xyzzy", "user", "assistant", "system", "model", "a", "b", "###", "Response:", "USER:", "ASSISTANT:"]
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}SPACE{{ eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
)
PHI_3 = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
ZEPHYR = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}<｜User｜>{{ m['content'] }}"
    "{% else %}<｜Assistant｜>{{ m['content'] }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
)
COMMAND_R = (
    "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{{ m['content'] }}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m['role'] }}{% if m['role'] == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ m['content'] }}{% if loop.last and m['role'] == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}"
    "{% endfor %}"
)
GLM = "[gMASK]<sop>{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
ALPACA = "{% for m in messages %}{{ m['content'] }}\n\n### Response:\n{% endfor %}"


@dataclass(frozen=True)
class Family:
    kind: str
    eos: str
    """Of the tokenizer."""
    stops: tuple[str, ...]
    """The eos of the generation config."""
    config_eos: tuple[str, ...] = ()
    """The eos of the config; those of the generation config if none are given."""
    template: str | None = None
    bos: str | None = None
    pad: str | None = None
    unknown: str | None = None
    special: tuple[str, ...] = ()
    """Special tokens of no special name."""
    generation: dict[str, object] = field(default_factory=dict)
    turn_end: str | None = None
    """What must be found to end an answer."""
    wrong: tuple[str, ...] = ()
    """The checks that must find something wrong."""


IM = ("<|im_start|>", "<|im_end|>")
HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
SENTENCEPIECE = {"bos": "<s>", "unknown": "<unk>"}
FAMILIES = {
    "GPT-2": Family("gpt2", "<|endoftext|>", ("<|endoftext|>",), bos="<|endoftext|>"),
    "Pythia": Family("gpt_neox", "<|endoftext|>", ("<|endoftext|>",), bos="<|endoftext|>"),
    "Llama 2": Family("llama", "</s>", ("</s>",), **SENTENCEPIECE),
    "Llama 2 Chat": Family(
        "llama", "</s>", ("</s>",), template=INST.replace("SPACE", " "), turn_end="</s>", **SENTENCEPIECE
    ),
    "Llama 3": Family("llama", "<|end_of_text|>", ("<|end_of_text|>",), bos="<|begin_of_text|>", special=HEADERS),
    "Llama 3 Instruct as first published": Family(
        "llama", "<|end_of_text|>", ("<|end_of_text|>",), template=LLAMA_3, bos="<|begin_of_text|>", special=HEADERS,
        turn_end="<|eot_id|>", wrong=("find_unlisted_turn_end",),
    ),
    "Llama 3.1 Instruct": Family(
        "llama", "<|eot_id|>", ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), template=LLAMA_3,
        bos="<|begin_of_text|>", special=("<|end_of_text|>", *HEADERS), turn_end="<|eot_id|>",
        generation={"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    ),
    "Mistral Instruct": Family(
        "mistral", "</s>", ("</s>",), template=INST.replace("SPACE", ""), special=("[INST]", "[/INST]"),
        turn_end="</s>", **SENTENCEPIECE,
    ),
    "Gemma 1 as first published": Family(
        "gemma", "<eos>", ("<eos>",), template=GEMMA, bos="<bos>", pad="<pad>", unknown="<unk>",
        special=("<start_of_turn>", "<end_of_turn>"), turn_end="<end_of_turn>", wrong=("find_unlisted_turn_end",),
    ),
    "Gemma 2": Family(
        "gemma2", "<eos>", ("<eos>", "<end_of_turn>"), template=GEMMA, bos="<bos>", pad="<pad>", unknown="<unk>",
        special=("<start_of_turn>", "<end_of_turn>"), turn_end="<end_of_turn>",
    ),
    "Qwen 2.5": Family(
        "qwen2", "<|endoftext|>", ("<|endoftext|>",), template=CHATML, pad="<|endoftext|>", special=IM,
        turn_end="<|im_end|>", generation={"max_new_tokens": 2048}, wrong=("find_unlisted_turn_end",),
    ),
    "Qwen 2.5 Instruct": Family(
        "qwen2", "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), ("<|im_end|>",), template=CHATML,
        pad="<|endoftext|>", special=IM, turn_end="<|im_end|>",
        generation={"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
    ),
    "Phi 3 as first published": Family(
        "phi3", "<|endoftext|>", ("<|endoftext|>",), template=PHI_3, pad="<|endoftext|>",
        special=("<|user|>", "<|assistant|>", "<|end|>"), turn_end="<|end|>", wrong=("find_unlisted_turn_end",),
        **SENTENCEPIECE,
    ),
    "Phi 3": Family(
        "phi3", "<|endoftext|>", ("<|endoftext|>", "<|assistant|>", "<|end|>"), ("<|endoftext|>",), template=PHI_3,
        pad="<|endoftext|>", special=("<|user|>", "<|assistant|>", "<|end|>"), turn_end="<|end|>", **SENTENCEPIECE,
    ),
    "DeepSeek R1 Distill": Family(
        "qwen2", "<｜end▁of▁sentence｜>", ("<｜end▁of▁sentence｜>",), template=DEEPSEEK, bos="<｜begin▁of▁sentence｜>",
        pad="<｜end▁of▁sentence｜>", special=("<｜User｜>", "<｜Assistant｜>"), turn_end="<｜end▁of▁sentence｜>",
        generation={"do_sample": True, "temperature": 0.6, "top_p": 0.95},
    ),
    "SmolLM2 Instruct": Family(
        "llama", "<|im_end|>", ("<|im_end|>",), template=CHATML, bos="<|im_start|>", pad="<|im_end|>",
        unknown="<|endoftext|>", turn_end="<|im_end|>",
    ),
    "Zephyr": Family("mistral", "</s>", ("</s>",), template=ZEPHYR, pad="</s>", turn_end="</s>", **SENTENCEPIECE),
    "Falcon": Family("falcon", "<|endoftext|>", ("<|endoftext|>",), bos="<|endoftext|>"),
    "Command R": Family(
        "cohere", "<|END_OF_TURN_TOKEN|>", ("<|END_OF_TURN_TOKEN|>",), template=COMMAND_R, bos="<BOS_TOKEN>",
        pad="<PAD>", special=("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"), turn_end="<|END_OF_TURN_TOKEN|>",
    ),
    "gpt-oss": Family(
        "gpt_oss", "<|return|>", ("<|return|>", "<|endoftext|>", "<|call|>"), ("<|return|>",), template=HARMONY,
        bos="<|startoftext|>", pad="<|endoftext|>", turn_end="<|return|>",
        special=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"),
    ),
    "GLM 4": Family(
        "glm", "<|endoftext|>", ("<|endoftext|>", "<|user|>", "<|observation|>"), template=GLM, pad="<|endoftext|>",
        special=("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"), turn_end="<|user|>",
    ),
    "a template without an end": Family(
        "llama", "</s>", ("</s>",), template=ALPACA, wrong=("find_open_turn",), **SENTENCEPIECE
    ),
    "a template with nothing after an answer": Family(
        "llama", "</s>", ("</s>",), template="{% for m in messages %}{{ m['content'] }}\n{% endfor %}",
        wrong=("find_open_turn",), **SENTENCEPIECE
    ),
}  # fmt: skip
"""As they are published, with no fault but where `wrong` says so."""


def save_family(family: Family, folder: Path) -> Path:
    """A model folder without weights."""
    names = (family.bos, family.eos, family.pad, family.unknown, *family.stops, *family.special)
    tokens = list(dict.fromkeys([*(name for name in names if name), *WORDS]))
    ids = {token: place for place, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.WordLevel(ids, family.unknown or family.eos))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"bos_token": family.bos, "pad_token": family.pad, "unk_token": family.unknown}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=family.eos, **{name: token for name, token in named.items() if token}
    )
    tokenizer.add_tokens([AddedToken(token, special=True) for token in (*family.special, *family.stops)])
    tokenizer.chat_template = family.template
    tokenizer.save_pretrained(folder)
    stops, config_eos = ([ids[token] for token in each] for each in (family.stops, family.config_eos or family.stops))
    config = transformers.AutoConfig.for_model(family.kind, vocab_size=len(tokens))
    config.eos_token_id = config_eos if len(config_eos) > 1 else config_eos[0]
    config.save_pretrained(folder)
    generation = {"eos_token_id": stops if len(stops) > 1 else stops[0], **family.generation}
    transformers.GenerationConfig(**generation).save_pretrained(folder)
    return folder
