"""A core and a head are a language model."""

from __future__ import annotations

import math
from functools import partial

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from eosin.contracts import Core, Head, Prefix, Token, Tokens
from eosin.devices import own_precision
from eosin.log_odds import Promise, nothing, tempered
from eosin.logits import Factored, Logits, Rewritten, log_odds_of_eos
from eosin.models.loss import log_softmax_at
from eosin.models.recurrent import GRU, LSTM, Recurrent, TanhRNN
from eosin.models.transformer import Transformer
from eosin.states import PairState

CORES: dict[str, type[Recurrent] | type[Transformer]] = {
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

    def start_as_torch(self) -> None:
        """Embedding and output as torch draws them by default: the former, and a tied matrix, from N(0, 1)."""
        self.output.reset_parameters()
        self.embedding.reset_parameters()

    def initial(self, batch: int) -> PairState:
        return PairState(self.core.initial(batch), self.head.initial(batch, self.output.bias.device))

    def forward(self, tokens: Tokens, state: PairState, context: int = 0) -> tuple[Logits, PairState]:
        """Logits of shape (batch, time, vocab) after each token but the first `context`, which the head passes over."""
        hidden, log_survival, state = self._run(tokens, state, context)
        return self._logits(hidden, log_survival), state

    def prefill(self, prefix: Prefix) -> tuple[Logits, PairState]:
        return self._last(prefix, self.initial(len(prefix)))

    def step(self, token: Token, state: PairState) -> tuple[Logits, PairState]:
        return self._last(token[:, None], state)

    def score(self, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
        everywhere = torch.ones_like(continuation, dtype=torch.bool)
        return self.log_probs(prefix, continuation, everywhere).view(continuation.shape)

    def promise(self, temperature: float = 1.0) -> Promise:
        """What the head promises about eos, or where the softmax stands, what the weights do."""
        by_head = getattr(self.head, "promise", None)
        if by_head is None:
            return nothing
        if by_head(torch.ones(1, dtype=torch.float64)) is None:
            return partial(torch.full_like, fill_value=self._least_log_odds(temperature))

        def promise(steps: Float64[Tensor, " steps"]) -> Float64[Tensor, " steps"]:
            return tempered(log_odds_of_eos(by_head(steps)), temperature, self.vocab_size, eos_count=1)

        return promise

    @property
    def grounds(self) -> str:
        """What is promised, in words."""
        return getattr(self.head, "grounds", "as its head promises")

    @own_precision()
    def _least_log_odds(self, temperature: float) -> float:
        """Lemma 3.2: no logit leads that of eos by more than the core reaches in the direction between the two."""
        if not hasattr(self.core, "reach"):
            return -math.inf
        (eos_id,) = self.eos_ids
        weight, bias = self.output.weight.detach().double(), self.output.bias.detach().double()
        lead = self.core.reach(weight - weight[eos_id]) + bias - bias[eos_id]
        lead[eos_id] = -math.inf
        bound = -float((lead / temperature).logsumexp(0))
        return -math.inf if math.isnan(bound) else bound

    def log_probs(
        self, prefix: Prefix, continuation: Tokens, wanted: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, " wanted"]:
        """The log-probabilities of the wanted tokens of a continuation, row by row; the others cost no output layer."""
        tokens = torch.cat([prefix, continuation[:, :-1]], dim=1)
        hidden, log_survival, _ = self._run(tokens, self.initial(len(prefix)), context=prefix.shape[1] - 1)
        hidden, target = hidden[wanted], continuation[wanted]
        if log_survival is None:
            return log_softmax_at(hidden, self.output.weight, self.output.bias, target)
        return self._log_probs_given(log_survival[wanted], hidden, target)

    def _log_probs_given(self, log_survival: Tensor, hidden: Tensor, target: Tensor) -> Tensor:
        """p(eos) is what the head says; the other tokens share the rest as in the softmax without eos."""
        (eos_id,) = self.eos_ids
        ends, others = (target == eos_id).nonzero()[:, 0], (target != eos_id).nonzero()[:, 0]
        among_others = log_softmax_at(
            hidden[others], self.output.weight, self.output.bias, target[others], without=eos_id
        )
        log_probs = log_survival.index_copy(0, ends, torch.log(-torch.expm1(log_survival[ends])))
        return log_probs.index_add(0, others, among_others.to(log_probs.dtype)).to(among_others.dtype)

    def _last(self, tokens: Tokens, state: PairState) -> tuple[Logits, PairState]:
        hidden, log_survival, state = self._run(tokens, state, context=tokens.shape[1] - 1)
        return self._logits(hidden[:, 0], None if log_survival is None else log_survival[:, 0]), state

    def _run(self, tokens: Tokens, state: PairState, context: int) -> tuple[Tensor, Tensor | None, PairState]:
        hidden, core_state = self.core(self.embedding(tokens), state.first)
        hidden = hidden[:, context:]
        (eos_id,) = self.eos_ids
        # a product by elements: a row's bits must not depend on how many rows there are, as they do in a matrix product
        eos_logits = (hidden * self.output.weight[eos_id]).sum(-1) + self.output.bias[eos_id]
        log_survival, memory = self.head(eos_logits, state.second)
        return hidden, log_survival, PairState(core_state, memory)

    def _logits(self, hidden: Tensor, log_survival: Tensor | None) -> Logits:
        product = Factored(hidden, self.output.weight, self.output.bias)
        if log_survival is None:
            return product
        return Rewritten(product, self.eos_ids, lambda _: log_survival)
