"""From results to what people look at: tables in four formats, figures, one page. All of it can be made anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eosin.auditing.record import Record
from eosin.files import write_text
from eosin.report.audits import loops
from eosin.report.charts import Chart, length_chart, price_chart, ratio_chart, survival_charts
from eosin.report.page import Page, Said
from eosin.report.tables import RENDERINGS, Column, Table, as_markdown, one_decimal, whole
from eosin.report.verdict import verdict as report_verdict
from eosin.reproduction.figures import draw, price
from eosin.reproduction.pieces import Plan
from eosin.reproduction.results import Entry, Results
from eosin.reproduction.tables import KINDS, View, length_distributions, test_perplexities
from eosin.settings import check_known

ENDINGS = {"text": "txt", "markdown": "md", "latex": "tex", "csv": "csv"}
PAGE, OVERVIEW = "report.html", "README.md"


def views(plan: Plan, results: Results) -> list[View]:
    return [View(exhibit, plan, results) for exhibit in plan.exhibits]


def tables(view: View) -> list[Table]:
    check_known(view.exhibit.kind, KINDS, f"a kind of exhibit ({view.exhibit.name})")
    return KINDS[view.exhibit.kind](view)


def write_tables(plan: Plan, results: Results) -> None:
    """Every exhibit in every format, and all of them on one page of Markdown."""
    for view in views(plan, results):
        made = tables(view)
        for name, ending in ENDINGS.items():
            path = results.folder / "tables" / f"{view.exhibit.name}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, "\n\n".join(map(RENDERINGS[name], made)) + "\n")
    write_text(results.folder / OVERVIEW, overview(plan, results))


def write_figures(plan: Plan, results: Results) -> None:
    for view in views(plan, results):
        draw(view, results.folder / "figures")


def write_page(plan: Plan, results: Results) -> None:
    write_text(results.folder / PAGE, page(plan, results).html())


# the page of Markdown


def overview(plan: Plan, results: Results) -> str:
    """All tables, and what it took to make them."""
    preset = plan.preset
    parts = [
        f"# The paper's tables, `{preset.name}`",
        f"{preset.about[0].upper()}{preset.about[1:]}. Made by `eosin reproduce {preset.name}` from the records beside "
        "this file, without a hand on any number: `eosin reproduce "
        f"{preset.name} --out THIS-FOLDER --tables-only` makes the tables anew.",
        *(as_markdown(table) for view in views(plan, results) for table in tables(view)),
        as_markdown(took(results)),
    ]
    return "\n\n".join(parts) + "\n"


def took(results: Results) -> Table:
    columns = (
        Column("piece", left=True),
        Column("minutes", one_decimal),
        Column("epochs", whole),
        Column("precision", left=True),
        Column("machine", left=True),
    )
    rows = tuple(
        (
            entry["name"],
            float(entry.get("training_seconds") or entry["seconds"]) / 60,
            entry.get("epochs"),
            entry.get("precision"),
            f"{entry['machine']['processor']}, torch {entry['machine']['torch']}, eosin {entry['machine']['eosin']}",
        )
        for entry in results.entries.values()
    )
    note = "Minutes are of the last process that worked on a piece, and of all of a training; other work may have run."
    return Table(columns, rows, "How long it took", note)


# the page of HTML


def page(plan: Plan, results: Results) -> Page:
    """The verdict first, then what it rests on."""
    shown = views(plan, results)
    records = baseline_records(shown)
    every = [table for view in shown for table in tables(view)]
    if any(record.counts.loops for record in records):
        every.append(loops(records))
    return Page(
        title=f"Does it stop? The paper reproduced: {plan.preset.name}",
        verdict=list(verdict(shown, records)),
        charts=list(charts(shown, records)),
        tables=every,
        examples=list(examples(shown)),
        made_of=[f"Made from the records in {results.folder.name}/records by eosin reproduce {plan.preset.name}."],
    )


def baseline_records(shown: Sequence[View]) -> list[Record]:
    """Of the first initialisation of each model whose decoders are compared; without these, of all models."""
    compared = [view for view in shown if view.exhibit.kind == "ratios"] or shown
    found = {}
    for view in compared:
        for model in view.exhibit.models:
            for by_decoder in view.records(model)[:1]:
                found.update({record.question: record for record in by_decoder.values()})
    return list(found.values())


def charts(shown: Sequence[View], records: Sequence[Record]) -> Iterator[Chart]:
    plain = [record for record in records if "temperature" not in record.signature["decoder"]]
    if plain:
        yield ratio_chart(plain)
        yield from survival_charts(plain)
    for view in shown:
        if view.exhibit.kind == "lengths":
            yield length_chart([(label, float(str(left)), ended) for label, left, ended in length_distributions(view)])
        if view.exhibit.kind == "heads":
            points = [(model.label, model.head, measured, share) for model, measured, share in price(view)]
            if points:
                yield price_chart(points)


def examples(shown: Sequence[View]) -> Iterator[Entry]:
    """Traced completions; those of one context are shown together."""
    for view in shown:
        for pair in view.exhibit.pairs:
            for each in view.results.examples(view.plan.examples(pair, view.exhibit.shown)):
                group = f"{pair.model}, {pair.decoder}: context {each['context']}, {each['prefix']}"
                yield {**each, "group": group}


def verdict(shown: Sequence[View], records: Sequence[Record]) -> Iterator[Said]:
    """Does it stop, how often not, what fixes it, at what price."""
    yield from report_verdict(records)
    for view in shown:
        if view.exhibit.kind == "heads":
            yield from prices(view)


def prices(view: View) -> Iterator[Said]:
    """What remedies cost in perplexity, against the softmax of the same model."""
    usual = {
        shown.label: sum(found) / len(found)
        for shown in view.exhibit.models
        if shown.head == "softmax" and (found := test_perplexities(view, shown))
    }
    for label, before in usual.items():
        fixes = [
            f"{shown.head} ({measured:.1f})"
            for shown, measured, share in price(view)
            if shown.label == label and shown.head != "softmax" and not share
        ]
        if fixes:
            yield Said(
                f"{label}: greedy decoding ended on every context with {', '.join(fixes)}. In brackets the test "
                f"perplexity; that of softmax is {before:.1f}.",
                "good",
            )
