"""Certified cycles in a file, one JSON line each, so that somebody else can check the proofs again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eosin.contracts import Generative, Predictable
from eosin.decoding.job import to_decoder
from eosin.errors import BadInput
from eosin.proofs.cycles import Cycle, check
from eosin.proofs.dynamics import dynamics_of
from eosin.records.record import lines_of


@dataclass(frozen=True)
class CertifiedCycle:
    """A cycle, and of what model and decoder it was proved."""

    cycle: Cycle
    decoder: str
    model: dict[str, Any]
    """Its identity, as the records of the audit have it."""

    def written(self) -> str:
        return json.dumps({"decoder": self.decoder, "model": self.model, "cycle": self.cycle.written()})

    @classmethod
    def read(cls, line: str) -> CertifiedCycle:
        table = json.loads(line)
        decoder, model = table["decoder"], table["model"]
        to_decoder(decoder)
        if type(model) is not dict:
            raise TypeError(f"model must be a table, got {model!r}")
        return cls(Cycle.read(table["cycle"]), decoder, model)

    @property
    def subject(self) -> tuple[object, ...]:
        """What it is about: a second certificate of the same says nothing new."""
        return self.decoder, self.cycle.tokens, tuple(self.cycle.centre.mul(1e6).round().tolist())

    def holds(self, model: Generative) -> Cycle | None:
        """The proof done again on a model, with the figures found now; None where it fails."""
        decoder, dynamics = to_decoder(self.decoder), dynamics_of(model)
        if dynamics is None or not isinstance(decoder, Predictable):
            return None
        here = replace(self.cycle, centre=self.cycle.centre.to(dynamics.weight.device))
        return check(dynamics, here, model.eos_ids, decoder.margin)


def beside(records: Path) -> Path:
    """Where the certificates of an audit are, given its records."""
    return records.with_suffix(".cycles")


def read_certificates(path: Path) -> Iterator[CertifiedCycle]:
    """A last line that was cut off by a kill is none."""
    for number, line in enumerate(lines_of(path, "certificates of cycles"), 1):
        try:
            yield CertifiedCycle.read(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadInput(f"line {number} of {path} is not the certificate of a cycle: {error}") from error


def append(path: Path, certificates: list[CertifiedCycle]) -> None:
    """Those that are not there yet."""
    there = {certificate.subject for certificate in read_certificates(path)} if path.exists() else set()
    with path.open("a+", encoding="utf-8") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.writelines(each.written() + "\n" for each in certificates if each.subject not in there)
        file.flush()
        os.fsync(file.fileno())
