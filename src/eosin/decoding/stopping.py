"""Stop strings: a completion ends when it contains one of them, as with eos. The prompt does not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eosin.errors import BadInput

MARGIN = 8
"""Tokens that are looked at beyond those that a string can have: the first of them may be part of a character."""


@dataclass(frozen=True)
class StopStrings:
    """A `Stop`: strings, and how to decode tokens to text."""

    strings: tuple[str, ...]
    text_of: Callable[[Sequence[int]], str]

    def __post_init__(self) -> None:
        if not self.strings or not all(self.strings):
            raise BadInput(f"a stop string must have at least one letter, got {self.strings!r}")

    def __call__(self, tokens: list[int]) -> bool:
        reach = max(len(string.encode()) for string in self.strings) + MARGIN
        text = self.text_of(tokens[-reach:])
        return any(string in text for string in self.strings)
