"""Eosin: does your language model stop? Measure it, prove it, fix it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eosin.auditing.audit import audit as audit
    from eosin.data.corpus import load_corpus as load_corpus
    from eosin.decoding.decode import decode as decode
    from eosin.decoding.floor import Floor as Floor
    from eosin.decoding.spec import parse_decoder as parse_decoder
    from eosin.decoding.trace import Trace as Trace
    from eosin.decoding.trace import trace as trace
    from eosin.guarantees.certificate import certify as certify
    from eosin.loading import load as load
    from eosin.models.heads import HEADS as HEADS
    from eosin.models.neural_lm import CORES as CORES
    from eosin.models.neural_lm import NeuralLM as NeuralLM
    from eosin.outcome import Completions as Completions

__version__ = "0.2.0"

# imported when first asked for: a table can be printed on a laptop without torch
_MODULES = {
    "audit": "eosin.auditing.audit",
    "certify": "eosin.guarantees.certificate",
    "decode": "eosin.decoding.decode",
    "Floor": "eosin.decoding.floor",
    "parse_decoder": "eosin.decoding.spec",
    "trace": "eosin.decoding.trace",
    "Trace": "eosin.decoding.trace",
    "Completions": "eosin.outcome",
    "load": "eosin.loading",
    "load_corpus": "eosin.data.corpus",
    "NeuralLM": "eosin.models.neural_lm",
    "CORES": "eosin.models.neural_lm",
    "HEADS": "eosin.models.heads",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'eosin' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
