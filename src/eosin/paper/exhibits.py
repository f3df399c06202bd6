"""Exhibits: the paper's tables and figures as TOML. What each needs to be trained and audited, and the paper's numbers.

An exhibit names models of `configs/`, decoders and contexts; `tables.py` has a function for each kind of exhibit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from eosin.data.sources import CONTEXTS
from eosin.errors import BadInput
from eosin.settings import build, check_known, read_toml, with_tuples

FOLDER = Path(str(files("eosin") / "configs"))
COMPARED = ("ratios", "heads", "perplexities")
"""Kinds of exhibits in which our numbers stand beside the paper's means and deviations."""


@dataclass(frozen=True)
class Shown:
    """A model that an exhibit shows, and what the paper has to say of it."""

    model: str
    """Its name in `configs/`."""
    label: str
    """What the exhibit calls it."""
    paper: dict[str, Any]
    """The paper's numbers: mean and deviation."""
    head: str = ""
    """Its output head in words, where the exhibit compares heads."""
    floor: float = 0.0
    """Epsilon of a termination floor under it; 0 is none."""

    def __post_init__(self) -> None:
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must be 0, for none, or lie between 0 and 1, got {self.floor}")


@dataclass(frozen=True)
class Pair:
    """A baseline and its remedy, to be shown on the same contexts."""

    model: str
    decoder: str
    remedy_model: str
    remedy_decoder: str


@dataclass(frozen=True)
class Exhibit:
    """One table or figure."""

    path: str
    """Its name, or its file."""
    name: str
    kind: str
    title: str
    sweep: dict[str, list[Any]]
    """Settings, as `section.key`, and the values that are tried of each."""
    note: str = ""
    """What is to be said below it."""
    decoders: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ("test",)
    limits: tuple[int, ...] = ()
    temperatures: tuple[float, ...] = ()
    survival: bool = False
    """Whether survival is estimated too."""
    initialisations: int = 1
    """How many of each combination a sweep trains, if the preset has that many of the model."""
    shown: int = 0
    """How many contexts a pair is shown on."""
    models: tuple[Shown, ...] = ()
    pairs: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        for contexts in self.contexts:
            check_known(contexts, CONTEXTS, f"a kind of contexts ({self.name})")
        for name, tried in self.sweep.items():
            if name.count(".") != 1 or not tried:
                raise ValueError(f"sweep is of settings as section.key and the values to try, got {name} = {tried!r}")
        if min((*self.limits, *self.temperatures), default=1) <= 0:
            raise ValueError("limits and temperatures must be positive")
        if not 1 <= self.initialisations <= 1000:
            raise ValueError(f"initialisations must be 1 to 1000, got {self.initialisations}")
        if self.kind == "lengths" and not self.models:
            raise ValueError("an exhibit of lengths needs models")
        for shown in self.models:
            self._check_paper(shown)

    def _check_paper(self, shown: Shown) -> None:
        if self.kind in COMPARED and not all(map(is_mean, shown.paper.values())):
            raise ValueError(f"the paper's numbers are [mean] or [mean, deviation], got {shown.paper}")
        if self.kind == "statistics" and not all(map(is_number, shown.paper.values())):
            raise ValueError(f"the paper's statistics are numbers, got {shown.paper}")

    def at_temperatures(self, decoder: str) -> list[str]:
        return [at_temperature(decoder, temperature) for temperature in self.temperatures] or [decoder]

    @property
    def specifications(self) -> list[str]:
        """Every decoder that is audited."""
        return [spec for decoder in self.decoders for spec in self.at_temperatures(decoder)]

    @property
    def counted(self) -> tuple[Shown, ...]:
        """The models whose corpora it shows."""
        first = 1 if self.kind in ("lengths", "ratios") else 0
        return self.models if self.kind == "statistics" else self.models[:first]

    @property
    def trained(self) -> list[str]:
        """Every model that it takes, in the order in which they are named."""
        in_pairs = [name for pair in self.pairs for name in (pair.model, pair.remedy_model)]
        return list(dict.fromkeys([*(shown.model for shown in self.models if self.kind != "statistics"), *in_pairs]))

    @property
    def combinations(self) -> Iterator[dict[str, Any]]:
        """The changes of settings that a sweep tries; one without changes where there is none."""
        return (dict(zip(self.sweep, values, strict=True)) for values in itertools.product(*self.sweep.values()))


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def is_mean(value: Any) -> bool:
    """With its deviation, or without."""
    return isinstance(value, list) and len(value) in (1, 2) and all(map(is_number, value))


def at_temperature(decoder: str, temperature: float) -> str:
    return decoder if temperature == 1 else f"{decoder},temperature={temperature:g}"


def filled_in(value: Any, tokenization: str) -> Any:
    if isinstance(value, str):
        return value.replace("{tokenization}", tokenization)
    if isinstance(value, list):
        return [filled_in(each, tokenization) for each in value]
    return {key: filled_in(each, tokenization) for key, each in value.items()} if isinstance(value, dict) else value


def model_file(model: str) -> Path:
    """The settings of a bundled model by name, or of one of your own by the path of its file."""
    path = Path(model)
    if path.suffix == ".toml":
        return path
    check_known(model, sorted(path.stem for path in FOLDER.glob("*.toml")), "a model, or a .toml file of one")
    return FOLDER / f"{model}.toml"


def exhibit_names() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "exhibits").glob("*.toml"))


def load_exhibit(name: str, tokenization: str = "bpe") -> Exhibit:
    """A bundled exhibit by name, or one of your own by the path of its file; {tokenization} in it is filled in."""
    path = Path(name)
    if path.suffix != ".toml":
        check_known(name, exhibit_names(), "an exhibit, or a .toml file of one")
        path = FOLDER / "exhibits" / f"{name}.toml"
    table = filled_in(read_toml(path), tokenization)
    place = str(path.resolve()) if name.endswith(".toml") else name
    try:
        table["models"] = tuple(build(Shown, {"paper": {}, **each}, "models") for each in table.get("models", ()))
        table["pairs"] = tuple(build(Pair, each, "pairs") for each in table.get("pairs", ()))
        return build(Exhibit, {"sweep": {}, **with_tuples(table), "name": path.stem, "path": place}, path.stem)
    except (TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not an exhibit: {error}") from error
