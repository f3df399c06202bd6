"""Work on workers: the same answer wherever it is done, each result once, and faults that are said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command_line import run, start
from on_workers import MODEL, audit, here, list_children, use_empty_home, wait_for, write_prompts

from eosin.errors import BadInput
from eosin.paper.exhibits import list_names, load_exhibit
from eosin.paper.plan import Plan
from eosin.paper.presets import PRESETS, load_preset
from eosin.records.record import read_records
from eosin.scale.crew import Crew, Message, Role, list_stages, run_units
from eosin.scale.local import Processes


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with use_empty_home(monkeypatch, tmp_path):
        yield


def role(duty: str, **settings: Any) -> Role:
    return Role(f"duties:{duty}", settings, folder=str(Path.cwd()))


def hire(duty: str, workers: int = 2, **settings: Any) -> Crew:
    return Crew(Processes(role(duty, **settings)), workers)


def collect(crew: Crew, units: dict[str, dict[str, Any]], needs: dict[str, list[str]] | None = None) -> list[Any]:
    with crew:
        return list(run_units(crew, units, needs))


def results(events: list[Any]) -> dict[str, Any]:
    done = [event.facts for event in events if event.kind == "done"]
    assert len({facts["key"] for facts in done}) == len(done)
    return {facts["key"]: facts["result"] for facts in done}


NUMBERS = {str(n): {"numbers": [n, 2 * n]} for n in range(12)}


@pytest.mark.parametrize("workers", [1, 3])
def test_each_unit_has_one_result(workers: int):
    events = collect(hire("add", workers, more=1), NUMBERS)
    assert results(events) == {str(n): 3 * n + 1 for n in range(12)}
    kinds = Counter(event.kind for event in events)
    assert kinds["worker"] <= workers
    assert kinds["begun"] == 12
    assert kinds["progress"] >= 1


def test_what_is_needed_is_done_first():
    needs = {"0": ["3", "elsewhere"], "1": ["0"], "2": [], "3": []}
    events = collect(hire("add"), {key: NUMBERS[key] for key in needs}, needs)
    order = [(event.kind, event.facts["key"]) for event in events if event.kind in ("begun", "done")]
    for key, found in needs.items():
        for need in set(found) & set(needs):
            assert order.index(("done", need)) < order.index(("begun", key))


def test_a_unit_of_a_killed_worker_goes_to_another(tmp_path: Path):
    units = {str(n): {"number": n, "deadly": n == 2} for n in range(5)}
    events = collect(hire("die_once", folder=str(tmp_path)), units)
    assert results(events) == {str(n): n for n in range(5)}
    (lost,) = [event.facts for event in events if event.kind == "lost"]
    assert lost["key"] == "2"
    assert "killed (signal 9)" in lost["reason"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("memory", "^7: a worker on .* ran out of memory"),
        ("killed", "^7: 3 workers were lost, the last because it was killed"),
        ("refused", "^7: three is no number$"),
        ("broken", r"(?s)^7: Traceback.*KeyError: 'a mistake in the code'$"),
        ("opening", "^a worker on .* cannot begin: there is no model$"),
    ],
)
def test_a_failure_names_its_unit(how: str, says: str):
    with pytest.raises(BadInput, match=says):
        collect(hire("fail", 1, how=how), {"7": {}})


def test_a_folder_that_a_worker_has_not_is_named():
    missing = Role("duties:add", {}, folder="/nowhere")
    with pytest.raises(BadInput, match="there is no folder /nowhere: workers need the folder"):
        collect(Crew(Processes(missing), 1), NUMBERS)


def test_who_is_cancelled_saves(tmp_path: Path):
    crew = hire("save_when_stopped", 1, folder=str(tmp_path))
    with crew:
        next(event for event in run_units(crew, {"long": {}}) if event.kind == "progress")
        assert not (tmp_path / "saved").exists()
    assert (tmp_path / "saved").exists()


class Twice:
    """A place that says every result twice, and loses a worker after each of them."""

    def __init__(self) -> None:
        self.said: list[tuple[int, Message]] = []
        self.names = count()

    def start(self) -> int:
        self.said.append((name := next(self.names), Message("ready", {})))
        return name

    def send(self, worker: int, unit: dict[str, Any]) -> None:
        self.said += [(worker, Message("done", unit["n"]))] * 2 + [(worker, Message("lost", "a test"))]

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        said, self.said = self.said, []
        return said

    def close(self) -> None:
        pass


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("units", [1, 3, 9])
def test_a_result_that_comes_twice_is_taken_once(workers: int, units: int):
    crew = Crew(Twice(), workers)
    events = collect(crew, {str(n): {"n": n} for n in range(units)})
    assert results(events) == {str(n): n for n in range(units)}


@pytest.mark.parametrize("name", list_names(PRESETS))
def test_pieces_need_what_they_use(name: str):
    chosen = load_preset(name)
    plan = Plan(chosen, tuple(load_exhibit(each, chosen.tokenization) for each in chosen.exhibits), (0, 1))
    names = [piece.name for piece in plan.pieces]
    assert sorted(plan.needs) == sorted(names)
    for piece in plan.pieces:
        assert all(names.index(need) < names.index(piece.name) for need in plan.needs[piece.name])
        assert {plan.run_pieces[run].name for run in piece.needed_runs} <= set(plan.needs[piece.name])
    for example in plan.examples:
        assert any(need.startswith("audit") for need in plan.needs[example.name])
    assert sorted(name for stage in list_stages(plan.needs) for name in stage) == sorted(names)


# audits


@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_records_do_not_depend_on_the_number_of_workers(workers: int, capsys: pytest.CaptureFixture[str]):
    write_prompts()
    expected = here("--completions", "here-all.jsonl")
    assert len(list(read_records(Path("here.jsonl")))) == 3 * 4
    assert run(*audit("there.jsonl", "--workers", str(workers), "--completions", "there-all.jsonl")) == 0
    assert f"workers: {workers} on this machine; CPU threads of each: 1" in capsys.readouterr().err
    assert Path("there.jsonl").read_bytes() == expected
    completions = [sorted(Path(f"{where}-all.jsonl").read_text().splitlines()) for where in ("here", "there")]
    assert completions[0] == completions[1]
    assert len(completions[0]) == 90


def test_estimates_do_not_depend_on_the_number_of_workers():
    write_prompts()
    expected = here("--survival", "--decoders", "nucleus:0.8")
    assert run(*audit("there.jsonl", "--workers", "2", "--survival", "--decoders", "nucleus:0.8")) == 0
    assert Path("there.jsonl").read_bytes() == expected


@pytest.mark.slow
def test_an_audit_goes_on_with_other_workers_after_a_kill(capsys: pytest.CaptureFixture[str]):
    """The driver is killed; its workers end; the same records come out, and nothing is counted twice."""
    write_prompts()
    slowly = MODEL + "_slowly"
    driver = start(*audit("out.jsonl", "--workers", "2", model=slowly), cwd=Path.cwd())
    wait_for(lambda: Path("out.jsonl").exists() and Path("out.jsonl").read_text().count("\n") >= 2)
    children = list_children(driver.pid)
    assert len(children) == 2
    driver.kill()
    driver.communicate()
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert 2 <= len(list(read_records(Path("out.jsonl")))) < 12
    assert run(*audit("out.jsonl", "--workers", "1", model=slowly)) == 0
    assert run(*audit("here.jsonl", "--threads", "1", model=slowly)) == 0
    assert Path("out.jsonl").read_bytes() == Path("here.jsonl").read_bytes()


@pytest.mark.slow
def test_an_audit_survives_killed_workers(capsys: pytest.CaptureFixture[str]):
    write_prompts()
    slowly = MODEL + "_slowly"
    driver = start(*audit("out.jsonl", "--workers", "2", model=slowly), cwd=Path.cwd())
    wait_for(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size)
    os.kill(list_children(driver.pid)[0], signal.SIGKILL)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 0, errors
    assert "a worker is lost: it was killed (signal 9)" in errors
    assert run(*audit("here.jsonl", "--threads", "1", model=slowly)) == 0
    assert Path("out.jsonl").read_bytes() == Path("here.jsonl").read_bytes()


def test_a_worker_without_memory_is_reported_with_its_shard(capsys: pytest.CaptureFixture[str]):
    write_prompts()
    Path("half.py").write_text(
        "import sys, small_model\n"
        "class Hungry(type(small_model.load())):\n"
        "    not_in_identity = ('steps',)\n"
        "    steps = 0\n"
        "    def step(self, token, state):\n"
        "        self.steps += 1\n"
        "        is_worker = 'eosin.scale.local' in sys.orig_argv\n"
        "        return bytearray(2**62) if is_worker and self.steps > 60 else super().step(token, state)\n"
        "def load():\n"
        "    model = small_model.load()\n"
        "    model.__class__ = Hungry\n"
        "    return model\n"
    )
    assert run(*audit("out.jsonl", "--workers", "1", model="py:half.py:load")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("eosin audit: shard 0-7 of greedy: a worker on ")
    assert "ran out of memory" in said


def test_another_arithmetic_is_found_out(capsys: pytest.CaptureFixture[str]):
    """A model that is another in a worker than in the driver, as on another kind of processor."""
    write_prompts()
    Path("other.py").write_text(
        "import sys, torch, small_model\n"
        "def load():\n"
        "    model = small_model.load()\n"
        "    with torch.no_grad():\n"
        "        model.output.bias[5] += 1e-3 if 'eosin.scale.local' in sys.orig_argv else 0\n"
        "    return model\n"
    )
    assert run(*audit("out.jsonl", "--workers", "1", model="py:other.py:load")) == 2
    assert "a worker counts another audit: model is" in capsys.readouterr().err


# Ray


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "eosin.scale.cluster", raising=False)
    assert run("audit", "demo", "--on", "ray") == 2
    assert "pip install 'eosin[ray]'" in capsys.readouterr().err


def test_ray_is_imported_where_it_is_used():
    code = "import sys, eosin.cli.audit, eosin.cli.reproduce, eosin.scale.local; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("ray://127.0.0.1:9", "no Ray cluster answers at --on ray://127.0.0.1:9 ("),
        ("somewhere", "--on must be ray, auto or ray://HOST:PORT"),
        ("auto", "no Ray cluster answers at --on auto ("),
    ],
)
def test_a_cluster_that_is_not_there_is_a_line_within_seconds(
    where: str, says: str, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("ray")
    began = time.monotonic()
    assert run("audit", "demo", "--on", where) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert time.monotonic() - began < 25
