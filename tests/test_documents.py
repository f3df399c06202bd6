"""What the documents show is run; what they name is there."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_documents_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of one document in order, in one namespace and an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": document.stem}
    for block in re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S):
        exec(compile(block, str(document), "exec"), namespace)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    namespace = runpy.run_path(str(example))
    small = {"CONTEXTS": 6, "MAX_STEPS": 60}
    monkeypatch.setitem(namespace["main"].__globals__, "CONTEXTS", small["CONTEXTS"])
    monkeypatch.setitem(namespace["main"].__globals__, "MAX_STEPS", small["MAX_STEPS"])
    namespace["main"]()
    assert capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path):
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", prose):
        assert (document.parent / target).exists(), target


def test_the_file_map_is_the_package():
    block = re.search(r"^src/eosin/\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    listed = re.findall(r"(\w+\.py) ", block.group(1))
    there = [path.name for path in (ROOT / "src/eosin").rglob("*.py") if path.name != "__init__.py"]
    assert sorted(listed) == sorted(there)


def test_the_first_table_of_the_readme_is_that_of_the_results():
    block = re.search(r"^```\ndecoder.*?^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert block
    tables = [(ROOT / "results/quick/tables" / name).read_text() for name in ("table-1-word.txt", "table-3-word.txt")]
    there = {line for table in tables for line in table.splitlines()}
    lines = [line for line in block[0].splitlines() if line and not line.startswith("```")]
    assert len(lines) > 8
    assert set(lines) <= there
