"""`eosin.trace`: what happened to eos at each step of one completion.

The context is decoded first. Then the same loop replays the completion, and notes before each token how probable eos
was and whether the decoder could have chosen it.

For a beam search, the tokens that could have been chosen at a step are the `width` most probable ones of the hypothesis
that it returned. An eos that ranks lower can never enter the beam. One among them may still lose to other hypotheses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from eosin.causes import Cause
from eosin.contracts import Decoder, Generative, Stop, Token, Traceable, Uniforms
from eosin.decoding.distribution import NextToken
from eosin.decoding.job import Job
from eosin.decoding.loop import Prove, unroll
from eosin.decoding.samplers import LeftToRight
from eosin.devices import eval_mode
from eosin.errors import BadInput
from eosin.events import Watch, ignore
from eosin.outcome import Proof

MODEL = "the model"
"""Named where eos has probability zero: no rule could have kept it."""


@dataclass(frozen=True)
class Step:
    """One step of a decoder, and what happened to eos. Probabilities are the model's: not truncated, temperature 1."""

    number: int
    """Counted from 1."""
    token: int
    prob: float
    """Of the token."""
    eos_prob: float
    """Of all tokens that end the sequence."""
    eos_rank: int
    """1 is the most probable token. Of several tokens that end the sequence, the rank of the best."""
    kept: int
    """How many tokens could be chosen."""
    removed_by: str | None
    """The rule that made eos impossible; None where it was kept."""

    @property
    def eos_kept(self) -> bool:
        return self.removed_by is None


@dataclass(frozen=True)
class Trace:
    """All steps of a completion, and why it ended."""

    prefix: tuple[int, ...]
    decoder: str
    max_steps: int
    seed: int
    index: int
    cause: Cause
    last_step: int
    """The step at which decoding ended: a beam may continue after its best hypothesis is finished."""
    steps: tuple[Step, ...]
    proof: Proof | None = None
    """Where it was proved that decoding never ends; the steps are those up to the proof."""

    @property
    def tokens(self) -> list[int]:
        return [step.token for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values, for `json.dumps`."""
        steps = [{**asdict(step), "eos_kept": step.eos_kept} for step in self.steps]
        proof = None if self.proof is None else asdict(self.proof)
        return {**vars(self), "prefix": list(self.prefix), "cause": str(self.cause), "steps": steps, "proof": proof}


def trace(
    model: Generative,
    prefix: Tensor | Sequence[int],
    decoder: str | Decoder = "greedy",
    *,
    max_steps: int,
    seed: int = 0,
    index: int = 0,
    stop: Stop | None = None,
    prove: Prove | None = None,
    watch: Watch = ignore,
) -> Trace:
    """Decode one context, and say at each step how probable eos was, and which rule removed it, if any did.

    prefix     token ids
    seed       decides every draw, with the index: the tokens are those of `eosin.decode` with `indices=[index]`
    prove      may prove that decoding never ends, which ends it; nothing does by default
    watch      gets the event "step", at most twice `max_steps` times

    The other arguments are those of `eosin.decode`.
    """
    job = Job.create(model, [prefix], max_steps=max_steps, seed=seed, indices=[index], stop=stop)
    parsed = job.check_decoder(decoder)
    if not isinstance(parsed, Traceable):
        raise BadInput(f"decoder must have `kept` and `rule` to be traced; {type(parsed).__name__} has not")
    with eval_mode(model):
        (made,) = unroll(job, parsed, watch=watch, prove=prove)
        replay = Replay(parsed, made.tokens.tolist())
        list(unroll(replace(job, max_steps=len(made.tokens), stop=None), replay, watch=watch))
    return Trace(
        prefix=tuple(job.contexts[0].prefix.tolist()),
        decoder=str(parsed),
        max_steps=job.max_steps,
        seed=job.seed,
        index=made.index,
        cause=made.cause,
        last_step=made.steps,
        steps=tuple(replay.steps),
        proof=made.proof,
    )


@dataclass
class Replay(LeftToRight):
    """Chooses given tokens, and notes before each of them what another decoder could have chosen."""

    draws = False
    decoder: Traceable
    tokens: list[int]
    steps: list[Step] = field(default_factory=list)

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
                removed_by=self._find_remover(next_token, kept),
            )
        )
        return token

    def _find_remover(self, next_token: NextToken, kept: Bool[Tensor, " vocab"]) -> str | None:
        if kept[next_token.eos_ids].any():
            return None
        return self.decoder.rule if next_token.support()[0, next_token.eos_ids].any() else MODEL
