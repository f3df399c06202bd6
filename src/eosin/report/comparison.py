"""Two audits of the same contexts, paired: on which contexts does only one of them not end?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eosin.errors import BadInput
from eosin.records.reading import Filed
from eosin.records.record import Record
from eosin.records.statistics import Comparison, compare
from eosin.report.tables import Column, Table
from eosin.settings import check_known

SURE = 0.05
"""A p-value below this is called more than chance."""
TINY = "below 1e-300"
"""A p-value for which there is no number."""


@dataclass(frozen=True)
class Paired:
    """A comparison, and what was compared."""

    first: str
    second: str
    limit: int
    counts: Comparison

    @property
    def contexts(self) -> int:
        counts = self.counts
        return counts.only_first + counts.only_second + counts.both + counts.neither

    @property
    def table(self) -> Table:
        counts = self.counts
        rows = (
            ("both ended", counts.neither),
            (f"only {self.first} did not end", counts.only_first),
            (f"only {self.second} did not end", counts.only_second),
            ("neither ended", counts.both),
            ("difference of the ratios (percentage points)", 100 * counts.difference),
            ("p-value (McNemar's exact test)", counts.p_value or TINY),
        )
        title = f"{self.first} and {self.second} on the same {self.contexts:,} contexts, L {self.limit}"
        return Table((Column("outcome", left=True), Column("number", _shown)), rows, title, self.words)

    @property
    def words(self) -> str:
        """What was found, for whoever does not want to read a table."""
        counts, n = self.counts, self.contexts
        first, second = counts.both + counts.only_first, counts.both + counts.only_second
        ratios = (
            f"{self.first} did not end on {first / n:.2%} of the contexts, {self.second} on {second / n:.2%}: "
            f"a difference of {100 * counts.difference:+.2f} percentage points."
        )
        return f"{ratios} {self._chance}"

    @property
    def _chance(self) -> str:
        more, fewer = sorted((self.counts.only_first, self.counts.only_second), reverse=True)
        if not more:
            return "They agree on every context."
        p_value = self.counts.p_value
        return (
            f"They disagree on {more + fewer:,} contexts, {more:,} one way and {fewer:,} the other; if both ways were "
            "equally likely, that or a more uneven split would come about with probability "
            f"{_shown(p_value or TINY)}. This {'is more than' if p_value < SURE else 'may be'} chance."
        )


def _shown(number: int | float | str) -> str:
    return f"{number:.3g}" if isinstance(number, float) else f"{number:,}" if isinstance(number, int) else number


def paired(found: Sequence[Filed], first: str, second: str) -> Paired:
    """Pair two audits by their names."""
    a, b = named(found, first), named(found, second)
    if a.question == b.question:
        raise BadInput(f"{first!r} and {second!r} are the same audit; name two")
    _check_same(a, b, first, second)
    one, other = a.counts.unended, b.counts.unended
    both = list(one.keys() & other.keys())
    if not both:
        raise BadInput(f"{first!r} and {second!r} have no context in common yet: both audits are unfinished")
    counts = compare([one[i] for i in both], [other[i] for i in both])
    return Paired(first, second, a.signature["max_steps"], counts)


def _check_same(a: Record, b: Record, first: str, second: str) -> None:
    for key, what in (("contexts", "the same contexts"), ("max_steps", "the same limit")):
        one, other = a.signature.get(key), b.signature.get(key)
        if one != other:
            raise BadInput(f"only audits with {what} can be paired: {key} is {one} of {first} and {other} of {second}")


def names_of(filed: Filed) -> list[str]:
    """What a record may be called: by its decoder, or by that after the run or the file it is in."""
    decoder, run = filed.record.signature["decoder"], filed.record.signature.get("run")
    files = dict.fromkeys(name for path in filed.files for name in (path.name, str(path)))
    return [decoder, *(f"{place}:{decoder}" for place in [*([run] if run else []), *files])]


def named(found: Sequence[Filed], name: str) -> Record:
    """The one record that a name means."""
    meant = [filed for filed in found if name in names_of(filed)]
    if not meant:
        known = list(dict.fromkeys(name for filed in found for name in names_of(filed)))
        check_known(name, known, "a decoder, RUN:decoder or FILE:decoder of these records")
    if len(meant) > 1:
        longer = [only for filed in meant if (only := _only_name(filed, found))]
        hint = f"say {' or '.join(longer)}" if longer else "name files that have it once"
        raise BadInput(f"{name!r} is in {len(meant)} audits; {hint}")
    return meant[0].record


def _only_name(filed: Filed, found: Sequence[Filed]) -> str | None:
    """The shortest name that means this record and no other."""
    taken = {name for other in found if other is not filed for name in names_of(other)}
    return next((name for name in names_of(filed) if name not in taken), None)
