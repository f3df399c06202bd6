"""Folded text: what repeats is shown once, with the number of times."""

from __future__ import annotations

import re
from collections.abc import Sequence

Fold = tuple[str, int]
"""A text, and how often it comes."""
Part = tuple[str, str]
"""A text, and how often it comes in words; empty for text that comes once."""
LONGEST_TURN = 64
LEAST_TURNS, LEAST_UNITS = 3, 6
"""What repeats less often, or is shorter, is not folded."""
MOST_UNITS = 4000
LONGEST_WORD = 80
"""In text with longer words, letters are compared instead of words."""
FOR_EVER, TO_THE_LIMIT = "for ever (proved)", "again and again, to the limit"


def fold(text: str) -> list[Fold]:
    """The text in parts, of which some come several times."""
    units, rest = split_units(text)
    keys = [unit.strip() or unit for unit in units]
    parts: list[Fold] = []
    start = place = 0
    while place < len(units):
        period, turns = find_repetition(keys, place)
        if not turns:
            place += 1
            continue
        if place > start:
            parts.append(("".join(units[start:place]), 1))
        parts.append(("".join(units[place : place + period]), turns))
        start = place = place + period * turns
    last = "".join(units[start:]) + rest
    if parts and parts[-1][1] > 1:  # what was too long to be compared may go on like that
        turn, turns = parts[-1]
        more = count_turns(last, turn)
        parts[-1] = turn, turns + more
        last = last[more * len(turn) :]
    return [*parts, (last, 1)] if last else parts


def count_turns(text: str, turn: str) -> int:
    """How often a text begins with a turn."""
    count = 0
    while text.startswith(turn, count * len(turn)):
        count += 1
    return count


def split_units(text: str) -> tuple[list[str], str]:
    """Words with the space before them, or letters; and what is left of a very long text."""
    words = re.findall(r"\s*\S+|\s+$", text)
    units = list(text) if max(map(len, words), default=0) > LONGEST_WORD else words
    return units[:MOST_UNITS], "".join(units[MOST_UNITS:])


def find_repetition(keys: Sequence[str], place: int) -> tuple[int, int]:
    """The shortest period with which the units from a place on repeat, and how often; 0 times if they do not."""
    for period in range(1, min(LONGEST_TURN, (len(keys) - place) // LEAST_TURNS) + 1):
        end = place
        while end + period < len(keys) and keys[end] == keys[end + period]:
            end += 1
        turns = 1 + (end - place) // period
        if turns >= LEAST_TURNS and turns * period >= LEAST_UNITS:
            return period, turns
    return 0, 0


def fold_completion(text: str, before: str | None, is_proved: bool, is_whole: bool = True) -> list[Part]:
    """A completion in parts. `before` is what comes before its endless loop, if it has one."""
    if before is None:
        return describe_folds(fold(text))
    parts = [*fold(text[len(before) :]), ("", 1)]
    start = next((place for place, (_, turns) in enumerate(parts) if turns > 1), 0)  # it may begin within a word
    turn, turns = parts[start]
    times = f"x {turns:,}" if turns > 1 and is_whole else TO_THE_LIMIT
    return [*describe_folds([*fold(before), *parts[:start]]), (turn, FOR_EVER if is_proved else times)]


def describe_folds(folds: Sequence[Fold]) -> list[Part]:
    return [(text, f"x {times:,}" if times > 1 else "") for text, times in folds]


def shorten_parts(parts: Sequence[Part], most: int) -> list[Part]:
    """At most so many characters of all parts; what is left out is counted. The last part is always kept."""
    room, shown = most, list[Part]()
    for place, (text, times) in enumerate(parts):
        is_last = place == len(parts) - 1
        if room <= 0 and not is_last:
            continue
        allowed = max(room, most // 4) if is_last else room
        left_out = len(text) - allowed
        shown.append((f"{text[:allowed]} … ({left_out:,} more characters)" if left_out > 0 else text, times))
        room -= len(text)
    return shown
