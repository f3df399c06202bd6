"""`eosin.load`: one loader for trained runs, fine-tuned runs and, after `hf:`, models of Hugging Face."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eosin.bundled_runs import BUNDLED_RUNS
from eosin.errors import BadInput
from eosin.models.checkpoint import CONFIG
from eosin.models.neural_lm import NeuralLM
from eosin.settings import Table
from eosin.storage.files import HUB
from eosin.training.config import Config
from eosin.training.run import PRETRAINED, Run, RunSettings, read_config

if TYPE_CHECKING:
    from eosin.hub.causal_lm import CausalLM


def load(name: Path | str) -> NeuralLM | CausalLM:
    """A model that is ready to decode.

    name  a run directory or a bundled run such as `demo`; or hf: and a model folder, a .gguf file or a hub id
    """
    if str(name).startswith(HUB):
        return import_hub("loading").Pretrained(str(name).removeprefix(HUB)).load()[0]
    return open_run(name).model


def open_run(name: Path | str) -> Run:
    """A run directory, or a bundled run by its name."""
    run = find_run(name)
    if run is None:
        is_hub_model = (Path(name) / "config.json").is_file() or Path(name).suffix == ".gguf"
        hint = f"say {HUB}{name} for a model of Hugging Face" if is_hub_model else "`eosin train` makes one"
        raise BadInput(f"{name} is not a run directory: it has no {CONFIG}; {hint}")
    return run


def find_run(name: Path | str) -> Run | None:
    """A run directory, or a bundled run; None if nothing of this name is one."""
    folder = next((each for each in (Path(name), BUNDLED_RUNS / str(name)) if (each / CONFIG).is_file()), None)
    if folder is None:
        return None
    table = read_config(folder)
    return Run(folder, table, parse_settings(table))


def parse_settings(table: Table) -> RunSettings:
    """The settings of a training or, with a section [pretrained], of a fine-tuning."""
    return import_hub("tuning").FineTuningConfig.from_table(table) if PRETRAINED in table else Config.from_table(table)


def import_hub(module: str) -> Any:
    """A module of eosin.hub, which needs transformers."""
    try:
        return import_module(f"eosin.hub.{module}")
    except ImportError as error:
        raise BadInput(f"pretrained models need transformers ({error}): pip install 'eosin[hub]'") from error
