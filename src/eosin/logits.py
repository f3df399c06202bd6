"""Next-token logits, dense or factored, and the one place where the eos logit is rewritten.

A decoder needs the top few logits, a normaliser and single entries. So logits may stay a product of hidden vectors and
an output matrix until a decoder asks for some columns. A self-terminating head and the termination floor change only
the probability of eos. In logits this rewrites one entry:

    l_eos := logit(p_eos) + log-sum-exp of the other logits

The softmax of the row is then exactly the intended distribution, without clamping or renormalising.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from eosin.devices import choose_exact_device

CERTAIN = 1e4
"""Log-odds of an event that cannot fail: exp(-CERTAIN) is zero in every floating-point format."""

SurvivalRule = Callable[[Float[Tensor, "*batch"]], Float[Tensor, "*batch"]]
"""From the log(1 - p(eos)) of the softmax to the one wanted."""


@runtime_checkable
class Logits(Protocol):
    """Logits over the last dimension; softmax of `dense()` is the distribution."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def dense(self) -> Float[Tensor, "*batch vocab"]:
        """All logits, as a tensor that gradients flow through."""

    def columns(self, start: int, stop: int, out: Tensor) -> None:
        """Write the logits of tokens start to stop - 1 into `out`; those of eos before any rewrite."""

    def eos(
        self, eos_logits: Float[Tensor, "*batch eos"], log_masses: Float[Tensor, "*batch parts"]
    ) -> Float[Tensor, "*batch eos"]:
        """The final eos logits, given those of `columns` and the log-sum-exp of each part of the other tokens."""


@dataclass(frozen=True)
class Derived:
    """Logits that have the type and the device of something they are made of."""

    source: Any

    @property
    def shape(self) -> torch.Size:
        return self.source.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        return self.source.device

    def eos(self, eos_logits: Tensor, log_masses: Tensor) -> Tensor:
        return eos_logits


@dataclass(frozen=True)
class Dense(Derived):
    """Logits that are a tensor."""

    source: Float[Tensor, "*batch vocab"]

    def dense(self) -> Float[Tensor, "*batch vocab"]:
        return self.source

    def columns(self, start: int, stop: int, out: Tensor) -> None:
        out.copy_(self.source if stop - start == self.shape[-1] else self.source[..., start:stop])


@dataclass(frozen=True)
class Factored(Derived):
    """Logits that are still a product: hidden vectors, which are the source, and the output layer."""

    source: Float[Tensor, "*batch width"]
    weight: Float[Tensor, "vocab width"]
    bias: Float[Tensor, " vocab"]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.source.shape[:-1], len(self.weight)))

    def dense(self) -> Float[Tensor, "*batch vocab"]:
        return functional.linear(self.source, self.weight, self.bias)

    def columns(self, start: int, stop: int, out: Tensor) -> None:
        bias, weight = self.bias[start:stop], self.weight[start:stop]
        if out.dtype == self.dtype:
            torch.addmm(bias, self.source, weight.T, out=out)
        else:
            out.copy_(torch.addmm(bias, self.source, weight.T))


@dataclass(frozen=True)
class Rewritten(Derived):
    """The logits of `source` with another probability of eos; the other tokens keep their ratios."""

    source: Logits
    eos_ids: tuple[int, ...]
    log_survival: SurvivalRule

    def dense(self) -> Float[Tensor, "*batch vocab"]:
        logits = self.source.dense()
        # the bound of a head would not survive half precision
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        eos_ids = torch.tensor(self.eos_ids, device=logits.device)
        log_rest = logits.index_fill(-1, eos_ids, -math.inf).logsumexp(-1)
        exact = choose_exact_device(logits.device)
        eos_logits = rewrite_eos(logits[..., eos_ids].to(exact), log_rest.to(exact), self.log_survival)
        return logits.index_copy(-1, eos_ids, eos_logits.to(logits.dtype).to(logits.device))

    def columns(self, start: int, stop: int, out: Tensor) -> None:
        self.source.columns(start, stop, out)

    def eos(self, eos_logits: Tensor, log_masses: Tensor) -> Tensor:
        log_rest = log_masses.logsumexp(-1)
        return rewrite_eos(self.source.eos(eos_logits, log_rest[..., None]), log_rest, self.log_survival)


@dataclass(frozen=True)
class Fetched(Derived):
    """Logits brought to another device: there is the float64 arithmetic that theirs does not have."""

    source: Logits
    destination: torch.device

    @property
    def device(self) -> torch.device:
        return self.destination

    @cached_property
    def before_rewrite(self) -> Float[Tensor, "*batch vocab"]:
        """All logits, those of eos before any rewrite."""
        whole = torch.empty(self.shape, dtype=self.dtype, device=self.source.device)
        self.source.columns(0, self.shape[-1], whole)
        return whole.to(self.destination)

    def dense(self) -> Float[Tensor, "*batch vocab"]:
        return self.source.dense().to(self.destination)

    def columns(self, start: int, stop: int, out: Tensor) -> None:
        out.copy_(self.before_rewrite[..., start:stop])

    def eos(self, eos_logits: Tensor, log_masses: Tensor) -> Tensor:
        return self.source.eos(eos_logits, log_masses)


def as_logits(logits: Logits | Tensor) -> Logits:
    """Wrap a tensor of logits."""
    return Dense(logits) if torch.is_tensor(logits) else logits


def rewrite_eos(
    eos_logits: Float[Tensor, "*batch eos"], log_rest: Float[Tensor, "*batch"], log_survival: SurvivalRule
) -> Float[Tensor, "*batch eos"]:
    """The eos logits with which log(1 - p(eos)) is the wanted log-survival; several eos tokens keep their ratios.

    Where the model gives every eos token probability zero they share equally.
    """
    log_eos = eos_logits.logsumexp(-1)
    survival = log_survival(functional.logsigmoid(log_rest - log_eos))
    equal = -math.log(eos_logits.shape[-1])
    share = torch.where(log_eos[..., None] == -math.inf, equal, eos_logits - log_eos[..., None])
    rewritten = share + (log_odds_of_eos(survival) + log_rest)[..., None]
    return torch.where(log_rest[..., None] == -math.inf, eos_logits, rewritten)  # there is nothing but eos


def log_odds_of_eos(log_survival: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """logit(p) where log_survival = log(1 - p): exact for p near zero and near one.

    p = 1 would be +inf, which has no softmax; CERTAIN stands for it and leaves nothing to the other tokens.
    """
    certain = log_survival == -math.inf
    log_survival = torch.where(certain, -CERTAIN, log_survival)
    return log1mexp(log_survival) - log_survival


def log1mexp(log_prob: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The logarithm of 1 - p."""
    return torch.log(-torch.expm1(log_prob))
