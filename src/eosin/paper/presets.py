"""Presets: how large the models, how many the initialisations and contexts, and which exhibits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eosin.paper.exhibits import FOLDER, exhibit_names, model_file
from eosin.settings import build, check_known, lists_to_tuples, read_toml
from eosin.storage.files import BUNDLED_RUNS

TABLES = ("changes", "matching", "initialisations_of", "bundled")
"""Tables that a preset may leave out."""


@dataclass(frozen=True)
class Preset:
    """A size at which the paper is reproduced."""

    path: str
    """Its name, or its file."""
    name: str
    about: str
    exhibits: tuple[str, ...]
    changes: dict[str, dict[str, Any]]
    """What is set otherwise than in the settings of the models."""
    matching: dict[str, dict[str, dict[str, Any]]]
    """The same for models whose names match a pattern, as in "*-lstm-*"."""
    initialisations_of: dict[str, int]
    """How many there are of models whose names match a pattern; 0 leaves them out."""
    bundled: dict[str, str]
    """Models that are not trained but come with the package, and the runs that they are there."""
    initialisations: int = 1
    max_steps: int = 1500
    """The paper's L."""
    contexts: int = 0
    """Of each distribution; 0 is all."""
    caution: str = ""
    """What is to be said below every table."""
    tokenization: str = "bpe"
    """Of the exhibits that are made for one only."""
    must_hold: tuple[str, ...] = ()
    """Names of claims without which the reproduction has failed."""

    def __post_init__(self) -> None:
        for name in self.exhibits:
            if not name.endswith(".toml"):
                check_known(name, exhibit_names(), "an exhibit, or a .toml file of one")
        for model, run in self.bundled.items():
            model_file(model)
            check_known(run, [path.name for path in BUNDLED_RUNS.iterdir()], "a run that comes with the package")
        if not self.exhibits or not self.about:
            raise ValueError("a preset names exhibits, and says what it is about")
        counts = (self.initialisations, *(1 + count for count in self.initialisations_of.values()))
        if not all(1 <= count <= 1000 for count in counts) or not 1 <= self.max_steps <= 2**31 or self.contexts < 0:
            raise ValueError("initialisations are 1 to 1000, max_steps 1 to 2^31, contexts at least 0")


def preset_names() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "presets").glob("*.toml"))


def load_preset(name: str) -> Preset:
    """A bundled preset by name, or one of your own by the path of its file."""
    path = Path(name)
    if path.suffix != ".toml":
        check_known(name, preset_names(), "a preset, or a .toml file of one")
        path = FOLDER / "presets" / f"{name}.toml"
    table = lists_to_tuples(read_toml(path))
    place = str(path.resolve()) if name.endswith(".toml") else name
    return build(
        Preset,
        {**{key: {} for key in TABLES}, **table, "name": path.stem, "path": place},
        path.stem,
    )
