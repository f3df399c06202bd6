"""Settings files: TOML in and out, checked against the signatures of what they set.

A setting is a parameter of the thing it sets, with its name, type and default, so there is no second list of them. An
unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import json
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from eosin.errors import BadInput

Built = TypeVar("Built")
Table = Mapping[str, Any]
OWN_PARTS = "; one of your own needs --plugin FILE"
"""The end of a message about a part that is not in its table."""


def read_toml(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read the settings file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}") from error
    if not _is_plain(table):
        raise BadInput(f"{path} has a date; settings are strings, numbers, true, false, and lists and tables of these")
    return table


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold the value. TOML has dates, and JSON has none."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def read_with_bases(path: Path, seen: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """The tables of a settings file and of the files it starts from (`base = "other.toml"`), the base first."""
    table = read_toml(path)
    base = table.pop("base", None)
    if base is None:
        return [table]
    if not isinstance(base, str):
        raise BadInput(f"base must be the name of a settings file, got {base!r} in {path}")
    if path.resolve() in seen:
        raise BadInput(f"{path} starts from itself: its bases form a circle")
    return [*read_with_bases(path.parent / base, (*seen, path.resolve())), table]


def get_section(table: Table, name: str, path: Path) -> dict[str, Any]:
    """A section of a file that this package wrote; empty if there is none."""
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise BadInput(f"{path} is damaged: {name} should be a section, and is {found!r}")
    return found


# changes of settings


def parse_assignment(assignment: str) -> dict[str, dict[str, Any]]:
    """`section.key=value` as a table."""
    name, equals, value = assignment.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        raise BadInput(f"a setting is given as section.key=value, for example training.epochs=3; got {assignment!r}")
    return {section: {key: _parse_value(value.strip())}}


def _parse_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    return value if _is_plain(value) else text


def keep_all(before: Table, change: Table) -> Table:
    return before


def merge(base: Table, *changes: Table, inherit: Callable[[Table, Table], Table] = keep_all) -> dict[str, Any]:
    """Merge tables section by section; later settings win.

    `inherit(before, change)` returns the settings of a section that stay when it is changed.
    """
    merged = dict(base)
    for change in changes:
        for name, settings in change.items():
            before = merged.get(name, {})
            both = isinstance(settings, dict) and isinstance(before, dict)
            merged[name] = {**inherit(before, settings), **settings} if both else settings
    return merged


def expand_sweep(sweep: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    """Each combination of a sweep over settings, such as {"core.width": [128, 256], "core.kind": ["gru"]}."""
    return (dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values()))


def list_changes(settings: Table) -> list[dict[str, dict[str, Any]]]:
    """{"core.width": 128, "core.kind": "gru"} as one table for each setting."""
    names = ((name.split(".", 1), value) for name, value in settings.items())
    return [{section: {key: value}} for (section, key), value in names]


def label_settings(settings: Table) -> str:
    """A file name for a combination of a sweep: a kind stands alone, other values follow the name of the setting."""
    words = (
        value if name.endswith(".kind") else f"{name.split('.', 1)[1]}-{value}" for name, value in settings.items()
    )
    return "-".join(re.sub(r"[^\w.+-]+", "_", str(word).lower()) for word in words)


# settings and what they set


def get_parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(make).parameters
    return {name: it for name, it in found.items() if it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)}


def resolve(make: Callable[..., Any], table: Table, section: str) -> dict[str, Any]:
    """Every setting of `make`: the checked values of the table, and defaults for the rest."""
    given = convert_settings(make, table, section)
    return {key: given.get(key, parameter.default) for key, parameter in get_parameters(make).items()}


def convert_settings(make: Callable[..., Any], table: Table, section: str) -> dict[str, Any]:
    """The values of the table as the types that `make` expects. None may be unknown, of another type, or missing."""
    known, kinds = get_parameters(make), _get_types(make)
    given = {}
    for key, value in table.items():
        check_known(key, known, f"a setting of [{section}]")
        given[key] = _convert(value, kinds[key], f"[{section}] {key}")
    missing = [key for key, it in known.items() if it.default is inspect.Parameter.empty and key not in table]
    if missing:
        raise BadInput(f"[{section}] lacks {missing[0]!r}, which has no default")
    return given


def build(make: Callable[..., Built], table: Table, section: str) -> Built:
    """Call `make` with its settings. A ValueError about a value becomes one clear line."""
    values = convert_settings(make, table, section)
    try:
        return make(**values)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"[{section}] {error}") from error


def resolve_kind(kinds: Mapping[str, Callable[..., Any]], table: Table, section: str) -> dict[str, Any]:
    """Every setting of one member of a table of kinds; the setting `kind` names the member."""
    if "kind" not in table:
        raise BadInput(f"[{section}] lacks 'kind'; it is one of {', '.join(kinds)}")
    check_known(table["kind"], kinds, f"a kind of {section}", OWN_PARTS)
    rest = {key: value for key, value in table.items() if key != "kind"}
    return {"kind": table["kind"], **resolve(kinds[table["kind"]], rest, section)}


def build_kind(kinds: Mapping[str, Callable[..., Built]], table: Table, section: str) -> Built:
    settings = resolve_kind(kinds, table, section)
    return build(kinds[settings.pop("kind")], settings, section)


def check_numbers(settings: object, least: Mapping[str, int], positive: Iterable[str]) -> None:
    """Raise a ValueError unless some settings have their least value, and others are positive and finite."""
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise ValueError(f"{name} must be at least {bound}, got {getattr(settings, name)}")
    for name in positive:
        if not 0 < getattr(settings, name) < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {getattr(settings, name)}")


def check_sections(table: Table, known: Iterable[str], file: str) -> None:
    """Check that a table has known sections only."""
    for name, settings in table.items():
        check_known(name, known, f"a section of {file}")
        if not isinstance(settings, dict):
            raise BadInput(f"[{name}] must be a section, got {name} = {settings!r}")


def check_known(name: object, known: Iterable[str], what: str, hint: str = "") -> None:
    known = list(known)
    if name not in known:
        raise BadInput(f"{name!r} is not {what}; {suggest(str(name), known)}{hint}")


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else "there are none"


def _get_types(make: Any) -> dict[str, Any]:
    function = make.func if isinstance(make, partial) else make
    return typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)


def _convert(value: Any, kind: Any, name: str) -> Any:
    """A value from a file as the type of its setting: a list may become a tuple, a whole number a float."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"{name} must be {_describe_type(kind)}, got {value!r}") from error


def _describe_type(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", Any: "a value"}
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return f"a table, each entry of it {_describe_type(members[1])}"
    if origin in (tuple, list):
        return f"a list, each entry of it {_describe_type(members[0])}"
    return " or ".join(names.get(member, str(member)) for member in members or (kind,))
