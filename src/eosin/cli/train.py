"""eosin train"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eosin.cli.numbers import DEVICE_HELP, real_number, whole_number
from eosin.cli.progress import stop_at_signals
from eosin.cli.terminal import format_duration
from eosin.data.corpus import DATASET
from eosin.data.sources import SPLITS
from eosin.devices import PRECISIONS
from eosin.errors import BadInput
from eosin.events import Event, Stopped
from eosin.loading import open_run, parse_settings
from eosin.models.checkpoint import CONFIG
from eosin.settings import check_known, get_section, merge, parse_assignment, read_toml
from eosin.training.config import expand_runs, merge_settings, read_settings
from eosin.training.loop import train
from eosin.training.run import RESUME, RunSettings

DESCRIPTION = """SETTINGS is a TOML file, the name of a bundled one (word-tanh-softmax, bpe-lstm-st-1e-3, ...), or the
directory of a run to resume. The command that started a run resumes it too. A missing corpus is prepared first.

examples:
  eosin train word-tanh-softmax
  eosin train bpe-lstm-st-1e-3 --seed 4
  eosin train word-tanh-softmax --data my-sentences.txt --set training.epochs=5 --out runs/mine
  eosin train runs/mine
  eosin train grid --dry-run"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("settings", metavar="SETTINGS", help="a TOML file, the name of a bundled one, or a run directory")
    add("--out", type=Path, metavar="RUN", help="the run directory (default: a name under runs/)")
    add("--data", metavar="TEXT", help="another text, or the folder of a prepared corpus")
    add("--seed", type=int, metavar="N", help="same as --set training.seed=N")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one setting; may be repeated")
    add("--device", default="auto", help=DEVICE_HELP.replace("default: ", "default: as before, or "))
    add(
        "--precision",
        choices=["auto", *PRECISIONS],
        default="auto",
        help="precision of the matrix products (default: bfloat16 on CUDA and on CPUs that multiply it, else float32)",
    )
    add(
        "--threads",
        type=whole_number(1, 1024),
        metavar="N",
        help="CPU threads (default: one for each core, or as before)",
    )
    add(
        "--save-every",
        type=real_number(0, 1e9, "a number of seconds, at least 0"),
        metavar="SECONDS",
        help="time between two saves, and so the work that a kill may cost (default: 60; fine-tuning 900)",
    )
    add("--dry-run", action="store_true", help="list the runs and their settings, and train nothing")


def run(options: argparse.Namespace) -> None:
    runs = plan_runs(options)
    if options.dry_run:
        print(json.dumps({str(folder): settings.sections for folder, settings in runs.items()}, indent=2))
        return
    results = {str(folder): train_run(settings, folder, options) for folder, settings in runs.items()}
    print(json.dumps(results) if options.json else format_perplexities(results))


def find_settings(name: str) -> Path:
    """The settings file of a path, a run directory or the name of a bundled one."""
    path = Path(name)
    bundled = {file.stem: file for file in Path(str(files("eosin") / "configs")).glob("*.toml")}
    if path.is_dir():
        if name in bundled:
            raise BadInput(f"{name} is a run here and comes with Eosin; say ./{name} for the run, or {name}.toml")
        if not (path / CONFIG).is_file():
            inside = "; name one of the runs in it, or the sweep's file" if any(path.glob(f"*/{CONFIG}")) else ""
            raise BadInput(f"{name} is not a run directory: it has no {CONFIG}{inside}")
        return path / CONFIG
    if path.is_file():
        return path
    stem = path.name.removesuffix(".toml")
    if path.suffix == ".toml" and stem not in bundled:
        raise BadInput(f"there is no settings file {name}")
    check_known(stem, sorted(bundled), "a settings file, a run directory or the name of a bundled experiment")
    return bundled[stem]


def plan_runs(options: argparse.Namespace) -> dict[Path, RunSettings]:
    """The settings of each run to train, by directory."""
    path = find_settings(options.settings)
    table = read_settings(path)
    file_seed = get_section(table, "training", path).get("seed", 0)
    if options.data is not None:
        table = choose_data(table, options.data)
    table = merge_settings(table, *map(parse_assignment, options.set))
    if options.seed is not None:
        table = merge(table, {"training": {"seed": options.seed}})
    seed = get_section(table, "training", path).get("seed", 0)
    name = path.stem if seed == file_seed else f"{path.stem}-seed-{seed}"
    usual = path.parent if Path(options.settings).is_dir() else Path("runs") / name
    folder = options.out or usual
    return {folder / label: parse_settings(settings) for label, settings in expand_runs(table).items()}


def choose_data(table: dict[str, Any], source: str) -> dict[str, Any]:
    """Settings with the text or the prepared corpus of --data. A prepared corpus brings its own section [data]."""
    file = Path(source) / DATASET
    recipe = get_section(read_toml(file), "recipe", file) if file.is_file() else {}
    return merge(table, {"data": {**recipe, "source": source}})


def train_run(settings: RunSettings, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    resumed = Path(options.settings).is_dir() and options.data is None
    corpus = open_run(options.settings).corpus if resumed else settings.open_corpus(Path())
    out = sys.stderr if options.json else sys.stdout
    tqdm.write(f"{folder}: {len(corpus.train):,} sentences, vocabulary {corpus.tokenizer.vocab_size:,}", file=out)

    def watch(event: Event) -> None:
        if line := describe_event(event):
            tqdm.write(line, file=out)
        watch_signals(event)

    try:
        with stop_at_signals(signal.SIGINT, signal.SIGTERM) as watch_signals:
            return train(
                settings,
                corpus,
                folder,
                device=options.device,
                precision=options.precision,
                threads=options.threads,
                save_seconds=options.save_every,
                watch=watch,
            )
    except OSError as error:
        if not (folder / RESUME).is_file():
            raise
        raise BadInput(f"{error}; {folder} is as it was last saved, and the same command resumes it") from error
    except Stopped as stopped:
        sys.stderr.write(f"eosin train: stopped and saved; the same command resumes {folder}\n")
        sys.exit(128 + stopped.args[0])


def describe_event(event: Event) -> str | None:
    """A line for each epoch, and for a precision that is not float32."""
    facts = event.facts
    if event.kind == "begin" and facts["precision"] != "float32":
        return f"matrix products are in {facts['precision']}; --precision float32 is slower"
    if event.kind != "epoch":
        return None
    span = facts.get("span", "epoch")
    return (
        f"{span} {facts['epoch']}: train loss {facts['train_loss']:.3f}, valid perplexity "
        f"{facts['valid_perplexity']:.2f} (best in {span} {facts['best_epoch']}), "
        f"rate {facts['rate']:.2g}, {format_duration(facts['seconds'])} so far"
    )


def format_perplexities(results: dict[str, dict[str, Any]]) -> str:
    wide = max(map(len, ("perplexity", *results)))
    lines = [f"{'perplexity':{wide}} {'train':>9} {'valid':>9} {'test':>9}"]
    for folder, result in sorted(results.items(), key=lambda item: item[1]["valid_perplexity"]):
        found = [result.get(f"{split}_perplexity") for split in SPLITS]
        cells = [f"{'-':>9}" if perplexity is None else f"{perplexity:9.2f}" for perplexity in found]
        lines.append(" ".join([f"{folder:{wide}}", *cells]))
    return "\n".join(lines)
