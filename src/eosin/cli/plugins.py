"""Plugins: Python files of the user that register truncation rules, heads or cores."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from eosin.errors import BadInput


def run_file(path: Path) -> None:
    """Run a Python file as a module of its own, so that its classes can be found by the name of the module."""
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"--plugin {path} is not UTF-8 text: {error}") from error
    module = ModuleType(f"eosin_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except Exception as error:  # the file may raise anything
        raise BadInput(f"--plugin {path} fails with {type(error).__name__}: {error}") from error
