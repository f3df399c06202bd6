"""Write the table of claims into docs/reproducing.md, between its two marks, from the records in results/.

    python scripts/write_claims.py [--check]

With --check nothing is written. The exit code is 1 if the document has another table than the records give.
"""

from __future__ import annotations

import sys
from pathlib import Path

from eosin.paper.claims import TOKENIZATIONS, Judgement, Verdict, judge_all
from eosin.paper.exhibits import load_exhibit
from eosin.paper.plan import Plan
from eosin.paper.presets import load_preset
from eosin.paper.results import Results
from eosin.report.tables import Column, Table, Value, render_markdown

ROOT = Path(__file__).parents[1]
DOCUMENT, RESULTS = ROOT / "docs" / "reproducing.md", ROOT / "results"
BEGIN, END = "<!-- claims -->", "<!-- end of claims -->"


def judge_folder(name: str) -> dict[str, list[Judgement]]:
    """The judgements of each tokenization of which anything is measured."""
    preset = load_preset(name)
    exhibits = tuple(load_exhibit(each, preset.tokenization) for each in preset.exhibits)
    judged = judge_all(Plan(preset, exhibits, tuple(range(preset.initialisations))), Results(RESULTS / name))
    return {
        f"{name}, {TOKENIZATIONS[tokenization]}": judgements
        for tokenization, judgements in judged.items()
        if any(each.verdict is not Verdict.NOT_MEASURED for each in judgements)
    }


def render_table() -> str:
    """A column for each folder of results and tokenization."""
    judged: dict[str, list[Judgement]] = {}
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        judged |= judge_folder(folder.name)
    by_name = {title: {each.claim.name: each for each in judgements} for title, judgements in judged.items()}
    rows: list[tuple[Value, ...]] = []
    for name in dict.fromkeys(name for judgements in by_name.values() for name in judgements):
        cells = [judgements.get(name) for judgements in by_name.values()]
        says = next(each.claim.says for each in cells if each)
        rows.append((says, *(summarize(each) if each else None for each in cells)))
    columns = tuple(Column(heading, left=True) for heading in ("the paper says", *judged))
    return render_markdown(Table(columns, tuple(rows)))


def summarize(judgement: Judgement) -> str | None:
    """The verdict, and our number without its interval; None if nothing is measured."""
    return f"{judgement.verdict}: {judgement.ours.partition(' (')[0]}" if judgement.ours else None


def main(check: bool) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{DOCUMENT} lacks {BEGIN} or {END}")
    new = f"{before}{BEGIN}\n\n{render_table()}\n\n{END}{after}"
    if check:
        sys.exit(0 if new == text else f"the claims in {DOCUMENT} are not those of the records")
    DOCUMENT.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main(check="--check" in sys.argv)
