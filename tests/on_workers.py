"""Audits on workers in tests, and what they must leave behind: nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import run

TESTS = Path(__file__).parent
MODEL = f"py:{TESTS / 'small_model.py'}:load"
DECODERS = "greedy,nucleus:0.8,beam:2"


@contextmanager
def use_empty_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Commands are given in this folder, their workers find the tests, and their home folder stays empty."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
    home = folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    yield
    assert not list(home.iterdir())


def write_prompts(contexts: int = 30) -> None:
    lines = [" ".join(str(3 + (7 * n + m * m) % 21) for m in range(5)) for n in range(contexts)]
    Path("prompts.txt").write_text("".join(f"{line}\n" for line in lines))


def audit(out: str, *more: str, model: str = MODEL) -> list[str]:
    return [
        "audit",
        model,
        "--prompts",
        "prompts.txt",
        "--decoders",
        DECODERS,
        "--max-steps",
        "150",
        "--out",
        out,
        *more,
    ]


def here(*more: str) -> bytes:
    """The records of an audit without workers."""
    assert run(*audit("here.jsonl", "--threads", "1", *more)) == 0
    return Path("here.jsonl").read_bytes()


def list_children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait_for(happens: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)
