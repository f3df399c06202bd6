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
from eosin.devices import device_of
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
        self.workspace = Workspace()
        self.device = device_of(model) or torch.device("cpu")
        self.eos_ids = torch.tensor(model.eos_ids, device=self.device)

    def __call__(self, cohort: Cohort) -> Cohort:
        if not can_recur(cohort.state):
            return cohort
        now = Sighting.of(cohort)
        before = now if cohort.memory is None else Sighting(cohort.memory, now.rows)
        proofs = self._in_known_cycles(now)
        for row, exactly in self._find_returns(now, before):
            if row in proofs:
                continue
            turn = cohort.search.tokens_of(row)[int(before.steps[row]) - 1 : -1]
            if proof := self._prove(row, exactly, now, turn):
                proofs[row] = proof
        cohort = replace(cohort, memory=now.renew(before))
        return cohort.retire(proofs) if proofs else cohort

    def _find_returns(self, now: Sighting, before: Sighting) -> list[tuple[int, bool]]:
        """Rows about to read the remembered token in the remembered state or near it; True where it is that state."""
        since = before.steps >= FIRST_LOOK
        rows = ((now.token == before.token) & since & (now.steps > before.steps))[: now.rows].nonzero()[:, 0]
        if not len(rows):
            return []
        here, there = now.state.select(rows), before.state.select(rows)
        back = exactly = here.same(there)
        if self.dynamics is not None:
            distance = (self.dynamics.vectors(here) - self.dynamics.vectors(there)).norm(dim=1)
            back = exactly | (distance <= NEAR)
        return list(zip(rows[back].tolist(), exactly[back].tolist(), strict=True))

    def _in_known_cycles(self, now: Sighting) -> dict[int, Proof]:
        """Rows in the ball of a certified cycle, about to read its first token."""
        if self.dynamics is None or not self.cycles:
            return {}
        first = torch.tensor([cycle.tokens[0] for cycle in self.cycles], device=now.token.device)
        rows, numbers = (now.token[: now.rows, None] == first).nonzero(as_tuple=True)
        if not len(rows):
            return {}
        vectors = self.dynamics.vectors(now.state.select(rows))
        centres = torch.stack([cycle.centre for cycle in self.cycles])[numbers]
        radii = torch.tensor([cycle.radius for cycle in self.cycles], dtype=torch.float64, device=rows.device)[numbers]
        within = (vectors - centres).norm(dim=1) <= radii
        pairs = zip(rows[within].tolist(), numbers[within].tolist(), strict=True)
        return {row: Proof(self.cycles[number].tokens, CERTIFIED) for row, number in pairs}

    def _prove(self, row: int, exactly: bool, now: Sighting, turn: list[int]) -> Proof | None:
        """Prove that a row that came back after a turn of these tokens never ends, if it can be proved now."""
        if set(turn) & set(self.model.eos_ids):
            return None
        if self.steady and exactly and self._is_recurrence(now.state_of(row), turn):
            return Proof(tuple(reduce_cycle(turn)), RECURRENCE)
        if self.dynamics is not None:
            self._try_cycle(self.dynamics, reduce_cycle(turn), now, row)
        return None

    def _is_recurrence(self, start: Any, turn: Sequence[int]) -> bool:
        """Whether the tokens of one turn, read once more, are forced and bring the state back."""
        state = start
        for token, following in zip(turn, [*turn[1:], turn[0]], strict=True):
            logits, state = self.model.step(torch.full((SMALLEST_BATCH,), token, device=self.device), state)
            next_token = survey(as_logits(logits), self.eos_ids, 1, self.workspace)
            chosen = self.decoder.choose(next_token, torch.zeros(1, 2, dtype=torch.float64, device=self.device))
            if int(chosen) != following or int(self.decoder.kept(next_token).sum()) > 1:
                return False
        return bool(state.same(start).all())

    def _try_cycle(self, dynamics: Dynamics, turn: list[int], now: Sighting, row: int) -> None:
        """Prove the cycle, if it is new or if rows still go around it long after the last attempt.

        The proof begins at the same place of the cycle for every row. The row is in the ball when it gets there.
        """
        cycle, step = rotate_cycle(turn), int(now.steps[row])
        if step < self.not_before[cycle]:
            return
        self.not_before[cycle] = PATIENCE * step
        vector = dynamics.vectors(now.state_of(row))[0]
        while tuple(turn) != cycle:
            vector = dynamics.advance(turn[0], vector)
            turn = turn[1:] + turn[:1]
        proved = prove_cycle(dynamics, cycle, vector, self.model.eos_ids, self.decoder.margin)
        if proved is not None:
            self.cycles.append(proved)


@dataclass(frozen=True)
class Sighting:
    """Rows at one moment: the state of the model, the token to be read next and the step."""

    memory: PairState
    """The state beside token and step, so that rows are selected and joined with those of the model."""
    rows: int
    """Rows behind these repeat them."""

    @classmethod
    def of(cls, cohort: Cohort) -> Sighting:
        batch, steps = len(cohort.token), cohort.search.steps
        repeated = torch.arange(batch, device=steps.device) % len(steps)
        return cls(PairState(cohort.state, TensorState((cohort.token, steps[repeated]))), len(steps))

    @property
    def state(self) -> Any:
        return self.memory.first

    @property
    def token(self) -> Token:
        return self.memory.second.tensors[0]

    @property
    def steps(self) -> Rows:
        return self.memory.second.tensors[1]

    def state_of(self, row: int) -> Any:
        """The state of one row, in a batch large enough for its bits not to depend on the batch."""
        return self.state.select(torch.full((SMALLEST_BATCH,), row, device=self.token.device))

    def renew(self, before: Sighting) -> PairState:
        """What to remember: this sighting at steps 16, 32, 64, ..., the earlier one at others."""
        due = (self.steps >= FIRST_LOOK) & (self.steps & (self.steps - 1) == 0)
        if before is self or not due.any():
            return before.memory
        rows = torch.arange(len(due), device=due.device)
        return before.memory.join(self.memory).select(torch.where(due, rows + len(rows), rows))


def has_margin(decoder: Predictable) -> bool:
    """Whether the decoder must choose a token whose lead is large enough."""
    return bool(decoder.margin(torch.full((2, 1), torch.inf, dtype=torch.float64, device="cpu")) > 0)


def prover_of(model: Generative, decoder: Decoder, steady: bool) -> Prover | None:
    """None where eos may always be chosen, and where a row does not decide how its context continues, as in a beam."""
    if decoder.keeps_eos or not isinstance(decoder, Predictable):
        return None
    return Prover(model, decoder, steady)
