"""`eosin.load`: one loader for runs and, after `hf:`, models of Hugging Face; after `py:`, models of the user's own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eosin.bundled_runs import BUNDLED_RUNS
from eosin.contracts import Generative, Movable
from eosin.devices import choose_device
from eosin.errors import BadInput
from eosin.models.checkpoint import CONFIG
from eosin.own_models import open_own_model
from eosin.settings import Table
from eosin.storage.files import HUB, OWN
from eosin.training.config import Config
from eosin.training.run import PRETRAINED, Run, RunSettings, read_config

if TYPE_CHECKING:
    from eosin.hub.causal_lm import CausalLM
    from eosin.models.neural_lm import NeuralLM


def load(name: Path | str, device: str = "auto") -> NeuralLM | CausalLM | Generative:
    """A model that is ready to decode.

    name    a run directory or a bundled run such as `demo`; hf: and a model folder, a .gguf file or a hub id; or
            py:FILE:FUNCTION, a function that returns a model: the code of the file is run
    device  "cpu", or what torch calls an accelerator; by default the accelerator, if there is one
    """
    where = choose_device(device)
    if str(name).startswith(OWN):
        own = open_own_model(str(name)).model
        return own.to(where) if isinstance(own, Movable) else own
    if str(name).startswith(HUB):
        return import_hub("loading").Pretrained(str(name).removeprefix(HUB)).load(device=where)[0]
    return open_run(name).model.to(where)


def open_run(name: Path | str) -> Run:
    """A run directory, or a bundled run by its name."""
    bundled = BUNDLED_RUNS / str(name)
    folder = bundled if not (Path(name) / CONFIG).is_file() and (bundled / CONFIG).is_file() else Path(name)
    if not (folder / CONFIG).is_file():
        raise BadInput(f"{name} is not a run directory: it has no {CONFIG}; {suggest_spelling(folder)}")
    table = read_config(folder)
    return Run(folder, table, parse_settings(table))


def suggest_spelling(path: Path) -> str:
    """What to say for a path that is no run directory."""
    file, _, function = str(path).partition(".py:")
    if path.suffix == ".py" or function:
        return f"say {OWN}{file.removesuffix('.py')}.py:{function or 'FUNCTION'} for a model that a function returns"
    if (path / "config.json").is_file() or path.suffix == ".gguf":
        return f"say {HUB}{path} for a model of Hugging Face"
    return "`eosin train` makes one"


def parse_settings(table: Table) -> RunSettings:
    """The settings of a training or, with a section [pretrained], of a fine-tuning."""
    return import_hub("tuning").FineTuningConfig.from_table(table) if PRETRAINED in table else Config.from_table(table)


def import_hub(module: str) -> Any:
    """A module of eosin.hub, which needs transformers."""
    try:
        return import_module(f"eosin.hub.{module}")
    except ImportError as error:
        raise BadInput(f"pretrained models need transformers ({error}): pip install 'eosin[hub]'") from error
