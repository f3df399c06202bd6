"""Traces: p(eos) along one completion, with the step at which a rule removed it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct

from eosin.causes import Cause
from eosin.report.charts import MOST_STEPS, pick_evenly
from eosin.report.drawing import Bar, Drawing, Label, Line, Scale, draw_frame, format_tick

LEAST_PROBABILITY = 1e-12
"""Smaller probabilities are drawn there."""
MOST_DRAWN = 4 * MOST_STEPS


class ExampleStep(Struct, frozen=True, array_like=True):
    """One step of a traced completion."""

    text: str
    prob: float
    eos_prob: float
    eos_rank: int
    kept: int
    removed_by: str | None


class ExampleLoop(Struct, frozen=True):
    """The loop of a completion that does not end."""

    onset: int
    period: int


class Example(Struct, frozen=True):
    """A traced completion."""

    run: str
    decoder: str
    context: int
    prefix: str
    cause: Cause
    steps: list[ExampleStep]
    loop: ExampleLoop | None = None


def count_removals(example: Example) -> dict[str | None, int]:
    """In how many steps each rule removed eos; None is where it was kept."""
    counts: dict[str | None, int] = {}
    for step in example.steps:
        counts[step.removed_by] = counts.get(step.removed_by, 0) + 1
    return counts


def draw_trace(example: Example, longest: int, width: float) -> Drawing:
    """Two panels over one axis of steps, p(eos) and the rank of eos; below them, whether eos could be chosen."""
    steps = example.steps
    x = Scale(1, max(2, longest), 52, width - 10)
    smallest = min((step.eos_prob for step in steps), default=1.0)
    y = Scale(min(max(smallest, LEAST_PROBABILITY), 0.1), 1, 190, 20, logarithmic=True)
    ranks = Scale(1, max(10, *(step.eos_rank for step in steps)), 216, 276, logarithmic=True)
    drawing = Drawing(width, 344, about=f"p(eos) at each step of a completion by {example.run}, {example.decoder}")
    if example.loop:
        start = x(min(example.loop.onset, longest))
        drawing.add(Bar(start, 20, x(len(steps)) - start, 256, "bad", faint=True))
    ticks = x.list_ticks(6)
    drawing.add(*draw_frame(x, Scale(0, 1, 302, 20), ticks, [format_tick(tick) for tick in ticks], "step"))
    for scale, powers, most in ((y, y.list_ticks()[::-1], 7), (ranks, ranks.list_ticks(), 4)):
        for tick in powers[:: math.ceil(len(powers) / most)]:
            drawing.add(Line([(x.start, scale(tick)), (x.stop, scale(tick))], "line", width=1))
            drawing.add(Label(x.start - 6, scale(tick), format_tick(tick), "end", "soft"))
    drawing.add(Label(x.start, 8, "p(eos)", colour="c3", bold=True))
    drawing.add(Label(x.start + 62, 8, "p(chosen token)", colour="soft"))
    drawing.add(Label(x.start, 204, "rank of eos (1 is on top)", colour="c3"))
    drawn = pick_evenly(list(enumerate(steps, 1)), MOST_DRAWN)
    drawing.add(Line([(x(n), y(step.prob)) for n, step in drawn], "soft", width=0.75))
    drawing.add(Line([(x(n), y(step.eos_prob)) for n, step in drawn], "c3"))
    drawing.add(Line([(x(n), ranks(step.eos_rank)) for n, step in drawn], "c3", width=1.25))
    drawing.add(*draw_fates(example, x))
    return drawing


def draw_fates(example: Example, x: Scale) -> Sequence[Bar | Label]:
    """A strip: where eos was kept, and where it was removed."""
    marks: list[Bar | Label] = [Label(x.start - 6, 296, "eos", "end", "soft")]
    number = 1
    for is_kept, group in groupby(step.removed_by is None for step in example.steps):
        length = sum(1 for _ in group)
        width = max(1.0, x(number + length) - x(number))
        marks.append(Bar(x(number), 290, width, 12, "good" if is_kept else "bad"))
        number += length
    return marks
