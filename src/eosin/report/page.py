"""One HTML page that holds all it needs: it opens offline, and asks nothing of any server.

The template escapes everything that a model or a person wrote; the script inserts it as text. Completions are a sample,
and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.report.charts import Chart
from eosin.report.tables import Table, Value, escape_controls
from eosin.report.verdict import Sentence


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


@dataclass(frozen=True)
class Page:
    title: str
    verdict: Sequence[Sentence]
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    examples: Sequence[dict[str, Any]] = ()
    """Each an `Example`, and the group under which it is shown."""
    completions: Sequence[dict[str, Any]] = ()
    """A sample: by, context, cause, steps, before, repeated."""
    total: int = 0
    """How many completions there are."""
    sources: Sequence[str] = ()
    """Where the numbers come from."""
    summary: Sequence[Table] = ()
    """Tables at the top of the page."""
    digest: str = ""
    """Of the sources; it changes when the page has to be rendered again."""

    def render(self) -> str:
        charts = [{"traces": chart.traces, "layout": chart.layout} for chart in self.charts]
        data = {"charts": charts, "examples": list(self.examples), "completions": list(self.completions)}
        try:
            return _load_template().render(
                page=self,
                data=data,
                css=read_asset("page.css"),
                js=read_asset("page.js"),
                plotly=read_plotly(),
            )
        except ValueError as error:
            raise BadInput(f"a number on the page is not finite: {error}") from error


@cache
def _load_template() -> Any:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise BadInput("the page needs jinja2: pip install 'eosin[report]'") from None
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"escape_controls": escape_controls, "sort_key": find_sort_key}
    return environment.from_string(read_asset("page.html"))


def find_sort_key(value: Value) -> str:
    """The number by which the page sorts a cell; empty if there is none."""
    number = value[0] if isinstance(value, tuple) and value else value
    return f"{number}" if isinstance(number, (int, float)) else ""


def read_asset(name: str) -> str:
    return (files("eosin") / "report" / "assets" / name).read_text(encoding="utf-8")


def read_plotly() -> str:
    """The script inside the Python package, which is not imported."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise BadInput("the page needs plotly: pip install 'eosin[report]'")
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
