"""A causal language model of transformers as a LanguageModel: its state is the cache of keys and values.

Rows of different lengths share a batch: the shorter ones are padded on the left, the padding is masked, and positions
count from each row's own beginning.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eosin.contracts import Prefix, Promising, Token, Tokens
from eosin.errors import BadInput
from eosin.hub.cache import CacheState, copy_cache, is_plain
from eosin.hub.norms import bound_log_odds
from eosin.log_odds import Promise

NORM_GROUNDS = "the final norm bounds the hidden vectors, and so the logits (Lemma 3.2)"


def to_float(logits: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class CausalLM(nn.Module):
    """`model` is a causal language model of transformers; `eos_ids` are the tokens that end a sequence."""

    not_in_identity = (
        "_name_or_path", "name_or_path", "transformers_version", "dtype", "_commit_hash", "_takes",
        "_original_object_hash",  # another one in each process
    )  # fmt: skip
    """Attributes that do not affect the model's output."""
    pool = 64
    """Rows that are decoded together by default: each needs keys and values of all layers."""

    def __init__(self, model: Any, eos_ids: tuple[int, ...]):
        super().__init__()
        if not eos_ids:
            raise BadInput(
                "no token ends a sequence: neither tokenizer nor configuration names an eos; name one (--eos)"
            )
        self.model = model
        self.eos_ids = eos_ids
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self._takes = frozenset(inspect.signature(model.forward).parameters)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings of the generation config."""
        named = getattr(self.model.generation_config, "stop_strings", None) or ()
        return (named,) if isinstance(named, str) else tuple(named)

    @property
    def window(self) -> int | None:
        """The number of positions of the model."""
        config = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)

    def prefill(self, prefix: Prefix) -> tuple[Tensor, CacheState]:
        return self._read(prefix, None)

    def step(self, token: Token, state: CacheState) -> tuple[Tensor, CacheState]:
        return self._read(token[:, None], state)

    def score(self, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
        tokens, length = torch.cat([prefix, continuation[:, :-1]], dim=1), continuation.shape[1]
        # a self-terminating head counts the positions whose logits are requested
        arguments = {"logits_to_keep": length} if "logits_to_keep" in self._takes else {}
        logits = self.model(input_ids=tokens, use_cache=False, **arguments).logits[:, -length:]
        return to_float(logits).log_softmax(-1).gather(-1, continuation[..., None])[..., 0]

    def promise(self, temperature: float = 1.0) -> Promise:
        """The promise of the model's head, or Lemma 3.2 with the bound that a final norm puts on the hidden vectors."""
        if isinstance(self.model, Promising) and self._ends_as_its_head():
            return self.model.promise(temperature)
        least = bound_log_odds(self.model, self.eos_ids, temperature)
        return Promise(lambda steps: torch.full_like(steps, least), NORM_GROUNDS)

    def _ends_as_its_head(self) -> bool:
        """A head promises something about the tokens that end its own texts."""
        return set(self.model.config.eos_ids) <= set(self.eos_ids)

    def _read(self, tokens: Tokens, state: CacheState | None) -> tuple[Tensor, CacheState]:
        """The logits after the last token."""
        arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": True}
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        if state is not None:
            arguments |= self._after(state)
        answer = self.model(**arguments)
        cache = getattr(answer, "past_key_values", None)
        if cache is None or not all(map(is_plain, getattr(cache, "layers", [None]))):
            raise BadInput(
                f"{type(self.model).__name__} has no cache of keys and values alone, from which rows can be taken; "
                "Eosin needs one (use_cache)"
            )
        padding = tokens.new_zeros(len(tokens)) if state is None else state.padding
        return to_float(answer.logits[:, -1]), CacheState(cache, padding)

    def _after(self, state: CacheState) -> dict[str, Any]:
        past: dict[str, Any] = {"past_key_values": copy_cache(state.cache)}
        if not state.padding.any():
            return past
        places = torch.arange(state.length + 1, device=state.padding.device)
        positions = {"position_ids": (state.length - state.padding)[:, None]} if "position_ids" in self._takes else {}
        return {**past, **positions, "attention_mask": (places >= state.padding[:, None]).long()}
