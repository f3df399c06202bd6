"""False alarms of the loop finder: real texts that ended, and how many it would call a loop.

The texts are WikiText-2 by articles, and the sources and documents of the installed Python and its packages.
"""

from __future__ import annotations

import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from eosin.auditing.logs import Generation
from eosin.causes import Cause
from eosin.data.sources import open_source
from eosin.decoding.loops import SHORTEST, measure_novelty, name_loop

FILES, CHARACTERS = 3000, 200_000
SUFFIXES = {
    "Python sources": (".py",),
    "prose of packages": (".md", ".rst", ".txt"),
    "JSON, HTML, CSV, XML, YAML": (".json", ".html", ".csv", ".xml", ".yaml", ".yml"),
}
COLUMNS = "{:28}{:>7}{:>13}{:>9}{:>16}{:>9}{:>9}"


def split_articles() -> Iterator[str]:
    """Articles of all splits: a heading of the first level begins one."""
    source = open_source("wikitext-2")
    for split in source.paths:
        text = "\n".join(source.read_sentences(split, "line"))
        yield from re.split(r"^= [^=]+ =$", text, flags=re.M)


def read_files(suffixes: tuple[str, ...]) -> Iterator[str]:
    """A random choice of files of the standard library and of the packages, the same each time."""
    paths = sorted({path for name in ("stdlib", "purelib") for path in Path(sysconfig.get_path(name)).rglob("*.*")})
    chosen = [path for path in paths if path.suffix in suffixes and path.is_file()]
    for path in random.Random(0).sample(chosen, min(FILES, len(chosen))):
        yield path.read_text(encoding="utf-8", errors="replace")


def measure(name: str, texts: Iterable[str]) -> None:
    generations = [Generation(text.rstrip()[:CHARACTERS], Cause.UNKNOWN) for text in texts]
    units = [units for generation in generations if len(units := generation.units) >= SHORTEST]
    kinds = [name_loop(each) for each in units]
    novelties = [novelty for each in units if (novelty := measure_novelty(each)) is not None]
    found = [kinds.count(kind) for kind in (Cause.LOOPING, Cause.TEMPLATED)]
    quantiles = [f"{100 * quantile:.1f}" for quantile in np.quantile(novelties, (0.01, 0.5))]
    print(COLUMNS.format(name, len(units), found[0], len(novelties), found[1], *quantiles))


if __name__ == "__main__":
    print(COLUMNS.format("texts that ended", "texts", "called loop", "long", "called template", "new 1%", "new 50%"))
    measure("WikiText-2 articles", split_articles())
    for kind, suffixes in SUFFIXES.items():
        measure(kind, read_files(suffixes))
