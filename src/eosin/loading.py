"""`eosin.load`: a trained or fine-tuned run, or with hf: before its name a causal language model of Hugging Face."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.models import checkpoint
from eosin.settings import Table, read_toml
from eosin.training.config import Config

HUB = "hf:"
PRETRAINED = "pretrained"
"""The section that only the settings of a fine-tuning have."""


def load(name: Path | str) -> Any:
    """A model that is ready to decode: of a run directory, `demo`, or hf: and a folder, a .gguf file or a hub id."""
    if str(name).startswith(HUB):
        return hub("loading").load_causal(str(name).removeprefix(HUB))[0]
    folder = checkpoint.run_folder(name)
    return hub("tuning").load_tuned(folder) if is_tuned(folder) else checkpoint.load(name)


def is_tuned(folder: Path) -> bool:
    """Whether a run directory is of a fine-tuning."""
    config = folder / checkpoint.CONFIG
    return config.is_file() and PRETRAINED in read_toml(config)


def settings_of(table: Table) -> Any:
    """Of a model to be trained, or of a pretrained one to be fine-tuned."""
    return hub("tuning").Tuning.of(table) if PRETRAINED in table else Config.of(table)


def hub(module: str) -> Any:
    """A module that needs transformers, if that is installed."""
    try:
        return import_module(f"eosin.hub.{module}")
    except ImportError as error:
        raise BadInput(f"pretrained models need transformers ({error}): pip install 'eosin[hub]'") from error
