"""A model on disk: what it is in TOML, its weights in safetensors. Out, and back in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eosin.errors import BadInput
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES, NeuralLM
from eosin.settings import Table, build, build_kind, resolve, resolve_kind
from eosin.storage.tensors import load_tensors, save_tensors

CONFIG, WEIGHTS = "config.toml", "weights.safetensors"
TWINS = {"demo": ("demo", "demo-st"), "demo-lstm": ("demo-lstm", "demo-lstm-st")}
"""Runs that come with the package and are audited together."""


@dataclass(frozen=True)
class Architecture:
    """What a model is but for its weights: three sections of a settings file, every default written out."""

    core: dict[str, Any]
    head: dict[str, Any]
    output: dict[str, Any]
    torch_start: bool = False
    """How fresh weights are drawn, which trained ones know nothing of."""

    @classmethod
    def resolve(cls, sections: Table) -> Architecture:
        still_to_be_built: Any = None
        return cls(
            core=resolve_kind(CORES, sections.get("core", {}), "core"),
            head=resolve_kind(HEADS, sections.get("head", {}), "head"),
            output=resolve(
                partial(NeuralLM, still_to_be_built, still_to_be_built), sections.get("output", {}), "output"
            ),
        )

    def build(self, seed: int = 0) -> NeuralLM:
        """The model with fresh weights, which the seed decides; torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            core: Any = build_kind(CORES, self.core, "core")
            head: Any = build_kind(HEADS, self.head, "head")
            model = build(partial(NeuralLM, core, head), self.output, "output")
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
