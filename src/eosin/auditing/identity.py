"""What tells a model from any other: what it is made of, and what it does on the first contexts.

Records and certificates carry it, and an audit resumes only where both are the same. What a model is made of is
everything that can be reached from it: weights, buffers, plain attributes of every part, and the code of classes and
functions that come with no installed package. What cannot be read, such as a generator, is named, and the audit then
asks for a name.
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

from eosin.contracts import Decoder, Generative, Prefix, Token, Uniforms
from eosin.decoding.decode import complete
from eosin.decoding.distribution import NextToken
from eosin.decoding.job import Job
from eosin.decoding.samplers import LeftToRight
from eosin.decoding.spec import is_specified
from eosin.devices import eval_mode
from eosin.storage.tensors import digest_of

DIGITS = 16
"""Hexadecimal digits of a digest that are written down."""
TRIED_STEPS = 8
"""Steps whose logits are compared bit for bit."""
MOST_UNREADABLE = 3
"""Unreadable parts that are named."""
MOST_LEVELS = 100
"""Objects inside objects that are read; Python allows not many more."""
INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
"""Packages of the system or of a user lie in folders of these names, wherever they are."""
PLAIN = (type(None), bool, int, float, complex, str, bytes)
MODULE_PARTS = ("_parameters", "_buffers", "_modules")
MODULE_STATE = {
    *MODULE_PARTS, "_non_persistent_buffers_set", "_flat_weights", "_flat_weight_refs",
    "_compiled_call_impl",  # what it does is tried, as with every model
}  # fmt: skip
"""Attributes of every torch module that do not change its output, or that are read by other names."""
HOOKS = {name for name in vars(nn.Module()) if "hooks" in name}
FORWARD_HOOKS = sorted(name for name in HOOKS if name.startswith("_forward_"))
COPYING = ("__reduce_ex__", "__reduce__", "__getstate__")
"""Methods by which an object says what it would be copied from."""


def identity(model: Generative) -> dict[str, Any]:
    """What the model is made of: `weights` of its parameters, `parts` of everything else."""
    parameters = dict(getattr(model, "named_parameters", list)())
    inventory = Inventory(hashed_elsewhere=parameters)
    with eval_mode(model):
        parts = inventory.read(model, "model")
    return {
        "kind": type(model).__name__,
        "vocab_size": model.vocab_size,
        "eos_ids": [int(token) for token in model.eos_ids],
        "weights": digest_of({name: p.detach().cpu().contiguous() for name, p in parameters.items()})[:DIGITS],
        "parts": parts[:DIGITS],
        **({"unreadable": inventory.unreadable[:MOST_UNREADABLE]} if inventory.unreadable else {}),
    }


def identity_of_decoder(decoder: Decoder) -> dict[str, Any]:
    """What a decoder of one's own is made of, as `made_of`; of any other, its specification says it all."""
    decoder = getattr(decoder, "sampler", decoder)  # of the survival estimator
    if is_specified(decoder):
        return {}
    inventory = Inventory()
    parts = inventory.read(decoder, "decoder")[:DIGITS]
    return {"made_of": [parts, *inventory.unreadable[:MOST_UNREADABLE]]}


def behaviour(model: Generative, prefixes: Prefix, max_steps: int = TRIED_STEPS) -> str:
    """A digest of the model's distributions after some prefixes, bit for bit, and of the steps that follow."""
    witness = Witness()
    list(complete(Job.create(model, prefixes, max_steps=min(max_steps, TRIED_STEPS)), witness))
    return witness.digest.hexdigest()[:DIGITS]


class Witness(LeftToRight):
    """Takes the most probable token that does not end the sequence, and hashes every distribution it sees."""

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

    def __init__(self, hashed_elsewhere: Mapping[str, Tensor] | None = None):
        self.names = {id(tensor): name for name, tensor in (hashed_elsewhere or {}).items()}
        """Of tensors whose values are hashed elsewhere, by id."""
        self.unreadable: list[str] = []
        """Where the parts are that cannot be read."""
        self.ignored: set[str] = set()
        """Attributes that some part has declared to change nothing (`by_the_way`)."""
        self.known: dict[int, tuple[str, Any]] = {}
        """Digests by id, with the object itself, so that its id stays its own."""
        self.inside: dict[int, int] = {}
        """The objects that are being read, each inside the one before it, and their level."""

    def read(self, value: Any, place: str) -> str:
        """The digest of an object."""
        if type(value) in PLAIN:
            return hashed(type(value).__qualname__, repr(value))
        if id(value) in self.inside:
            return f"{len(self.inside) - self.inside[id(value)]} levels up"
        if id(value) not in self.known:
            exact = CONTAINERS.get(type(value))
            read = exact or next(read for kinds, read in READERS if isinstance(value, kinds))
            if len(self.inside) == MOST_LEVELS:
                read = Inventory.give_up
            self.inside[id(value)] = len(self.inside)
            self.known[id(value)] = hashed(type(value).__qualname__, *read(self, value, place)), value
            self.inside.popitem()
        return self.known[id(value)][0]

    def read_all(self, values: Iterable[Any], place: str) -> str:
        return hashed(*(self.read(value, f"{place}[{number}]") for number, value in enumerate(values)))

    def read_named(self, values: Mapping[Any, Any], place: str) -> str:
        kept = [(name, value) for name, value in values.items() if not (isinstance(name, str) and name in self.ignored)]
        return hashed(*(self.read(name, place) + self.read(value, f"{place}.{name}") for name, value in kept))

    @contextmanager
    def ignoring(self, part: Any) -> Iterator[None]:
        """While a part is read, attributes are ignored that it declares to change nothing."""
        before = self.ignored
        self.ignored = before | set(getattr(part, "by_the_way", ()))
        yield
        self.ignored = before

    def give_up(self, value: Any, place: str) -> Iterator[str]:
        self.unreadable.append(f"{place} ({type(value).__qualname__})")
        yield "unreadable"


def hashed(*words: str) -> str:
    return sha256("".join(f"{len(word)} {word}" for word in words).encode(errors="surrogatepass")).hexdigest()


def read_tensor(inventory: Inventory, value: Tensor, place: str) -> Iterator[str]:
    yield f"{value.dtype} {tuple(value.shape)}"
    if id(value) in inventory.names:
        yield inventory.names[id(value)]  # which of them it is: parts of one shape may be used in another order
        return
    try:
        yield digest_of({"": value.detach().cpu().contiguous()})
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantized or on no device
        yield from inventory.give_up(value, place)


def read_module(inventory: Inventory, value: nn.Module, place: str) -> Iterator[str]:
    """An audit evaluates every module that the model knows of; any other one stays in the mode that it is in."""
    with inventory.ignoring(value):
        yield inventory.read(type(value), f"{place}'s class")
        plain = {name: it for name, it in vars(value).items() if name not in MODULE_STATE | HOOKS}
        yield inventory.read_named(without_cached(value, plain), place)
        # hooks are numbered in the order in which a process makes them
        hooks = [list(made.values()) for name in FORWARD_HOOKS if (made := vars(value).get(name))]
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
    made_in = value.__globals__.get("__name__")  # functools.wraps gives a function the __module__ of another one
    if is_installed(value.__module__) and is_installed(made_in) and not value.__closure__:
        return
    yield inventory.read(value.__code__, place)
    yield inventory.read_all([value.__defaults__, value.__kwdefaults__], place)
    yield inventory.read_all(map(contents, value.__closure__ or ()), f"{place}'s closure")
    used = {name: value.__globals__[name] for name in names_in(value.__code__) if name in value.__globals__}
    yield inventory.read_named(used, place)
    if vars(value):
        yield inventory.read_named(vars(value), place)


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
    if type(value) is not type:
        yield inventory.read(type(value), f"{place}'s class")
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
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        made: Any = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:
        yield from inventory.give_up(value, place)
        return
    with inventory.ignoring(value):
        if copies_in_its_own_way(type(value)):
            yield from read_state(inventory, value, object.__getstate__(value), place)
        if isinstance(made, str):
            yield f"{getattr(value, '__module__', None)}.{made}"
            yield inventory.read(getattr(value, "__wrapped__", None), place)
            return
        make, arguments, state, items, pairs = (*made, None, None, None)[:5]
        yield inventory.read_all([make, arguments, list(items or ()), list(pairs or ())], place)
        yield from read_state(inventory, value, state, place)


def copies_in_its_own_way(kind: type) -> bool:
    """Whether a class of one's own says what it would be copied from; it may leave out what changes the output."""
    return not all(is_installed(getattr(getattr(kind, name), "__module__", "builtins")) for name in COPYING)


def read_state(inventory: Inventory, value: Any, state: Any, place: str) -> Iterator[str]:
    """Attributes, with those in slots apart; or whatever an object of another kind keeps."""
    has_slots = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)
    attributes, slots = state if has_slots else (state, None)
    if isinstance(attributes, dict):
        yield inventory.read_named(without_cached(value, attributes) | (slots or {}), place)
    else:
        yield inventory.read_all([attributes, slots], place)


def without_cached(value: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that are computed from others may be there or not yet."""
    kind = type(value)
    return {name: it for name, it in attributes.items() if not isinstance(getattr(kind, name, None), cached_property)}


def is_installed(module: str | None) -> bool:
    """Whether a module comes with Python or with an installed package; its code is known by its name."""
    package = (module or "").partition(".")[0]
    if package == "__main__":
        return False
    loaded = sys.modules.get(package)
    place = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", ())), None)
    if package == __name__.partition(".")[0] or place is None:
        return package in {__name__.partition(".")[0], *sys.stdlib_module_names}
    path = Path(place)
    return bool(PACKAGE_FOLDERS & set(path.parts)) or any(path.is_relative_to(folder) for folder in INSTALLED if folder)


Reader = Callable[[Inventory, Any, str], Iterator[str]]
CONTAINERS: dict[type, Reader] = {
    **dict.fromkeys((list, tuple), read_sequence),
    **dict.fromkeys((set, frozenset), read_set),
    **dict.fromkeys((dict, types.MappingProxyType), read_mapping),
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
