"""Self-terminating heads on pretrained models: a causal language model whose eos logit is rewritten.

With z_t the model's own log-odds of eos against all other tokens:

    st      1 - p_t = product over i <= t of (1 - epsilon) (1 - sigmoid(z_i))     (the paper; the product never rises)
    nmst    1 - p_t = (1 - epsilon)^t (1 - sigmoid(z_t))                          (Choi, Cho and Lee)

Steps are counted from the first token that is generated, or in training from the first label that counts. Nothing is
added to the model but this rewrite, so nmst begins as the pretrained model, exactly as epsilon tends to zero; st begins
with the product of its survivals, which is less, and has to learn to be sparing with eos.

The memory of a row is one more layer of its cache, a number for each position: whatever selects, reorders or crops a
cache does it to the memory too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.generation.utils import GenerationMixin

from eosin.errors import BadInput
from eosin.hub.endings import to_ids
from eosin.log_odds import Promise, tempered
from eosin.logits import log_odds_of_eos, rewrite_eos

IGNORED = -100
"""The label of a token that does not count."""


class SelfTerminatingConfig(PreTrainedConfig):
    """The configuration of the model inside, and what the head needs."""

    model_type = "eosin-self-terminating"

    def __init__(
        self,
        inner: dict[str, Any] | None = None,
        kind: str = "nmst",
        epsilon: float = 1e-3,
        eos_ids: Sequence[int] = (),
        count_prompt: bool = False,
        **others: Any,
    ):
        self.inner = inner or {}
        self.kind = kind
        self.epsilon = epsilon
        self.eos_ids = list(eos_ids)
        self.count_prompt = count_prompt
        super().__init__(**others)

    def inner_config(self) -> Any:
        table = dict(self.inner)
        return AutoConfig.for_model(table.pop("model_type"), **table)

    def get_text_config(self, *arguments: Any, **others: Any) -> Any:
        """Whoever asks for sizes asks the model inside."""
        return self.inner_config().get_text_config() if self.inner else self


class MemoryLayer(DynamicLayer):
    """What a head remembers at every position, kept as a layer of the cache."""

    def extended(self, memory: Float64[Tensor, "batch time"]) -> None:
        self.update(memory[:, None, :, None], memory[:, None, :, None])

    @property
    def last(self) -> Float64[Tensor, " batch"]:
        keys: Any = self.keys
        return keys[:, 0, -1, 0]


class SelfTerminatingForCausalLM(PreTrainedModel, GenerationMixin):
    """A causal language model with a self-terminating head. It is trained, decoded, saved and loaded as any other."""

    config_class = SelfTerminatingConfig
    base_model_prefix = "inner"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True

    def __init__(self, config: SelfTerminatingConfig, inner: Any = None):
        super().__init__(config)
        if config.kind not in HEADS:
            raise BadInput(f"kind must be one of {', '.join(HEADS)}, got {config.kind!r}")
        if not 0 < config.epsilon < 1:
            raise BadInput(f"epsilon must lie strictly between 0 and 1, got {config.epsilon}")
        self.inner = AutoModelForCausalLM.from_config(config.inner_config()) if inner is None else inner
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Int[Tensor, "batch time"] | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Any = None,
        **others: Any,
    ) -> Any:
        """The positions whose logits are wanted are counted; if others come before them, these are a prompt."""
        keep = 0 if labels is not None or self.config.count_prompt else logits_to_keep
        answer = self.inner(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            logits_to_keep=keep,
            **others,
        )
        logits, cache = answer.logits, getattr(answer, "past_key_values", None)
        # a cache that is being filled has the new positions already; the memory has not
        memory = memory_layer(cache)
        new = input_ids.shape[1] if input_ids is not None else others["inputs_embeds"].shape[1]
        goes_on = memory is not None and memory.get_seq_length() > 0 and logits.shape[1] == new
        start = memory.last if goes_on and memory is not None else logits.new_zeros(len(logits), dtype=torch.float64)
        counted = in_text(attention_mask, logits) if self.config.count_prompt else counted_from(labels, logits)
        answer.logits, remembered = self._rewritten(logits, counted, start)
        if memory is not None:
            memory.extended(functional.pad(remembered, (new - remembered.shape[1], 0)))
        if labels is not None:
            answer.loss = next_token_loss(answer.logits, labels, num_items_in_batch)
        answer.logits = answer.logits[:, -logits_to_keep:] if labels is None else answer.logits
        return answer

    def _rewritten(
        self,
        logits: Float[Tensor, "batch time vocab"],
        counted: Bool[Tensor, "batch time"],
        start: Float64[Tensor, " batch"],
    ) -> tuple[Float[Tensor, "batch time vocab"], Float64[Tensor, "batch time"]]:
        """The logits with those of eos rewritten where the position counts, and what is remembered at each."""
        eos_ids = torch.tensor(self.config.eos_ids, device=logits.device)
        exact = logits.float()
        eos_logits = exact[..., eos_ids].double()
        others = exact.index_fill(-1, eos_ids, -math.inf).logsumexp(-1).double()
        survived = functional.logsigmoid(others - eos_logits.logsumexp(-1))
        log_survival, memory = HEADS[self.config.kind](survived, counted, start, math.log1p(-self.config.epsilon))
        raised = rewrite_eos(eos_logits, others, lambda _: log_survival)
        chosen = torch.where(counted[..., None], raised, eos_logits).to(exact.dtype)
        return exact.index_copy(-1, eos_ids, chosen), memory

    def promise(self, temperature: float = 1.0) -> Promise:
        """p_t(eos) >= 1 - (1 - epsilon)^t, whatever the model inside says."""
        vocab = self.get_output_embeddings().weight.shape[0]

        def promise(steps: Float64[Tensor, " steps"]) -> Float64[Tensor, " steps"]:
            odds = log_odds_of_eos(steps * math.log1p(-self.config.epsilon))
            return tempered(odds, temperature, vocab, len(self.config.eos_ids))

        return promise

    @property
    def grounds(self) -> str:
        return f"p(eos) >= 1 - (1 - {self.config.epsilon:g})^t at step t, by the head"

    def generate(self, *arguments: Any, **others: Any) -> Any:
        """As of any model, with a cache: where the prompt ends is remembered there."""
        config = others.get("generation_config") or self.generation_config
        if not others.get("use_cache", getattr(config, "use_cache", True)):
            raise BadInput("a self-terminating head remembers its steps in the cache; leave use_cache on")
        if others.get("prefill_chunk_size", getattr(config, "prefill_chunk_size", None)):
            raise BadInput("a self-terminating head takes a prompt whole; leave out prefill_chunk_size")
        return GenerationMixin.generate(self, *arguments, **others)  # type: ignore[arg-type]

    def resize_token_embeddings(self, *arguments: Any, **others: Any) -> Any:
        return self.inner.resize_token_embeddings(*arguments, **others)

    def save_pretrained(self, *arguments: Any, **others: Any) -> None:
        """With the configuration that the model inside has now: its vocabulary may have grown."""
        self.config.inner = plain(self.inner.config)
        super().save_pretrained(*arguments, **others)

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        self.inner.set_input_embeddings(value)

    def get_output_embeddings(self) -> Any:
        return self.inner.get_output_embeddings()

    def set_output_embeddings(self, value: Any) -> None:
        self.inner.set_output_embeddings(value)


Memory = tuple[Float64[Tensor, "batch time"], Float64[Tensor, "batch time"]]


def self_terminating_survival(
    survived: Float64[Tensor, "batch time"],
    counted: Bool[Tensor, "batch time"],
    start: Float64[Tensor, " batch"],
    log_factor: float,
) -> Memory:
    """Survivals are multiplied up; the product is what is remembered."""
    log_survival = start[:, None] + torch.where(counted, survived + log_factor, 0.0).cumsum(1)
    return log_survival, log_survival


def non_monotonic_survival(
    survived: Float64[Tensor, "batch time"],
    counted: Bool[Tensor, "batch time"],
    start: Float64[Tensor, " batch"],
    log_factor: float,
) -> Memory:
    """The number of steps is what is remembered."""
    steps = start[:, None] + counted.cumsum(1)
    return survived + steps * log_factor, steps


HEADS = {"st": self_terminating_survival, "nmst": non_monotonic_survival}


def memory_layer(cache: Any) -> MemoryLayer | None:
    """The last layer of a cache, put there if it is not yet."""
    if cache is None:
        return None
    if not isinstance(cache.layers[-1], MemoryLayer):
        cache.layers.append(MemoryLayer())
    return cache.layers[-1]


def counted_from(
    labels: Int[Tensor, "batch time"] | None, logits: Float[Tensor, "batch time vocab"]
) -> Bool[Tensor, "batch time"]:
    """From the position that predicts the first label that counts; without labels every position counts."""
    if labels is None:
        return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    first = (labels != IGNORED).int().argmax(1)
    return torch.arange(logits.shape[1], device=logits.device) >= (first - 1)[:, None]


def in_text(mask: Tensor | None, logits: Float[Tensor, "batch time vocab"]) -> Bool[Tensor, "batch time"]:
    """Every position but padding."""
    return counted_from(None, logits) if mask is None else mask[:, -logits.shape[1] :].bool()


def next_token_loss(
    logits: Float[Tensor, "batch time vocab"], labels: Int[Tensor, "batch time"], items: Any
) -> Float[Tensor, ""]:
    """Summed over the labels that count and divided by how many they are, in this batch or as the trainer says."""
    total = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / ((labels[:, 1:] != IGNORED).sum() if items is None else items)


def plain(config: Any) -> dict[str, Any]:
    """A configuration as a table, without what is as usual."""
    return {**config.to_diff_dict(), "model_type": config.model_type}


def self_terminating(
    model: Any,
    epsilon: float = 1e-3,
    kind: str = "nmst",
    eos_ids: int | Sequence[int] | None = None,
    count_prompt: bool = False,
) -> SelfTerminatingForCausalLM:
    """Any causal language model of transformers with a self-terminating head.

    model         with its pretrained weights, which are used and not copied
    epsilon       p(eos) is at least 1 - (1 - epsilon)^t at step t
    kind          "st" or "nmst"
    eos_ids       the tokens that end a text; those of the generation config or the config if not given
    count_prompt  whether steps are counted from the beginning of the text, as in the paper's GPT-2 experiment
    """
    named = eos_ids if eos_ids is not None else model.generation_config.eos_token_id
    ids = to_ids(named) or to_ids(model.config.get_text_config().eos_token_id)
    if not ids:
        raise BadInput("the model names no eos; say which tokens end a text (eos_ids)")
    config = SelfTerminatingConfig(
        inner=plain(model.config),
        kind=kind,
        epsilon=epsilon,
        eos_ids=ids,
        count_prompt=count_prompt,
        **{key: getattr(model.config, key, None) for key in ("bos_token_id", "pad_token_id")},
        eos_token_id=ids[0] if len(ids) == 1 else list(ids),
    )
    made = SelfTerminatingForCausalLM(config, model)
    made.generation_config = copy.deepcopy(model.generation_config)
    made.generation_config.eos_token_id = config.eos_token_id
    made.generation_config.use_cache = True
    return made


AutoConfig.register(SelfTerminatingConfig.model_type, SelfTerminatingConfig)
AutoModelForCausalLM.register(SelfTerminatingConfig, SelfTerminatingForCausalLM)
