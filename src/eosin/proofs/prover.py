"""Finding loops while decoding, and proving that they never end.

After each step a row is the pair of its next token and the model's state. Brent's method keeps one earlier pair a row,
renewed at steps 16, 32, 64, ..., and compares: where the pair has come back, the row is in a cycle.

- Where it has come back bit for bit under a step whose bits do not depend on the batch, the cycle is run through once
  more: if every choice in it is forced and the state returns again, it returns for ever.
- Where it has come back nearly, and the model has a formula for its step, `proofs.cycles` may prove that the cycle
  attracts: then every row that enters the ball around it, on any path, never ends. Each cycle is proved once.

What is proved is taken out of the pool. A loop that nothing was proved of goes on to the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from eosin.contracts import Decoder, Generative, Predictable, Rows, Token
from eosin.decoding.distribution import Workspace, survey
from eosin.decoding.loop import SMALLEST_BATCH, Cohort
from eosin.decoding.loops import reduce_cycle, rotate_cycle
from eosin.logits import as_logits
from eosin.outcome import Proof
from eosin.proofs.cycles import Cycle, prove_cycle
from eosin.proofs.dynamics import Dynamics, dynamics_of
from eosin.states import PairState, TensorState, can_recur

FIRST_LOOK = 16
"""The step at which a row is remembered for the first time."""
NEAR = 1e-2
"""A state this close to an earlier one may be on its way around an attracting cycle."""
PATIENCE = 4
"""A cycle tried at some step is tried again at this many times that step."""
CERTIFIED, RECURRENCE = "certified cycle", "exact recurrence"


class Prover:
    """Watches the rows of one model and one decoder; it is the `prove` of `decoding.loop`."""

    def __init__(self, model: Generative, decoder: Predictable, steady: bool):
        self.model = model
        self.decoder = decoder
        self.steady = steady
        self.dynamics: Dynamics | None = dynamics_of(model) if has_margin(decoder) else None
        self.cycles: list[Cycle] = []
        self.not_before: Counter[tuple[int, ...]] = Counter()
        self.workspace = Workspace(model.eos_ids)

    def __call__(self, cohort: Cohort) -> Cohort:
        if not can_recur(cohort.state):
            return cohort
        now = Sighting.of(cohort)
        before = now if cohort.memory is None else Sighting(cohort.memory, now.steps)
        proofs = self._find_in_balls(now)
        returns = [each for each in self._find_returns(now, before) if each.row not in proofs]
        turns = cohort.search.tokens_of([each.row for each in returns])
        for each, tokens in zip(returns, turns, strict=True):
            if proof := self._prove(each.row, each.exactly, now, tokens[each.since - 1 : -1]):
                proofs[each.row] = proof
        cohort = replace(cohort, memory=now.renew(before))
        return cohort.retire(proofs) if proofs else cohort

    def _find_in_balls(self, now: Sighting) -> dict[int, Proof]:
        """The rows in the ball of a certified cycle, about to read its first token."""
        if self.dynamics is None or not self.cycles:
            return {}
        token = now.token[: len(now.steps), None]
        first = [cycle.tokens[0] for cycle in self.cycles]
        row, number = (token == torch.tensor(first, dtype=token.dtype, device=token.device)).nonzero(as_tuple=True)
        if not len(row):
            return {}
        vectors = self.dynamics.vectors(now.state.select(row))
        number = number.to(vectors.device)
        centres = torch.stack([cycle.centre for cycle in self.cycles]).to(vectors.device)
        radii = vectors.new_tensor([cycle.radius for cycle in self.cycles])
        inside = (vectors - centres[number]).norm(dim=1) <= radii[number]
        pairs = torch.stack([row.to(vectors.device), number], dim=1)[inside].tolist()
        return {row: Proof(self.cycles[number].tokens, CERTIFIED) for row, number in pairs}

    def _find_returns(self, now: Sighting, before: Sighting) -> list[Return]:
        """The rows that came back. All are looked at on the device, and the host gets those that did."""
        rows = len(now.steps)
        if int(now.steps.max()) <= FIRST_LOOK:
            return []
        since = before.since[:rows]
        back = (now.token == before.token)[:rows] & (since >= FIRST_LOOK) & (now.since[:rows] > since)
        if self.dynamics is not None and back.any():
            moved = self.dynamics.distances(now.state, before.state)[:rows]
            back = back.to(moved.device) & (moved <= NEAR)
        row = back.nonzero()[:, 0].to(since.device)
        if not len(row):
            return []
        exactly = now.state.select(row).same(before.state.select(row))
        facts = torch.stack([row, since[row], exactly.to(row.device)], dim=1).tolist()
        return [Return(row, since, bool(exactly)) for row, since, exactly in facts]

    def _prove(self, row: int, exactly: bool, now: Sighting, turn: list[int]) -> Proof | None:
        """Prove that a row that came back after a turn of these tokens never ends, if it can be proved now."""
        if set(turn) & set(self.model.eos_ids):
            return None
        if self.steady and exactly and self._is_recurrence(now.repeat(row), turn):
            return Proof(tuple(reduce_cycle(turn)), RECURRENCE)
        if self.dynamics is not None:
            self._try_cycle(self.dynamics, reduce_cycle(turn), now, row)
        return None

    def _is_recurrence(self, start: Sighting, turn: Sequence[int]) -> bool:
        """Whether the tokens of one turn, read once more, are forced and bring the state back."""
        state = start.state
        for token, following in zip(turn, [*turn[1:], turn[0]], strict=True):
            logits, state = self.model.step(torch.full_like(start.token, token), state)
            next_token = survey(as_logits(logits), 1, self.workspace)
            numbers = torch.zeros(1, 2, dtype=torch.float64, device=next_token.device)
            chosen, kept = self.decoder.choose(next_token, numbers), self.decoder.kept(next_token).sum(1)
            if not bool((chosen == following) & (kept <= 1)):
                return False  # a sampler with a choice is back in one state again and again: most turns fail at once
        return bool(state.same(start.state).all())

    def _try_cycle(self, dynamics: Dynamics, turn: list[int], now: Sighting, row: int) -> None:
        """Prove the cycle, if it is new or if rows still go around it long after the last attempt.

        The proof begins at the same place of the cycle for every row. The row is in the ball when it gets there.
        """
        cycle, step = rotate_cycle(turn), int(now.steps[row])
        if step < self.not_before[cycle]:
            return
        self.not_before[cycle] = PATIENCE * step
        vector = dynamics.vectors(now.repeat(row).state)[0].cpu()
        while tuple(turn) != cycle:
            vector = dynamics.advance(turn[0], vector)
            turn = turn[1:] + turn[:1]
        proved = prove_cycle(dynamics, cycle, vector, self.model.eos_ids, self.decoder.margin)
        if proved is not None:
            self.cycles.append(proved)


@dataclass(frozen=True)
class Return:
    """A row that came back."""

    row: int
    since: int
    """The step at which it was in this place before."""
    exactly: bool
    """Whether its state is the same bit for bit."""


@dataclass(frozen=True)
class Sighting:
    """Rows at one moment: the state of the model, the token to be read next and the step."""

    memory: PairState
    """The state beside token and step, so that rows are selected and joined with those of the model."""
    steps: Rows
    """Of the rows now, on the CPU; rows of the batch behind these repeat them."""

    @classmethod
    def of(cls, cohort: Cohort) -> Sighting:
        steps = cohort.search.steps
        repeated = steps[torch.arange(len(cohort.token), device="cpu") % len(steps)].to(cohort.token.device)
        return cls(PairState(cohort.state, TensorState((cohort.token, repeated))), steps)

    @property
    def state(self) -> Any:
        return self.memory.first

    @property
    def token(self) -> Token:
        return self.memory.second.tensors[0]

    @property
    def since(self) -> Rows:
        """The step of each row at that moment."""
        return self.memory.second.tensors[1]

    def repeat(self, row: int) -> Sighting:
        """One row, in a batch large enough for its bits not to depend on the batch."""
        rows = torch.full_like(self.token[:1], row).expand(SMALLEST_BATCH)
        return Sighting(self.memory.select(rows), self.steps[[row]])

    def renew(self, before: Sighting) -> PairState:
        """What to remember: this sighting at steps 16, 32, 64, ..., the earlier one at others."""
        due = (self.steps >= FIRST_LOOK) & (self.steps & (self.steps - 1) == 0)
        if before is self or not due.any():
            return before.memory
        rows, batch = torch.arange(len(self.token), device="cpu"), len(self.token)
        chosen = torch.where(due[rows % len(due)], rows + batch, rows)
        return before.memory.join(self.memory).select(chosen.to(self.token.device))


def has_margin(decoder: Predictable) -> bool:
    """Whether the decoder must choose a token whose lead is large enough."""
    return bool(decoder.margin(torch.full((2, 1), torch.inf, dtype=torch.float64, device="cpu")) > 0)


def prover_of(model: Generative, decoder: Decoder, steady: bool) -> Prover | None:
    """None where nothing can be proved.

    Eos may always be chosen; or a row does not decide how its context continues, as in a beam; or the model's bits
    depend on the batch, and it has no formula.
    """
    if decoder.keeps_eos or not isinstance(decoder, Predictable):
        return None
    prover = Prover(model, decoder, steady)
    return prover if steady or prover.dynamics is not None else None
