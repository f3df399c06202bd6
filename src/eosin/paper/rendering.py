"""From results to what people look at: tables in four formats, figures, one page. All of it can be made anew."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path

from eosin.errors import BadInput
from eosin.paper.claims import claims_table, judge_all
from eosin.paper.figures import draw, files_of
from eosin.paper.figures import prices as priced
from eosin.paper.plan import Plan
from eosin.paper.results import PIECES, Entry, Results
from eosin.paper.tables import (
    KINDS,
    TOO_FAR,
    View,
    compared,
    length_distributions,
    not_trained,
    test_perplexities,
)
from eosin.records.record import Record
from eosin.report.audits import tabulate_loops
from eosin.report.charts import Chart, chart_lengths, chart_prices, chart_ratios, chart_survival
from eosin.report.page import Page
from eosin.report.tables import RENDERINGS, Column, Table, format_count, format_one_decimal, render_markdown
from eosin.report.verdict import Sentence
from eosin.report.verdict import write_verdict as report_verdict
from eosin.settings import check_known, to_toml
from eosin.storage.files import write_text

ENDINGS = {"text": "txt", "markdown": "md", "latex": "tex", "csv": "csv"}
PAGE, OVERVIEW, PLAN = "report.html", "README.md", "plan.toml"
CLAIMS = "claims"
"""The name of the tables of claims."""


class Shown:
    """All tables of a reproduction, made once."""

    def __init__(self, plan: Plan, results: Results):
        self.plan = plan
        self.results = results
        self.views = [View(exhibit, plan, results) for exhibit in plan.exhibits]
        for view in self.views:
            check_known(view.exhibit.kind, KINDS, f"a kind of exhibit ({view.exhibit.name})")
        self.judgements = judge_all(plan, results)
        claims = [claims_table(judged, tokenization) for tokenization, judged in self.judgements.items()]
        self.tables = {
            **({CLAIMS: claims} if claims else {}),
            **{view.exhibit.name: KINDS[view.exhibit.kind](view) for view in self.views},
        }

    @property
    def digest(self) -> str:
        """Of everything that the page and the figures show."""
        return self.results.digest(self.plan, version("eosin"))

    def is_drawn(self) -> bool:
        """Whether the page that is there shows all this, and the figures are there."""
        path = self.results.folder / PAGE
        figures = [file for view in self.views for file in files_of(view, self.figures)]
        if not all(file.is_file() and file.stat().st_size for file in [path, *figures]):
            return False
        page = path.read_bytes()
        return f'content="{self.digest}"'.encode() in page[:2000] and page.rstrip().endswith(b"</html>")

    @property
    def figures(self) -> Path:
        return self.results.folder / "figures"

    def draw(self) -> None:
        """The figures, and then the page that says of what they are."""
        for view in self.views:
            draw(view, self.figures)
        write_text(self.results.folder / PAGE, page(self).render())

    def write(self) -> None:
        """Every table in every format, and all of them on one page of Markdown."""
        folder = self.results.folder
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        for exhibit, made in self.tables.items():
            for name, ending in ENDINGS.items():
                text = "\n\n".join(map(RENDERINGS[name], made)) + "\n"
                write_text(folder / "tables" / f"{exhibit}.{ending}", text)
        write_text(folder / OVERVIEW, overview(self))


def check_free(folder: Path) -> None:
    """What is shown must not take the place of what somebody else has there."""
    ours = any((folder / name).is_file() for name in (PLAN, PIECES))
    if theirs := [name for name in (OVERVIEW, PAGE, "tables", "figures") if not ours and (folder / name).exists()]:
        raise BadInput(
            f"{folder} has a {theirs[0]} that is not of a reproduction, and would be overwritten; name another (--out)"
        )


def write_plan(plan: Plan, folder: Path) -> None:
    """What the results in a folder are of, so that it need not be said again."""
    chosen = {"preset": plan.preset.path, "exhibits": [exhibit.path for exhibit in plan.exhibits]}
    given = {"set": list(plan.given)} if plan.given else {}
    write_text(folder / PLAN, to_toml({"plan": {**chosen, "seeds": len(plan.seeds), **given}}))


# the page of Markdown


def overview(shown: Shown) -> str:
    """All tables, and what it took to make them."""
    preset = shown.plan.preset
    parts = [
        f"# The paper's tables, `{preset.name}`",
        f"{preset.about[0].upper()}{preset.about[1:]}. Made by `{command(shown)}` from the records beside this "
        "file; no number was typed. `eosin reproduce --out FOLDER --as-is` makes the tables and figures anew, and "
        "report.html, a page; with `--tables-only` it makes the tables only.",
        *(render_markdown(table) for made in shown.tables.values() for table in made),
        render_markdown(took(shown.results)),
    ]
    return "\n\n".join(parts) + "\n"


def command(shown: Shown) -> str:
    """What makes this; if some runs are not trained to the end, it was made of what there was."""
    plan = shown.plan
    found = [shown.results.training(piece.run) for piece in plan.trainings]
    as_is = "" if all(entry and entry["finished"] for entry in found) else " --as-is"
    names = tuple(exhibit.path for exhibit in plan.exhibits)
    only = f" --only {' '.join(names)}" if names != plan.preset.exhibits else ""
    seeds = f" --seeds {len(plan.seeds)}" if len(plan.seeds) != plan.preset.initialisations else ""
    given = "".join(f" --set {shlex.quote(each)}" for each in plan.given)
    return f"eosin reproduce {plan.preset.path}{only}{seeds}{given}{as_is}"


def took(results: Results) -> Table:
    columns = (
        Column("piece", left=True),
        Column("minutes", format_one_decimal),
        Column("epochs", format_count),
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
    note = "Minutes are of the processes that finished something, and of all of a training; other work may have run."
    return Table(columns, rows, "How long it took", note)


# the page of HTML


def page(shown: Shown) -> Page:
    """The claims first, then the verdict, then what both rest on."""
    views, name = shown.views, shown.plan.preset.name
    records = baseline_records(views, initialisations=1)
    tables = [table for name, made in shown.tables.items() if name != CLAIMS for table in made]
    if any(record.counts.loops for record in records):
        tables.append(tabulate_loops(records))
    first = "Charts are of the first initialisation of each model, unless they say otherwise."
    return Page(
        title=f"Does it stop? The paper reproduced: {name}",
        verdict=[*verdict(views), *map(Sentence, [*beside_the_paper(tables), *unfinished(views)])],
        charts=list(charts(views, records)),
        summary=shown.tables.get(CLAIMS, ()),
        tables=tables,
        examples=list(examples(views)),
        sources=[f"Made by {command(shown)}.", *([first] if len(shown.plan.seeds) > 1 else [])],
        digest=shown.digest,
    )


def unfinished(views: Sequence[View]) -> list[str]:
    """What every number that rests on it has to be taken with."""
    untrained = list(dict.fromkeys(run for view in views for run in view.untrained()))
    return [*not_trained(untrained), *dict.fromkeys(said for view in views for said in view.unfinished())]


def beside_the_paper(tables: Sequence[Table]) -> Iterator[str]:
    found = [differing for table in tables for differing in compared(table)]
    if found:
        yield (
            f"Beside the paper: {sum(found)} of {len(found)} numbers differ from its own {TOO_FAR}; "
            "in the tables they have a star."
        )


def baseline_records(shown: Sequence[View], initialisations: int | None = None) -> list[Record]:
    """Of the first initialisations of each model whose decoders are compared; without these, of all models."""
    compared = [view for view in shown if view.exhibit.kind == "ratios"]
    return first_records(compared, initialisations) or first_records(shown, initialisations)


def first_records(shown: Sequence[View], initialisations: int | None) -> list[Record]:
    found = {}
    for view in shown:
        for model in view.exhibit.models:
            for by_decoder in view.records(model)[:initialisations]:
                found.update({record.question: record for record in by_decoder.values()})
    return list(found.values())


def records_elsewhere(shown: Sequence[View]) -> list[Record]:
    """On contexts of other kinds than those that decoders are compared on."""
    return [
        record
        for view in shown
        if view.exhibit.kind == "contexts"
        for model, decoder, contexts in product(view.exhibit.models, view.exhibit.decoders, view.exhibit.contexts)
        for record in view.of_decoder(model, decoder, contexts)
    ]


def charts(shown: Sequence[View], records: Sequence[Record]) -> Iterator[Chart]:
    plain = [record for record in records if "temperature" not in record.signature.decoder]
    if plain:
        yield chart_ratios(plain)
        yield from chart_survival(plain)
    for view in shown:
        if view.exhibit.kind == "lengths":
            yield chart_lengths(length_distributions(view))
        if view.exhibit.kind == "heads":
            points = [(model.label, model.head, measured, share) for model, measured, share in priced(view)]
            if points:
                yield chart_prices(view.exhibit.title, view.only_decoder(), points)


def examples(shown: Sequence[View]) -> Iterator[Entry]:
    """Traced completions; those of one context are shown together."""
    for view in shown:
        for pair in view.exhibit.pairs:
            for each in view.results.examples(view.plan.examples(pair, view.exhibit.shown)):
                group = f"{pair.model}, {pair.decoder}: context {each['context']}, {each['prefix']}"
                yield {**each, "group": group}


def verdict(shown: Sequence[View]) -> Iterator[Sentence]:
    """Does it stop, how often not, what fixes it, at what price; of all initialisations."""
    yield from report_verdict(baseline_records(shown), records_elsewhere(shown))
    for view in shown:
        if view.exhibit.kind == "heads":
            yield from prices(view)


def prices(view: View) -> Iterator[Sentence]:
    """What remedies cost in perplexity, against the softmax of the same model."""
    baselines = [shown for shown in view.exhibit.models if shown.head == "softmax" and test_perplexities(view, shown)]
    for baseline in baselines:
        before = test_perplexities(view, baseline)
        remedies = [each for each in priced(view) if each[0].label == baseline.label and each[0].head != "softmax"]
        fixes = [f"{shown.head} ({measured:.1f})" for shown, measured, share in remedies if not share]
        left = [f"{shown.head} ({share:.2f}% had not)" for shown, _, share in remedies if share]
        if fixes:
            yield Sentence(
                f"{baseline.model}, {view.only_decoder()}: it ended on every context with {', '.join(fixes)}. In "
                f"brackets the test perplexity; that of softmax is {sum(before) / len(before):.1f}.",
                "good",
            )
        if left:
            yield Sentence(f"{baseline.model}, {view.only_decoder()}: not on every context with {', '.join(left)}.")
