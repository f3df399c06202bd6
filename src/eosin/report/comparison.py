"""Two audits of the same contexts, paired: on which contexts does only one of them not end?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eosin.errors import BadInput
from eosin.records.differences import Difference, compare_sampled
from eosin.records.reading import FiledRecord
from eosin.records.record import Record
from eosin.records.statistics import Comparison, compare
from eosin.report.tables import Column, Table, Value
from eosin.settings import check_known

SIGNIFICANT = 0.05
UNDERFLOW = "below 1e-300"
"""A p-value too small for a float."""


@dataclass(frozen=True)
class AuditComparison:
    """A comparison, and the names of what was compared."""

    first: str
    second: str
    limit: int
    counts: Comparison
    """Loops that were left count as not ended."""
    sampled: Difference | None = None
    """Where loops were left, the difference that the followed ones correct."""

    @property
    def table(self) -> Table:
        counts = self.counts
        rows: tuple[tuple[Value, ...], ...] = (
            ("both ended", counts.neither),
            (f"only {self.first} did not end", counts.only_first),
            (f"only {self.second} did not end", counts.only_second),
            ("neither ended", counts.both),
            ("difference of the ratios (percentage points)", 100 * counts.difference),
            ("p-value (McNemar's exact test)", counts.p_value or UNDERFLOW),
        )
        if self.sampled:
            low, high = 100 * self.sampled.low, 100 * self.sampled.high
            corrected = f"{100 * self.sampled.value:.2f} ({low:.2f} to {high:.2f})"
            rows = *rows[:4], ("difference of the ratios (percentage points, 95% interval)", corrected)
        title = f"{self.first} and {self.second} on the same {counts.n:,} contexts, L {self.limit}"
        return Table((Column("outcome", left=True), Column("number", _format_number)), rows, title, self.sentences)

    @property
    def sentences(self) -> str:
        """The result in sentences."""
        if self.sampled:
            return describe_sampled(self.sampled)
        counts, n = self.counts, self.counts.n
        first, second = counts.both + counts.only_first, counts.both + counts.only_second
        ratios = (
            f"{self.first} did not end on {first / n:.2%} of the contexts, {self.second} on {second / n:.2%}: "
            f"a difference of {100 * counts.difference:+.2f} percentage points."
        )
        return f"{ratios} {self._significance}"

    @property
    def _significance(self) -> str:
        more, fewer = sorted((self.counts.only_first, self.counts.only_second), reverse=True)
        if not more:
            return "They agree on every context."
        p_value = self.counts.p_value
        return (
            f"They disagree on {more + fewer:,} contexts, {more:,} one way and {fewer:,} the other. If both ways were "
            "equally likely, a split at least as uneven would occur with probability "
            f"{_format_number(p_value or UNDERFLOW)}. This {'is more than' if p_value < SIGNIFICANT else 'may be'} "
            "chance."
        )


def describe_sampled(difference: Difference) -> str:
    is_clear = not difference.low <= 0 <= difference.high
    return (
        "Loops that were left count as not ended here; the difference is corrected by those that were followed. "
        f"It {'is more than' if is_clear else 'may be'} chance."
    )


def _format_number(number: int | float | str) -> str:
    return f"{number:.3g}" if isinstance(number, float) else f"{number:,}" if isinstance(number, int) else number


def compare_audits(filed: Sequence[FiledRecord], first: str, second: str) -> AuditComparison:
    """Pair two audits by their names."""
    a, b = find_record(filed, first), find_record(filed, second)
    if a.question == b.question:
        raise BadInput(f"{first!r} and {second!r} are the same audit; name two")
    for key, what in (("contexts", "the same contexts"), ("max_steps", "the same limit")):
        one, other = a.signature.table.get(key), b.signature.table.get(key)
        if one != other:
            raise BadInput(f"only audits with {what} can be paired: {key} is {one} of {first} and {other} of {second}")
    unended, other_unended = a.counts.unended, b.counts.unended
    shared = list(unended.keys() & other_unended.keys())
    if not shared:
        raise BadInput(f"{first!r} and {second!r} have no context in common yet: both audits are unfinished")
    counts = compare([unended[i] for i in shared], [other_unended[i] for i in shared])
    is_sampled = any(record.counts.sampled.seen for record in (a, b))
    sampled = compare_sampled(a.counts, b.counts, shared) if is_sampled else None
    return AuditComparison(first, second, a.signature.max_steps, counts, sampled)


def list_names(filed: FiledRecord) -> list[str]:
    """The names of a record, the shortest first: its decoder, also behind its run or its file."""
    decoder, run = filed.record.signature.decoder, filed.record.signature.run
    files = dict.fromkeys(name for path in filed.files for name in (path.name, str(path)))
    return [decoder, *(f"{place}:{decoder}" for place in [*([run] if run else []), *files])]


def find_record(filed: Sequence[FiledRecord], name: str) -> Record:
    """The one record with this name."""
    found = [each for each in filed if name in list_names(each)]
    if not found:
        known = list(dict.fromkeys(name for each in filed for name in list_names(each)))
        check_known(name, known, "a decoder, RUN:decoder or FILE:decoder of these records")
    if len(found) > 1:
        longer = [unique for each in found if (unique := _find_unique_name(each, filed))]
        hint = f"say {' or '.join(longer)}" if longer else "name files that have it once"
        raise BadInput(f"{name!r} is in {len(found)} audits; {hint}")
    return found[0].record


def _find_unique_name(filed: FiledRecord, everything: Sequence[FiledRecord]) -> str | None:
    """The shortest name that no other record has."""
    taken = {name for other in everything if other is not filed for name in list_names(other)}
    return next((name for name in list_names(filed) if name not in taken), None)
