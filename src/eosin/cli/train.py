"""eosin train"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eosin.devices import PRECISIONS
from eosin.errors import BadInput
from eosin.loading import settings_of
from eosin.models.checkpoint import CONFIG
from eosin.settings import check_known, section
from eosin.training.config import merged, override, read_settings, runs_of
from eosin.training.events import Event
from eosin.training.loop import Stopped, train
from eosin.training.run import RESUME, corpus_of

DESCRIPTION = """SETTINGS is a TOML file, the name of one that comes with Eosin (word-tanh-softmax, bpe-lstm-st-1e-3,
...), or the directory of a run to go on with. The corpus is prepared first if it is not there yet.

examples:
  eosin train word-tanh-softmax
  eosin train bpe-lstm-st-1e-3 --seed 4
  eosin train word-tanh-softmax --data my-sentences.txt --set training.epochs=5 --out runs/mine
  eosin train runs/mine
  eosin train grid --dry-run"""


def add_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("settings", metavar="SETTINGS", help="a TOML file, the name of a bundled one, or a run directory")
    verb.add_argument("--out", type=Path, metavar="RUN", help="the run directory (default: a name under runs/)")
    verb.add_argument("--data", metavar="TEXT", help="another text, or the folder of a prepared corpus")
    verb.add_argument("--seed", type=int, metavar="N", help="the same as --set training.seed=N")
    verb.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one setting; may be repeated"
    )
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: as before, or cuda)")
    verb.add_argument(
        "--precision",
        choices=["auto", *PRECISIONS],
        default="auto",
        help="of the matrix products (default: auto: bfloat16 on CUDA and on CPUs that multiply it, else float32)",
    )
    verb.add_argument(
        "--threads", type=thread_count, metavar="N", help="CPU threads (default: as many as cores, or as before)"
    )
    verb.add_argument(
        "--save-every",
        type=seconds,
        metavar="SECONDS",
        help="how much work a kill may cost (default: 60; fine-tuning 900)",
    )
    verb.add_argument("--dry-run", action="store_true", help="only list the runs and what is set")


def thread_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1024, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, got {text!r}")
    return number


def run(options: argparse.Namespace) -> None:
    runs = planned(options)
    if options.dry_run:
        print(json.dumps({str(folder): config.given for folder, config in runs.items()}, indent=2))
        return
    results = {str(folder): _train(config, folder, options) for folder, config in runs.items()}
    print(json.dumps(results) if options.json else perplexities(results))


def is_run(name: str) -> bool:
    return Path(name).is_dir()


def settings_file(name: str) -> Path:
    """The file that is meant by a path, a run directory or the name of a bundled one."""
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
    called = path.name.removesuffix(".toml")
    if path.suffix == ".toml" and called not in bundled:
        raise BadInput(f"there is no settings file {name}")
    check_known(called, sorted(bundled), "a settings file, a run directory or the name of a bundled experiment")
    return bundled[called]


def planned(options: argparse.Namespace) -> dict[Path, Any]:
    """The runs of a settings file, each with its directory."""
    path = settings_file(options.settings)
    table = read_settings(path)
    written_seed = section(table, "training", path).get("seed", 0)
    for assignment in options.set:
        table = override(table, assignment)
    if options.seed is not None:
        table = merged(table, {"training": {"seed": options.seed}})
    if options.data is not None:
        table = merged(table, {"data": {"source": options.data}})
    seed = table.get("training", {}).get("seed", 0)
    seed = "" if seed == written_seed else f"-seed-{seed}"
    usual = path.parent if is_run(options.settings) else Path("runs") / (path.stem + seed)
    return {(options.out or usual) / label: settings_of(settings) for label, settings in runs_of(table).items()}


def _train(config: Any, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    known = is_run(options.settings) and options.data is None
    corpus = corpus_of(Path(options.settings)) if known else config.corpus(Path())
    out = sys.stderr if options.json else sys.stdout
    tqdm.write(f"{folder}: {len(corpus.train):,} sentences, vocabulary {corpus.tokenizer.vocab_size:,}", file=out)
    requested: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: requested.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        result = train(
            config,
            corpus,
            folder,
            device=options.device,
            precision=options.precision,
            threads=options.threads,
            save_seconds=options.save_every,
            listeners=[Console(out)],
            stopping=lambda: bool(requested),
            show=True,
        )
        if requested:
            raise Stopped
        return result
    except OSError as error:
        if not (folder / RESUME).is_file():
            raise
        raise BadInput(f"{error}; {folder} is as it was last saved, and the same command goes on with it") from error
    except Stopped:
        sys.stderr.write(f"eosin train: stopped and saved; the same command goes on with {folder}\n")
        sys.exit(128 + requested[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Console:
    """A line for each epoch."""

    def __init__(self, out: Any):
        self.out = out

    def hear(self, event: Event) -> None:
        if event["event"] == "begin" and event["precision"] != "float32":
            tqdm.write(f"matrix products are in {event['precision']}; --precision float32 is slower", file=self.out)
        if event["event"] == "epoch":
            span = event.get("span", "epoch")
            tqdm.write(
                f"{span} {event['epoch']}: train loss {event['train_loss']:.3f}, valid perplexity "
                f"{event['valid_perplexity']:.2f} (best in {span} {event['best_epoch']}), "
                f"rate {event['rate']:.2g}, {duration(event['seconds'])} so far",
                file=self.out,
            )


def duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def perplexities(results: dict[str, dict[str, Any]]) -> str:
    wide = max(map(len, ("perplexity", *results)))
    lines = [f"{'perplexity':{wide}} {'train':>9} {'valid':>9} {'test':>9}"]
    ranked = sorted(results.items(), key=lambda item: item[1]["valid_perplexity"])
    for folder, result in ranked:
        lines.append(
            f"{folder:{wide}} "
            + " ".join(_cell(result.get(f"{split}_perplexity")) for split in ("train", "valid", "test"))
        )
    return "\n".join(lines)


def _cell(perplexity: float | None) -> str:
    return f"{'-':>9}" if perplexity is None else f"{perplexity:9.2f}"
