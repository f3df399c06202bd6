"""From results to files for people: tables in four formats, figures, one page. All of it can be made again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import tomli_w

from eosin.causes import Cause
from eosin.errors import BadInput
from eosin.paper.claims import Verdict, judge_all, tabulate_claims
from eosin.paper.exhibits import find_model
from eosin.paper.figures import collect_heads, draw_figure, find_chart, list_figure_files
from eosin.paper.plan import Plan
from eosin.paper.results import PIECES, Results, RunEntry
from eosin.paper.tables import (
    KINDS,
    TOO_FAR,
    ExhibitData,
    Row,
    count_stars,
    describe_gaps,
    find_published_records,
    split_table,
)
from eosin.records.record import Record
from eosin.report.audit_page import chart_overview, describe_records, show_loops
from eosin.report.audits import tabulate_loops
from eosin.report.charts import Chart, Papers, chart_ratios, chart_survival
from eosin.report.completions import NAME_CHARACTERS, Card, build_example_card, choose_pairs, clean_prefix
from eosin.report.origin import SOFTMAX, Origin, Origins, index_origins
from eosin.report.page import Page
from eosin.report.tables import RENDERINGS, Column, Table, format_count, format_one_decimal, render_csv, render_markdown
from eosin.report.traces import Example
from eosin.report.verdict import Sentence, find_remedies, propose_fix, write_verdict
from eosin.settings import check_known, read_toml
from eosin.storage.files import write_text

SUFFIXES = {"text": "txt", "markdown": "md", "latex": "tex"}
PAGE, README, PLAN = "report.html", "README.md", "plan.toml"
PAPER_CONTEXT = 10
"""The paper's k, which settings have if they say nothing else."""
CLAIMS = "claims"
"""The name of the table of claims."""


class Reproduction:
    """All tables of a plan, made once from the results."""

    def __init__(self, plan: Plan, results: Results):
        self.plan = plan
        self.results = results
        self.exhibits = [ExhibitData(plan, results, exhibit) for exhibit in plan.exhibits]
        for data in self.exhibits:
            check_known(data.exhibit.kind, KINDS, f"a kind of exhibit ({data.exhibit.name})")
        self.judged = judge_all(plan, results)
        claims = {CLAIMS: tabulate_claims(self.judged)} if self.judged else {}
        self.tables = {**claims, **{data.exhibit.name: KINDS[data.exhibit.kind](data) for data in self.exhibits}}
        """By name, as machines read them: one table for each exhibit."""
        self._split = {
            CLAIMS,
            *(data.exhibit.name for data in self.exhibits if data.exhibit.kind in ("ratios", "published")),
        }

    def list_parts(self, name: str) -> list[Table]:
        """A table as people read it: one table for each model."""
        return split_table(self.tables[name]) if name in self._split else [self.tables[name]]

    @property
    def parts(self) -> list[Table]:
        return [part for name in self.tables for part in self.list_parts(name)]

    @property
    def digest(self) -> str:
        """A digest of everything that the page and the figures show."""
        return self.results.compute_digest(self.plan, version("eosin"))

    @property
    def figures(self) -> Path:
        return self.results.folder / "figures"

    def is_drawn(self) -> bool:
        """Whether the figures exist, and the page is of these results."""
        path = self.results.folder / PAGE
        figures = [file for data in self.exhibits for file in list_figure_files(data, self.figures)]
        if not all(file.is_file() and file.stat().st_size for file in [path, *figures]):
            return False
        page = path.read_bytes()
        return f'content="{self.digest}"'.encode() in page[:2000] and page.rstrip().endswith(b"</html>")

    def draw(self) -> None:
        """Write the figures, and then the page, which has the digest."""
        for data in self.exhibits:
            draw_figure(data, self.figures)
        write_text(self.results.folder / PAGE, build_paper_page(self).render())

    def write_tables(self) -> None:
        """Write every table in every format, and all of them on one page of Markdown."""
        folder = self.results.folder / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in self.tables.items():
            write_text(folder / f"{name}.csv", render_csv(table) + "\n")
            for format, suffix in SUFFIXES.items():
                text = "\n\n".join(map(RENDERINGS[format], self.list_parts(name)))
                write_text(folder / f"{name}.{suffix}", text + "\n")
        write_text(self.results.folder / README, render_readme(self))


def check_folder(folder: Path) -> None:
    """Raise BadInput if the folder has files of somebody else that would be overwritten."""
    is_ours = any((folder / name).is_file() for name in (PLAN, PIECES))
    if taken := [name for name in (README, PAGE, "tables", "figures") if not is_ours and (folder / name).exists()]:
        raise BadInput(
            f"{folder} has a {taken[0]} that is not of a reproduction, and would be overwritten; name another (--out)"
        )


def write_plan(plan: Plan, folder: Path) -> None:
    """Save the choices of a plan, so that they need not be given again."""
    chosen = {"preset": plan.preset.path, "exhibits": [exhibit.path for exhibit in plan.exhibits]}
    changed = {"set": list(plan.assignments)} if plan.assignments else {}
    write_text(folder / PLAN, tomli_w.dumps({"plan": {**chosen, "seeds": len(plan.seeds), **changed}}))


# the page of Markdown


def render_readme(reproduction: Reproduction) -> str:
    preset = reproduction.plan.preset
    parts = [
        f"# {preset.title}, `{preset.name}`",
        f"{preset.about[0].upper()}{preset.about[1:]}. Made by `{write_command(reproduction)}` from the records beside "
        "this file; no number was typed. `eosin reproduce --out FOLDER --tables-only` makes the tables again; "
        "without the option also the figures, and a page (report.html).",
        *([f"**Caution:** {preset.caution}"] if preset.caution else []),
        *map(render_markdown, reproduction.parts),
        render_markdown(tabulate_durations(reproduction.results)),
    ]
    return "\n\n".join(parts) + "\n"


def write_command(reproduction: Reproduction) -> str:
    """The command that makes this; --as-is if some runs are missing."""
    plan = reproduction.plan
    is_complete = all(reproduction.results.find_run(piece.run) for piece in plan.trainings)
    names = tuple(exhibit.path for exhibit in plan.exhibits)
    return " ".join(
        [
            f"eosin reproduce {plan.preset.path}",
            *([f"--only {' '.join(names)}"] if names != plan.preset.exhibits else []),
            *([f"--seeds {len(plan.seeds)}"] if len(plan.seeds) != plan.preset.initialisations else []),
            *(f"--set {shlex.quote(each)}" for each in plan.assignments),
            *([] if is_complete else ["--as-is"]),
        ]
    )


def tabulate_durations(results: Results) -> Table:
    columns = (
        Column("piece", left=True),
        Column("minutes", format_one_decimal),
        Column("epochs", format_count),
        Column("precision", left=True),
        Column("machine", left=True),
    )
    rows: list[Row] = []
    for entry in results.entries.values():
        machine = f"{entry.machine.processor}, torch {entry.machine.torch}, eosin {entry.machine.eosin}"
        if isinstance(entry, RunEntry):
            minutes = (entry.training_seconds or entry.seconds) / 60
            rows.append((entry.name, minutes, entry.epochs, entry.precision, machine))
        else:
            rows.append((entry.name, entry.seconds / 60, None, None, machine))
    note = "Minutes of a training are those of all its processes. Other work may have run at the same time."
    return Table(columns, tuple(rows), "How long it took", note)


# the page of HTML


def build_paper_page(reproduction: Reproduction) -> Page:
    """The verdict and what it looks like, then the claims, then what both rest on."""
    exhibits, preset = reproduction.exhibits, reproduction.plan.preset
    records = list_baseline_records(exhibits, initialisations=1)
    audited, first = list_audited_records(exhibits), list_audited_records(exhibits, initialisations=1)
    shown = {data.exhibit.name for data in exhibits if data.exhibit.kind != "continuations"}  # traces have those
    tables = [part for name in reproduction.tables if name in shown for part in reproduction.list_parts(name)]
    if any(record.counts.loops for record in records):
        tables.append(tabulate_loops(records))
    examples, origins = list_examples(exhibits), list_origins(exhibits)
    return Page(
        title=f"Does it stop? The paper reproduced: {preset.name}",
        verdict=list(write_paper_verdict(exhibits, origins)),
        fix=propose_fix(audited, list_other_records(exhibits), origins),
        overview=chart_overview(list_plain_records(first), origins) if first else None,
        pairs=pair_examples(audited, [example for _, group in examples for example in group], origins),
        charts=list(build_charts(exhibits, records)),
        summary=[choose_claims(part) for part in reproduction.list_parts(CLAIMS)] if reproduction.judged else (),
        tables=tables,
        examples=examples,
        facts=[*describe_records(records, write_command(reproduction)), *describe_corpus(reproduction.plan)],
        notes=[*filter(None, [preset.caution]), *describe_stars(tables)],
        sources=[FIRST_ONLY, *describe_gaps(exhibits)],
        digest=reproduction.digest,
    )


FIRST_ONLY = "Charts are of the first initialisation of each model, unless they say otherwise."


def choose_claims(table: Table) -> Table:
    """The claims that were measured, each with its verdict beside it."""
    order = [table.headings.index(name) for name in ("the paper says", "verdict", "ours", "its number", "in")]
    rows = [tuple(row[place] for place in order) for row in table.rows]
    measured = tuple(row for row in rows if row[1] != Verdict.NOT_MEASURED)
    others = f" {len(rows) - len(measured)} more claims are not measured here." if len(measured) < len(rows) else ""
    note = f"{table.note}{others}".strip()
    return replace(table, columns=tuple(table.columns[place] for place in order), rows=measured, note=note)


def describe_corpus(plan: Plan) -> list[tuple[str, str]]:
    """The texts, and the paper's k."""
    settings = [read_data_settings(model) for model in dict.fromkeys(piece.model for piece in plan.run_pieces.values())]
    texts = dict.fromkeys(str(each["source"]) for each in settings if "source" in each)
    lengths = dict.fromkeys(str(each.get("context", PAPER_CONTEXT)) for each in settings)
    if not settings:
        return []
    return [("text", ", ".join(texts)), ("prefix length k", ", ".join(lengths))]


def list_origins(exhibits: Sequence[ExhibitData]) -> Origins:
    """The heads of the models that exhibits compare, and the lengths of their data."""
    return index_origins(
        Origin(
            run=entry.run,
            contexts_from="test",
            head=member.head.split()[0] if member.head else SOFTMAX,
            network=f"{data.exhibit.name}, {member.label}",
            lengths=data.data_lengths,
        )
        for data in sorted(exhibits, key=lambda data: data.exhibit.kind == "heads")
        for member in data.exhibit.models
        for entry in data.find_runs(member.model).values()
    )


def read_data_settings(model: str) -> dict[str, Any]:
    """The section `data` of a model's settings, and of the settings that it is based on."""
    path = find_model(model)
    table = read_toml(path)
    base = table.get("base")
    before = read_data_settings(str(path.with_name(base))) if base else {}
    return {**before, **table.get("data", {})}


def describe_stars(tables: Sequence[Table]) -> Iterator[str]:
    stars, compared = map(sum, zip((0, 0), *map(count_stars, tables), strict=True))
    if compared:
        yield (
            f"Beside the paper: {stars} of {compared} numbers differ from its own {TOO_FAR}; "
            "in the tables they have a star."
        )


def list_baseline_records(exhibits: Sequence[ExhibitData], initialisations: int | None = None) -> list[Record]:
    """The records of the first initialisations of models whose decoders are compared, or else of all models."""
    if found := [record for data in exhibits for record in list_published_records(data)]:
        return found
    compared = [data for data in exhibits if data.exhibit.kind == "ratios"]
    return list_records(compared, initialisations) or list_records(exhibits, initialisations)


def list_published_records(data: ExhibitData) -> list[Record]:
    """Of an exhibit that shows all of them."""
    models = data.exhibit.published if data.exhibit.kind == "published" else ()
    return [record for model in models for record in find_published_records(data, model).values()]


def list_records(exhibits: Sequence[ExhibitData], initialisations: int | None) -> list[Record]:
    found = {
        record.question: record
        for data in exhibits
        for member, decoder in product(data.exhibit.models, data.exhibit.specifications)
        for record in data.list_records(member, decoder)[:initialisations]
    }
    return list(found.values())


def list_other_records(exhibits: Sequence[ExhibitData]) -> list[Record]:
    """Records on other kinds of contexts than those that decoders are compared on."""
    return [
        record
        for data in exhibits
        if data.exhibit.kind == "contexts"
        for member, decoder, contexts in product(data.exhibit.models, data.exhibit.decoders, data.exhibit.contexts)
        for record in data.list_records(member, decoder, contexts)
    ]


def list_audited_records(exhibits: Sequence[ExhibitData], initialisations: int | None = None) -> list[Record]:
    """The baselines, and the heads and floors that are their remedies."""
    heads = list_records([data for data in exhibits if data.exhibit.kind == "heads"], initialisations)
    found = [*list_baseline_records(exhibits, initialisations), *heads]
    return list({record.question: record for record in found}.values())


def list_plain_records(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if "temperature" not in record.signature.decoder]


def build_charts(exhibits: Sequence[ExhibitData], records: Sequence[Record]) -> Iterator[Chart]:
    plain = list_plain_records(records)
    if plain:
        yield chart_ratios(plain, find_papers(exhibits))
        yield from chart_survival(plain)
    for data in exhibits:
        chart = None if data.exhibit.kind == "limits" else find_chart(data)
        if chart:
            yield chart


def find_papers(exhibits: Sequence[ExhibitData]) -> Papers:
    """The paper's ratios, for models of the paper's sizes."""
    papers = {}
    for data in exhibits:
        if data.exhibit.kind != "ratios" or data.plan.assignments or not data.plan.preset.has_paper_sizes:
            continue
        for member, decoder in product(data.exhibit.models, data.exhibit.decoders):
            number = member.find_paper_number(decoder)
            for record in data.list_records(member, decoder)[:1] if number else []:
                papers[record.signature.run, decoder] = number.mean if number else 0.0
    return papers


def list_examples(exhibits: Sequence[ExhibitData]) -> list[tuple[str, list[Example]]]:
    """Traced completions; those of one context stand together."""
    groups: dict[str, list[Example]] = {}
    for data in exhibits:
        for pair in data.exhibit.pairs:
            piece = data.plan.plan_examples(pair, data.exhibit.shown)
            for each in data.results.read_examples(piece):
                name = (
                    f"{piece.run}, {pair.decoder}: context {each.context}, {clean_prefix(each.prefix, NAME_CHARACTERS)}"
                )
                groups.setdefault(name, []).append(each)
    return list(groups.items())


def pair_examples(
    records: Sequence[Record], examples: Sequence[Example], origins: Origins
) -> list[tuple[Card, Card | None]]:
    """Completions that did not end, and what a remedy made of the same contexts."""
    failing = sorted((record for record in records if not record.all_ended), key=lambda record: -record.ratio.value)
    for record in failing:
        before = record.signature.run or "", record.signature.decoder
        found = (each.records[0].signature for each in find_remedies(record, records, origins=origins))
        causes = record.counts.causes
        is_proved = causes[Cause.PROVED] == causes.total() - causes[Cause.EOS]
        cards = [build_example_card(example, is_proved) for example in examples]
        if pairs := choose_pairs(cards, before, [(each.run or "", each.decoder) for each in found]):
            return pairs
    return show_loops(failing[0]) if failing else []


def write_paper_verdict(exhibits: Sequence[ExhibitData], origins: Origins) -> Iterator[Sentence]:
    """Does it stop, how often not, what fixes it, and what that costs; over all initialisations."""
    yield from write_verdict(list_audited_records(exhibits), list_other_records(exhibits), origins)
    for data in exhibits:
        if data.exhibit.kind == "heads":
            yield from describe_costs(data)


def describe_costs(data: ExhibitData) -> Iterator[Sentence]:
    """What each remedy costs in perplexity, against the softmax of the same model."""
    points, decoder = collect_heads(data), data.exhibit.only_decoder
    for baseline in points:
        if baseline.head != "softmax":
            continue
        remedies = [point for point in points if point.label == baseline.label and point.head != "softmax"]
        prices = [f"{each.perplexity:.1f} with {each.head} ({each.ratio:.2f}% not ended)" for each in remedies]
        if remedies:
            before = f"{baseline.perplexity:.1f} with softmax ({baseline.ratio:.2f}% of {decoder} not ended)"
            subject = f"{data.exhibit.title.partition(':')[0]}, {baseline.label}"
            yield Sentence(f"{subject}: the test perplexity is {', '.join([before, *prices])}.")
