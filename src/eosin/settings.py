"""Settings files: TOML in and out, checked against the signatures of what they set.

A setting is a parameter of the thing it sets, with its name, type and default, so there is no second list of them. An
unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import inspect
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from eosin.errors import BadInput

Made = TypeVar("Made")
Table = Mapping[str, Any]


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
    """Whether it can be written as JSON too: TOML has dates besides."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def with_bases(path: Path, above: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """The tables of a settings file and of those it starts from (`base = "other.toml"`), the first of them first."""
    table = read_toml(path)
    base = table.pop("base", None)
    if base is None:
        return [table]
    if not isinstance(base, str):
        raise BadInput(f"base must be the name of a settings file, got {base!r} in {path}")
    if path.resolve() in above:
        raise BadInput(f"{path} starts from itself: base goes round in a circle")
    return [*with_bases(path.parent / base, (*above, path.resolve())), table]


def to_toml(sections: Mapping[str, Table]) -> str:
    """Sections of plain values."""
    parts = [
        f"[{name}]\n" + "".join(f"{key} = {_written(value)}\n" for key, value in section.items())
        for name, section in sections.items()
    ]
    return "\n".join(parts)


def _written(value: Any) -> str:
    # a JSON string, number, boolean or list of them is one in TOML too
    return json.dumps(value, ensure_ascii=False)


def assigned(assignment: str) -> dict[str, dict[str, Any]]:
    """What `section.key=value` sets."""
    name, equals, value = assignment.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        raise BadInput(f"a setting is given as section.key=value, for example training.epochs=3; got {assignment!r}")
    return {section: {key: _value(value.strip())}}


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    return value if _is_plain(value) else text


def section(table: Table, name: str, path: Path) -> dict[str, Any]:
    """A section of a file that a program wrote; empty where there is none."""
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise BadInput(f"{path} is damaged: {name} should be a section, and is {found!r}")
    return found


def shown(value: Any) -> str:
    """As it was written: a list, and not the tuple that it became."""
    return repr(list(value) if isinstance(value, tuple) else value)


def with_tuples(table: Table) -> dict[str, Any]:
    """Lists as tuples, for what is never changed."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(make).parameters
    return {name: it for name, it in found.items() if it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)}


def resolved(make: Callable[..., Any], table: Table, section: str) -> dict[str, Any]:
    """Every setting of `make`: the values of the table, checked, and the defaults of the rest."""
    known = parameters(make)
    wanted = _types(make)
    for key, value in table.items():
        check_known(key, known, f"a setting of [{section}]")
        if not fits(value, wanted[key]):
            raise BadInput(f"[{section}] {key} must be {_described(wanted[key])}, got {shown(value)}")
    missing = [key for key, it in known.items() if it.default is inspect.Parameter.empty and key not in table]
    if missing:
        raise BadInput(f"[{section}] lacks {missing[0]!r}, which has no default")
    values = {key: table.get(key, parameter.default) for key, parameter in known.items()}
    return {key: float(value) if wanted[key] is float else value for key, value in values.items()}


def build(make: Callable[..., Made], table: Table, section: str) -> Made:
    """What the settings make; what the maker says against a value becomes one clear line."""
    values = resolved(make, table, section)
    try:
        return make(**values)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"[{section}] {error}") from error


def resolved_kind(kinds: Mapping[str, Callable[..., Any]], table: Table, section: str) -> dict[str, Any]:
    """The settings of one member of a table of kinds; `kind` says which."""
    if "kind" not in table:
        raise BadInput(f"[{section}] lacks 'kind'; it is one of {', '.join(kinds)}")
    check_known(table["kind"], kinds, f"a kind of {section}")
    rest = {key: value for key, value in table.items() if key != "kind"}
    return {"kind": table["kind"], **resolved(kinds[table["kind"]], rest, section)}


def build_kind(kinds: Mapping[str, Callable[..., Made]], table: Table, section: str) -> Made:
    settings = resolved_kind(kinds, table, section)
    return build(kinds[settings.pop("kind")], settings, section)


def check_known(name: object, known: Iterable[str], what: str) -> None:
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else "there are none"
    raise BadInput(f"{name!r} is not {what}; {hint}")


def _types(make: Any) -> dict[str, Any]:
    whole = getattr(make, "func", make)  # what a functools.partial is a part of
    return typing.get_type_hints(whole.__init__ if inspect.isclass(whole) else whole)


def fits(value: Any, kind: Any) -> bool:
    """Whether a value out of a file is of a kind, down to its entries."""
    if kind is Any:
        return True
    members = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(fits(value, member) for member in members)
    kind = typing.get_origin(kind) or kind
    if kind is dict and members:
        return isinstance(value, dict) and all(fits(each, members[1]) for each in value.values())
    if kind in (tuple, list) and members:
        return isinstance(value, kind) and all(fits(each, members[0]) for each in value)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, (int, float) if kind is float else kind)


def check_kinds(table: Table, kinds: Mapping[str, Any]) -> None:
    """Raise a ValueError where a table out of a file lacks a key, or has a value of another kind for it."""
    for key, kind in kinds.items():
        if key not in table:
            raise ValueError(f"it lacks {key!r}")
        if not fits(table[key], kind):
            raise ValueError(f"{key} must be {_described(kind)}, got {shown(table[key])}")


def _described(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", Any: "a value"}
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return f"a table, each entry of it {_described(members[1])}"
    if origin in (tuple, list):
        return f"a list, each entry of it {_described(members[0])}"
    return " or ".join(names.get(member, str(member)) for member in members or (kind,))
