"""Exhibits: the tables and figures of the paper as TOML files, with the paper's numbers.

An exhibit names models of `configs/`, decoders and contexts. `tables.py` has a function for each kind of exhibit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from eosin.data.sources import CONTEXTS
from eosin.errors import BadInput
from eosin.published import read_sequences
from eosin.settings import build, check_known, expand_sweep, read_toml
from eosin.storage.files import OWN

CONFIGS = Path(str(files("eosin") / "configs"))
EXHIBITS, PUBLISHED = CONFIGS / "exhibits", CONFIGS / "published"


class PaperNumber(NamedTuple):
    """A number of the paper: a mean and, where it has one, a deviation over initialisations."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {float(self.deviation)}"


@dataclass(frozen=True)
class ExhibitModel:
    """A model of an exhibit, and the paper's numbers for it."""

    model: str
    """Its name in `configs/`."""
    label: str
    """Its name in the exhibit."""
    paper: dict[str, Any] = field(default_factory=dict)
    head: str = ""
    """Its output head in words, where the exhibit compares heads."""
    floor: float = 0.0
    """Epsilon of a termination floor under it; 0 is none."""

    def __post_init__(self) -> None:
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must be 0, for none, or lie between 0 and 1, got {self.floor}")

    def find_paper_number(self, name: str) -> PaperNumber | None:
        pair = self.paper.get(name)
        return None if pair is None else PaperNumber(*map(float, pair))


@dataclass(frozen=True)
class Pair:
    """A baseline and its remedy, to be shown on the same contexts."""

    model: str
    decoder: str
    remedy_model: str
    remedy_decoder: str


@dataclass(frozen=True)
class PublishedModel:
    """A model that others trained, and how it is audited."""

    path: str
    """Its name, or the path of its file."""
    label: str
    model: str
    """MODEL as `eosin audit` takes it, as py:FILE:FUNCTION."""
    about: str
    """What it is, and who made it."""
    licence: str
    """Of the weights."""
    contexts: str
    """A file of real sequences, in JSON lines."""
    decoders: tuple[str, ...]
    prefixes: tuple[int, ...] = ()
    """How many tokens each prefix of a sequence has; without any, the whole text is one."""
    sequences: int = 0
    """How many are taken; 0 is all."""
    max_steps: int = 0
    """The L of this model; 0 is the preset's."""
    floor: float = 0.0
    """Epsilon of a termination floor, under which greedy decoding is audited too; 0 is none."""

    def __post_init__(self) -> None:
        if not self.model.startswith(OWN) or not self.decoders:
            raise ValueError(f"a published model is {OWN}FILE:FUNCTION with decoders, got {self.model!r}")
        if min((*self.prefixes, 1)) < 1 or min(self.sequences, self.max_steps) < 0 or not 0 <= self.floor < 1:
            raise ValueError("prefixes are at least 1, sequences and max_steps at least 0, and a floor is below 1")
        read_sequences(self.contexts)

    @property
    def name(self) -> str:
        return Path(self.path).name.removesuffix(".toml")


@dataclass(frozen=True)
class Exhibit:
    """One table or figure."""

    path: str
    """Its name, or the path of its file."""
    kind: str
    title: str
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    """Settings, as `section.key`, and the values to try for each."""
    note: str = ""
    """Text below the table."""
    decoders: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ("test",)
    limits: tuple[int, ...] = ()
    temperatures: tuple[float, ...] = ()
    survival: bool = False
    """Whether survival is estimated too."""
    initialisations: int = 1
    """The initialisations of each combination of a sweep; never more than the preset has of the model."""
    shown: int = 0
    """How many contexts of each pair are shown."""
    models: tuple[ExhibitModel, ...] = ()
    pairs: tuple[Pair, ...] = ()
    published: tuple[PublishedModel, ...] = ()

    def __post_init__(self) -> None:
        for contexts in self.contexts:
            check_known(contexts, CONTEXTS, f"a kind of contexts ({self.name})")
        for name, values in self.sweep.items():
            if name.count(".") != 1 or not values:
                raise ValueError(f"sweep is of settings as section.key and the values to try, got {name} = {values!r}")
        if min((*self.limits, *self.temperatures), default=1) <= 0:
            raise ValueError("limits and temperatures must be positive")
        if not 1 <= self.initialisations <= 1000:
            raise ValueError(f"initialisations must be 1 to 1000, got {self.initialisations}")
        if self.kind == "lengths" and not self.models:
            raise ValueError("an exhibit of lengths needs models")
        for member in self.models:
            self._check_paper(member.paper)

    def _check_paper(self, numbers: dict[str, Any]) -> None:
        if self.kind in ("ratios", "heads", "perplexities") and not all(map(is_mean, numbers.values())):
            raise ValueError(f"the paper's numbers are [mean] or [mean, deviation], got {numbers}")
        if self.kind == "statistics" and not all(map(is_number, numbers.values())):
            raise ValueError(f"the paper's statistics are numbers, got {numbers}")

    @property
    def name(self) -> str:
        return Path(self.path).name.removesuffix(".toml")

    @property
    def specifications(self) -> list[str]:
        """Every decoder to audit, at every temperature."""
        return [add_temperature(decoder, value) for decoder in self.decoders for value in self.temperatures or (1.0,)]

    @property
    def only_decoder(self) -> str:
        if len(self.decoders) != 1:
            there = ", ".join(self.decoders) or "none"
            raise BadInput(f"{self.name}: an exhibit of kind {self.kind!r} has one decoder, got {there}")
        return self.decoders[0]

    @property
    def corpus_models(self) -> tuple[ExhibitModel, ...]:
        """The models whose corpora it shows."""
        first = 1 if self.kind in ("lengths", "ratios") else 0
        return self.models if self.kind == "statistics" else self.models[:first]

    @property
    def trained_models(self) -> list[str]:
        """The names of all models that it needs, in order."""
        in_pairs = [name for pair in self.pairs for name in (pair.model, pair.remedy_model)]
        return list(dict.fromkeys([*(each.model for each in self.models if self.kind != "statistics"), *in_pairs]))

    @property
    def combinations(self) -> Iterator[dict[str, Any]]:
        """The combinations of settings that a sweep tries; an empty one if there is no sweep."""
        return expand_sweep(self.sweep)


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def is_mean(value: Any) -> bool:
    """Whether a value is [mean] or [mean, deviation]."""
    return isinstance(value, list) and len(value) in (1, 2) and all(map(is_number, value))


def add_temperature(decoder: str, temperature: float) -> str:
    return decoder if temperature == 1 else f"{decoder},temperature={temperature:g}"


def fill_in(value: Any, tokenization: str) -> Any:
    """Replace {tokenization} in every string of a table."""
    if isinstance(value, str):
        return value.replace("{tokenization}", tokenization)
    if isinstance(value, list):
        return [fill_in(each, tokenization) for each in value]
    return {key: fill_in(each, tokenization) for key, each in value.items()} if isinstance(value, dict) else value


# files: bundled ones by name, your own by path


def list_names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".toml") for path in folder.glob("*.toml"))


def find_file(name: str, folder: Path, what: str) -> Path:
    """The bundled file of this name, or the file at this path."""
    if name.endswith(".toml"):
        return Path(name)
    check_known(name, list_names(folder), f"{what}, or a .toml file of one")
    return folder / f"{name}.toml"


def find_model(name: str) -> Path:
    return find_file(name, CONFIGS, "a model")


def resolve_name(name: str) -> str:
    """The name of a bundled file, or an absolute path."""
    return str(Path(name).resolve()) if name.endswith(".toml") else name


def load_published(name: str) -> PublishedModel:
    """A model that others trained by name, or by the path of its file."""
    path = find_file(name, PUBLISHED, "a published model")
    return build(PublishedModel, {**read_toml(path), "path": resolve_name(name)}, path.stem)


def load_exhibit(name: str, tokenization: str = "bpe") -> Exhibit:
    """A bundled exhibit by name, or one of your own by its path; {tokenization} in it is replaced."""
    path = find_file(name, EXHIBITS, "an exhibit")
    table = fill_in(read_toml(path), tokenization)
    try:
        models = [build(ExhibitModel, each, "models") for each in table.get("models", ())]
        pairs = [build(Pair, each, "pairs") for each in table.get("pairs", ())]
        published = [load_published(each) for each in table.get("published", ())]
        built = {"models": models, "pairs": pairs, "published": published, "path": resolve_name(name)}
        return build(Exhibit, {**table, **built}, path.stem)
    except (TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not an exhibit: {error}") from error
