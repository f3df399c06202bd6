"""Drawings: lines, bars, dots and labels at places. The page shows them as SVG, matplotlib writes them as files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape

Point = tuple[float, float]
SIZE = 12.0
"""The height of letters, in pixels."""
LETTER = 0.56
"""The mean width of a letter, as a share of its height."""
GAP = 15.0
"""The least distance between two lines of labels."""


@dataclass(frozen=True)
class Line:
    points: Sequence[Point]
    colour: str = "ink"
    dashed: bool = False
    width: float = 1.75


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    colour: str = "ink"
    faint: bool = False


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    colour: str = "ink"
    filled: bool = True
    radius: float = 4.5


@dataclass(frozen=True)
class Label:
    x: float
    y: float
    text: str
    anchor: str = "start"
    """`start`, `middle` or `end`: which part of the text is at x."""
    colour: str = "ink"
    bold: bool = False


Mark = Line | Bar | Dot | Label


@dataclass
class Drawing:
    """Marks on a sheet whose origin is the upper left corner. Colours have names, as `ink`, `soft`, `bad`, `c0`."""

    width: float
    height: float
    marks: list[Mark] = field(default_factory=list)
    about: str = ""
    """What it shows, in words."""

    def add(self, *marks: Mark) -> None:
        self.marks += marks


def estimate_width(text: str) -> float:
    return LETTER * SIZE * len(text)


def fit_text(text: str, width: float) -> str:
    """The text, or as much of it as fits."""
    most = max(2, int(width / (LETTER * SIZE)))
    return text if len(text) <= most else text[: most - 1] + "…"


# scales


@dataclass(frozen=True)
class Scale:
    """From values to places. A logarithmic scale shows everything below its least value at its start."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        share = (value - self.low) / (self.high - self.low)
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.stop - self.start)

    def list_ticks(self, most: int = 6) -> list[float]:
        """Round numbers."""
        return list_powers(self.low, self.high) if self.logarithmic else list_round_numbers(self.low, self.high, most)


def list_powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = [10.0**power for power in range(first, last + 1)]
    return powers if len(powers) > 1 else [low, *(each for each in powers if low < each < high), high]


def list_round_numbers(low: float, high: float, most: int) -> list[float]:
    """At most so many multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def format_tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}".replace("e-0", "e-")


def spread(places: Sequence[float], low: float, high: float, gap: float = GAP) -> list[float]:
    """Move places apart, as little as that takes, so that labels there do not overlap."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = [0.0] * len(places)
    previous = low - gap
    for index in order:
        previous = found[index] = max(places[index], previous + gap)
    following = high + gap
    for index in reversed(order):
        following = found[index] = min(found[index], following - gap)
    return found


# SVG


def render_svg(drawing: Drawing, css_class: str = "") -> str:
    """For the page, whose style sheet has the colours."""
    size = f"0 0 {drawing.width:g} {drawing.height:g}"
    head = f'<svg class="{css_class}" viewBox="{size}" role="img" aria-label="{escape(drawing.about)}">'
    return head + "".join(map(render_mark, drawing.marks)) + "</svg>"


def render_mark(mark: Mark) -> str:
    match mark:
        case Line():
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in mark.points)
            dashes = ' stroke-dasharray="6 4"' if mark.dashed else ""
            return f'<path class="s-{mark.colour}" stroke-width="{mark.width:g}"{dashes} d="{path}"/>'
        case Bar():
            box = f'x="{mark.x:.1f}" y="{mark.y:.1f}" width="{mark.width:.1f}" height="{mark.height:.1f}"'
            return f'<rect class="f-{mark.colour}{" faint" if mark.faint else ""}" {box}/>'
        case Dot():
            kind = f"f-{mark.colour}" if mark.filled else "hollow"
            place = f'cx="{mark.x:.1f}" cy="{mark.y:.1f}" r="{mark.radius:g}"'
            return f'<circle class="{kind} s-{mark.colour}" {place}/>'
        case Label():
            weight = ' font-weight="600"' if mark.bold else ""
            place = f'x="{mark.x:.1f}" y="{mark.y + 0.35 * SIZE:.1f}" text-anchor="{mark.anchor}"{weight}'
            return f'<text class="f-{mark.colour}" {place}>{escape(mark.text)}</text>'


# axes


def draw_frame(x: Scale, y: Scale, ticks: Sequence[float], names: Sequence[str], below: str) -> Iterator[Mark]:
    """Vertical grid lines with their numbers, and the name of the axis below them."""
    last = -math.inf
    for value, name in zip(ticks, names, strict=True):
        place, half = x(value), estimate_width(name) / 2
        yield Line([(place, y.start), (place, y.stop)], "line", width=1)
        if place - half > last:
            last = place + half + 4
            yield Label(place, max(y.start, y.stop) + 12, name, "middle", "soft")
    yield Label((x.start + x.stop) / 2, max(y.start, y.stop) + 28, below, "middle", "soft")


def shift(mark: Mark, down: float) -> Mark:
    """The mark further down."""
    if isinstance(mark, Line):
        return replace(mark, points=[(x, y + down) for x, y in mark.points])
    return replace(mark, y=mark.y + down)
