"""Python files of the user, run as modules."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from eosin.errors import BadInput


def run_python_file(path: Path, kind: str) -> ModuleType:
    """Run a file as a module of its own, so that its classes can be found by the name of the module.

    The file can import others beside it, as with `python FILE`; but none of them hides an installed package.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error}") from error
    module = ModuleType(f"eosin_{kind}_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    exec(compile(source, str(path), "exec"), vars(module))
    return module
