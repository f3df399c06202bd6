"""A simulated accelerator: torch's spare device, written in Python as a strict copy of the CPU.

A tensor on the device holds a CPU tensor that only operations of the device can reach. As on CUDA, tensors of both
devices do not mix, except in copies, single numbers and indices. As on MPS, there may be no float64, not even as the
result of a copy to the CPU. Every operation is counted, views too; one that torch makes of others for every device
counts as these. A wait is an operation after which the host knows a value or a shape: a copy to the CPU is one wait,
whatever its size, and a copy from it is none.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "sim"
SOURCE = "src/eosin/"
WAITS = {
    f"aten::{name}"
    for name in ("_local_scalar_dense", "equal", "allclose", "nonzero", "masked_select", "bincount", "_unique2")
}
COPIES = {"aten::copy_", "aten::_to_copy"}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}
RESIZING = ["arange", "arange.start", "arange.start_step", "eye", "eye.m"]
"""Factories that would give an empty tensor of the device another shape, which it cannot get."""
Places = Counter[tuple[str, str]]
"""How often something happened, by the operation and the line of eosin that asked for it."""


@dataclass
class Counts:
    launches: Places = field(default_factory=Counter)
    waits: Places = field(default_factory=Counter)

    @property
    def launched(self) -> float:
        return self.launches.total()

    @property
    def waited(self) -> float:
        return self.waits.total()

    def __sub__(self, fewer: Counts) -> Counts:
        return Counts(self.launches - fewer.launches, self.waits - fewer.waits)

    def __truediv__(self, steps: int) -> Counts:
        shares = ({key: count / steps for key, count in places.items()} for places in (self.launches, self.waits))
        return Counts(*map(Counter, shares))


class Device:
    is_there = False
    has_float64 = True
    counts = Counts()


class SimTensor(Tensor):
    """A tensor on the device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> SimTensor:
        place = {"strides": held.stride(), "storage_offset": held.storage_offset(), "device": f"{NAME}:0"}
        with torch.inference_mode(False):  # a view of an ordinary tensor must be one
            tensor = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, **place)
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, given: tuple[Any, ...] = (), named: Any = None) -> Any:
        return run(operation, *given, **(named or {}))

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:
        return f"SimTensor({self.held!r})"


def run(operation: Any, *given: Any, **named: Any) -> Any:
    """One operation: the CPU tensors that are held are taken out, those that come out are held."""
    if is_composite(operation):
        return operation.decompose(*given, **named)
    name, to_cpu = operation._schema.name, False
    check_devices(name, [*given, *named.values()])
    if named.get("device") is not None:
        to_cpu = torch.device(named["device"]).type == "cpu"
        named["device"] = "cpu"
    Device.counts.launches[name, find_caller()] += 1
    if is_wait(name, given, to_cpu):
        Device.counts.waits[name, find_caller()] += 1
    if name == "aten::_thnn_fused_lstm_cell":
        return lstm_cell(*given)
    if name == "aten::_thnn_fused_gru_cell":
        return gru_cell(*given)
    made = operation(*each(take_out, given), **{key: each(take_out, value) for key, value in named.items()})
    each(check_float64, made)
    if torch.Tag.inplace_view in operation.tags:
        follow_shape(operation, *given)
    if changed := [named[key] if key in named else given[place] for place, key in list_returned(operation)]:
        return changed[0] if len(changed) == 1 else tuple(changed)
    return made if to_cpu else each(SimTensor, made)


def each(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The value with every tensor in it replaced by what the function makes of it."""
    if isinstance(value, list | tuple):
        return type(value)([each(function, it) for it in value])
    return function(value) if isinstance(value, Tensor) else value


def take_out(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, SimTensor) else tensor


def check_float64(tensor: Tensor) -> None:
    if tensor.dtype is torch.float64 and not Device.has_float64:
        raise TypeError(f"{NAME} has no float64")


def check_devices(name: str, given: list[Any]) -> None:
    """Tensors of both devices meet in copies only; single numbers and indices may come from the CPU."""
    if not Device.is_there:
        raise RuntimeError(f"there is no device {NAME}")
    tensors: list[Tensor] = []
    each(tensors.append, given[:1] + given[2:] if name in INDEXING and isinstance(given[0], SimTensor) else given)
    foreign = [it for it in tensors if not isinstance(it, SimTensor) and it.dim() > 0]
    if 0 < len(foreign) < len(tensors) and name not in COPIES:
        raise RuntimeError(f"{name}: expected all tensors on one device, got {NAME} and cpu")


def is_wait(name: str, given: tuple[Any, ...], to_cpu: bool) -> bool:
    """Whether the host waits: also for a copy to it, and for the number of ones in a mask that selects."""
    if name == "aten::_to_copy":
        return to_cpu and isinstance(given[0], SimTensor)
    if name == "aten::copy_":
        return isinstance(given[1], SimTensor) and not isinstance(given[0], SimTensor)
    if name in INDEXING and any(isinstance(it, SimTensor) and it.dtype is torch.bool for it in given[1]):
        return name == "aten::index" or given[2].dim() > 0  # a single number is written without counting
    return name in WAITS


@cache
def is_composite(operation: Any) -> bool:
    """Whether torch makes an operation of others for every device; in inference mode it leaves that to the device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CompositeImplicitAutograd")


@cache
def list_returned(operation: Any) -> list[tuple[int, str]]:
    """Places and names of the arguments that an operation changes and returns."""

    def is_changed(value: Any) -> bool:
        return value.alias_info is not None and value.alias_info.is_write

    schema = operation._schema
    if not schema.returns or not all(map(is_changed, schema.returns)):
        return []
    return [(place, argument.name) for place, argument in enumerate(schema.arguments) if is_changed(argument)]


def follow_shape(operation: Any, *given: Any) -> None:
    """Give a tensor of the device the shape that the tensor it holds has got in place."""
    with no_dispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        operation(*given)
        torch._C._set_meta_in_tls_dispatch_include(before)


def find_caller() -> str:
    """The innermost line of eosin that is being run."""
    frame: Any = sys._getframe()
    while frame is not None and SOURCE not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    return f"{frame.f_code.co_filename.partition(SOURCE)[2]}:{frame.f_lineno} {frame.f_code.co_name}"


def lstm_cell(of_inputs: Tensor, of_hidden: Tensor, cell: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Torch asks accelerators for it, and not the CPU, which cannot stand in."""
    enter, keep, new, show = sum(biases, of_inputs + of_hidden).chunk(4, 1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return show.sigmoid() * cell.tanh(), cell, of_inputs


def gru_cell(of_inputs: Tensor, of_hidden: Tensor, hidden: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """As `lstm_cell`."""
    if biases:
        of_inputs, of_hidden = of_inputs + biases[0], of_hidden + biases[1]
    reset_in, update_in, new_in = of_inputs.chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = of_hidden.chunk(3, 1)
    update = (update_in + update_hidden).sigmoid()
    new = (new_in + (reset_in + reset_hidden).sigmoid() * new_hidden).tanh()
    return new + update * (hidden - new), of_inputs


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """By this `torch.tensor` moves what it has made on the CPU."""
    return run(torch.ops.aten.copy_.default, target, source)


class Module:
    """What torch asks of the module of a device."""

    is_available = is_initialized = staticmethod(lambda: Device.is_there)
    device_count = staticmethod(lambda: int(Device.is_there))
    current_device = staticmethod(lambda: 0)
    get_amp_supported_dtype = staticmethod(lambda: [torch.float32, torch.bfloat16])
    manual_seed_all = set_rng_state = staticmethod(lambda *_: None)
    get_rng_state = staticmethod(lambda device: None)
    _is_in_bad_fork = staticmethod(lambda: False)


class Hook(torch._C._acc.PrivateUse1Hooks):
    """What torch's C++ asks."""

    def is_available(self) -> bool:
        return Device.is_there

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, number: int) -> bool:
        return Device.is_there


def register() -> list[torch.library.Library]:
    """Make the device known to torch. What a library registers lasts as long as the library."""
    _setup_privateuseone_for_python_backend(NAME, Module, Hook())
    every, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(run, dispatch_key="PrivateUse1")
    for name in RESIZING:
        family, _, variant = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, family), variant or "default")
        some.impl(name, partial(run, operation), "PrivateUse1")
    some.impl("_copy_from", copy_from, "PrivateUse1")
    some.impl("_thnn_fused_lstm_cell", lstm_cell, "AutogradPrivateUse1")
    some.impl("_thnn_fused_gru_cell", gru_cell, "AutogradPrivateUse1")
    return [every, some]


# when the module is imported: after the first backward pass of a process autograd takes no more devices
REGISTERED = register()


@contextmanager
def simulated_accelerator(float64: bool = True) -> Iterator[Counts]:
    """The device is there inside, with or without float64, and is counted. Outside, torch knows that it is not."""
    Device.is_there, Device.has_float64, Device.counts = True, float64, Counts()
    try:
        yield Device.counts
    finally:
        Device.is_there = False
