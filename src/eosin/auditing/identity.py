"""What tells a model from any other: what it is made of, and what it does on the first contexts.

Records and certificates carry it, and an audit resumes only where both are the same. What a model is made of is
everything that can be reached from it: weights, buffers, plain attributes of every part, and the code of classes and
functions that come with no installed package. What cannot be read, such as a generator, is named, and the audit then
asks for a name.
"""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eosin.decoding.choice import LeftToRight
from eosin.decoding.decode import completed
from eosin.decoding.next_token import NextToken
from eosin.interfaces import Generative, Prefix, Token, Uniforms
from eosin.tensor_files import digest_of

DIGITS = 16
"""Hexadecimal digits of a digest that are written down."""
TRIED_STEPS = 8
"""Steps whose logits are compared bit for bit."""
MOST_UNREADABLE = 3
"""Unreadable parts that are named."""
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
PLAIN = (type(None), bool, int, float, complex, str, bytes)
MODULE_PARTS = ("_parameters", "_buffers", "_modules")
MODULE_STATE = {*MODULE_PARTS, "training", "_non_persistent_buffers_set", "_flat_weights", "_flat_weight_refs"}
"""Attributes of every torch module that do not change its output, or that are read by other names."""


def identity(model: Generative) -> dict[str, Any]:
    """What the model is made of: `weights` of its parameters, `parts` of everything else."""
    parameters = dict(getattr(model, "named_parameters", list)())
    inventory = Inventory(skipped=parameters.values())
    parts = inventory.read(model, "model")
    return {
        "kind": type(model).__name__,
        "vocab_size": model.vocab_size,
        "eos_ids": [int(token) for token in model.eos_ids],
        "weights": digest_of({name: p.detach().cpu().contiguous() for name, p in parameters.items()})[:DIGITS],
        "parts": parts[:DIGITS],
        **({"unreadable": inventory.unreadable[:MOST_UNREADABLE]} if inventory.unreadable else {}),
    }


def behaviour(model: Generative, prefixes: Prefix, max_steps: int = TRIED_STEPS) -> str:
    """A digest of the model's distributions after some prefixes, bit for bit, and of the steps that follow."""
    witness = Witness()
    list(completed(model, prefixes, witness, max_steps=min(max_steps, TRIED_STEPS)))
    return witness.digest.hexdigest()[:DIGITS]


class Witness(LeftToRight):
    """Takes the most probable token that does not end the sequence, and hashes every distribution it sees."""

    keeps_eos = False

    def __init__(self) -> None:
        self.digest = sha256()

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token:
        self.digest.update(digest_of({"seen": next_token.log_probs().cpu().contiguous()}).encode())
        best = next_token.top(1 + len(next_token.eos_ids)).ids
        ends = torch.isin(best, next_token.eos_ids)
        return best.gather(1, ends.int().argmin(1, keepdim=True))[:, 0]


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The keys that two identities both have with different values; earlier versions had fewer."""
    return [key for key, value in here.items() if key in there and there[key] != value]


class Inventory:
    """Goes once through everything that can be reached from an object. The digest of an object is that of its contents,
    so sharing a part or copying it makes no difference.
    """

    def __init__(self, skipped: Iterable[Tensor] = ()):
        self.skipped = {id(tensor) for tensor in skipped}
        """Tensors whose values are hashed elsewhere."""
        self.unreadable: list[str] = []
        """Where the parts are that cannot be read."""
        self.ignored: set[str] = set()
        """Attributes that some part has declared to change nothing (`by_the_way`)."""
        self.known: dict[int, tuple[str, Any]] = {}
        """Digests by id, with the object itself, so that its id stays its own."""

    def read(self, value: Any, place: str) -> str:
        """The digest of an object."""
        if isinstance(value, PLAIN):
            return hashed(type(value).__qualname__, repr(value))
        if id(value) not in self.known:
            self.known[id(value)] = "one of those that it is in", value
            exact = CONTAINERS.get(type(value))
            read = exact or next(read for kinds, read in READERS if isinstance(value, kinds))
            self.known[id(value)] = hashed(type(value).__qualname__, *read(self, value, place)), value
        return self.known[id(value)][0]

    def read_all(self, values: Iterable[Any], place: str) -> str:
        return hashed(*(self.read(value, f"{place}[{number}]") for number, value in enumerate(values)))

    def read_named(self, values: Mapping[Any, Any], place: str) -> str:
        kept = [(name, value) for name, value in values.items() if not (isinstance(name, str) and name in self.ignored)]
        return hashed(*(self.read(name, place) + self.read(value, f"{place}.{name}") for name, value in kept))

    def give_up(self, value: Any, place: str) -> Iterator[str]:
        self.unreadable.append(f"{place} ({type(value).__qualname__})")
        yield "unreadable"


def hashed(*words: str) -> str:
    return sha256("".join(f"{len(word)} {word}" for word in words).encode(errors="surrogatepass")).hexdigest()


def read_tensor(inventory: Inventory, value: Tensor, place: str) -> Iterator[str]:
    yield f"{value.dtype} {tuple(value.shape)}"
    if id(value) in inventory.skipped:
        return
    try:
        yield digest_of({"": value.detach().cpu().contiguous()})
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantized or on no device
        yield from inventory.give_up(value, place)


def read_module(inventory: Inventory, value: nn.Module, place: str) -> Iterator[str]:
    """Training mode is left out, since an audit evaluates."""
    inventory.ignored |= set(getattr(value, "by_the_way", ()))
    yield inventory.read(type(value), f"{place}'s class")
    plain = {name: it for name, it in vars(value).items() if name not in MODULE_STATE and "hooks" not in name}
    yield inventory.read_named(without_cached(value, plain), place)
    # hooks are numbered in the order in which a process makes them
    hooks = [list(it.values()) for name, it in vars(value).items() if name.startswith("_forward_") and it]
    yield inventory.read_all(hooks, f"{place}'s hooks")
    for parts in MODULE_PARTS:
        yield inventory.read_named(getattr(value, parts), place)


def read_sequence(inventory: Inventory, value: Any, place: str) -> Iterator[str]:
    yield inventory.read_all(value, place)


def read_mapping(inventory: Inventory, value: Mapping[Any, Any], place: str) -> Iterator[str]:
    yield inventory.read_named(value, place)


def read_set(inventory: Inventory, value: Any, place: str) -> Iterator[str]:
    """The order of a set changes from process to process."""
    yield from sorted(inventory.read(member, place) for member in value)


def read_function(inventory: Inventory, value: types.FunctionType, place: str) -> Iterator[str]:
    yield f"{value.__module__}.{value.__qualname__}"
    if is_installed(value.__module__) and not value.__closure__:
        return
    yield inventory.read(value.__code__, place)
    yield inventory.read_all([value.__defaults__, value.__kwdefaults__], place)
    yield inventory.read_all(map(contents, value.__closure__ or ()), f"{place}'s closure")
    used = {name: value.__globals__[name] for name in names_in(value.__code__) if name in value.__globals__}
    yield inventory.read_named(used, place)


def contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def read_code(inventory: Inventory, value: types.CodeType, place: str) -> Iterator[str]:
    yield value.co_code.hex()
    for names in (value.co_names, value.co_varnames, value.co_freevars, value.co_consts):
        yield inventory.read_all(names, place)


def read_class(inventory: Inventory, value: type, place: str) -> Iterator[str]:
    """A class of an installed package is known by its name, any other by its contents."""
    yield f"{value.__module__}.{value.__qualname__}"
    if is_installed(value.__module__):
        return
    yield inventory.read_all(value.__mro__[1:], place)
    special = {name for name, it in vars(value).items() if is_special(name) and not isinstance(it, types.FunctionType)}
    yield inventory.read_named({name: it for name, it in vars(value).items() if name not in special}, place)


def is_special(name: str) -> bool:
    return name.startswith(("__", "_abc_"))


def read_wrapper(inventory: Inventory, value: Any, place: str) -> Iterator[str]:
    """A function as it stands in a class."""
    inner = [getattr(value, name, None) for name in ("__func__", "func", "fget", "fset", "__wrapped__")]
    yield inventory.read_all(inner, place)


def read_python_module(inventory: Inventory, value: types.ModuleType, place: str) -> Iterator[str]:
    """A module of one's own may hold anything."""
    yield value.__name__
    if not is_installed(value.__name__):
        yield from inventory.give_up(value, place)


def read_object(inventory: Inventory, value: Any, place: str) -> Iterator[str]:
    """Anything else by what Python would copy it from: a name, or a callable, its arguments, attributes and items."""
    inventory.ignored |= set(getattr(value, "by_the_way", ()))
    try:
        made: Any = value.__reduce_ex__(4)
    except Exception:
        yield from inventory.give_up(value, place)
        return
    if isinstance(made, str):
        yield made
        yield inventory.read(getattr(value, "__wrapped__", None), place)
        return
    make, arguments, state, items, pairs = (*made, None, None, None)[:5]
    yield inventory.read_all([make, arguments, list(items or ()), list(pairs or ())], place)
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if not isinstance(attributes, dict):
        yield inventory.read_all([attributes, slots], place)
        return
    yield inventory.read_named(without_cached(value, attributes) | (slots or {}), place)


def without_cached(value: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that are computed from others may be there or not yet."""
    kind = type(value)
    return {name: it for name, it in attributes.items() if not isinstance(getattr(kind, name, None), cached_property)}


def is_installed(module: str | None) -> bool:
    """Whether a module comes with Python or with an installed package; its code is known by its name."""
    package = (module or "").partition(".")[0]
    if package == __name__.partition(".")[0] or package in {*sys.stdlib_module_names, *sys.builtin_module_names}:
        return package != "__main__"
    place = getattr(sys.modules.get(package), "__file__", None)
    return place is not None and any(Path(place).is_relative_to(folder) for folder in INSTALLED if folder)


Reader = Callable[[Inventory, Any, str], Iterator[str]]
CONTAINERS: dict[type, Reader] = {
    **dict.fromkeys((list, tuple), read_sequence),
    **dict.fromkeys((set, frozenset), read_set),
    dict: read_mapping,
}
READERS: tuple[tuple[Any, Reader], ...] = (
    (Tensor, read_tensor),
    (nn.Module, read_module),
    (types.FunctionType, read_function),
    (types.CodeType, read_code),
    (type, read_class),
    ((staticmethod, classmethod, property, cached_property), read_wrapper),
    (types.ModuleType, read_python_module),
    (object, read_object),
)
"""How each kind of object is read; the first that fits counts."""
