"""A model on disk: its architecture in TOML, its weights in safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eosin.errors import BadInput
from eosin.models.heads import build_head, resolve_head
from eosin.models.neural_lm import CORES, NeuralLM
from eosin.settings import Table, build, build_kind, resolve, resolve_kind
from eosin.storage.tensors import load_tensors, save_tensors

CONFIG, WEIGHTS = "config.toml", "weights.safetensors"


@dataclass(frozen=True)
class Architecture:
    """Everything about a model except its weights: three sections of a settings file, with every default."""

    core: dict[str, Any]
    head: dict[str, Any]
    output: dict[str, Any]
    torch_start: bool = False
    """Draw initial weights as torch does; trained weights do not depend on it."""

    @classmethod
    def resolve(cls, sections: Table) -> Architecture:
        unset: Any = None  # core and head are built later
        return cls(
            core=resolve_kind(CORES, sections.get("core", {}), "core"),
            head=resolve_head(sections.get("head", {})),
            output=resolve(partial(NeuralLM, unset, unset), sections.get("output", {}), "output"),
        )

    def build(self, seed: int = 0) -> NeuralLM:
        """The model with initial weights drawn from the seed; torch's own generator keeps its state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            core: Any = build_kind(CORES, self.core, "core")
            model = build(partial(NeuralLM, core, build_head(self.head)), self.output, "output")
            if self.torch_start:
                model.start_as_torch()
            return model

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        return {"core": self.core, "head": self.head, "output": self.output}


def save_weights(folder: Path, model: nn.Module, architecture: Any, notes: Table) -> None:
    save_tensors(folder / WEIGHTS, dict(model.named_parameters()), {**notes, "model": architecture.sections})


def build_trained(folder: Path, architecture: Any) -> Any:
    """A model of this architecture with the weights of a run directory, ready to decode."""
    if not (folder / WEIGHTS).is_file():
        raise BadInput(
            f"{folder} has no {WEIGHTS}: its first epoch is not over, or the file was lost; see: eosin train {folder}"
        )
    tensors, notes = load_tensors(folder / WEIGHTS)
    if notes.get("model") != architecture.sections:
        raise BadInput(f"{folder / WEIGHTS} belongs to another model than {folder / CONFIG} describes")
    model = architecture.build()
    set_parameters(dict(model.named_parameters()), tensors)
    return model.eval()


def set_parameters(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Give named parameters the values of the tensors of the same names."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
