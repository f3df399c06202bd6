"""Hugging Face: any causal language model audited, explained and fixed. transformers is imported here only."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "CausalLM": "eosin.hub.causal_lm",
    "consistent": "eosin.hub.generation",
    "TerminationCallback": "eosin.hub.callback",
    "TerminationFloor": "eosin.hub.generation",
    "add_head": "eosin.hub.heads",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'eosin.hub' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)
