"""The termination floor: wraps a language model so that it stops. It needs no training.

From step grace + 1 on, survival is multiplied by (1 - epsilon)^(t - grace):

    1 - p'_t(eos) = (1 - p_t(eos)) (1 - epsilon)^(t - grace)        for t > grace

So eos becomes the most probable token at some step, whatever the model says: greedy decoding ends within
grace + floor(ln 2 / -ln(1 - epsilon)) + 1 steps. The other tokens keep their ratios. If m tokens end the sequence and
share p(eos), the largest share exceeds all other tokens once survival is below 1 / (m + 1): ln(m + 1) replaces ln 2.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional

from eosin.contracts import Generative, LanguageModel, Prefix, Token, Tokens
from eosin.decoding.job import pool_of, window_of
from eosin.decoding.scoring import score_by_steps
from eosin.devices import choose_exact_device, to_float64
from eosin.log_odds import Promise, apply_temperature, get_promise
from eosin.logits import Logits, Rewritten, as_logits, log1mexp, log_odds_of_eos
from eosin.states import PairState, TensorState


class Floor(nn.Module):
    """`model` with a floor under the probability of eos; needs no training and no state but the step."""

    def __init__(self, model: Generative, epsilon: float = 1e-3, grace: int = 0):
        super().__init__()
        if not 0 < epsilon < 1:
            raise ValueError(f"epsilon must lie strictly between 0 and 1, got {epsilon}")
        if grace not in range(2**31):
            raise ValueError(f"grace must be a whole number of steps, at least 0, got {grace}")
        if not isinstance(model, Generative):
            raise ValueError(f"model must be something to decode, with prefill and step, got {model!r}")
        self.model = model
        self.epsilon = epsilon
        self.grace = int(grace)

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.model.eos_ids

    @property
    def pool(self) -> int:
        return pool_of(self.model)

    @property
    def window(self) -> int | None:
        return window_of(self.model)

    @property
    def greedy_bound(self) -> int:
        """Greedy decoding produces eos at this step at the latest."""
        return self.grace + math.floor(-math.log(1 + len(self.eos_ids)) / math.log1p(-self.epsilon)) + 1

    def promise(self, temperature: float = 1.0) -> Promise:
        """The bound of the floor on top of the model's own.

        At a temperature it is the better of two bounds. One is the bound at temperature 1, brought to the temperature.
        The other is the model's own bound at the temperature: the floor divides what eos is compared with by the
        factor, and never lowers eos itself.
        """
        at_one = get_promise(self.model)
        at_temperature = at_one if temperature == 1 else get_promise(self.model, temperature)

        def bound(steps: Float64[Tensor, " steps"]) -> Float64[Tensor, " steps"]:
            log_factor = self._log_factor(steps)
            raised = log_odds_of_eos(functional.logsigmoid(-at_one(steps)) + log_factor)
            own = apply_temperature(raised, temperature, self.vocab_size, len(self.eos_ids))
            return own.maximum(at_temperature(steps) - log_factor / temperature)

        since, when = (f"(t - {self.grace})", f"t > {self.grace}") if self.grace else ("t", "t")
        return Promise(bound, f"p(eos) >= 1 - (1 - {self.epsilon:g})^{since} at step {when}, by the floor")

    def prefill(self, prefix: Prefix) -> tuple[Logits, PairState]:
        logits, inner = self.model.prefill(prefix)
        steps = torch.ones(len(prefix), dtype=torch.int64, device=choose_exact_device(prefix.device))
        return self._raise(logits, steps), PairState(inner, TensorState((steps,)))

    def step(self, token: Token, state: PairState) -> tuple[Logits, PairState]:
        logits, inner = self.model.step(token, state.first)
        (before,) = state.second.tensors
        return self._raise(logits, before + 1), PairState(inner, TensorState((before + 1,)))

    def score(self, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
        if len(self.eos_ids) > 1 or not isinstance(self.model, LanguageModel):
            return score_by_steps(self, prefix, continuation)
        plain = self.model.score(prefix, continuation)
        score = to_float64(plain)
        continuation = continuation.to(score.device)
        log_factor = self._log_factor(torch.arange(1, continuation.shape[1] + 1, device=score.device))
        # all tokens but eos are made less probable by the same factor
        eos = log1mexp(log1mexp(score) + log_factor)
        return torch.where(continuation == self.eos_ids[0], eos, score + log_factor).to(plain.dtype).to(plain.device)

    def _raise(self, logits: Logits | Tensor, steps: Tensor) -> Logits:
        log_factor = self._log_factor(steps)
        return Rewritten(as_logits(logits), self.eos_ids, lambda log_survival: log_survival + log_factor)

    def _log_factor(self, steps: Tensor) -> Tensor:
        return (steps - self.grace).clamp(min=0).double() * math.log1p(-self.epsilon)

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}, grace={self.grace}"
