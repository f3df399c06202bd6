"""eosin reproduce"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eosin.cli.numbers import DEVICE_HELP, real_number, whole_number
from eosin.cli.terminal import format_duration
from eosin.cli.workers import add_worker_options, check_workers, has_workers, hire_crew, run_and_tell
from eosin.errors import BadInput
from eosin.events import Event, Stopped, Watch
from eosin.paper.claims import Verdict
from eosin.paper.exhibits import EXHIBITS, list_names, load_exhibit
from eosin.paper.plan import Piece, Plan
from eosin.paper.presets import PRESETS, load_preset
from eosin.paper.rendering import PAGE, PLAN, README, Reproduction, check_folder, write_plan
from eosin.paper.results import PIECES, AnyEntry, Results, RunEntry, find_earlier, lock_results
from eosin.report.tables import render_text
from eosin.scale.crew import Crew, Unit, list_stages
from eosin.scale.local import Here
from eosin.scale.worker import Work
from eosin.settings import build, get_section, parse_assignment, read_toml

DESCRIPTION = """PRESET is quick (minutes), small (the paper's data and sizes, few epochs: two hours a model on a CPU),
seeds (ten initialisations of smaller BPE models: twenty minutes a model), with-unk (BPE of small on text with <unk>),
paper (ten initialisations: days on a GPU), gpt2 (the paper's fine-tuning of GPT-2: days on a GPU), smollm2 (the same
in small: hours on a CPU) or published (models that others trained, audited as they are: hours on a CPU). What is
missing is trained and audited; what is finished is not done again, so the same command resumes after a kill. It says
first how long pieces took before, where that was measured. Tables, figures and a page (report.html) are written to the
folder --out.

examples:
  eosin reproduce quick
  eosin reproduce small --dry-run
  eosin reproduce published
  eosin reproduce small --only table-1-word table-3-word --runs ~/runs
  eosin reproduce paper --seeds 3 --device cuda
  eosin reproduce seeds --workers 8
  eosin reproduce paper --on ray://head:10001 --gpus-per-training 0.25
  eosin reproduce gpt2 --set data.source=wikitext-103 --set pretrained.model=gpt2 --device cuda"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "preset",
        nargs="?",
        metavar="PRESET",
        help=f"{', '.join(list_names(PRESETS))}, or a .toml file (default: that of --out, or quick)",
    )
    add(
        "--only",
        nargs="+",
        metavar="EXHIBIT",
        help=f"these exhibits only: {', '.join(list_names(EXHIBITS))}, or .toml files of your own",
    )
    add("--seeds", type=whole_number(1, 1000), metavar="N", help="initialisations (default: the preset's)")
    add("--set", action="append", metavar="SECTION.KEY=VALUE", help="change a setting of every model; may be repeated")
    add("--out", type=parse_folder, metavar="FOLDER", help="results (default: reproduction/PRESET)")
    add("--runs", type=parse_folder, metavar="FOLDER", help="runs and corpora (default: OUT/runs)")
    add("--device", default="auto", help=DEVICE_HELP)
    add("--precision", default="auto", help="of the products in training (see eosin train)")
    add_worker_options(parser)
    add(
        "--gpus-per-training",
        type=real_number(0, 64, "a number from 0 to 64, as in 0.5"),
        metavar="N",
        help="GPUs of each worker on a cluster; below 1, several workers share one (default: 1 if there are any)",
    )
    add("--dry-run", action="store_true", help="only list the pieces, and which of them are finished")
    add("--as-is", action="store_true", help="train nothing; audit the runs that are finished")
    add("--tables-only", action="store_true", help="only make the tables of the results that exist")


def parse_folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a folder, and is empty; . is this folder")
    return Path(text)


def run(options: argparse.Namespace) -> None:
    check_workers(options)
    plan, folder = make_plan(options)
    check_folder(folder)
    check_names(plan)
    if plan.assignments or options.dry_run:
        check_settings(plan, options)  # a misspelt setting is not one that differs
    results = open_results(plan, folder)
    if options.dry_run:
        print(list_pieces(plan, results, options.json))
        return
    if options.tables_only and not results.entries:
        raise BadInput(f"there are no results in {folder}; make some without --tables-only, or name another (--out)")
    reproduction = Reproduction(plan, results) if options.tables_only else do_missing_work(plan, results, options)
    with lock_results(folder), explain_stop(results):
        write_plan(plan, folder)
        reproduction.write_tables()
    print(render_json(reproduction) if options.json else render_tables(reproduction, options.tables_only))
    if not options.tables_only:
        check_claims(reproduction)


# the plan


@dataclass(frozen=True)
class SavedPlan:
    """The choices in plan.toml."""

    preset: str = "quick"
    exhibits: tuple[str, ...] = ()
    seeds: int = 0
    set: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.seeds <= 1000:
            raise ValueError(f"seeds must be 1 to 1000, got {self.seeds}")


def make_plan(options: argparse.Namespace) -> tuple[Plan, Path]:
    """The plan and the folder for results. What the options leave open is taken from the folder, or from the preset."""
    saved = SavedPlan() if options.preset is not None or options.out is None else load_plan(options.out)
    preset = load_preset(saved.preset if options.preset is None else options.preset)
    names = options.only or saved.exhibits or preset.exhibits
    exhibits = tuple(load_exhibit(each, preset.tokenization) for each in dict.fromkeys(names))
    seeds = options.seeds or saved.seeds or preset.initialisations
    assignments = tuple(options.set or saved.set)
    if any("seed" in parse_assignment(each).get("training", {}) for each in assignments):
        raise BadInput("a reproduction has initialisations 0 to N - 1: say --seeds N instead of --set training.seed")
    if assignments and preset.bundled:
        raise BadInput(
            f"{preset.name} audits models that come with the package, whose settings are fixed: leave out --set, or "
            "name a preset that trains, such as seeds"
        )
    return Plan(preset, exhibits, tuple(range(seeds)), assignments), options.out or Path("reproduction") / preset.name


def load_plan(folder: Path) -> SavedPlan:
    path = folder / PLAN
    if not path.is_file():
        if not (folder / PIECES).is_file():
            return SavedPlan()
        raise BadInput(f"{folder} has results, but no {PLAN} that says of what preset; name it: eosin reproduce PRESET")
    try:
        table = get_section(read_toml(path), "plan", path)
        if "preset" not in table:
            raise BadInput("it names no preset")
        return build(SavedPlan, table, "plan")
    except BadInput as error:
        raise BadInput(f"{path} is damaged: {error}; remove it, and name the preset: eosin reproduce PRESET") from error


def check_names(plan: Plan) -> None:
    """Raise BadInput if two exhibits or two models share a name: tables and runs are named after them."""
    for what, its, names in (
        ("exhibits", "tables", [exhibit.name for exhibit in plan.exhibits]),
        ("models", "runs", [piece.run for piece in plan.trainings]),
    ):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise BadInput(f"two {what} are called {twice[0]}, and so would be their {its}; rename a file")


def check_settings(plan: Plan, options: argparse.Namespace) -> None:
    from eosin.paper.execution import check_plan

    check_plan(plan, options.device, options.precision)


def open_results(plan: Plan, folder: Path) -> Results:
    """The results in a folder, if they have the settings of the plan."""
    results = Results(folder)
    for piece in plan.pieces:
        results.refuse_other_settings(piece)
    return results


# the work


def do_missing_work(plan: Plan, results: Results, options: argparse.Namespace) -> Reproduction:
    """Do what is missing. A finished reproduction is recognised without torch."""
    reproduction = Reproduction(plan, results)
    is_missing = not all(map(results.is_finished, plan.pieces))
    if not is_missing and reproduction.is_drawn():
        return reproduction
    check_extras()
    if is_missing:
        check_settings(plan, options)
    with lock_results(results.folder):
        results = open_results(plan, results.folder)  # another process may have finished something since
        write_plan(plan, results.folder)
        if is_missing:
            do_pieces(plan, results, options)
        reproduction = Reproduction(plan, results)
        with explain_stop(results):
            reproduction.draw()
    return reproduction


def check_extras() -> None:
    """Raise BadInput before hours of training, not after them."""
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise BadInput(f"figures and the page need {package}: pip install 'eosin[report]'")


def do_pieces(plan: Plan, results: Results, options: argparse.Namespace) -> None:
    """Do what is missing, each piece after those that it needs. The results are written here, wherever work is done."""
    numbered = {piece.name: (number, piece) for number, piece in enumerate(plan.pieces, 1)}
    missing = {name: {"piece": name} for name, (_, piece) in numbered.items() if not results.is_finished(piece)}
    output, done = sys.stderr if options.json else sys.stdout, 0
    print(describe_work(plan, results), file=output, flush=True)
    with start_crew(results, options) as (crew, watch):
        for event in run_and_tell(options, crew, missing, plan.needs):
            done += event.kind == "done"
            watch(describe_progress(event, done, len(missing)))
            if event.kind not in ("begun", "done"):
                continue
            number, piece = numbered[event.facts["key"]]
            if not all(map(results.find_run, piece.needed_runs)):
                continue
            if event.kind == "begun":
                print(f"[{number}/{len(plan.pieces)}] {describe_piece(piece, plan)}", file=output, flush=True)
            else:
                fields = event.facts["result"]
                said = describe_entry(None if fields is None else results.add(piece, fields))
                print(f"    {piece.name}: {said}" if has_workers(options) else f"    {said}", file=output, flush=True)
    if not any(map(results.is_finished, plan.pieces)):
        runs = options.runs or results.folder / "runs"
        raise BadInput(f"there is no finished run of {plan.preset.name} in {runs}; name the folder (--runs), or train")


def describe_work(plan: Plan, results: Results) -> str:
    """What there is to do, and how long it took before."""
    missing = [piece for piece in plan.pieces if not results.is_finished(piece)]
    earlier = [entry for piece in missing if (entry := find_earlier(piece, plan.preset.name))]
    machines = ", ".join(sorted({f"{each.machine.processor}, {each.machine.threads} threads" for each in earlier}))
    before = f"; {len(earlier)} of them took {format_duration(sum(each.seconds for each in earlier))} on {machines}"
    return f"{len(missing)} of {len(plan.pieces)} pieces to do{before if earlier else ''}"


def describe_piece(piece: Piece, plan: Plan) -> str:
    earlier = find_earlier(piece, plan.preset.name)
    return f"{piece.name}{f' (took {format_duration(earlier.seconds)} before)' if earlier else ''}"


def describe_progress(event: Event, done: int, total: int) -> Event:
    """For the bar: how many pieces are done, and how far the last that was heard of is."""
    if event.kind != "progress":
        return Event("step")
    facts = event.facts["facts"]
    note = f"{event.facts['key']}: {facts['label']} {facts['done']}/{facts['total']}"
    return Event("progress", {"label": "pieces", "done": done, "total": total, "note": note})


def describe_entry(entry: AnyEntry | None) -> str:
    if entry is None:
        return "skipped: not trained to the end"
    perplexity = f", test perplexity {entry.perplexity.test:.2f}" if isinstance(entry, RunEntry) else ""
    return format_duration(entry.seconds) + perplexity


def open_work(options: argparse.Namespace) -> Work:
    """What a worker does: the pieces that the units name. Those whose runs are not there are skipped."""
    from eosin.paper.execution import Runner

    plan, folder = make_plan(options)
    pieces = {piece.name: piece for piece in plan.pieces}

    def work(unit: Unit, watch: Watch) -> dict[str, Any] | None:
        results, piece = Results(folder), pieces[unit["piece"]]
        if not all(map(results.find_run, piece.needed_runs)):
            return None
        runner = Runner(
            results=results,
            runs=options.runs or folder / "runs",
            device=options.device,
            precision=options.precision,
            threads=options.threads,
            watch=watch,
            as_is=options.as_is,
            bundled=frozenset(piece.run for piece in plan.bundled),
        )
        return runner.do(piece)

    return work


@contextmanager
def start_crew(results: Results, options: argparse.Namespace) -> Iterator[tuple[Crew, Watch]]:
    """Workers, or this process, that SIGTERM stops after the current step of training or the current completion."""
    from eosin.cli.progress import announce_decoder, stop_at_signals
    from eosin.devices import use_threads

    output = sys.stderr if options.json else sys.stdout
    try:
        with stop_at_signals(signal.SIGTERM) as watch_signals, explain_stop(results), use_threads(options.threads):

            def watch(event: Event) -> None:
                watch_signals(event)
                announce_decoder(event, output)

            is_here = not has_workers(options)
            crew = (
                Crew(Here(open_work(options), watch), 1) if is_here else hire_crew(options, options.gpus_per_training)
            )
            with crew:
                yield crew, watch
    except Stopped as stopped:
        sys.stderr.write("eosin reproduce: stopped; what is finished is saved, and the same command resumes\n")
        sys.exit(128 + stopped.args[0])


@contextmanager
def explain_stop(results: Results) -> Iterator[None]:
    """Whatever stops the work, the message says that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what is finished is in {results.folder}; the same command resumes") from None
    except BrokenPipeError:
        raise  # the reader of the output has seen enough
    except OSError as error:
        raise BadInput(
            f"{error}; what is finished is in {results.folder}, and when that is mended the same command resumes"
        ) from error


# the output


def list_pieces(plan: Plan, results: Results, as_json: bool) -> str:
    """Every piece, whether it is finished, and how many of the others can be done at once."""
    finished = {piece.name: results.is_finished(piece) for piece in plan.pieces}
    missing = [piece for piece in plan.pieces if not finished[piece.name]]
    stages = list_stages({piece.name: plan.needs[piece.name] for piece in missing})
    if as_json:
        return json.dumps({"pieces": finished, "stages": stages})
    what = {piece.name: piece.what for piece in missing}
    widths = [
        f"at once, stage {number}: {len(stage)} ("
        + ", ".join(f"{count} {kind}" for kind, count in Counter(what[name] for name in stage).items())
        + ")"
        for number, stage in enumerate(stages, 1)
    ]
    lines = [
        f"{'finished' if finished[piece.name] else 'missing':>8}  {describe_piece(piece, plan)}"
        for piece in plan.pieces
    ]
    return "\n".join([*lines, *widths, f"{sum(finished.values())} of {len(finished)} pieces are finished"])


def render_tables(reproduction: Reproduction, tables_only: bool) -> str:
    folder, caution = reproduction.results.folder, reproduction.plan.preset.caution
    others = [name for name in ("figures/", PAGE) if not tables_only and (folder / name).exists()]
    files = f"in {folder}: {', '.join([README, 'tables/', *others])}"
    return "\n\n".join([*map(render_text, reproduction.parts), *([caution] if caution else []), files])


def render_json(reproduction: Reproduction) -> str:
    tables = {
        name: [{"title": table.title, "columns": table.flat_headings, "rows": table.flat_rows}]
        for name, table in reproduction.tables.items()
    }
    return json.dumps({"folder": str(reproduction.results.folder), "tables": tables})


def check_claims(reproduction: Reproduction) -> None:
    """Exit with 1 if a claim of `must_hold` is refuted; warn if one is undecided."""
    must_hold = reproduction.plan.preset.must_hold
    judged = [each for found in reproduction.judged.values() for each in found if each.claim.name in must_hold]
    refuted = [each for each in judged if each.verdict is Verdict.DOES_NOT]
    for each in judged:
        if each.verdict in (Verdict.DOES_NOT, Verdict.UNDECIDED):
            warning = "" if each in refuted else "warning: "
            sys.stderr.write(f"eosin reproduce: {warning}{each.claim.says}: {each.verdict}, {each.ours}\n")
    if refuted:
        sys.stderr.write("eosin reproduce: claims of the paper are refuted, so this reproduction has failed\n")
        sys.exit(1)
