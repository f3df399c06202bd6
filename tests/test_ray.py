"""The same audits on Ray: a cluster of one's own, one of three nodes of which one is killed, and one with a token."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import start
from on_workers import MODEL, TESTS, audit, here, list_children, use_empty_home, wait_for, write_prompts

from eosin.cli.workers import LOOPBACK

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Ray has its files in a folder with a short name, and no process of it is left."""
    with tempfile.TemporaryDirectory(prefix="r") as short, use_empty_home(monkeypatch, tmp_path):
        monkeypatch.setenv("RAY_TMPDIR", short)
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("RAY_worker_niceness", "0")
        monkeypatch.setenv(*LOOPBACK)
        token = tmp_path / "token"
        token.write_text(secrets.token_hex(32))
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        yield
        wait_for(lambda: not list_processes(short))


def list_processes(word: str) -> list[str]:
    """The processes that name a folder."""
    said = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if word in line]


def run_alone(*arguments: str, seconds: float = 240) -> str:
    """A command in a process of its own; returns its standard error."""
    driver = start(*arguments, cwd=Path.cwd())
    _, errors = driver.communicate(timeout=seconds)
    assert driver.returncode == 0, errors
    return errors


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_records_are_the_same_on_ray(workers: int):
    write_prompts()
    expected = here()
    errors = run_alone(*audit("there.jsonl", "--on", "ray", "--workers", str(workers)))
    said = f"eosin audit: workers: {workers} on the Ray cluster ray; CPU threads of each: 1"
    assert errors.splitlines()[0] == said
    assert Path("there.jsonl").read_bytes() == expected


def test_a_killed_driver_leaves_no_ray_and_the_audit_goes_on():
    write_prompts()
    slowly = MODEL + "_slowly"
    driver = start(*audit("out.jsonl", "--on", "ray", "--workers", "2", model=slowly), cwd=Path.cwd())
    wait_for(lambda: Path("out.jsonl").exists() and Path("out.jsonl").read_text().count("\n") >= 2, 120)
    children = list_children(driver.pid)
    driver.kill()
    driver.communicate()
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    run_alone(*audit("out.jsonl", "--workers", "2", model=slowly))
    run_alone(*audit("here.jsonl", "--threads", "1", model=slowly))
    assert Path("out.jsonl").read_bytes() == Path("here.jsonl").read_bytes()


def test_a_node_is_killed(monkeypatch: pytest.MonkeyPatch):
    write_prompts()
    slowly = MODEL + "_slowly"
    cluster = subprocess.Popen(
        [sys.executable, str(TESTS / "three_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert cluster.stdin
    assert cluster.stdout
    with cluster:
        address = next(line for line in cluster.stdout if line.startswith("1")).strip()
        monkeypatch.setenv("RAY_ADDRESS", address)
        driver = start(*audit("out.jsonl", "--on", "auto", model=slowly), cwd=Path.cwd())
        wait_for(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size, 120)
        cluster.stdin.write("kill\n")
        cluster.stdin.flush()
        _, errors = driver.communicate(timeout=240)
        cluster.stdin.close()
    assert driver.returncode == 0, errors
    assert "workers: 3 on the Ray cluster auto" in errors
    assert "a worker is lost" in errors
    run_alone(*audit("here.jsonl", "--threads", "1", model=slowly))
    assert Path("out.jsonl").read_bytes() == Path("here.jsonl").read_bytes()


def test_a_cluster_of_one_s_own_listens_on_loopback_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(LOOPBACK[0])
    write_prompts()
    driver = start(*audit("out.jsonl", "--on", "ray", "--workers", "1", model=MODEL + "_slowly"), cwd=Path.cwd())
    wait_for(lambda: list_processes("raylet/raylet --raylet_socket"), 120)
    wait_for(lambda: "done" if Path("out.jsonl").exists() else None, 120)
    addresses = {address for process in list_descendants(driver.pid) for address in list_addresses(process)}
    driver.communicate(timeout=240)
    assert addresses
    assert all(ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback for address in addresses), addresses


def list_descendants(pid: int) -> list[psutil.Process]:
    own = {process for process in psutil.process_iter() if "eosin-ray-" in " ".join(process.cmdline())}
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True), *own]


def list_addresses(process: psutil.Process) -> list[str]:
    """Those at which a process listens."""
    return [each.laddr.ip for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def start_ray(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """One `ray start --block`, which is ended."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
    process = subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


SECOND = "127.0.0.2"
"""A loopback address that Ray does not replace by the machine's own, as it does 127.0.0.1."""


def test_two_machines_with_a_token(monkeypatch: pytest.MonkeyPatch):
    """Two `ray start` on loopback, reached through the client."""
    monkeypatch.delenv(LOOPBACK[0])  # with it a second one is refused
    write_prompts()
    expected, port, client = here(), find_port(), find_port()
    local = ("--node-ip-address", SECOND)
    head = ("--head", "--port", port, "--ray-client-server-port", client, "--include-dashboard", "false", *local)
    with start_ray(*head):
        wait_for(lambda: is_open(client), 120)
        with start_ray("--address", f"{SECOND}:{port}", *local):
            wait_for(lambda: len(list_processes("raylet/raylet --raylet_socket")) >= 2, 120)
            errors = run_alone(*audit("there.jsonl", "--on", f"ray://{SECOND}:{client}"))
    assert f"on the Ray cluster ray://{SECOND}" in errors
    assert Path("there.jsonl").read_bytes() == expected


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((SECOND, port)) == 0
