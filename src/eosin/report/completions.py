"""A sample of completions for the page, out of files of any size."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from eosin.causes import Cause
from eosin.report.charts import pick_evenly
from eosin.report.folding import Part, fold_completion, shorten_parts
from eosin.report.traces import Example
from eosin.storage.json_lines import parse_lines

MOST_SHOWN = 50
"""Completions in a sample, for each decoder and each cause of ending."""
MOST_CARDS, LEAST_SHOWN = 400, 3
"""Completions of all samples together, and of each at least."""
MOST_CHARACTERS, LEAST_CHARACTERS = 2**20, 1200
"""Characters of all completions on the page, after folding, and of each at least. A prefix has the least."""
PADDING = re.compile(r"<pad>\s*|<bos>\s*")
HERO_PAIRS, HERO_CHARACTERS = 3, 240
"""Completions before and after on the first screen, and how long they are at most."""
NAME_CHARACTERS = 80
"""Of a prefix that names its context."""


class CompletionLoop(Struct, frozen=True):
    before: str


class CompletionLine(Struct, frozen=True):
    """What the page reads of a line of `eosin audit --completions`."""

    decoder: str
    context: int
    cause: str
    steps: int
    text: str
    model: str = ""
    prefix: str = ""
    loop: CompletionLoop | None = None


class Card(Struct, frozen=True):
    """A completion as the page shows it."""

    model: str
    decoder: str
    context: int
    cause: str
    steps: int
    prefix: str
    parts: list[Part]

    @property
    def by(self) -> str:
        return f"{self.model}, {self.decoder}" if self.model else self.decoder

    @property
    def ends(self) -> bool:
        return self.cause in (Cause.EOS, Cause.STOP)


class Sample:
    """Spread evenly over a stream of any length: whenever it is full, every second item is dropped."""

    def __init__(self, most: int = MOST_SHOWN):
        self.most = most
        self.stride = 1
        self.seen = 0
        self.kept: list[Any] = []

    def add(self, item: Any) -> None:
        if self.seen % self.stride == 0:
            self.kept.append(item)
        self.seen += 1
        if len(self.kept) > self.most:
            self.kept = self.kept[::2]
            self.stride *= 2


parse_completion: Callable[[str], CompletionLine] = msgspec.json.Decoder(CompletionLine).decode


def read_completions(paths: Sequence[Path]) -> Iterator[CompletionLine]:
    """Each completion once: a killed audit may have written some twice."""
    seen: set[tuple[str, str, int]] = set()
    for path in paths:
        for line in parse_lines(path, "completions", "a completion of an audit (--completions)", parse_completion):
            key = (line.model or str(path), line.decoder, line.context)
            if key not in seen:
                seen.add(key)
                yield line


def sample_completions(paths: Sequence[Path]) -> tuple[list[Card], int]:
    """A sample, and how many completions there are."""
    samples: dict[tuple[str, str, str], Sample] = defaultdict(Sample)
    for line in read_completions(paths):
        samples[line.model, line.decoder, line.cause].add(line)
    most = max(LEAST_SHOWN, MOST_CARDS // max(1, len(samples)))
    cards = [build_card(line) for sample in samples.values() for line in pick_evenly(sample.kept, most)]
    room = share_room([sum(len(text) for text, _ in card.parts) for card in cards])
    return [shorten_card(card, room) for card in cards], sum(sample.seen for sample in samples.values())


def share_room(lengths: Sequence[int]) -> int:
    """The characters that each may have so that all are within the limit; what short ones leave, long ones get."""
    left = MOST_CHARACTERS
    for place, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - place)
        if length > share:
            return max(LEAST_CHARACTERS, share)
        left -= length
    return MOST_CHARACTERS


def find_pairs(paths: Sequence[Path], contexts: set[int], names: Sequence[tuple[str, str]]) -> list[Card]:
    """What remedies made of some contexts, whether or not the sample has it."""
    decoders = {decoder for _, decoder in names}
    found = (line for line in read_completions(paths) if line.context in contexts and line.decoder in decoders)
    return [shorten_card(build_card(line), LEAST_CHARACTERS) for line in found] if decoders else []


def build_card(line: CompletionLine) -> Card:
    before = line.loop.before if line.loop else None
    parts = fold_completion(line.text, before, line.cause == Cause.PROVED)
    cause = Cause.LOOPING if line.loop and line.cause == Cause.LIMIT else line.cause
    return Card(line.model, line.decoder, line.context, cause, line.steps, clean_prefix(line.prefix), parts)


def build_example_card(example: Example, is_proved: bool = False) -> Card:
    """A traced completion; the steps of one that does not end are only the first. Its audit may have a proof."""
    cause = Cause.PROVED if is_proved and not example.cause.ends else example.cause
    words = [step.text for step in example.steps]
    before = None if example.loop is None else "".join(words[: example.loop.onset - 1])
    parts = fold_completion("".join(words), before, cause == Cause.PROVED, is_whole=False)
    place = example.run, example.decoder, example.context, str(cause), len(words)
    return Card(*place, clean_prefix(example.prefix), shorten_parts(parts, LEAST_CHARACTERS))


def clean_prefix(text: str, most: int = LEAST_CHARACTERS) -> str:
    """Without padding; of a long prompt the end."""
    text = PADDING.sub("", text)
    return text if len(text) <= most else f"… {text[-most:]}"


def choose_pairs(
    cards: Sequence[Card], before: tuple[str, str], afters: Sequence[tuple[str, str]]
) -> list[tuple[Card, Card | None]]:
    """Completions by (model, decoder) that did not end, and what the first remedy made of the same contexts."""
    failed = [card for card in cards if is_by(card, before) and not card.ends]
    pairs: list[tuple[Card, Card | None]] = []
    for card in failed:
        same = (each for each in cards if each.context == card.context and each.ends)
        found = sorted(
            ((place, each) for each in same for place, after in enumerate(afters) if is_by(each, after)),
            key=lambda each: each[0],
        )
        pairs.append((card, found[0][1] if found else None))
    by_loop: dict[str, tuple[Card, Card | None]] = {}
    for pair in sorted(pairs, key=lambda pair: pair[1] is None):
        by_loop.setdefault(pair[0].parts[-1][0].strip() if pair[0].parts else "", pair)
    different = list(by_loop.values())
    chosen = [*different, *(pair for pair in pairs if pair not in different)][:HERO_PAIRS]
    most = HERO_CHARACTERS
    return [(shorten_card(failed, most), ended and shorten_card(ended, most)) for failed, ended in chosen]


def shorten_card(card: Card, most: int) -> Card:
    parts, prefix = shorten_parts(card.parts, most), clean_prefix(card.prefix, min(most, LEAST_CHARACTERS))
    return msgspec.structs.replace(card, parts=parts, prefix=prefix)


def is_by(card: Card, wanted: tuple[str, str]) -> bool:
    """Files of version 0.1 do not name the model."""
    model, decoder = wanted
    return card.decoder == decoder and card.model in ("", model)
