"""Presets: the size of the models, the number of initialisations and contexts, and the exhibits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eosin.bundled_runs import BUNDLED_RUNS
from eosin.paper.exhibits import CONFIGS, EXHIBITS, find_file, find_model, resolve_name
from eosin.settings import build, check_known, read_toml

PRESETS = CONFIGS / "presets"


@dataclass(frozen=True)
class Preset:
    """A size at which the paper is reproduced."""

    path: str
    """Its name, or the path of its file."""
    about: str
    exhibits: tuple[str, ...]
    title: str = "The paper's tables"
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings that differ from those of the models."""
    matching: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """More changes, for models whose names match a pattern such as "*-lstm-*"."""
    initialisations_of: dict[str, int] = field(default_factory=dict)
    """The number of initialisations of models whose names match a pattern; 0 leaves them out."""
    bundled: dict[str, str] = field(default_factory=dict)
    """Models that come with the package instead of being trained, and the names of their runs."""
    initialisations: int = 1
    max_steps: int = 1500
    """The paper's L."""
    contexts: int = 0
    """How many of each kind; 0 is all."""
    caution: str = ""
    """A warning that is printed with the tables."""
    tokenization: str = "bpe"
    """Replaces {tokenization} in exhibits."""
    must_hold: tuple[str, ...] = ()
    """The names of claims that must not be refuted."""

    def __post_init__(self) -> None:
        for name in self.exhibits:
            find_file(name, EXHIBITS, "an exhibit")
        for model, run in self.bundled.items():
            find_model(model)
            check_known(run, [path.name for path in BUNDLED_RUNS.iterdir()], "a run that comes with the package")
        if not self.exhibits or not self.about:
            raise ValueError("a preset names exhibits, and says what it is about")
        if not 1 <= self.initialisations <= 1000:
            raise ValueError(f"initialisations must be 1 to 1000, got {self.initialisations}")
        if not all(0 <= count <= 1000 for count in self.initialisations_of.values()):
            raise ValueError(f"initialisations_of must be 0 to 1000 for each pattern, got {self.initialisations_of}")
        if not 1 <= self.max_steps <= 2**31 or self.contexts < 0:
            raise ValueError(f"max_steps are 1 to 2^31, contexts at least 0, got {self.max_steps} and {self.contexts}")

    @property
    def has_paper_sizes(self) -> bool:
        """Whether the models and their vocabularies are of the paper's sizes."""
        changed = {name for section in self.changes.values() for name in section}
        return not self.bundled and not changed & {"vocab_size", "width", "layers"}

    @property
    def name(self) -> str:
        return Path(self.path).name.removesuffix(".toml")


def load_preset(name: str) -> Preset:
    """A bundled preset by name, or one of your own by its path."""
    path = find_file(name, PRESETS, "a preset")
    return build(Preset, {**read_toml(path), "path": resolve_name(name)}, path.stem)
