"""The page that `eosin report --html` makes of records, completions and traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.records.record import Record
from eosin.report.audits import tabulate_decoders, tabulate_loops, tabulate_quantiles
from eosin.report.charts import chart_ratios, chart_survival
from eosin.report.completions import sample_completions
from eosin.report.facts import make_title
from eosin.report.initialisations import has_several_models, tabulate_models
from eosin.report.page import Page
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
    """A file of `eosin trace --json` in the form of the page."""
    try:
        trace = json.loads(path.read_text(encoding="utf-8"))
        return {
            "group": f"context {trace['index']}: {trace['prefix_text']}",
            "run": path.stem,
            "decoder": str(trace["decoder"]),
            "context": int(trace["index"]),
            "prefix": str(trace["prefix_text"]),
            "cause": str(trace["cause"]),
            "steps": [read_step(step) for step in trace["steps"]],
            "loop": trace["loop"],
        }
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadInput(f"{path} is not a trace (eosin trace --json): {type(error).__name__}, {error}") from error


def read_step(step: dict[str, Any]) -> list[Any]:
    """A step of a trace in the form of the page; a ValueError if a number is not finite."""
    numbers = float(step["prob"]), float(step["eos_prob"]), int(step["eos_rank"]), int(step["kept"])
    if not all(map(isfinite, numbers)):
        raise ValueError(f"a step should have finite numbers, got {numbers}")
    return [str(step["text"]), *numbers, step["removed_by"] and str(step["removed_by"])]
