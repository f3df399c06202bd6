"""`eosin.load`: a trained run, or with hf: before its name a causal language model of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.models import checkpoint

HUB = "hf:"


def load(name: Path | str) -> Any:
    """A model that is ready to decode: of a run directory, `demo`, or hf: and a folder, a .gguf file or a hub id."""
    if not str(name).startswith(HUB):
        return checkpoint.load(name)
    return hub_loading().load_causal(str(name).removeprefix(HUB))[0]


def hub_loading() -> Any:
    """The module that opens models of Hugging Face, if that is installed."""
    try:
        from eosin.hub import loading
    except ImportError as error:
        raise BadInput(f"hf: models need transformers ({error}): pip install 'eosin[hub]'") from error
    return loading
