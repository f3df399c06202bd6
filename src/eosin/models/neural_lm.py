"""A core and a head are a language model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eosin.contracts import (
    BoundedCore,
    BoundedHead,
    Core,
    FormulaCore,
    Head,
    Prefix,
    StepFormula,
    Token,
    Tokens,
    is_defined_together,
)
from eosin.devices import choose_exact_device, own_precision, to_float64
from eosin.log_odds import NO_PROMISE, Promise, promise_from_survival
from eosin.logits import Factored, Logits, Rewritten, log1mexp
from eosin.models.heads import check_head, keeps_softmax
from eosin.models.loss import log_softmax_at
from eosin.models.recurrent import GRU, LSTM, TanhRNN
from eosin.models.transformer import Transformer
from eosin.states import PairState, TensorState

BY_WEIGHTS = "p(eos) >= xi at every step, as hidden vectors and weights are bounded (Lemma 3.2)"
CORES: dict[str, Callable[..., Core]] = {
    "tanh": TanhRNN,
    "lstm": LSTM,
    "gru": GRU,
    "transformer": Transformer,
}


class NeuralLM(nn.Module):
    """Embedding, core, output layer and head, behind the LanguageModel contract."""

    def __init__(
        self,
        core: Core,
        head: Head,
        vocab_size: int,
        eos_id: int,
        tied: bool = False,
    ):
        super().__init__()
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2 (eos and one more token), got {vocab_size}")
        if not 0 <= eos_id < vocab_size:
            raise ValueError(f"eos_id must lie in [0, {vocab_size}), the ids of the vocabulary, got {eos_id}")
        self.vocab_size = vocab_size
        self.eos_ids = (eos_id,)
        self.core = core
        self.head = head
        self.embedding = nn.Embedding(vocab_size, core.width)
        self.output = nn.Linear(core.width, vocab_size)
        if tied:
            self.output.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        check_head(head)

    def start_as_torch(self) -> None:
        """Embedding and output as torch draws them by default: the former, and a tied matrix, from N(0, 1)."""
        self.output.reset_parameters()
        self.embedding.reset_parameters()

    def initial(self, batch: int) -> PairState:
        exact = choose_exact_device(self.output.bias.device)
        memory = torch.zeros(batch, *self.head.memory_shape, dtype=torch.float64, device=exact)
        return PairState(self.core.initial(batch), TensorState((memory,)))

    def forward(self, tokens: Tokens, state: PairState, context: int = 0) -> tuple[Logits, PairState]:
        """Logits of shape (batch, time, vocab) after each token but the first `context`, which the head skips."""
        hidden, log_survival, state = self._read(tokens, state, context)
        return self._make_logits(hidden, log_survival), state

    def prefill(self, prefix: Prefix) -> tuple[Logits, PairState]:
        return self._read_last(prefix, self.initial(len(prefix)))

    def step(self, token: Token, state: PairState) -> tuple[Logits, PairState]:
        return self._read_last(token[:, None], state)

    def step_formula(self) -> StepFormula | None:
        """The formula of `step`, where the head keeps the softmax and the core has a formula for its `forward`."""
        core = self.core
        reads_as_here = is_defined_together(
            self, "step_formula", "prefill", "step", "_read", "_read_last", "_make_logits"
        )
        if not (reads_as_here and keeps_softmax(self.head) and isinstance(core, FormulaCore)):
            return None
        if not is_defined_together(core, "next_memory", "forward"):
            return None
        return StepFormula(core, self.embedding.weight, self.output.weight, self.output.bias)

    def score(self, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
        everywhere = torch.ones_like(continuation, dtype=torch.bool)
        return self.log_probs(prefix, continuation, everywhere).view(continuation.shape)

    def promise(self, temperature: float = 1.0) -> Promise:
        """The bound of the head, or that of the weights where the head keeps the softmax."""
        if keeps_softmax(self.head):
            least = self._least_log_odds(temperature)
            return Promise(lambda steps: torch.full_like(steps, least), BY_WEIGHTS)
        if isinstance(self.head, BoundedHead):
            return promise_from_survival(self.head.bound, self.head.grounds, temperature, self.vocab_size, eos_count=1)
        return NO_PROMISE

    @own_precision()
    def _least_log_odds(self, temperature: float) -> float:
        """Lemma 3.2: no logit leads that of eos by more than the core reaches in the direction between the two."""
        if not isinstance(self.core, BoundedCore):
            return -math.inf
        (eos_id,) = self.eos_ids
        weight, bias = (to_float64(tensor.detach()) for tensor in (self.output.weight, self.output.bias))
        core: Any = self.core
        if weight.device != self.output.weight.device:
            core = copy.deepcopy(core).to(weight.device)
        lead = core.reach(weight - weight[eos_id]) + bias - bias[eos_id]
        lead[eos_id] = -math.inf
        bound = -float((lead / temperature).logsumexp(0))
        return -math.inf if math.isnan(bound) else bound

    def log_probs(
        self, prefix: Prefix, continuation: Tokens, wanted: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, " wanted"]:
        """The log-probabilities of the wanted tokens of a continuation, row by row; the others cost no output layer."""
        tokens = torch.cat([prefix, continuation[:, :-1]], dim=1)
        hidden, log_survival, _ = self._read(tokens, self.initial(len(prefix)), context=prefix.shape[1] - 1)
        hidden, target = hidden[wanted], continuation[wanted]
        if log_survival is None:
            return log_softmax_at(hidden, self.output.weight, self.output.bias, target)
        return self._log_probs_given(log_survival[wanted.to(log_survival.device)], hidden, target)

    def _log_probs_given(self, log_survival: Tensor, hidden: Tensor, target: Tensor) -> Tensor:
        """p(eos) is that of the head; the other tokens share the rest as in the softmax without eos."""
        (eos_id,) = self.eos_ids
        ends, others = (target == eos_id).nonzero()[:, 0], (target != eos_id).nonzero()[:, 0]
        among_others = log_softmax_at(
            hidden[others], self.output.weight, self.output.bias, target[others], without=eos_id
        )
        ends, others, shares = (tensor.to(log_survival.device) for tensor in (ends, others, among_others))
        log_probs = log_survival.index_copy(0, ends, log1mexp(log_survival[ends]))
        log_probs = log_probs.index_add(0, others, shares.to(log_probs.dtype))
        return log_probs.to(hidden.dtype).to(hidden.device)

    def _read_last(self, tokens: Tokens, state: PairState) -> tuple[Logits, PairState]:
        hidden, log_survival, state = self._read(tokens, state, context=tokens.shape[1] - 1)
        return self._make_logits(hidden[:, 0], None if log_survival is None else log_survival[:, 0]), state

    def _read(self, tokens: Tokens, state: PairState, context: int) -> tuple[Tensor, Tensor | None, PairState]:
        hidden, core_state = self.core(self.embedding(tokens), state.first)
        hidden = hidden[:, context:]
        (eos_id,) = self.eos_ids
        # a product by elements: a row's bits must not depend on the number of rows, as they do in a matrix product
        eos_logits = (hidden * self.output.weight[eos_id]).sum(-1) + self.output.bias[eos_id]
        (memory,) = state.second.tensors
        log_survival, memories = self.head(eos_logits.to(memory.device), memory)
        return hidden, log_survival, PairState(core_state, TensorState((memories[:, -1],)))

    def _make_logits(self, hidden: Tensor, log_survival: Tensor | None) -> Logits:
        product = Factored(hidden, self.output.weight, self.output.bias)
        if log_survival is None:
            return product
        return Rewritten(product, self.eos_ids, lambda _: log_survival)
