"""eosin reproduce"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eosin.cli.terminal import format_duration
from eosin.errors import BadInput
from eosin.events import Event, Stopped
from eosin.paper.claims import Verdict
from eosin.paper.exhibits import exhibit_names, load_exhibit
from eosin.paper.plan import Plan
from eosin.paper.presets import load_preset, preset_names
from eosin.paper.rendering import OVERVIEW, PAGE, PLAN, Shown, check_free, write_plan
from eosin.paper.results import PIECES, Entry, Results, locked
from eosin.report.tables import Table, render_text
from eosin.settings import (
    build,
    get_section,
    lists_to_tuples,
    parse_assignment,
    read_toml,
)

if TYPE_CHECKING:
    from eosin.paper.execution import Workshop

DESCRIPTION = """PRESET is quick (minutes), small (the paper's data and sizes, few epochs: two hours a model on a CPU),
seeds (ten initialisations of smaller BPE models: twenty minutes a model), with-unk (BPE of small on text with <unk>),
paper (ten initialisations: days on a GPU), gpt2 (the paper's fine-tuning of GPT-2: days on a GPU) or smollm2 (the same
in small: hours on a CPU). What is missing is trained and audited; what is finished is never done again, and the same
command goes on after a kill. Tables, figures and a page (report.html) are in the folder --out.

examples:
  eosin reproduce quick
  eosin reproduce small --dry-run
  eosin reproduce small --only table-1-word table-3-word --runs ~/runs
  eosin reproduce paper --seeds 3 --device cuda
  eosin reproduce gpt2 --set data.source=wikitext-103 --set pretrained.model=gpt2 --device cuda"""


def add_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "preset",
        nargs="?",
        metavar="PRESET",
        help=f"{', '.join(preset_names())}, or a .toml file (default: that of --out, or quick)",
    )
    verb.add_argument("--preset", dest="named", metavar="PRESET", help="the same, as an option")
    verb.add_argument(
        "--only",
        nargs="+",
        metavar="EXHIBIT",
        help=f"these only: {', '.join(exhibit_names())}, or .toml files of your own",
    )
    verb.add_argument("--seeds", type=count, metavar="N", help="initialisations (default: the preset's)")
    verb.add_argument(
        "--set", action="append", metavar="SECTION.KEY=VALUE", help="change a setting of every model; may be repeated"
    )
    verb.add_argument("--out", type=folder_name, metavar="FOLDER", help="results (default: reproduction/PRESET)")
    verb.add_argument("--runs", type=folder_name, metavar="FOLDER", help="trained runs and corpora (default: OUT/runs)")
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")
    verb.add_argument("--precision", default="auto", help="of the products in training (see eosin train)")
    verb.add_argument("--threads", type=count, metavar="N", help="CPU threads (default: as many as cores)")
    verb.add_argument("--dry-run", action="store_true", help="only list the pieces, and about how long each takes")
    verb.add_argument("--as-is", action="store_true", help="train nothing; audit unfinished runs too, marked as such")
    verb.add_argument("--tables-only", action="store_true", help="do nothing but make tables of what is there")


def folder_name(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a folder, and is empty; . is this folder")
    return Path(text)


def count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1000, got {text!r}")
    return int(text)


def run(options: argparse.Namespace) -> None:
    plan, folder = planned(options)
    check_free(folder)
    if plan.given:
        check_settings(plan, options)  # a setting that is misspelt is not one that differs
    whole = together(plan, folder)
    check_names(whole)
    results = results_of(whole, folder)
    if options.dry_run:
        print(listed(plan, results, options))
        return
    if options.tables_only:
        if not results.entries:
            raise BadInput(
                f"there are no results in {folder}; make some without --tables-only, or name another (--out)"
            )
        shown = Shown(whole, results)
    else:
        shown = made(plan, whole, results, options)
    with locked(folder), going_on(results):
        write_plan(shown.plan, folder)
        shown.write()
    names = ["claims", *(exhibit.name for exhibit in plan.exhibits)]
    asked = {name: shown.tables[name] for name in names if name in shown.tables}
    print(json.dumps(summary(asked, folder)) if options.json else described(asked, folder, options.tables_only))
    if not options.tables_only:
        check_claims(shown)


def results_of(plan: Plan, folder: Path) -> Results:
    """What is finished, and of these settings."""
    results = Results(folder)
    for piece in plan.pieces:
        results.check(piece)
    return results


def made(plan: Plan, whole: Plan, results: Results, options: argparse.Namespace) -> Shown:
    """Do what is missing, and show it with the rest. torch is not needed to see that nothing is."""
    shown = Shown(whole, results)
    missing = any(results.entry(results.as_it_stands(piece)) is None for piece in plan.pieces)
    if not missing and shown.is_drawn():
        return shown
    check_extras()
    if missing:
        check_settings(plan, options)
    with locked(results.folder):
        results = results_of(whole, results.folder)  # another process may have finished something since
        write_plan(whole, results.folder)
        if missing:
            work(plan, results, options.runs or results.folder / "runs", options)
        shown = Shown(whole, results)
        with going_on(results):
            shown.draw()
    return shown


def together(plan: Plan, folder: Path) -> Plan:
    """With what the folder shows already, if that is of the same preset: one table more takes none away."""
    if not (folder / PLAN).is_file():
        return plan
    before = plan_of(folder)
    if (before.preset, before.seeds, before.set) != (plan.preset.path, len(plan.seeds), plan.given):
        return plan
    there = [name for name in before.exhibits if name in exhibit_names() or Path(name).is_file()]
    names = dict.fromkeys([*there, *(exhibit.path for exhibit in plan.exhibits)])
    usual = [name for name in plan.preset.exhibits if name in names]
    order = dict.fromkeys([*usual, *names])
    return replace(plan, exhibits=tuple(load_exhibit(name, plan.preset.tokenization) for name in order))


def check_names(plan: Plan) -> None:
    """Tables are called as their exhibits are, and runs as their models."""
    called = Counter(exhibit.name for exhibit in plan.exhibits)
    if twice := [name for name, count in called.items() if count > 1]:
        raise BadInput(f"two exhibits are called {twice[0]}, and so would be their tables; rename a file")
    trained = Counter(piece.run for piece in plan.trainings)
    if twice := [run for run, count in trained.items() if count > 1]:
        raise BadInput(f"two models are called {twice[0]}, and so would be their runs; rename a file")


def planned(options: argparse.Namespace) -> tuple[Plan, Path]:
    """What to make, and where: as the options say, and else as it was made there before."""
    if options.preset and options.named and options.preset != options.named:
        raise BadInput(f"there are two presets, {options.preset} and {options.named}; name one")
    if "" in (options.preset, options.named):
        raise BadInput(f"a preset has a name: {', '.join(preset_names())}, or a .toml file")
    name = options.preset or options.named
    before = MadeBefore() if name or options.out is None else plan_of(options.out)
    preset = load_preset(name or before.preset)
    names = options.only or before.exhibits or preset.exhibits
    exhibits = tuple(load_exhibit(each, preset.tokenization) for each in dict.fromkeys(names))
    seeds = options.seeds or before.seeds or preset.initialisations
    given = tuple(options.set or before.set)
    if any("seed" in parse_assignment(each).get("training", {}) for each in given):
        raise BadInput("a reproduction has initialisations 0 to N - 1: say --seeds N instead of --set training.seed")
    if given and preset.bundled:
        raise BadInput(
            f"{preset.name} audits models that come with the package, whose settings are fixed: leave out --set, or "
            "name a preset that trains, such as seeds"
        )
    return Plan(preset, exhibits, tuple(range(seeds)), given), options.out or Path("reproduction") / preset.name


@dataclass(frozen=True)
class MadeBefore:
    """What the results in a folder are of, as plan.toml says it."""

    preset: str = "quick"
    exhibits: tuple[str, ...] = ()
    seeds: int = 0
    set: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.seeds <= 1000:
            raise ValueError(f"seeds must be 1 to 1000, got {self.seeds}")


def plan_of(folder: Path) -> MadeBefore:
    path = folder / PLAN
    if not path.is_file() and not (folder / PIECES).is_file():
        return MadeBefore()
    if not path.is_file():
        raise BadInput(f"{folder} has results, but no {PLAN} that says of what preset; name it: eosin reproduce PRESET")
    try:
        said = get_section(read_toml(path), "plan", path)
        if "preset" not in said:
            raise BadInput("it names no preset")
        return build(MadeBefore, lists_to_tuples(said), "plan")
    except BadInput as error:
        raise BadInput(f"{path} is damaged: {error}; remove it, and name the preset: eosin reproduce PRESET") from error


def check_extras() -> None:
    """Before hours of training, not after them."""
    for package in ("plotly", "matplotlib"):
        if find_spec(package) is None:
            raise BadInput(f"figures and the page need {package}: pip install 'eosin[report]'")


def work(plan: Plan, results: Results, runs: Path, options: argparse.Namespace) -> None:
    with workshop(plan, results, runs, options) as shop:
        for number, piece in enumerate(plan.pieces, 1):
            shop.check_stop()
            piece = results.as_it_stands(piece)
            if results.entry(piece) is None:
                tell(f"[{number}/{len(plan.pieces)}] {piece.name}", options)
                entry = shop.do(piece)
                tell("    " + (outcome(entry) if entry else "left out: its run has no weights yet"), options)
    if not any(results.entry(results.as_it_stands(piece)) for piece in plan.pieces):
        raise BadInput(f"there is no run of {plan.preset.name} in {runs}; name the folder (--runs), or train some")


def check_settings(plan: Plan, options: argparse.Namespace) -> None:
    from eosin.paper.execution import check_work

    check_work(plan, options.device, options.precision)


def tell(line: str, options: argparse.Namespace) -> None:
    print(line, file=sys.stderr if options.json else sys.stdout, flush=True)


def outcome(entry: Entry) -> str:
    said = [format_duration(entry["seconds"])]
    if "perplexity" in entry:
        said.append(f"test perplexity {entry['perplexity']['test']:.2f}")
    if not entry.get("finished", True):
        said.append(f"unfinished, {entry['epochs']} epochs")
    return ", ".join(said)


@contextmanager
def workshop(plan: Plan, results: Results, runs: Path, options: argparse.Namespace) -> Iterator[Workshop]:
    """A signal to end is heard after the step of training or the completion that is under way."""
    from eosin.cli.progress import Bar
    from eosin.devices import use_threads
    from eosin.paper.execution import Workshop

    bar = Bar()

    def watch(event: Event) -> None:
        bar(event)
        if requested:
            raise Stopped

    requested: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: requested.append(number))
    try:
        with going_on(results), use_threads(options.threads):
            yield Workshop(
                results=results,
                runs=runs,
                device=options.device,
                precision=options.precision,
                threads=options.threads,
                watch=watch,
                as_is=options.as_is,
                bundled=frozenset(piece.run for piece in plan.bundled),
            )
    except Stopped:
        sys.stderr.write("eosin reproduce: stopped; what is finished is saved, and the same command goes on\n")
        sys.exit(128 + requested[0])
    finally:
        bar.close()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def going_on(results: Results) -> Iterator[None]:
    """Whatever stops this says that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what is finished is in {results.folder}; the same command goes on") from None
    except BrokenPipeError:
        raise  # whoever read this has seen enough
    except OSError as error:
        raise BadInput(
            f"{error}; what is finished is in {results.folder}, and when that is mended the same command goes on"
        ) from error


def listed(plan: Plan, results: Results, options: argparse.Namespace) -> str:
    """Every piece, and about how long what is missing will take; as it is, only those of runs that have weights."""
    from eosin.models.checkpoint import WEIGHTS
    from eosin.paper.cost import Estimates

    check_settings(plan, options)
    runs, pieces = options.runs or results.folder / "runs", plan.pieces
    if options.as_is:
        pieces = [piece for piece in pieces if all((runs / run / WEIGHTS).is_file() for run in piece.looks_at)]
    estimates = Estimates(plan, options.as_is)
    costs = {
        piece.name: None if results.entry(results.as_it_stands(piece)) else estimates.seconds(piece) for piece in pieces
    }
    total = sum(filter(None, costs.values()))
    if options.json:
        return json.dumps({"pieces": costs, "seconds": total})
    lines = [f"{'finished' if cost is None else format_duration(cost):>10}  {name}" for name, cost in costs.items()]
    if not total:
        return "\n".join([*lines, "there is nothing to do"])
    about = "estimated from the products that they take on this machine; good to a factor of two or three"
    return "\n".join([*lines, f"{format_duration(total):>10}  in all, {about}"])


def described(tables: dict[str, list[Table]], folder: Path, tables_only: bool) -> str:
    parts = [render_text(table) for made in tables.values() for table in made]
    there = [
        OVERVIEW,
        "tables/",
        *(name for name in ("figures/", PAGE) if not tables_only and (folder / name).exists()),
    ]
    return "\n\n".join([*parts, f"in {folder}: {', '.join(there)}"])


def summary(tables: dict[str, list[Table]], folder: Path) -> dict[str, Any]:
    """For machines."""
    written = {
        name: [{"title": table.title, "columns": table.flat_headings, "rows": table.flat_rows} for table in made]
        for name, made in tables.items()
    }
    return {"folder": str(folder), "tables": written}


def check_claims(shown: Shown) -> None:
    """A reproduction fails where a claim that its preset decides by a wide margin is measured and does not hold."""
    judgements = [judged for each in shown.judgements.values() for judged in each]
    failed = [
        judged
        for judged in judgements
        if judged.claim.name in shown.plan.preset.must_hold
        and judged.verdict not in (Verdict.HOLDS, Verdict.NOT_MEASURED)
    ]
    for judged in failed:
        sys.stderr.write(f"eosin reproduce: {judged.claim.says}: {judged.verdict}, {judged.ours}\n")
    if failed:
        sys.stderr.write("eosin reproduce: the paper's claims above did not hold, so this reproduction has failed\n")
        sys.exit(1)
