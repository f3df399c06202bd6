"""Self-terminating heads on pretrained models: a causal language model whose eos logit is rewritten.

The heads are those of `eosin.models.heads`. With z_t the model's own log-odds of eos against all other tokens:

    self-terminating  1 - p_t = product over i <= t of (1 - epsilon) (1 - sigmoid(z_i))   (the paper; it never rises)
    non-monotonic     1 - p_t = (1 - epsilon)^t (1 - sigmoid(z_t))                        (Choi, Cho and Lee)

Steps are counted from the first token that is generated, or in training from the first label that counts. Only the eos
logit changes. A non-monotonic head begins as the pretrained model, exactly so as epsilon tends to zero. A
self-terminating head begins with the product of the model's survivals, which is less, and has to learn to make eos less
probable.

The memory of a head is one more layer of the cache, with an entry for each position: whatever selects, reorders or
crops a cache does so with the memory too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.generation.utils import GenerationMixin

from eosin.contracts import BoundedHead, Head, HeadMemories, HeadMemory
from eosin.devices import choose_exact_device, to_float64
from eosin.errors import BadInput
from eosin.hub.endings import to_ids
from eosin.log_odds import NO_PROMISE, Promise, promise_from_survival
from eosin.logits import rewrite_eos
from eosin.models.heads import build_head, check_head, keeps_softmax, resolve_head

IGNORED = -100
"""The label of a token that does not count."""


class SelfTerminatingConfig(PreTrainedConfig):
    """The configuration of the model inside, and that of its head: a kind and its settings.

    Models that were saved by Eosin 0.x have `kind` and `epsilon` in place of `head`.
    """

    model_type = "eosin-self-terminating"

    def __init__(
        self,
        inner: dict[str, Any] | None = None,
        head: dict[str, Any] | None = None,
        eos_ids: Sequence[int] = (),
        count_prompt: bool = False,
        kind: str = "non-monotonic",
        epsilon: float = 1e-3,
        **others: Any,
    ):
        self.inner = inner or {}
        self.head = head or {"kind": kind, "epsilon": epsilon}
        self.eos_ids = list(eos_ids)
        self.count_prompt = count_prompt
        super().__init__(**others)

    def inner_config(self) -> Any:
        table = dict(self.inner)
        return AutoConfig.for_model(table.pop("model_type"), **table)

    def get_text_config(self, *arguments: Any, **others: Any) -> Any:
        """The configuration of the model inside, which has the sizes."""
        return self.inner_config().get_text_config() if self.inner else self


class MemoryLayer(DynamicLayer):
    """The memory of a head after every position, as a layer of the cache, on the device of the model.

    A float64 is kept as two numbers of 32 bits: the device may have no float64.
    """

    def extend(self, memories: HeadMemories, device: torch.device) -> None:
        numbers = memories.flatten(2) if memories.dim() > 2 else memories[..., None]
        as_keys = numbers.contiguous().view(torch.int32).to(device)[:, None]
        self.update(as_keys, as_keys)

    @property
    def last(self) -> Float64[Tensor, "batch numbers"]:
        keys: Any = self.keys
        last: Tensor = keys[:, 0, -1].to(choose_exact_device(keys.device))
        return last.contiguous().view(torch.float64)


class SelfTerminatingForCausalLM(PreTrainedModel, GenerationMixin):
    """A causal language model with a self-terminating head. It is trained, decoded, saved and loaded as any other."""

    config_class = SelfTerminatingConfig
    base_model_prefix = "inner"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True

    def __init__(self, config: SelfTerminatingConfig, inner: Any = None):
        super().__init__(config)
        self.head: Head = build_head(config.head)
        if keeps_softmax(self.head):
            raise BadInput(
                f"kind must be a head that rewrites eos, got {config.head['kind']!r}: use the model as it is"
            )
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
        """The head counts the positions whose logits are wanted; positions before them are the prompt."""
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
        memory = get_memory_layer(cache)
        new = input_ids.shape[1] if input_ids is not None else others["inputs_embeds"].shape[1]
        exact = choose_exact_device(logits.device)
        start = torch.zeros(len(logits), *self.head.memory_shape, dtype=torch.float64, device=exact)
        if memory is not None and memory.get_seq_length() > 0 and logits.shape[1] == new:
            start = memory.last.view_as(start)
        if self.config.count_prompt and attention_mask is not None:
            counted = attention_mask[:, -logits.shape[1] :].bool()  # every position but padding
        else:
            counted = mask_counted(None if self.config.count_prompt else labels, logits)
        answer.logits, memories = self._rewrite(logits, counted, start)
        if memory is not None:
            skipped = memories.new_zeros(len(memories), new - memories.shape[1], *memories.shape[2:])
            memory.extend(torch.cat([skipped, memories], dim=1), logits.device)
        if labels is not None:
            vocab_size = answer.logits.shape[-1]
            answer.loss = self.loss_function(
                answer.logits, labels, vocab_size=vocab_size, num_items_in_batch=num_items_in_batch
            )
        answer.logits = answer.logits[:, -logits_to_keep:] if labels is None else answer.logits
        return answer

    def _rewrite(
        self, logits: Float[Tensor, "batch time vocab"], counted: Bool[Tensor, "batch time"], start: HeadMemory
    ) -> tuple[Float[Tensor, "batch time vocab"], HeadMemories]:
        """The logits, those of eos rewritten where the position counts, and the memory after each position."""
        eos_ids = torch.tensor(self.config.eos_ids, device=logits.device)
        logits, counted = logits.float(), counted.to(start.device)
        eos_logits = to_float64(logits[..., eos_ids])
        others = to_float64(logits.index_fill(-1, eos_ids, -math.inf).logsumexp(-1))
        log_odds = eos_logits.logsumexp(-1) - others
        head_logits = log_odds if self.head.logit_favors_eos else -log_odds
        log_survival, memories = run_where_counted(self.head, head_logits, counted, start)
        rewritten = rewrite_eos(eos_logits, others, lambda _: log_survival)
        chosen = torch.where(counted[..., None], rewritten, eos_logits).to(logits.dtype).to(logits.device)
        return logits.index_copy(-1, eos_ids, chosen), memories

    def promise(self, temperature: float = 1.0) -> Promise:
        """The bound of the head, whatever the model inside says."""
        if not isinstance(self.head, BoundedHead):
            return NO_PROMISE
        vocab_size, eos_count = self.get_output_embeddings().weight.shape[0], len(self.config.eos_ids)
        return promise_from_survival(self.head.bound, self.head.grounds, temperature, vocab_size, eos_count)

    def generate(self, *arguments: Any, **others: Any) -> Any:
        """Generate as any model does, but only with a cache: the head keeps its memory there."""
        config = others.get("generation_config") or self.generation_config
        if not others.get("use_cache", getattr(config, "use_cache", True)):
            raise BadInput("a self-terminating head remembers its steps in the cache; leave use_cache on")
        if others.get("prefill_chunk_size", getattr(config, "prefill_chunk_size", None)):
            raise BadInput("a self-terminating head takes a prompt whole; leave out prefill_chunk_size")
        return GenerationMixin.generate(self, *arguments, **others)  # type: ignore[arg-type]

    def resize_token_embeddings(self, *arguments: Any, **others: Any) -> Any:
        return self.inner.resize_token_embeddings(*arguments, **others)

    def save_pretrained(self, *arguments: Any, **others: Any) -> None:
        """Save with the current configuration of the model inside, whose vocabulary may have grown."""
        self.config.inner = config_to_table(self.inner.config)
        super().save_pretrained(*arguments, **others)

    def get_output_embeddings(self) -> Any:
        return self.inner.get_output_embeddings()

    def set_output_embeddings(self, value: Any) -> None:
        self.inner.set_output_embeddings(value)


def run_where_counted(
    head: Head, eos_logits: Float64[Tensor, "batch time"], counted: Bool[Tensor, "batch time"], start: HeadMemory
) -> tuple[Float64[Tensor, "batch time"], HeadMemories]:
    """The answer of a head that sees only the positions that count. At the others its memory does not change.

    The positions that count are moved to the front of each row, in their order, and back.
    """
    order = (~counted).int().argsort(dim=1, stable=True)
    log_survival, memories = head(eos_logits.gather(1, order), start)
    assert log_survival is not None  # a head that keeps the softmax is refused
    seen, rows = counted.cumsum(1), torch.arange(len(start), device=start.device)[:, None]
    memories = torch.cat([start[:, None], memories], dim=1)
    return log_survival.gather(1, (seen - 1).clamp(min=0)), memories[rows, seen]


def get_memory_layer(cache: Any) -> MemoryLayer | None:
    """The last layer of a cache, which is added if it is missing."""
    if cache is None:
        return None
    if not isinstance(cache.layers[-1], MemoryLayer):
        cache.layers.append(MemoryLayer())
    return cache.layers[-1]


def mask_counted(
    labels: Int[Tensor, "batch time"] | None, logits: Float[Tensor, "batch time vocab"]
) -> Bool[Tensor, "batch time"]:
    """Count from the position that predicts the first label that counts; without labels count every position."""
    if labels is None:
        return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    first = (labels != IGNORED).int().argmax(1)
    return torch.arange(logits.shape[1], device=logits.device) >= (first - 1)[:, None]


def config_to_table(config: Any) -> dict[str, Any]:
    """A configuration without its defaults."""
    return {**config.to_diff_dict(), "model_type": config.model_type}


def add_head(
    model: Any,
    kind: str = "non-monotonic",
    *,
    eos_ids: int | Sequence[int] | None = None,
    count_prompt: bool = False,
    **settings: Any,
) -> SelfTerminatingForCausalLM:
    """Any causal language model of transformers with a self-terminating head.

    model         the pretrained model; its weights are used, not copied
    kind          a head of `eosin.HEADS`: "self-terminating" or "non-monotonic"
    eos_ids       the tokens that end a text (default: those of the generation config, or else of the config)
    count_prompt  count steps from the beginning of the text, as in the paper's GPT-2 experiment
    settings      of the head; with epsilon=1e-3, p(eos) is at least 1 - 0.999^t at step t
    """
    named = eos_ids if eos_ids is not None else model.generation_config.eos_token_id
    ids = to_ids(named) or to_ids(model.config.get_text_config().eos_token_id)
    if not ids:
        raise BadInput("the model names no eos; say which tokens end a text (eos_ids)")
    config = SelfTerminatingConfig(
        inner=config_to_table(model.config),
        head=resolve_head({"kind": kind, **settings}),
        eos_ids=ids,
        count_prompt=count_prompt,
        bos_token_id=getattr(model.config, "bos_token_id", None),
        pad_token_id=getattr(model.config, "pad_token_id", None),
        eos_token_id=ids[0] if len(ids) == 1 else list(ids),
    )
    with_head = SelfTerminatingForCausalLM(config, model)
    check_head(with_head.head)
    with_head.generation_config = copy.deepcopy(model.generation_config)
    with_head.generation_config.eos_token_id = config.eos_token_id
    with_head.generation_config.use_cache = True
    return with_head


AutoConfig.register(SelfTerminatingConfig.model_type, SelfTerminatingConfig)
AutoModelForCausalLM.register(SelfTerminatingConfig, SelfTerminatingForCausalLM)
