"""The type checker of the test run: shapes and types are checked on the first calls of every function in every test.

Checking every call takes more time than all else together: a decoding calls the same few functions thousands of times.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

FIRST = 3
THEN_EVERY = 50

# an int will do for a float, as PEP 484 has it
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
calls: Counter[int] = Counter()
"""How often each function was called in this test."""


def check_first_calls(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for `jaxtyping.jaxtyped`, by which jaxtyping's import hook decorates functions and dataclasses."""

    def decorate(decorated: Any = None, *, typechecker: Any) -> Any:
        if decorated is None:
            return functools.partial(decorate, typechecker=typechecker)
        if isinstance(decorated, type):
            if dataclasses.is_dataclass(decorated) and "__init__" in vars(decorated):
                decorated.__init__ = decorate(decorated.__init__, typechecker=typechecker)
            return decorated
        # to make a checked function takes a millisecond, and most are never called
        make_checked = functools.cache(functools.partial(jaxtyped, decorated, typechecker=typechecker))
        key = id(make_checked)

        @functools.wraps(decorated)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            calls[key] += 1
            if calls[key] <= FIRST or calls[key] % THEN_EVERY == 0:
                return make_checked()(*args, **kwargs)
            return decorated(*args, **kwargs)

        return call

    return decorate


def install() -> None:
    jaxtyping.jaxtyped = check_first_calls(jaxtyping.jaxtyped)
    jaxtyping.install_import_hook("eosin", "typecheck.checked")
