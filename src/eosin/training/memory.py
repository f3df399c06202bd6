"""Memory that stays with the process while it trains.

The C library gives the memory of large tensors back to the system as soon as they are freed, and every step of training
takes it anew, page by page. That is a tenth of the time of a step, and more with products in bfloat16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of mallopt, as glibc numbers them."""
KEEPING = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}
USUAL = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 131_072}


@contextmanager
def keeping_memory() -> Iterator[None]:
    """What is freed inside is used again, and goes back to the system at the end; nothing happens without glibc."""
    library = ctypes.CDLL(None)
    set_option = getattr(library, "mallopt", None)
    if set_option is None:
        yield
        return
    try:
        for option, value in KEEPING.items():
            set_option(option, value)
        yield
    finally:
        for option, value in USUAL.items():
            set_option(option, value)
        library.malloc_trim(0)
