"""The workers of a command: its options, and what a worker opens, which is the same command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import eosin
from eosin.cli.numbers import whole_number
from eosin.errors import BadInput
from eosin.events import Event
from eosin.processor import find_processor
from eosin.scale.crew import OWN, Crew, Role, Unit, run_units

ON_HELP = "a Ray cluster: ray (one of your own, on this machine), auto (the one that runs here), ray://HOST:10001"

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
"""Without this, which Ray reads when it is imported, a cluster of one machine listens on all of its addresses."""


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--workers",
        type=whole_number(1, 10_000),
        metavar="N",
        help="processes that share the work; the result is the same for any number (default: none but this one; "
        "with --on: as many as the cluster has room for)",
    )
    add("--on", metavar="WHERE", help=ON_HELP)
    add(
        "--threads",
        type=whole_number(1, 1000),
        metavar="N",
        help="CPU threads (default: as many as cores; of each worker: 1)",
    )


def has_workers(options: argparse.Namespace) -> bool:
    return options.workers is not None or options.on is not None


def check_workers(options: argparse.Namespace) -> None:
    """Raise BadInput for options of a cluster without a cluster."""
    if options.gpus_per_training is not None and options.on is None:
        raise BadInput("--gpus-per-training is for a cluster (--on), which hands out its GPUs: leave it out")


def choose_threads(options: argparse.Namespace) -> int | None:
    """The threads of each worker, whatever their number: rounding depends on them. None leaves torch's own."""
    return options.threads or (1 if has_workers(options) else None)


def hire_crew(options: argparse.Namespace, gpus: float | None = None) -> Crew:
    """Workers for a command. `gpus` are for each of them; by default one where the cluster has any."""
    threads = choose_threads(options) or 1
    settings = {"arguments": options.arguments}
    role = Role("eosin.cli.workers:open_command", settings, folder=str(Path.cwd()), threads=threads)
    if options.on is None:
        from eosin.scale.local import Processes

        crew, where = Crew(Processes(role), options.workers), "on this machine"
    else:
        if options.on == OWN:
            os.environ.setdefault(*LOOPBACK)
        from eosin.scale.cluster import Cluster

        gpus = 0.0 if options.device == "cpu" else gpus
        cluster = Cluster(options.on, role, workers=options.workers, gpus=gpus)
        crew, where = Crew(cluster, cluster.width), f"on the Ray cluster {options.on}"
        if options.workers and crew.width < options.workers:
            say(options, f"the cluster has room for {crew.width} workers, not for {options.workers}")
    each = f", GPUs of each: {cluster.gpus:g}" if options.on and cluster.gpus else ""
    say(options, f"workers: {crew.width} {where}; CPU threads of each: {threads}{each}")
    return crew


def open_command(arguments: list[str]) -> Any:
    """What a worker does for a command: a function of a unit and a watch."""
    import torch

    from eosin.cli.main import parse_options

    options = parse_options(arguments)
    torch.set_num_threads(choose_threads(options) or 1)
    return import_module(f"eosin.cli.{options.command}").open_work(options)


def run_and_tell(
    options: argparse.Namespace,
    crew: Crew,
    units: Mapping[str, Unit],
    needs: Mapping[str, Collection[str]] | None = None,
) -> Iterator[Event]:
    """Do units, and say what a user should know of the workers."""
    processors = {find_processor()}
    for event in run_units(crew, units, needs):
        if event.kind == "worker":
            check_worker(options, event.facts, processors)
        elif event.kind == "lost":
            again = f"; {event.facts['key']} begins again on another" if event.facts["key"] else ""
            say(options, f"a worker is lost: {event.facts['reason']}{again}")
        yield event


def check_worker(options: argparse.Namespace, facts: Mapping[str, Any], processors: set[str]) -> None:
    """Refuse another version, and note each kind of processor."""
    if facts["eosin"] != eosin.__version__:
        raise BadInput(
            f"the worker on {facts['host']} has eosin {facts['eosin']}, and this is {eosin.__version__}: install one"
        )
    if facts["processor"] not in processors:
        processors.add(facts["processor"])
        kinds = ", ".join(sorted(processors))
        say(options, f"processors of several kinds are at work ({kinds}), which may round differently")


def say(options: argparse.Namespace, text: str) -> None:
    sys.stderr.write(f"eosin {options.command}: {text}\n")
