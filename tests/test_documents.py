"""What the documents show is run; what they name is there; the site can be built and asks no server for anything."""

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from command_line import run

import eosin
from eosin.decoding.spec import DECODERS
from eosin.decoding.truncation import TRUNCATIONS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """A document may add a part to its table; the other tests must not find it there."""
    before = [(table, dict(table)) for table in (eosin.HEADS, eosin.CORES, TRUNCATIONS, DECODERS)]
    yield
    for table, members in before:
        table.clear()
        table.update(members)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_code_in_documents_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of Python and sh of one document in order, in one namespace and an empty folder.

    A block with a title is written to the file of that name.
    """
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": document.stem}
    text = document.read_text(encoding="utf-8")
    for block in re.finditer(r'^```(python|sh)(?: title="(.+?)")?\n(.*?)^```', text, re.M | re.S):
        if block[2]:
            Path(block[2]).write_text(block[3], encoding="utf-8")
        elif block[1] == "python":
            lines_above = "\n" * text[: block.start(3)].count("\n")
            exec(compile(lines_above + block[3], str(document), "exec"), namespace)
        else:
            for line in block[3].splitlines():
                assert run(*shlex.split(line)[1:]) == 0, line


@pytest.mark.slow
def test_the_skeletons_pass_the_type_checker(tmp_path: Path):
    text = (ROOT / "docs/adding.md").read_text(encoding="utf-8")
    skeletons = tmp_path / "skeletons.py"
    skeletons.write_text("\n".join(re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.M | re.S)), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--allow-untyped-calls"]
    checked = subprocess.run([*command, str(skeletons)], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    namespace = runpy.run_path(str(example))
    small = {"CONTEXTS": 6, "MAX_STEPS": 60, "SENTENCES": 100}
    for name, value in small.items():
        monkeypatch.setitem(namespace["main"].__globals__, name, value)
    namespace["main"]()
    assert capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path):
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", prose):
        assert (document.parent / target).exists(), target


def test_the_file_map_is_the_package():
    """Every module of src/eosin has its line in docs/design.md, and every line its module."""
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    block = re.search(r"^src/eosin/\n(.*?)^```", text, re.M | re.S)
    listed, folder = set(), ""
    for indent, name in re.findall(r"^( +)(\w+(?:\.py|/)) +\S", block.group(1), re.M):
        folder = "" if len(indent) == 2 else folder
        listed.add(folder + name)
        folder = name if name.endswith("/") else folder
    package = ROOT / "src/eosin"
    modules = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    there = {path for path in modules if not path.endswith("/__init__.py")} | {
        f"{path.split('/')[0]}/" for path in modules if "/" in path
    }
    assert not there - listed, f"docs/design.md has no line for {', '.join(sorted(there - listed))} in its file tree"
    assert not listed - there, f"docs/design.md has lines for {', '.join(sorted(listed - there))}, which are gone"


@pytest.mark.parametrize(
    ("start", "table"),
    [
        ("model  ", "published/tables/published-summary"),
        ("model     head", "quick/tables/table-3-bpe"),
        ("the paper says", "quick/tables/claims"),
    ],
)
def test_tables_of_the_readme_are_those_of_the_results(start: str, table: str):
    block = re.search(rf"^```\n{start}.*?^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert block
    there = (ROOT / f"results/{table}.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in block[0].splitlines() if line and not line.startswith("```")]
    assert len(lines) > 2
    assert set(lines) <= set(there)


def test_the_page_on_published_models_shows_the_results():
    shown = (ROOT / "docs/published.md").read_text(encoding="utf-8").splitlines()
    results = (ROOT / "results/published/README.md").read_text(encoding="utf-8").splitlines()
    tables = [line for line in shown if line.startswith(("| model  ", "| UniRep 4"))]
    assert len(tables) >= 3
    assert set(tables) <= set(results)


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200
    prose = re.sub(r"^```.*?^```", "", "\n".join(lines), flags=re.M | re.S).splitlines()
    assert not [line for line in prose if len(line) > 120 and not line.startswith("|")]


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: eosin\.(\w+)$", text, re.M)) == set(eosin.__all__) - {"__version__"} | {"contracts"}


def test_the_site_is_built_without_warnings_and_asks_no_server_for_anything(tmp_path: Path):
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    help_texts = (tmp_path / "commands.html").read_text(encoding="utf-8")
    assert "usage: eosin doctor" in help_texts
    for page in tmp_path.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8")):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{page.name}: {tag}"


def test_what_is_installed_for_development_is_pinned():
    """Everything that pyproject.toml asks for has its version in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    pinned = {re.split("==", line)[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    names = {re.split(r"[\[<>=]", each)[0] for each in wanted} - {"eosin"}
    plain = {re.sub(r"[-_.]+", "-", name).lower() for name in pinned}
    assert {name for name in names if re.sub(r"[-_.]+", "-", name).lower() not in plain} == set()
