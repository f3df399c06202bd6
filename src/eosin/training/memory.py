"""Keep freed memory in the process during training.

The C library returns the memory of large tensors to the system when they are freed, and every training step takes it
again, page by page. This costs a tenth of a step, and more with bfloat16 products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of mallopt, as glibc numbers them."""
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}
DEFAULTS = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 131_072}


@contextmanager
def keep_memory() -> Iterator[None]:
    """Reuse memory that is freed inside, and return it to the system at the end. Without glibc, do nothing."""
    library = ctypes.CDLL(None)
    set_option = getattr(library, "mallopt", None)
    if set_option is None:
        yield
        return
    try:
        for option, value in KEEP.items():
            set_option(option, value)
        yield
    finally:
        for option, value in DEFAULTS.items():
            set_option(option, value)
        library.malloc_trim(0)
