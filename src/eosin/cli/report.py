"""eosin report"""

from __future__ import annotations

import argparse
import json
import shlex
from itertools import chain
from pathlib import Path
from typing import Any

from eosin.bundled_runs import TWINS
from eosin.cli.numbers import parse_whole_numbers, real_number
from eosin.errors import BadInput
from eosin.records.reading import FiledRecord, choose_audit_folder, examples_path, load_records
from eosin.records.statistics import count_contexts_for_bound, count_contexts_for_width
from eosin.report.audit_page import build_audit_page
from eosin.report.audits import (
    tabulate_decoders,
    tabulate_histogram,
    tabulate_limits,
    tabulate_loops,
    tabulate_quantiles,
    tabulate_survival,
)
from eosin.report.comparison import compare_audits
from eosin.report.initialisations import has_several_models, tabulate_models
from eosin.report.origin import index_origins, read_origins
from eosin.report.tables import RENDERINGS, Table
from eosin.storage.files import resolve_path, write_text

DESCRIPTION = """RECORDS are files that `eosin audit` wrote, run directories, folders of either, or models that were
audited here, as demo or hf:my-model. Nothing is decoded, and torch need not be installed. The usual tables are the
ratios by decoder and, for several models, the ratios by model, with their deviation across initialisations.

examples:
  eosin report demo
  eosin report runs/lstm
  eosin report runs --models --format latex --out table.tex
  eosin report runs/lstm --at 100,500,1500
  eosin report runs/lstm --compare nucleus:0.2 consistent-nucleus:0.2
  eosin report runs/lstm runs/tanh --compare lstm:greedy tanh:greedy
  eosin report runs/lstm --html report.html --completions completions.jsonl
  eosin report --contexts-for 0.01 --half-width 0.005"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add, share = parser.add_argument, real_number(1e-9, 1 - 1e-9, "a share from 1e-9 to below 1, as in 0.01")
    add(
        "records",
        nargs="*",
        default=[],
        metavar="RECORDS",
        help=".jsonl files, run directories, folders, demo, hf: models",
    )
    add("--models", action="store_true", help="models by decoders, across initialisations")
    add("--at", type=parse_whole_numbers, metavar="L,...", help="the ratio at other limits, up to that of the audit")
    add("--survival", action="store_true", help="the share that has not ended after each step")
    add("--lengths", action="store_true", help="quantiles and a histogram of the lengths")
    add("--loops", action="store_true", help="the loops, their proofs, and what moves in unproved ones")
    add(
        "--compare",
        nargs=2,
        metavar=("FIRST", "SECOND"),
        help="pair two audits of the same contexts and test the difference; each is a decoder, or where several audits "
        "have it RUN:decoder or FILE:decoder",
    )
    add("--contexts-for", type=share, metavar="RATIO", help="how many contexts show that the ratio is below this")
    add("--half-width", type=share, metavar="SHARE", help="how many contexts know it up to this (--contexts-for)")
    add("--html", type=Path, metavar="FILE", help="write a page of tables and charts for a browser")
    add(
        "--completions",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="files of eosin audit --completions, of which the page shows a sample (--html; default: the examples that "
        "eosin audit kept beside its records)",
    )
    add("--traces", nargs="+", type=Path, default=[], metavar="FILE", help="files of eosin trace --json (--html)")
    add("--format", choices=list(RENDERINGS), default="text", help="format of the tables (default: text)")
    add("--out", type=Path, metavar="FILE", help="write there instead of printing")


NOT_ON_A_PAGE = ("models", "at", "survival", "lengths", "loops", "compare", "contexts_for", "half_width", "out")


def run(options: argparse.Namespace) -> None:
    if options.html is not None:
        print(write_page(options))
        return
    if options.completions or options.traces:
        raise BadInput("--completions and --traces are shown on a page; say --html FILE")
    if options.contexts_for is not None or options.half_width is not None:
        text, files = count_contexts(options), set[Path]()
    else:
        found, files = load_named_records(options)
        text = render(choose_tables(options, found), options)
    if options.out is None:
        print(text)
    elif resolve_path(options.out) in files:
        raise BadInput(f"--out {options.out} is a file of records, which would be lost; name another")
    else:
        write_output(options.out, text)


def load_named_records(options: argparse.Namespace) -> tuple[list[FiledRecord], set[Path]]:
    """The records, and their files."""
    found = load_records([place for name in options.records for place in find_places(name)])
    return found, {resolve_path(path) for each in found for path in each.files}


def find_places(name: str) -> list[Path]:
    """A file or folder; or where `eosin audit` put the records of a bundled model or one of Hugging Face."""
    if Path(name).exists():
        return [Path(name)]
    places = [choose_audit_folder(each) for each in TWINS.get(name, (name,))]
    there = [place for place in places if place.is_dir()]
    if name in chain(*TWINS.values()) and not there:
        raise BadInput(f"there are no records of {name} here; make them with: eosin audit {name}")
    return there or [Path(name)]


def choose_tables(options: argparse.Namespace, found: list[FiledRecord]) -> list[Table]:
    """The tables that the options name, or the usual ones."""
    records = [filed.record for filed in found]
    if not records:
        raise BadInput("name files of records, run directories, folders or models; `eosin audit` makes records")
    wanted = [
        (tabulate_models, options.models),
        (tabulate_survival, options.survival),
        (tabulate_quantiles, options.lengths),
        (tabulate_histogram, options.lengths),
        (tabulate_loops, options.loops),
    ]
    tables = [tabulate(records) for tabulate, is_wanted in wanted if is_wanted]
    if options.at:
        tables.append(tabulate_limits(records, options.at))
    if options.compare:
        tables.append(compare_audits(found, *options.compare).table)
    if tables:
        return tables
    for_people = not options.json and options.format != "csv"  # machines say --loops
    more = [
        (tabulate_models, has_several_models(records)),
        (tabulate_loops, for_people and any(record.counts.loops for record in records)),
    ]
    return [tabulate_decoders(records), *(tabulate(records) for tabulate, is_wanted in more if is_wanted)]


def render(tables: list[Table], options: argparse.Namespace) -> str:
    if options.json:
        return json.dumps({"tables": [table_to_json(table) for table in tables]})
    return "\n\n".join(map(RENDERINGS[options.format], tables))


def table_to_json(table: Table) -> dict[str, Any]:
    return {"title": table.title, "note": table.note, "columns": table.flat_headings, "rows": table.flat_rows}


def write_page(options: argparse.Namespace) -> str:
    for name in NOT_ON_A_PAGE:
        if vars(options)[name]:
            raise BadInput(f"--html makes a page of its own; say --{name.replace('_', '-')} without it")
    found, files = load_named_records(options)
    if resolve_path(options.html) in files | {resolve_path(path) for path in [*options.completions, *options.traces]}:
        raise BadInput(f"--html {options.html} is a file that the page is made of; name another")
    completions = options.completions or find_examples(files)
    records, origins = [each.record for each in found], index_origins(read_origins(sorted(files)))
    page = build_audit_page(records, completions, options.traces, write_command(options), origins)
    write_output(options.html, page.render())
    return json.dumps({"page": str(options.html)}) if options.json else f"{options.html}: open it in a browser"


def find_examples(files: set[Path]) -> list[Path]:
    """Those that `eosin audit` kept beside its records."""
    return [path for file in sorted(files) if (path := examples_path(file)).is_file()]


def write_command(options: argparse.Namespace) -> str:
    files = [(f"--{name}", *vars(options)[name]) for name in ("completions", "traces") if vars(options)[name]]
    return shlex.join(map(str, ["eosin", "report", *options.records, "--html", options.html, *chain(*files)]))


def count_contexts(options: argparse.Namespace) -> str:
    """How many contexts a question needs; no records are read."""
    if options.contexts_for is None:
        raise BadInput("--half-width belongs to --contexts-for RATIO")
    if options.records:
        raise BadInput("--contexts-for needs no records: it says how many contexts to audit before there are any")
    ratio, half = options.contexts_for, options.half_width
    counts = {"below": count_contexts_for_bound(ratio)}
    lines = [
        f"{counts['below']:,} contexts, all of which end, show with 95% confidence that the ratio is below {ratio:g}"
    ]
    if half is not None:
        counts["within"] = count_contexts_for_width(ratio, half)
        lines.append(f"{counts['within']:,} contexts give a 95% interval of about {ratio:g} ± {half:g}")
    return json.dumps({"contexts": counts}) if options.json else "\n".join(lines)


def write_output(path: Path, text: str) -> None:
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout, which nothing can take the place of
            path.write_text(text + "\n", encoding="utf-8")
        else:
            write_text(path, text + "\n")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error
