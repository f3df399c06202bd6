"""The identity of a model: digests of what it is made of, and of what it does on the first contexts.

Records and certificates carry it, and an audit resumes only if both are the same. A model is made of everything that
can be reached from it: weights, buffers, attributes of every part, and the code of its classes and functions. Code of
installed packages is identified by its name. Parts that cannot be read, such as generators, are listed, and an audit
then asks for a name.
"""

from __future__ import annotations

import copyreg
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eosin.contracts import Decoder, Digested, Generative, Prefix, Token, Uniforms
from eosin.decoding.decode import complete
from eosin.decoding.distribution import NextToken
from eosin.decoding.job import Job
from eosin.decoding.samplers import LeftToRight
from eosin.decoding.spec import is_specified
from eosin.devices import eval_mode
from eosin.storage.tensors import hash_tensors

DIGITS = 16
"""Hexadecimal digits of a digest in a record."""
TRIED_STEPS = 8
"""Steps whose logits are compared bit for bit."""
MOST_UNREADABLE = 3
"""Unreadable parts that are listed."""
MOST_LEVELS = 100
"""Nested objects that are read; Python's recursion limit allows few more."""
INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
"""Packages of the system or of a user are in folders with these names, wherever they are."""
PLAIN = (type(None), bool, int, float, complex, str, bytes)
MODULE_PARTS = ("_parameters", "_buffers", "_modules")
HOOKS = {name for name in vars(nn.Module()) if "hooks" in name}
FORWARD_HOOKS = sorted(name for name in HOOKS if name.startswith("_forward_"))
NOT_IN_IDENTITY = {
    *MODULE_PARTS, *HOOKS, "_non_persistent_buffers_set", "_flat_weights", "_flat_weight_refs",
    "_compiled_call_impl",  # the digest of the behaviour covers its effect
}  # fmt: skip
"""Attributes of every torch module that do not change its output, or that are read in another way."""
COPYING = ("__reduce_ex__", "__reduce__", "__getstate__")
"""Methods by which an object declares how to copy it."""


def identify(model: Generative) -> dict[str, Any]:
    """What the model is made of: `weights` is a digest of its parameters, `parts` of everything else."""
    parameters = dict(getattr(model, "named_parameters", list)())
    inventory = Inventory(hashed_elsewhere=parameters)
    with eval_mode(model):
        parts = inventory.read(model, "model")
    return {
        "kind": type(model).__name__,
        "vocab_size": model.vocab_size,
        "eos_ids": [int(token) for token in model.eos_ids],
        "weights": hash_tensors({name: p.detach().cpu().contiguous() for name, p in parameters.items()})[:DIGITS],
        "parts": parts[:DIGITS],
        **({"digest": str(model.weights_digest)} if isinstance(model, Digested) else {}),
        **({"unreadable": inventory.unreadable[:MOST_UNREADABLE]} if inventory.unreadable else {}),
    }


def identify_decoder(decoder: Decoder) -> dict[str, Any]:
    """What a custom decoder is made of, as `made_of`; other decoders are identified by their specifications."""
    decoder = getattr(decoder, "sampler", decoder)  # of the survival estimator
    if is_specified(decoder):
        return {}
    inventory = Inventory()
    parts = inventory.read(decoder, "decoder")[:DIGITS]
    return {"made_of": [parts, *inventory.unreadable[:MOST_UNREADABLE]]}


def hash_behaviour(model: Generative, prefixes: Prefix, max_steps: int = TRIED_STEPS) -> str:
    """A digest of the model's distributions after some prefixes and the steps that follow, bit for bit."""
    witness = HashingDecoder()
    list(complete(Job.create(model, prefixes, max_steps=min(max_steps, TRIED_STEPS)), witness))
    return witness.digest.hexdigest()[:DIGITS]


class HashingDecoder(LeftToRight):
    """Takes the most probable token that does not end the sequence, and hashes every distribution."""

    def __init__(self) -> None:
        self.digest = sha256()

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token:
        self.digest.update(hash_tensors({"seen": next_token.log_probs().cpu().contiguous()}).encode())
        best = next_token.top(1 + len(next_token.eos_ids)).ids
        ends = torch.isin(best, next_token.eos_ids)
        return best.gather(1, ends.int().argmin(1, keepdim=True))[:, 0]


def find_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The keys that two identities share with different values; those of earlier versions have fewer keys."""
    return [key for key, value in here.items() if key in there and there[key] != value]


class Inventory:
    """Reads everything that can be reached from an object, each part once. The digest of an object is that of its
    contents, so sharing or copying a part makes no difference.
    """

    def __init__(self, hashed_elsewhere: Mapping[str, Tensor] | None = None):
        self.names = {id(tensor): name for name, tensor in (hashed_elsewhere or {}).items()}
        """The names of tensors whose values are hashed elsewhere, by id."""
        self.unreadable: list[str] = []
        """The places of parts that cannot be read."""
        self.ignored: set[str] = set()
        """Attributes that a surrounding part declares to change nothing (`not_in_identity`)."""
        self.known: dict[int, tuple[str, Any]] = {}
        """Digests by id. The object itself is kept, so that no other one gets its id."""
        self.inside: dict[int, int] = {}
        """The nested objects that are being read, and their levels."""

    def read(self, value: Any, place: str) -> str:
        """The digest of an object."""
        if type(value) in PLAIN:
            return hash_words(type(value).__qualname__, repr(value))
        if id(value) in self.inside:
            return f"{len(self.inside) - self.inside[id(value)]} levels up"
        if id(value) not in self.known:
            read = READERS_OF_TYPES.get(type(value)) or next(
                read for kinds, read in READERS if isinstance(value, kinds)
            )
            if len(self.inside) == MOST_LEVELS:
                read = Inventory.note_unreadable
            self.inside[id(value)] = len(self.inside)
            self.known[id(value)] = hash_words(type(value).__qualname__, *read(self, value, place)), value
            self.inside.popitem()
        return self.known[id(value)][0]

    def read_sequence(self, values: Iterable[Any], place: str) -> Iterator[str]:
        yield hash_words(*(self.read(value, f"{place}[{number}]") for number, value in enumerate(values)))

    def read_mapping(self, values: Mapping[Any, Any], place: str) -> Iterator[str]:
        kept = [(name, value) for name, value in values.items() if not (isinstance(name, str) and name in self.ignored)]
        yield hash_words(*(self.read(name, place) + self.read(value, f"{place}.{name}") for name, value in kept))

    def read_set(self, values: Iterable[Any], place: str) -> Iterator[str]:
        """Sorted, because the order of a set differs between processes."""
        yield from sorted(self.read(value, place) for value in values)

    @contextmanager
    def ignore_declared(self, part: Any) -> Iterator[None]:
        """While a part is read, ignore the attributes that it declares to change nothing."""
        before = self.ignored
        self.ignored = before | set(getattr(part, "not_in_identity", ()))
        yield
        self.ignored = before

    def note_unreadable(self, value: Any, place: str) -> Iterator[str]:
        self.unreadable.append(f"{place} ({type(value).__qualname__})")
        yield "unreadable"


def hash_words(*words: str) -> str:
    return sha256("".join(f"{len(word)} {word}" for word in words).encode(errors="surrogatepass")).hexdigest()


def read_tensor(inventory: Inventory, value: Tensor, place: str) -> Iterator[str]:
    yield f"{value.dtype} {tuple(value.shape)}"
    if id(value) in inventory.names:
        yield inventory.names[id(value)]  # parts of one shape may be used in another order
        return
    try:
        yield hash_tensors({"": value.detach().cpu().contiguous()})
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantized or on no device
        yield from inventory.note_unreadable(value, place)


def read_module(inventory: Inventory, value: nn.Module, place: str) -> Iterator[str]:
    """Attributes include the training mode: an audit switches it off only in modules that the model has registered."""
    with inventory.ignore_declared(value):
        yield inventory.read(type(value), f"{place}'s class")
        plain = {name: it for name, it in vars(value).items() if name not in NOT_IN_IDENTITY}
        yield from inventory.read_mapping(drop_cached(value, plain), place)
        # hooks are numbered in the order in which a process makes them
        hooks = [list(made.values()) for name in FORWARD_HOOKS if (made := vars(value).get(name))]
        yield from inventory.read_sequence(hooks, f"{place}'s hooks")
        for parts in MODULE_PARTS:
            yield from inventory.read_mapping(getattr(value, parts), place)


def read_function(inventory: Inventory, value: types.FunctionType, place: str) -> Iterator[str]:
    yield f"{value.__module__}.{value.__qualname__}"
    defined_in = value.__globals__.get("__name__")  # functools.wraps copies the __module__ of another function
    if is_installed(value.__module__) and is_installed(defined_in) and not value.__closure__:
        return
    yield inventory.read(value.__code__, place)
    yield from inventory.read_sequence([value.__defaults__, value.__kwdefaults__, vars(value)], place)
    yield from inventory.read_sequence(map(read_cell, value.__closure__ or ()), f"{place}'s closure")
    used = {name: value.__globals__[name] for name in list_used_names(value.__code__) if name in value.__globals__}
    yield from inventory.read_mapping(used, place)


def read_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def list_used_names(code: types.CodeType) -> Iterator[str]:
    """The names that a function uses, and the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from list_used_names(constant)


def read_code(inventory: Inventory, value: types.CodeType, place: str) -> Iterator[str]:
    names = [value.co_names, value.co_varnames, value.co_freevars, value.co_consts]
    yield from inventory.read_sequence([value.co_code, *names], place)


def read_class(inventory: Inventory, value: type, place: str) -> Iterator[str]:
    """A class of an installed package by its name, any other by its contents."""
    yield f"{value.__module__}.{value.__qualname__}"
    if is_installed(value.__module__):
        return
    if type(value) is not type:
        yield inventory.read(type(value), f"{place}'s class")
    yield from inventory.read_sequence(value.__mro__[1:], place)
    members = {
        name: it
        for name, it in vars(value).items()
        if isinstance(it, types.FunctionType) or not name.startswith(("__", "_abc_"))
    }
    yield from inventory.read_mapping(members, place)


def read_wrapper(inventory: Inventory, value: Any, place: str) -> Iterator[str]:
    """A function in a class, under a decorator such as `property`."""
    inner = [getattr(value, name, None) for name in ("__func__", "func", "fget", "fset", "__wrapped__")]
    yield from inventory.read_sequence(inner, place)


def read_python_module(inventory: Inventory, value: types.ModuleType, place: str) -> Iterator[str]:
    """An installed module by its name; any other may hold anything."""
    yield value.__name__
    if not is_installed(value.__name__):
        yield from inventory.note_unreadable(value, place)


def read_object(inventory: Inventory, value: Any, place: str) -> Iterator[str]:
    """Any other object by what `copy` makes it from: a name, or a callable, its arguments, attributes and items."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:
        yield from inventory.note_unreadable(value, place)
        return
    with inventory.ignore_declared(value):
        if customizes_copying(type(value)):  # and may leave out what changes the output
            yield from read_state(inventory, value, object.__getstate__(value), place)
        if isinstance(reduced, str):
            yield f"{getattr(value, '__module__', None)}.{reduced}"
            yield inventory.read(getattr(value, "__wrapped__", None), place)
            return
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        yield from inventory.read_sequence([make, arguments, list(items or ()), list(pairs or ())], place)
        yield from read_state(inventory, value, state, place)


def customizes_copying(kind: type) -> bool:
    """Whether a class that is not installed declares how to copy its objects."""
    return not all(is_installed(getattr(getattr(kind, name), "__module__", "builtins")) for name in COPYING)


def read_state(inventory: Inventory, value: Any, state: Any, place: str) -> Iterator[str]:
    """Attributes and slots; or whatever else an object keeps."""
    has_slots = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)
    attributes, slots = state if has_slots else (state, None)
    if isinstance(attributes, dict):
        yield from inventory.read_mapping(drop_cached(value, attributes) | (slots or {}), place)
    else:
        yield from inventory.read_sequence([attributes, slots], place)


def drop_cached(value: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes without cached properties, which may be computed already or not yet."""
    kind = type(value)
    return {name: it for name, it in attributes.items() if not isinstance(getattr(kind, name, None), cached_property)}


def is_installed(module: str | None) -> bool:
    """Whether a module comes with Python, with an installed package or with Eosin."""
    package, own = (module or "").partition(".")[0], __name__.partition(".")[0]
    if package == "__main__":
        return False
    loaded = sys.modules.get(package)
    place = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", ())), None)
    if package == own or place is None:
        return package in {own, *sys.stdlib_module_names}
    path = Path(place)
    return bool(PACKAGE_FOLDERS & set(path.parts)) or any(path.is_relative_to(folder) for folder in INSTALLED if folder)


Reader = Callable[[Inventory, Any, str], Iterator[str]]
READERS_OF_TYPES: dict[type, Reader] = {
    **dict.fromkeys((list, tuple), Inventory.read_sequence),
    **dict.fromkeys((set, frozenset), Inventory.read_set),
    **dict.fromkeys((dict, types.MappingProxyType), Inventory.read_mapping),
}
"""For these types and not for subclasses, which may have attributes."""
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
"""For all other objects: the first that fits."""
