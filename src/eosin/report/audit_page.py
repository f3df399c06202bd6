"""The page that `eosin report --html` makes of records, completions and traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from eosin.errors import BadInput
from eosin.records.record import Record
from eosin.report.audits import tabulate_decoders, tabulate_loops, tabulate_quantiles
from eosin.report.charts import chart_ratios, chart_survival
from eosin.report.completions import sample_completions
from eosin.report.facts import make_title
from eosin.report.initialisations import has_several_models, tabulate_models
from eosin.report.page import Example, ExampleStep, Page
from eosin.report.verdict import write_verdict


def build_audit_page(records: Sequence[Record], completions: Sequence[Path] = (), traces: Sequence[Path] = ()) -> Page:
    if not records:
        raise BadInput("a page needs records: name files of records, run directories or folders")
    sample, total = sample_completions(completions)
    looping = any(record.counts.loops for record in records)
    return Page(
        title=make_title("Does it stop?", [record.signature for record in records]),
        verdict=list(write_verdict(records)),
        charts=[chart_ratios(records), *chart_survival(records)],
        tables=[
            tabulate_decoders(records),
            *([tabulate_models(records)] if has_several_models(records) else []),
            tabulate_quantiles(records),
            *([tabulate_loops(records)] if looping else []),
        ],
        examples=[read_trace(path) for path in traces],
        completions=sample,
        total=total,
    )


def read_trace(path: Path) -> dict[str, Any]:
    """A file of `eosin trace --json` as an example of the page."""
    try:
        trace = msgspec.json.decode(path.read_bytes())
        steps = [[step[name] for name in ExampleStep.__struct_fields__] for step in trace["steps"]]
        renamed = {"run": path.stem, "context": trace["index"], "prefix": trace["prefix_text"], "steps": steps}
        example = msgspec.convert({**trace, **renamed}, Example)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} is not a trace (eosin trace --json): {type(error).__name__}, {error}") from error
    return {**msgspec.to_builtins(example), "group": f"context {example.context}: {example.prefix}"}
