"""`eosin.trace`: what became of eos, step by step, along the path that a decoder takes from one context.

The context is decoded first, and then the model is led along the completion once more, by the same loop: before each
token a note is taken of where eos stood and whether the decoder could have chosen it.

What a beam search could have chosen at a step is, of the hypothesis that it returned, the `width` most probable tokens.
An eos that ranks below them can never enter the beam; one that ranks among them may still lose to other hypotheses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from eosin.causes import Cause
from eosin.contracts import Decoder, Generative, Token, Uniforms
from eosin.decoding.decode import as_decoder, completed
from eosin.decoding.distribution import NextToken
from eosin.decoding.samplers import LeftToRight
from eosin.decoding.stopping import Stop
from eosin.errors import BadInput

MODEL = "the model"
"""Named where eos has probability zero: no rule could have kept it."""


@runtime_checkable
class Traceable(Decoder, Protocol):
    """A decoder that can say what it might choose."""

    @property
    def rule(self) -> str:
        """The specification of what removes tokens, as in "nucleus:0.2"."""

    def kept(self, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
        """The tokens that can be chosen; none that cannot occur."""


@dataclass(frozen=True)
class Step:
    """One step of a decoder, with eos in view. Probabilities are the model's: not truncated, temperature 1."""

    number: int
    """Counted from 1."""
    token: int
    prob: float
    """Of the token."""
    eos_prob: float
    """Of all tokens that end the sequence."""
    eos_rank: int
    """1 is the most probable token; of several that end the sequence this is the best."""
    kept: int
    """How many tokens could be chosen."""
    removed_by: str | None
    """The rule that made eos impossible; None where it was kept."""

    @property
    def eos_kept(self) -> bool:
        return self.removed_by is None


@dataclass(frozen=True)
class Trace:
    """All steps of a completion, and why it ended or was left."""

    prefix: tuple[int, ...]
    decoder: str
    max_steps: int
    seed: int
    index: int
    cause: Cause
    last_step: int
    """The step at which decoding ended or was left: a beam may go on after its best hypothesis is finished."""
    steps: tuple[Step, ...]

    @property
    def tokens(self) -> list[int]:
        return [step.token for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values, for `json.dumps`."""
        steps = [{**asdict(step), "eos_kept": step.eos_kept} for step in self.steps]
        return {**vars(self), "prefix": list(self.prefix), "cause": str(self.cause), "steps": steps}


def trace(
    model: Generative,
    prefix: Tensor | Sequence[int],
    decoder: str | Decoder = "greedy",
    *,
    max_steps: int,
    seed: int = 0,
    index: int = 0,
    stop: Stop | None = None,
) -> Trace:
    """Decode one context, and tell at each step how probable eos was, and whether and by what it was removed.

    prefix     token ids
    seed       with the index, it decides every draw: the tokens are those of `eosin.decode` with `indices=[index]`

    The other arguments are those of `eosin.decode`.
    """
    parsed = as_decoder(decoder)
    if not isinstance(parsed, Traceable):
        raise BadInput(f"decoder must have `kept` and `rule` to be traced; {type(parsed).__name__} has not")
    tokens = prefix.tolist() if hasattr(prefix, "tolist") else prefix
    (made,) = completed(model, [tokens], parsed, max_steps=max_steps, seed=seed, indices=[index], stop=stop)
    replay = Replay(parsed, made.tokens.tolist())
    list(completed(model, [tokens], replay, max_steps=len(made.tokens), indices=[index]))
    return Trace(
        prefix=tuple(map(int, tokens)),
        decoder=str(parsed),
        max_steps=int(max_steps),
        seed=int(seed),
        index=made.index,
        cause=made.cause,
        last_step=made.steps,
        steps=tuple(replay.steps),
    )


@dataclass
class Replay(LeftToRight):
    """Goes along given tokens and notes, before each of them, what another decoder could have chosen there."""

    decoder: Traceable
    tokens: list[int]
    steps: list[Step] = field(default_factory=list)

    keeps_eos = False

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token:
        number = len(self.steps) + 1
        token = torch.full((next_token.rows,), self.tokens[number - 1], device=next_token.device)
        kept = self.decoder.kept(next_token)[0]
        self.steps.append(
            Step(
                number=number,
                token=int(token[0]),
                prob=float(next_token.log_probs_of(token)[0].exp()),
                eos_prob=float(next_token.eos_log_probs[0].exp().sum()),
                eos_rank=int(next_token.eos_rank()[0]),
                kept=int(kept.sum()),
                removed_by=self._remover(next_token, kept),
            )
        )
        return token

    def _remover(self, next_token: NextToken, kept: Bool[Tensor, " vocab"]) -> str | None:
        if kept[next_token.eos_ids].any():
            return None
        return self.decoder.rule if next_token.possible()[0, next_token.eos_ids].any() else MODEL
