"""Charts: what they show, from records, and how it is drawn. The page and the figures for papers share both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

from eosin.records.record import Record
from eosin.report.audits import to_percent, to_percent_interval
from eosin.report.drawing import (
    GAP,
    Bar,
    Dot,
    Drawing,
    Label,
    Line,
    Mark,
    Scale,
    draw_frame,
    estimate_width,
    fit_text,
    format_tick,
    list_powers,
    shift,
    spread,
)
from eosin.report.facts import find_differing_facts, list_facts

OBVIOUS = ("model", "context set")
"""Facts whose values need no name."""
EOS_KEEPING_PREFIX = "consistent-"
PAPER_ORDER = ("ancestral", "greedy", "beam", "top-k", "nucleus")
NARROW = 500
"""Drawings that are less wide, in pixels, are for phones."""
COLOURS = 6
MOST_CURVES = 6
"""Curves of a chart at most."""
MOST_STEPS = 200
"""Points of a curve at most, so that the page of a long audit stays small."""
LEAST_SPAN = 10.0
"""Percent that an axis of ratios shows at least: one percent is not much."""
BINS = (1, 2, 3, 5, 8, 12, 18, 26, 40, 60, 90, 130, 200, 300, 450, 700, 1000, 1500)
"""Where bins of lengths begin."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Chart:
    title: str
    draw: Callable[[float], Drawing]
    """Draws it for a width in pixels."""
    note: str = ""
    more: bool = False
    """Whether it is shown on demand only."""


def group_by_subject(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each model, context set and limit, under the facts that distinguish these."""
    names = find_differing_facts([record.signature for record in records])
    groups: dict[str, list[Record]] = {}
    for record in records:
        facts = list_facts(record.signature)
        words = (f"{'' if name in OBVIOUS else f'{name} '}{facts[name]}" for name in names if name in facts)
        groups.setdefault(", ".join(words), []).append(record)
    return groups


def find_plain(decoder: str) -> str:
    """The decoder of which this one is the eos-keeping form, or itself."""
    return decoder.removeprefix(EOS_KEEPING_PREFIX)


def keeps_eos(decoder: str) -> bool:
    return decoder.startswith(EOS_KEEPING_PREFIX)


def sort_decoders(decoders: Sequence[str]) -> list[str]:
    """The paper's order, and then that in which they came."""

    def find_place(decoder: str) -> int:
        rule = decoder.partition(":")[0].partition(",")[0]
        return PAPER_ORDER.index(rule) if rule in PAPER_ORDER else len(PAPER_ORDER)

    return sorted(dict.fromkeys(decoders), key=find_place)


# ratios by decoder: a rule and its eos-keeping form share a row


Papers = Mapping[tuple[str | None, str], float]
"""The paper's percentages, by run and decoder."""


@dataclass(frozen=True)
class RatioRow:
    """A decoder, in its plain and in its eos-keeping form."""

    decoder: str
    records: tuple[Record | None, Record | None]


def pair_decoders(records: Sequence[Record]) -> list[RatioRow]:
    """A row for each rule. Of two records that no fact tells apart the first is shown."""
    found: dict[str, Record] = {}
    for record in records:
        found.setdefault(record.signature.decoder, record)
    names = sort_decoders([find_plain(decoder) for decoder in found])
    return [RatioRow(name, (found.get(name), found.get(EOS_KEEPING_PREFIX + name))) for name in names]


def chart_ratios(records: Sequence[Record], papers: Papers | None = None, title: str = "") -> Chart:
    """The non-termination ratios with their intervals, in percent."""
    rows = {subject: pair_decoders(group) for subject, group in group_by_subject(records).items()}
    limits = sorted({record.signature.max_steps for record in records})
    after = f"after {' or '.join(f'{limit:,}' for limit in limits)} tokens"
    note = "Lines are 95% intervals." + (" A cross is the paper's value." if papers else "")
    return Chart(title or f"Not ended {after}, by decoder", partial(draw_ratios, rows, papers or {}), note)


ROW = 22.0
"""The height of a row."""


def draw_ratios(rows: Mapping[str, Sequence[RatioRow]], papers: Papers, width: float) -> Drawing:
    every = [row for of_subject in rows.values() for row in of_subject]
    has_forms = [any(row.records[form] for row in every) for form in (0, 1)]
    number = 84.0 if width > NARROW and all(has_forms) else 56.0
    left = min(0.4 * width, 12 + max(estimate_width(row.decoder) for row in every))
    right = width - number * sum(has_forms) - 8
    shown = [record for row in every for record in row.records if record]
    highest = max(to_percent_interval(record.ratio)[1] for record in shown)
    x = Scale(0.0, max(LEAST_SPAN, highest, *papers.values()), left, right)
    height = 26 + ROW * (len(every) + len(rows) * (len(rows) > 1))
    drawing = Drawing(width, height + 36, about="Share of contexts on which each decoder did not end, in percent")
    ticks = x.list_ticks(5 if width > NARROW else 2)
    frame = draw_frame(x, Scale(0, 1, height, 20), ticks, [f"{tick:g}%" for tick in ticks], "did not end")
    drawing.add(*frame)
    columns = [width - number * sum(has_forms[form:]) + number - 6 for form in (0, 1)]
    for form, name in enumerate(("plain", "keeps eos")):
        if has_forms[form] and all(has_forms):
            said = name if width > NARROW else name.split()[0]
            drawing.add(Label(columns[form], 8, said, "end", "soft"))
            drawing.add(Dot(columns[form] - estimate_width(said) - 10, 8, "c0", bool(form), 4))
    y = 20.0
    for subject, of_subject in rows.items():
        if len(rows) > 1:
            drawing.add(Label(0, y + ROW / 2 + 2, fit_text(subject, width), bold=True))
            y += ROW
        for row in of_subject:
            drawing.add(Label(0, y + ROW / 2, fit_text(row.decoder, left - 6)))
            drawing.add(*draw_ratio_row(row, x, y + ROW / 2, columns, papers))
            y += ROW
    return drawing


def draw_ratio_row(row: RatioRow, x: Scale, y: float, columns: Sequence[float], papers: Papers) -> Iterator[Mark]:
    apart = 4.5 * all(row.records)
    for form, record in enumerate(row.records):
        if record is None:
            continue
        value, place = to_percent(record.ratio), y + apart * (1 if form else -1)
        low, high = map(x, to_percent_interval(record.ratio))
        yield Line([(low, place), (high, place)], "c0", width=1.25)
        theirs = papers.get((record.signature.run, record.signature.decoder))
        yield Dot(x(value), place, "c0", bool(form), 4)
        if theirs is not None:
            yield from draw_cross(x(theirs), place)
        yield Label(columns[form], y, f"{value:.2f}%", "end", "bad" if value else "soft", bool(value))


def draw_cross(x: float, y: float) -> Iterator[Mark]:
    for turn in (1, -1):
        yield Line([(x - 3.5, y - 3.5 * turn), (x + 3.5, y + 3.5 * turn)], "ink", width=1.25)


# survival: what has not ended after each step


@dataclass(frozen=True)
class Curve:
    """The share that has not ended after some steps, in percent."""

    decoder: str
    label: str
    points: tuple[tuple[int, float], ...]
    falls_in_steps: bool = True
    """Counts fall in steps. Estimates, and curves with too many steps, are drawn through some points."""
    contexts: int = 1

    @property
    def rule(self) -> str:
        """What a rule and its eos-keeping form, which have one colour, share."""
        return self.label.replace(EOS_KEEPING_PREFIX, "")


def trace_survival(record: Record, label: str = "") -> Curve:
    counts, limit = record.counts, record.signature.max_steps
    changes = sorted(step for step in counts.steps if step <= limit)
    some = pick_evenly(changes)
    known = [step for step in sorted({1, limit, *some}) if counts.has_ratio_at(step)]
    return Curve(
        record.signature.decoder,
        label or record.signature.decoder,
        tuple((step, to_percent(counts.ratio(step))) for step in known),
        not counts.weights and len(some) == len(changes),
        counts.contexts,
    )


def pick_evenly(items: Sequence[Item], most: int | None = None) -> list[Item]:
    """At most so many of the items, the first and the last among them."""
    most = most or MOST_STEPS
    if len(items) <= most:
        return list(items)
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]


def chart_survival(records: Sequence[Record]) -> list[Chart]:
    """The share that has not ended after each step: the six curves of a model that say most, others on demand."""
    subjects = {name: pair_decoders(group) for name, group in group_by_subject(records).items()}
    rules = sort_by_ratio([row for rows in subjects.values() for row in rows])
    colours, charts = assign_colours(rules), list[Chart]()
    for name, rows in subjects.items():
        for number, chosen in enumerate(split_rows(sorted(rows, key=lambda row: rules.index(row.decoder)))):
            curves = [trace_survival(record) for row in chosen for record in row.records if record]
            names = f"{name}{': ' if name else ''}{', '.join(row.decoder for row in chosen)}"
            title = f"What has not ended after each step{': ' if name else ''}{name}" if not number else names
            charts.append(Chart(title, partial(draw_curves, curves, colours=colours), SURVIVAL_NOTE, more=number > 0))
    return charts


SURVIVAL_NOTE = "A flat line: decodings are stuck. A line that falls to 0: all ended. Dashed: the rule keeps eos."


def sort_by_ratio(rows: Sequence[RatioRow]) -> list[str]:
    """Rules by the largest ratio of their plain or eos-keeping form."""
    highest: dict[str, float] = {}
    for row in rows:
        ratio = max(record.ratio.value for record in row.records if record)
        highest[row.decoder] = max(ratio, highest.get(row.decoder, 0.0))
    return sorted(highest, key=lambda rule: -highest[rule])


def split_rows(rows: Sequence[RatioRow]) -> list[list[RatioRow]]:
    """Rows of at most six curves; both forms of a rule stay together."""
    found: list[list[RatioRow]] = [[]]
    for row in rows:
        if sum(len(list(filter(None, each.records))) for each in [*found[-1], row]) > MOST_CURVES:
            found.append([])
        found[-1].append(row)
    return found


def draw_curves(curves: Sequence[Curve], width: float, colours: Mapping[str, str] | None = None) -> Drawing:
    """On logarithmic axes. No axis goes below what is shown, or what the contexts can resolve; below is only zero."""
    longest = max(2, *(step for curve in curves for step, _ in curve.points))
    shown = min((share for curve in curves for _, share in curve.points if share), default=100.0)
    least = max(shown, 100 / max(curve.contexts for curve in curves))
    is_wide = width > NARROW
    margin = 20 + max(estimate_width(label_curve(curve)) for curve in curves) if is_wide else 12
    bottom, top = 256.0, 20.0
    x = Scale(1, longest, 46, width - margin, logarithmic=True)
    y = Scale(min(least, 10.0), 100, bottom - 26, top, logarithmic=True)
    below = 40 + (0 if is_wide else GAP * len(curves) + 8)
    drawing = Drawing(width, bottom + below, about="Share of contexts that have not ended after each step, in percent")
    ticks = list_powers(1, longest)
    names = [format_tick(tick) for tick in ticks]
    drawing.add(*draw_frame(x, Scale(0, 1, bottom, top), ticks, names, "step"))
    for tick in list_powers(y.low, 100):
        drawing.add(Line([(x.start, y(tick)), (x.stop, y(tick))], "line", width=1))
        drawing.add(Label(x.start - 6, y(tick), f"{tick:.3g}%", "end", "soft"))
    drawing.add(Label(x.start, 8, "not ended", colour="soft"))
    drawing.add(Line([(x.start, bottom), (x.stop, bottom)], "soft", width=1))
    drawing.add(Label(x.start - 6, bottom, "0", "end", "soft"))

    def find_height(share: float) -> float:
        return y(share) if share > 0 else bottom

    rules = list(dict.fromkeys(curve.rule for curve in curves))
    if colours is None or len({colours[rule] for rule in rules}) < len(rules):
        colours = assign_colours(rules)
    for curve in curves:
        drawing.add(*draw_curve(curve, x, find_height, colours[curve.rule]))
    ends = [find_height(curve.points[-1][1]) for curve in curves]
    places = spread(ends, top, bottom) if is_wide else [bottom + 44 + GAP * place for place in range(len(curves))]
    for curve, end, place in zip(curves, ends, places, strict=True):
        colour = colours[curve.rule]
        if is_wide:
            drawing.add(Line([(x.stop + 1, end), (x.stop + 9, place)], colour, width=0.75))
        else:
            drawing.add(Line([(6, place), (30, place)], colour, keeps_eos(curve.decoder)))
        drawing.add(Label(x.stop + 12 if is_wide else 36, place, label_curve(curve), colour=colour))
    return drawing


def assign_colours(names: Sequence[str]) -> dict[str, str]:
    return {name: f"c{place % COLOURS}" for place, name in enumerate(dict.fromkeys(names))}


def label_curve(curve: Curve) -> str:
    return f"{curve.label} {curve.points[-1][1]:.2f}%"


def draw_curve(curve: Curve, x: Scale, find_height: Callable[[float], float], colour: str) -> Iterator[Mark]:
    points = [(x(step), find_height(share)) for step, share in curve.points]
    corners = points[:1]
    for (_, before), (place, height) in pairwise(points):
        corners += [(place, before), (place, height)] if curve.falls_in_steps else [(place, height)]
    yield Line(corners, colour, keeps_eos(curve.decoder))
    ended = next((step for step, share in curve.points if not share), None)
    if ended is not None:
        yield Dot(x(ended), find_height(0.0), colour, radius=3.5)


# lengths


FEW_PANELS, LEAST_NUMBER = 3, 1.0
"""Panels that are drawn higher, and the least percentage that is written above its bar."""
LengthCounts = tuple[str, float, Mapping[int, float]]
"""A label, the percentage that did not end, and how many ended at each length."""
DATA = "the data"


@dataclass(frozen=True)
class Histogram:
    """The percentages of contexts that ended at lengths of each bin, and that did not end."""

    label: str
    shares: tuple[float, ...]
    unended: float


def bin_lengths(counts: LengthCounts, bounds: Sequence[int]) -> Histogram:
    label, unended, ended = counts
    total = sum(ended.values()) / (1 - unended / 100) if unended < 100 and ended else 1.0
    shares = (sum(n for length, n in ended.items() if low <= length < high) for low, high in pairwise(bounds))
    return Histogram(label, tuple(100 * share / total for share in shares), unended)


def list_record_lengths(record: Record) -> LengthCounts:
    return record.signature.decoder, to_percent(record.ratio), record.counts.endings


def chart_lengths(distributions: Sequence[LengthCounts], title: str = "") -> Chart:
    """Lengths in bins, those of the data behind each, and the share that did not end as a bar of its own."""
    longest = max((max(ended, default=1) for _, _, ended in distributions), default=1)
    bounds = [*(low for low in BINS if low <= longest), longest + 1]
    binned = [bin_lengths(each, bounds) for each in distributions]
    data = next((each for each in binned if each.label == DATA), None)
    others = [each for each in binned if each.label != DATA] or binned
    note = "Share of the contexts by the number of tokens. " + "Grey: the data's own." * bool(data)
    return Chart(title or "Lengths", partial(draw_lengths, others, data, bounds), note)


def draw_lengths(panels: Sequence[Histogram], data: Histogram | None, bounds: Sequence[int], width: float) -> Drawing:
    height, last = 74.0 if len(panels) > FEW_PANELS else 110.0, 64.0
    behind = data.shares if data else ()
    highest = max(*(max((*each.shares, each.unended)) for each in panels), *behind, 1.0)
    drawing = Drawing(width, (height + 24) * len(panels) + 36, about="Lengths of the completions, in bins")
    step = (width - last - 10) / (len(bounds) - 1)
    above = estimate_width("00%") < step - 8
    for number, panel in enumerate(panels):
        y = Scale(0, highest, 24 + height, 34)
        marks: list[Mark] = [Label(0, 12, fit_text(panel.label, width), bold=True)]
        for place, share in enumerate(panel.shares):
            if data:
                marks.append(Bar(place * step, y(data.shares[place]), step - 1, y(0) - y(data.shares[place]), "grey"))
            marks.append(Bar(place * step + 0.2 * step, y(share), 0.6 * step - 1, y(0) - y(share), "c0"))
            if share >= LEAST_NUMBER and above:
                marks.append(Label((place + 0.5) * step, y(share) - 8, f"{share:.0f}%", "middle", "soft"))
        marks.append(Bar(width - last + 10, y(panel.unended), last - 20, y(0) - y(panel.unended), "bad"))
        text = f"{panel.unended:.2f}%"
        marks.append(Label(width - last / 2, y(panel.unended) - 8, text, "middle", "bad" if panel.unended else "soft"))
        marks.append(Line([(0, y(0)), (width, y(0))], "soft", width=1))
        drawing.add(*(shift(mark, number * (height + 24)) for mark in marks))
    below, free = (height + 24) * len(panels) + 12, 0.0
    for place, (low, stop) in enumerate(pairwise(bounds)):
        name = f"{low:,}" if stop == low + 1 else f"{low:,}-{stop - 1:,}"
        if (place + 0.5) * step - estimate_width(name) / 2 >= free:
            drawing.add(Label((place + 0.5) * step, below, name, "middle", "soft"))
            free = (place + 0.5) * step + estimate_width(name) / 2 + 6
    drawing.add(Label(width - last / 2, below, "no end", "middle", "soft"))
    key = f"tokens{', grey: the data' if data else ''}"
    drawing.add(Label((width - last) / 2, below + 15, key, "middle", "soft"))
    return drawing


# heads: what a remedy does, and what it costs


@dataclass(frozen=True)
class HeadPoint:
    """A model with an output head: the ratio in percent, and the test perplexity."""

    label: str
    head: str
    perplexity: float
    ratio: float


def chart_heads(title: str, decoder: str, points: Sequence[HeadPoint]) -> Chart:
    note = f"Left: how often {decoder} does not end. Right: the cost. Means, where there are several initialisations."
    return Chart(f"Remedies. {title}", partial(draw_heads, points), note)


def draw_heads(points: Sequence[HeadPoint], width: float) -> Drawing:
    """Two panels with common rows: the ratio, and the perplexity."""
    is_wide, groups = width > NARROW, list(dict.fromkeys(point.label for point in points))
    left = max(estimate_width(point.head) for point in points) + 14 if is_wide else 0.0
    row = ROW if is_wide else 2 * ROW
    middle, number = left + (width - left) / 2, 46.0
    measured = [point.perplexity for point in points]
    ratios = Scale(0, max(LEAST_SPAN, *(point.ratio for point in points)), left + 8, middle - number - 8)
    costs = Scale(0.8 * min(measured), 1.1 * max(measured), middle + 8, width - number)
    height = 20 + row * len(points) + ROW * len(groups)
    drawing = Drawing(width, height + 40, about="Non-termination ratio and perplexity of each output head")
    for x, name, ending in ((ratios, "did not end", "%"), (costs, "test perplexity", "")):
        ticks = x.list_ticks(4 if is_wide else 2)
        drawing.add(*draw_frame(x, Scale(0, 1, height, 14), ticks, [f"{tick:g}{ending}" for tick in ticks], name))
    y = 8.0
    for group in groups:
        drawing.add(Label(0, y + ROW / 2, fit_text(group, width), bold=True))
        y += ROW
        for point in (each for each in points if each.label == group):
            drawing.add(Label(0, y + ROW / 2, fit_text(point.head, width if not is_wide else left)))
            place = y + ROW / 2 + (0 if is_wide else ROW)
            drawing.add(Dot(ratios(point.ratio), place, "bad" if point.ratio else "c0"))
            tone = "bad" if point.ratio else "soft"
            drawing.add(Label(ratios(point.ratio) + 9, place, f"{point.ratio:.2f}%", colour=tone))
            drawing.add(Dot(costs(point.perplexity), place, "c0"))
            drawing.add(Label(costs(point.perplexity) + 9, place, f"{point.perplexity:.1f}"))
            y += row
    return drawing


# sweeps


SweepLine = tuple[str, Sequence[tuple[float, Sequence[float]]]]
"""A label, and for each value of a setting the ratios of all initialisations."""


def draw_sweep(name: str, lines: Sequence[SweepLine], width: float) -> Drawing:
    """The ratio against a setting: a dot for each initialisation, a line through their means."""
    values = [value for _, points in lines for value, _ in points]
    ratios = [ratio for _, points in lines for _, found in points for ratio in found]
    margin = 24 + max(estimate_width(label) for label, _ in lines)
    low, high = min(values), max(values)
    x = Scale(low, high if high > low else low + 1, 46, width - margin)
    y = Scale(0, max(LEAST_SPAN, *ratios), 240, 14)
    drawing = Drawing(width, 280, about=f"Non-termination ratio against {name}, in percent")
    ticks = sorted(set(values))
    drawing.add(*draw_frame(x, y, ticks, [f"{tick:g}" for tick in ticks], name))
    for tick in y.list_ticks():
        drawing.add(Line([(x.start, y(tick)), (x.stop, y(tick))], "line", width=1))
        drawing.add(Label(x.start - 6, y(tick), f"{tick:g}%", "end", "soft"))
    means = [[(x(value), y(sum(found) / len(found))) for value, found in points] for _, points in lines]
    places = spread([line[-1][1] for line in means], 14, 240)
    for number, ((label, points), line, place) in enumerate(zip(lines, means, places, strict=True)):
        colour = f"c{number % COLOURS}"
        drawing.add(Line(line, colour), Label(x.stop + 14, place, label, colour=colour))
        drawing.add(*(Dot(x(value), y(ratio), colour, radius=3.5) for value, found in points for ratio in found))
    return drawing
