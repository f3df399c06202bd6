"""Write the table of claims into docs/reproducing.md, between its two marks, from the records in results/.

    python scripts/write_claims.py [--check]

With --check nothing is written; the exit code is 1 if the table in the document is not the one that would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from eosin.paper.claims import Judgement, compare_results, judge_all
from eosin.paper.exhibits import load_exhibit
from eosin.paper.plan import Plan
from eosin.paper.presets import load_preset
from eosin.paper.results import Results
from eosin.report.tables import render_markdown

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "reproducing.md"
BEGIN, END = "<!-- claims -->", "<!-- end of claims -->"
SHOWN = {
    "`seeds`, ten initialisations": ("seeds", "bpe"),
    "`small`, BPE": ("small", "bpe"),
    "`small`, words": ("small", "word"),
    "`quick`": ("quick", "bpe"),
    "`smollm2`": ("smollm2", "bpe"),
}


def judge_folder(name: str, tokenization: str) -> list[Judgement]:
    preset = load_preset(name)
    exhibits = tuple(load_exhibit(each, preset.tokenization) for each in preset.exhibits)
    plan = Plan(preset, exhibits, tuple(range(preset.initialisations)))
    return judge_all(plan, Results(ROOT / "results" / name)).get(tokenization, [])


def render_table() -> str:
    found = {title: judge_folder(*where) for title, where in SHOWN.items() if (ROOT / "results" / where[0]).is_dir()}
    return render_markdown(compare_results(found))


def main(check: bool) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{DOCUMENT} lacks {BEGIN} or {END}")
    written = f"{before}{BEGIN}\n\n{render_table()}\n\n{END}{after}"
    if check:
        sys.exit(0 if written == text else f"the claims in {DOCUMENT} are not those of the records")
    DOCUMENT.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main(check="--check" in sys.argv)
