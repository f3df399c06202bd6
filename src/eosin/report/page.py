"""One HTML page that holds all it needs: it opens offline, and asks nothing of any server.

Charts are SVG, drawn when the page is made, once for wide screens and once for phones. The template escapes everything
that a model or a person wrote; the script inserts it as text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import msgspec

from eosin.errors import BadInput
from eosin.report.charts import Chart
from eosin.report.completions import Card, build_example_card
from eosin.report.drawing import Drawing, render_svg
from eosin.report.tables import Table, Value, escape_controls
from eosin.report.traces import Example, count_removals, draw_trace
from eosin.report.verdict import Fix, Sentence

WIDE, HALF, PHONE = 760.0, 540.0, 330.0
"""The widths that charts are drawn for: of the page, of the first screen, of a phone."""
FIRST_SENTENCES = 4
"""Of the verdict that are shown at once; the others are a click away."""
PAPER = "https://aclanthology.org/2020.emnlp-main.448/"
GLOSSARY = {
    "r_L": "the non-termination ratio: the share of contexts with no eos among the first L tokens",
    "eos": "the token that ends a text",
    "proved infinite": "a theorem about this one decoding: it never ends",
    "proved": "decodings for which it is proved that they never end",
    "looping": "the end of the completion repeats, up to the limit, without a proof",
    "limit": "neither eos nor a loop within L tokens",
    "keeps eos": "consistent-...: the rule never removes eos, so decoding ends with probability one",
    "floor": "p(eos) cannot stay below a rising floor, so greedy decoding ends by a known step; no training",
    "self-terminating": "an output head under which p(eos) tends to one, so greedy decoding and beams end",
    "loop cut": "the share of ended completions whose end repeats: eos cut a loop short",
    "95% interval": "where the true ratio lies, given how many contexts were tried (Wilson)",
    "rep-1": "the share of tokens that had occurred before in the same completion",
    "rep-4": "the share of runs of four tokens that had occurred before in the same completion",
    "distinct": "how many different completions there are",
    "onset": "the mean step at which the loop begins",
    "period": "the number of tokens that repeat",
    "counting cells": "cells of an LSTM that change by as much in every turn of a loop",
    "most a turn": "how much the fastest of these cells changes in a turn",
    "paper": "the number that Welleck et al. (2020) print",
    "perplexity": "how well the model predicts the test text; lower is better",
}
"""What words mean, for the page."""


@dataclass(frozen=True)
class Page:
    title: str
    verdict: Sequence[Sentence]
    """The first one is the headline."""
    fix: Fix | None = None
    overview: Chart | None = None
    """The chart of the first screen."""
    pairs: Sequence[tuple[Card, Card | None]] = ()
    """Completions that did not end, and what a remedy made of the same contexts."""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    examples: Sequence[tuple[str, Sequence[Example]]] = ()
    """Traced completions of one context under a common name."""
    completions: Sequence[Card] = ()
    """A sample."""
    total: int = 0
    """How many completions there are."""
    facts: Sequence[tuple[str, str]] = ()
    """What the page was made of: names and values."""
    notes: Sequence[str] = ()
    """What a reader of the claims must know."""
    sources: Sequence[str] = ()
    """Where the numbers come from."""
    summary: Sequence[Table] = ()
    """Tables below the first screen."""
    digest: str = ""
    """Of the sources; it changes when the page has to be rendered again."""

    @property
    def has_forms(self) -> dict[str, list[str]]:
        """What completions can be picked by."""
        return {
            "by": list(dict.fromkeys(card.by for card in self.completions)),
            "cause": list(dict.fromkeys(card.cause for card in self.completions)),
        }

    def render(self) -> str:
        traced = [example for _, group in self.examples for example in group]
        if not all(math.isfinite(number) for each in traced for step in each.steps for number in step_numbers(step)):
            raise BadInput("a number on the page is not finite")
        return _load_template().render(
            page=self,
            facts=[("version", f"Eosin {version('eosin')}"), ("made on", f"{date.today():%Y-%m-%d}"), *self.facts],
            steps=[msgspec.to_builtins(example.steps) for example in traced],
            css=read_asset("page.css"),
            js=read_asset("page.js"),
            glossary=GLOSSARY,
            paper=PAPER,
        )


def step_numbers(step: Any) -> tuple[float, ...]:
    return step.prob, step.eos_prob


@cache
def _load_template() -> Any:
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise BadInput("the page needs jinja2: pip install 'eosin[report]'") from None

    def draw_chart(chart: Chart, width: float = WIDE) -> Any:
        return Markup(draw_twice(chart.draw(width), chart.draw(PHONE)))

    def draw_steps(example: Example, group: Sequence[Example]) -> Any:
        longest = max(len(each.steps) for each in group)
        return Markup(draw_twice(draw_trace(example, longest, WIDE), draw_trace(example, longest, PHONE)))

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {
        "escape_controls": escape_controls,
        "sort_key": find_sort_key,
        "explain": explain_heading,
        "draw": draw_chart,
        "draw_steps": draw_steps,
        "fates": describe_fates,
        "card": build_example_card,
        "spell": spell_text,
    }
    environment.globals |= {"HALF": HALF, "FIRST": FIRST_SENTENCES}
    return environment.from_string(read_asset("page.html"))


def draw_twice(wide: Drawing, narrow: Drawing) -> str:
    return render_svg(wide, "wide") + render_svg(narrow, "narrow")


def spell_text(text: str) -> str:
    """Text of a model in one line: breaks are signs, other control characters are escaped."""
    return escape_controls(text.replace("\n", " ↵ "))


def describe_fates(example: Example) -> str:
    """What became of eos, in words."""
    counts = count_removals(example)
    kept = counts.pop(None, 0)
    removed = "".join(f"; removed by {rule} in {count:,}" for rule, count in counts.items())
    return f"eos could be chosen in {kept:,} of {len(example.steps):,} steps{removed}"


def explain_heading(heading: str) -> str:
    """What a heading means, if it has a word of the glossary; the longest that fits."""
    found = [word for word in GLOSSARY if word in heading]
    return GLOSSARY[max(found, key=len)] if found else ""


def find_sort_key(value: Value) -> str:
    """The number by which the page sorts a cell; empty if there is none."""
    number = value[0] if isinstance(value, tuple) and value else value
    return f"{number}" if isinstance(number, (int, float)) else ""


def read_asset(name: str) -> str:
    return (files("eosin") / "report" / "assets" / name).read_text(encoding="utf-8")
