"""The command line in tests: run here or in a process of its own, and what it leaves in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from eosin.cli.main import main

SETTINGS = """
[data]
source = "text.txt"
tokenization = "word"

[core]
kind = "tanh"
width = 8

[head]
kind = "softmax"

[training]
epochs = 2
"""


def run(*arguments: str) -> int:
    try:
        main(arguments)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 0
    return 0


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def start(*arguments: str, **more: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "eosin", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **more,
    )
