"""Where tensors live and how precisely they are computed with: devices, precisions, CPU threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from eosin.errors import BadInput
from eosin.settings import check_known

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_INFO = Path("/proc/cpuinfo")
CPU_FLAGS = {
    torch.bfloat16: {"avx512_bf16", "amx_bf16", "bf16"},
    torch.float16: {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""What /proc/cpuinfo calls instructions that multiply in a precision, on x86 and on ARM."""


def choose_device(name: str = "auto") -> torch.device:
    """The device of a name; `auto` is the accelerator if there is one, else the CPU."""
    accelerator = find_accelerator()
    usable = ("cpu",) if accelerator is None else ("cpu", accelerator)
    if name == "auto":
        return torch.device(usable[-1])
    try:
        if torch.device(name).type not in usable:
            raise RuntimeError("torch has none")
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"device {name!r} cannot be used ({reason}); here you can use {' or '.join(usable)}") from error
    return torch.device(name)


def find_accelerator() -> str | None:
    """What torch calls the accelerator of this machine, as "cuda", "mps" or "xpu"; None where there is none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def has_fused_layers(device: torch.device) -> bool:
    """Whether torch runs a recurrent layer as one operation there, faster than the formulas of this package."""
    return device.type != "cpu"


def choose_exact_device(device: torch.device) -> torch.device:
    """Where the float64 arithmetic for tensors of a device happens: there, or on the CPU where it has no float64."""
    return device if has_float64(device) else torch.device("cpu")


def to_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU where its device has no float64."""
    return tensor.to(choose_exact_device(tensor.device)).double()


def has_float64(device: torch.device) -> bool:
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def choose_precision(asked: str, device: torch.device, before: str | None = None) -> str:
    """The precision of products in training; `auto` is that of the run so far, or the fastest that is safe here."""
    check_known(asked, ("auto", *PRECISIONS), "a precision")
    if before is not None and asked not in ("auto", before):
        raise BadInput(f"the run was begun in {before} and goes on in it, not in {asked}; train in a new directory")
    if asked == "float16" and device.type == "cpu":
        raise BadInput("float16 needs an accelerator; on a CPU choose float32 or bfloat16")
    if asked in PRECISIONS:
        return asked
    return before or fastest_precision(device)


def fastest_precision(device: torch.device) -> str:
    if device.type == "cpu":
        return "bfloat16" if cpu_multiplies(torch.bfloat16) else "float32"
    module = torch.get_device_module(device)
    if not isinstance(module, MixedPrecision):
        return "float32"
    return "bfloat16" if module.is_bf16_supported() else "float16"


def choose_dtype(own: torch.dtype, device: torch.device) -> torch.dtype:
    """The precision to decode in: that of the weights, or float32 on a CPU that cannot multiply in it."""
    return torch.float32 if device.type == "cpu" and own in CPU_FLAGS and not cpu_multiplies(own) else own


@cache
def cpu_multiplies(dtype: torch.dtype) -> bool:
    """Whether the CPU has instructions for products of bfloat16 or float16, and torch may use them."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    # ATEN_CPU_CAPABILITY=avx2 makes torch behave as on an older CPU
    held_back = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2") and "avx512f" in flags
    return bool(CPU_FLAGS[dtype].intersection(flags)) and not held_back


@runtime_checkable
class MixedPrecision(Protocol):
    """torch's module of a device that may multiply in bfloat16."""

    def is_bf16_supported(self) -> bool: ...


@runtime_checkable
class Network(Protocol):
    """A model with parameters, as every `torch.nn.Module` is."""

    def parameters(self) -> Iterator[Tensor]: ...

    def modules(self) -> Iterator[nn.Module]: ...


def device_of(model: object) -> torch.device | None:
    """Where the model's parameters are, if it has any."""
    parameter = next(iter(model.parameters()), None) if isinstance(model, Network) else None
    return None if parameter is None else parameter.device


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """Dropout is off inside; afterwards every module is in the mode it was in."""
    modules = [module for module in model.modules() if module.training] if isinstance(model, Network) else []
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module in modules:
            module.training = True


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Use so many CPU threads inside; None leaves their number unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def on_cpu() -> Iterator[None]:
    """Inside, tensors without an explicit device are created on the CPU, whatever the default device."""
    with torch.device("cpu"):
        yield


@contextmanager
def own_precision() -> Iterator[None]:
    """Everything inside is computed in the precision of its operands, whatever surrounds the call.

    Autocast around a call of this package does not reach the model either: the same call must give the same tokens, and
    a proof speaks of the precision of the weights. A model that is to run under autocast enters it in its own `step`.
    """
    with ExitStack() as stack:
        for kind in ("cpu", find_accelerator()):
            if kind and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        multiply_exactly(stack)
        yield


def multiply_exactly(stack: ExitStack) -> None:
    """Until the stack is closed, multiply float32 in full precision."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for single kinds of products only
        backends: Any = torch.backends
        for kind in (backends, backends.cuda.matmul, backends.mkldnn.matmul):
            if (its_own := kind.fp32_precision) not in ("none", "ieee"):
                kind.fp32_precision = "ieee"
                stack.callback(setattr, kind, "fp32_precision", its_own)
        return
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
        stack.callback(torch.set_float32_matmul_precision, before)
