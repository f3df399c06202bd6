"""The page of audits: what `eosin report --html` makes of records, completions and traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eosin.errors import BadInput
from eosin.records.record import Record
from eosin.report.audits import by_decoder, in_common, loops, quantiles, titled
from eosin.report.charts import ratio_chart, survival_charts
from eosin.report.completions import sampled
from eosin.report.initialisations import across_models, several
from eosin.report.page import Page, checked_step
from eosin.report.verdict import verdict


def page_of(records: Sequence[Record], completions: Sequence[Path] = (), traces: Sequence[Path] = ()) -> Page:
    if not records:
        raise BadInput("a page needs records: name files of records, run directories or folders")
    chosen, there = sampled(completions)
    looping = any(record.counts.loops for record in records)
    return Page(
        title=titled("Does it stop?", in_common([record.signature for record in records])),
        verdict=list(verdict(records)),
        charts=[ratio_chart(records), *survival_charts(records)],
        tables=[
            by_decoder(records),
            *([across_models(records)] if several(records) else []),
            quantiles(records),
            *([loops(records)] if looping else []),
        ],
        examples=[example(path) for path in traces],
        completions=chosen,
        out_of=there,
    )


def example(path: Path) -> dict[str, Any]:
    """A trace as the page shows it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names = ("text", "prob", "eos_prob", "eos_rank", "kept", "removed_by")
        steps = [checked_step(*(step[name] for name in names)) for step in found["steps"]]
        return {
            "group": f"context {found['index']}: {found['prefix_text']}",
            "run": path.stem,
            "decoder": str(found["decoder"]),
            "context": int(found["index"]),
            "prefix": str(found["prefix_text"]),
            "cause": str(found["cause"]),
            "steps": steps,
            "loop": found["loop"],
        }
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadInput(f"{path} is not a trace (eosin trace --json): {type(error).__name__}, {error}") from error
