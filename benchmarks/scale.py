"""What workers cost and gain; and a simulation of many of them, whose work is a sleep.

python benchmarks/scale.py audit        two workers of one thread against one process of two threads
python benchmarks/scale.py ray          Ray against processes, on units of ten seconds
python benchmarks/scale.py trainings    four trainings of one epoch of `seeds`, two at a time and one after the other
python benchmarks/scale.py simulate     200 workers and 100,000 shards
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from math import log
from pathlib import Path
from typing import Any

from eosin.events import Watch
from eosin.scale.crew import Crew, Role, run_units
from eosin.scale.local import Processes

HERE = Path(__file__).resolve()
VOCABULARY, WIDTH, LENGTH = 19_483, 256, 20
Duty = Callable[[Mapping[str, Any], Watch], Any]


def load_paper_sized() -> Any:
    """An untrained tanh-RNN of the paper's size, whose eos is so probable that texts are as long as the data's."""
    import torch

    from eosin import CORES, HEADS, NeuralLM

    torch.manual_seed(0)
    model = NeuralLM(CORES["tanh"](width=WIDTH, layers=2), HEADS["softmax"](), VOCABULARY, eos_id=2)
    with torch.no_grad():
        model.output.bias[2] = log(VOCABULARY / LENGTH)
    return model.eval()


def time_command(*arguments: object, folder: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "eosin", *map(str, arguments)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def compare_audits(folder: Path) -> None:
    prompts = [" ".join(str(3 + (n * 7919 + place * 104_729) % 19_000) for place in range(10)) for n in range(4_000)]
    (folder / "prompts.txt").write_text("\n".join(prompts))
    question = ["audit", f"py:{HERE}:load_paper_sized", "--prompts", "prompts.txt", "--max-steps", 100]
    question += ["--decoders", "ancestral,nucleus:0.4"]
    alone = time_command(*question, "--threads", 2, "--out", "alone.jsonl", folder=folder)
    shared = time_command(*question, "--workers", 2, "--out", "shared.jsonl", folder=folder)
    print(f"one process, two threads {alone:.1f} s; two workers, one thread each {shared:.1f} s")
    report("two workers against two threads", shared / alone, 1.0)


def count_up(rounds: int) -> Duty:
    """Pure work of one thread."""

    def work(unit: Mapping[str, Any], watch: Watch) -> int:
        total = 0
        for number in range(rounds):
            total += number & 7
        return total

    return work


def time_units(crew: Crew, units: int) -> float:
    """Seconds from the moment at which all workers are ready."""
    with crew:
        events = run_units(crew, {f"first {n}": {} for n in range(crew.width)})
        list(events)
        began = time.perf_counter()
        list(run_units(crew, {str(n): {} for n in range(units)}))
        return time.perf_counter() - began


def compare_ray(folder: Path) -> None:
    from eosin.scale.cluster import Cluster

    rounds = 2_000_000
    began = time.perf_counter()
    count_up(rounds)({}, print)
    rounds = int(rounds * 10 / (time.perf_counter() - began))
    role = Role(f"{HERE.stem}:count_up", {"rounds": rounds}, folder=str(HERE.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    processes = time_units(Crew(Processes(role), 2), 6)
    actors = time_units(Crew(Cluster("ray", role, workers=2), 2), 6)
    print(f"six units of ten seconds on two workers: processes {processes:.2f} s, Ray {actors:.2f} s")
    report("Ray against processes", actors / processes, 1.05)


EXHIBIT = """title = "four trainings"
kind = "perplexities"

[[models]]
model = "bpe-tanh-softmax"
label = "tanh-RNN"
"""


def compare_trainings(folder: Path) -> None:
    (folder / "four.toml").write_text(EXHIBIT)
    command = ["reproduce", "seeds", "--only", folder / "four.toml", "--seeds", 4, "--set", "training.epochs=1"]
    one = time_command(*command, "--out", "one", "--threads", 1, folder=folder)
    two = time_command(*command, "--out", "two", "--workers", 2, folder=folder)
    print(f"four trainings of an epoch: one after the other {one:.1f} s, on two workers {two:.1f} s")
    report("two workers against one", two / one, 0.55)


def pretend(seconds: float, result: str) -> Duty:
    """A shard whose decoding is a sleep: it returns the result of a real one."""
    import msgspec

    canned = msgspec.msgpack.decode(Path(result).read_bytes()) if result else None

    def work(unit: Mapping[str, Any], watch: Watch) -> Any:
        time.sleep(seconds)
        return canned

    return work


def count_real_shard() -> tuple[dict[str, Any], Any]:
    """The result of one shard of 1,000 contexts of the bundled tanh-RNN, decoded greedily."""
    import torch

    from eosin.auditing.shards import AuditPlan
    from eosin.auditing.units import count_unit
    from eosin.events import ignore
    from eosin.loading import open_run

    torch.set_num_threads(1)
    run = open_run("demo")
    plan = AuditPlan.create(run.model, run.corpus.take_contexts("test", 1000), ["greedy"], max_steps=1500)
    return count_unit(plan, {"decoder": "greedy", "shard": [0, 1000]}, ignore), plan


def simulate(folder: Path, workers: int, shards: int, seconds: float, bare: bool) -> None:
    import msgspec

    from eosin.auditing.units import take_result
    from eosin.events import ignore
    from eosin.storage.json_lines import append_lines

    result, plan = count_real_shard()
    content = msgspec.msgpack.encode(result)
    (folder / "result").write_bytes(content)
    unit = {"decoder": "greedy", "shard": [0, 1000]}
    print(f"a result has {len(content):,} bytes, its record {len(result['record']):,}")
    for name, repeat in (
        ("unpack the message", lambda: msgspec.msgpack.decode(content)),
        ("read the record and 1,000 completions", lambda: list(take_result(plan, unit, result, ignore))),
        ("append the record, flushed to the disk", lambda: append_lines(folder / "records", [result["record"]])),
    ):
        began = time.perf_counter()
        for _ in range(200):
            repeat()
        print(f"    {name}: {1000 * (time.perf_counter() - began) / 200:.2f} ms")
    canned = {"seconds": seconds, "result": "" if bare else str(folder / "result")}
    role = Role(f"{HERE.stem}:pretend", canned, folder=str(HERE.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    with Crew(Processes(role), workers) as crew:
        list(run_units(crew, {f"first {n}": {} for n in range(5 * workers)}))
        began, cpu = time.perf_counter(), time.process_time()
        for event in run_units(crew, {str(n): unit for n in range(shards)}):
            if event.kind == "done" and not bare:
                (counted,) = take_result(plan, unit, event.facts["result"], ignore)
                append_lines(folder / "records", [counted.record.to_line()])
        took, used = time.perf_counter() - began, time.process_time() - cpu
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    ideal = shards * seconds / workers
    print(
        f"{shards:,} shards of {seconds:g} s on {workers} workers: {took:.1f} s (ideal {ideal:.1f} s); the driver was "
        f"busy for {1000 * used / shards:.3f} ms a shard, the workers for "
        f"{1000 * (children.ru_utime + children.ru_stime) / shards:.3f} ms a shard, their start included"
    )


def report(what: str, ratio: float, most: float) -> None:
    print(f"{what}: {ratio:.3f} (at most {most})")
    if ratio > most:
        sys.exit(f"not as promised: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["audit", "ray", "trainings", "simulate"])
    parser.add_argument("--workers", type=int, default=200, help="of the simulation")
    parser.add_argument("--shards", type=int, default=100_000, help="of the simulation")
    parser.add_argument("--seconds", type=float, default=1.0, help="that a shard of the simulation sleeps")
    parser.add_argument("--bare", action="store_true", help="results of the simulation are empty, nothing is written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.what == "simulate":
            simulate(folder, options.workers, options.shards, options.seconds, options.bare)
        else:
            {"audit": compare_audits, "ray": compare_ray, "trainings": compare_trainings}[options.what](folder)


if __name__ == "__main__":
    main()
