"""Certified cycles in a file, one JSON line each, so that others can check the proofs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eosin.contracts import Generative, Predictable
from eosin.decoding.job import to_decoder
from eosin.proofs.cycles import Cycle, reprove_cycle
from eosin.proofs.dynamics import dynamics_of
from eosin.storage.json_lines import append_lines, parse_lines


@dataclass(frozen=True)
class CertifiedCycle:
    """A cycle with the model and the decoder for which it was proved."""

    cycle: Cycle
    decoder: str
    model: dict[str, Any]
    """Its identity, as in the records of the audit."""

    def to_line(self) -> str:
        return json.dumps({"decoder": self.decoder, "model": self.model, "cycle": self.cycle.to_dict()})

    @classmethod
    def from_line(cls, line: str) -> CertifiedCycle:
        table = json.loads(line)
        decoder, model = table["decoder"], table["model"]
        to_decoder(decoder)
        if type(model) is not dict:
            raise TypeError(f"model must be a table, got {model!r}")
        return cls(Cycle.from_dict(table["cycle"]), decoder, model)

    @property
    def subject(self) -> tuple[object, ...]:
        """Certificates with the same subject say the same."""
        return self.decoder, self.cycle.tokens, tuple(self.cycle.centre.mul(1e6).round().tolist())

    def reprove(self, model: Generative) -> Cycle | None:
        """Prove the cycle again on a model, with new numbers; None where the proof fails."""
        decoder, dynamics = to_decoder(self.decoder), dynamics_of(model)
        if dynamics is None or not isinstance(decoder, Predictable):
            return None
        return reprove_cycle(dynamics, self.cycle, model.eos_ids, decoder.margin)


def cycles_path(records: Path) -> Path:
    """The file of certificates that belongs to a file of records."""
    return records.with_suffix(".cycles")


def read_certificates(path: Path) -> Iterator[CertifiedCycle]:
    """Read the certificates of a file. A last line that a kill cut off is skipped."""
    return parse_lines(path, "certificates of cycles", "the certificate of a cycle", CertifiedCycle.from_line)


def append_certificates(path: Path, certificates: list[CertifiedCycle]) -> None:
    """Append those whose subject is not in the file yet."""
    known = {certificate.subject for certificate in read_certificates(path)} if path.exists() else set()
    if new := [each.to_line() for each in certificates if each.subject not in known]:
        append_lines(path, new)
