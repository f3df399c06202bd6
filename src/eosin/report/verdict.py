"""The first sentences of a report: does it stop, how often not, and what fixes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eosin.causes import Cause
from eosin.records.record import Record
from eosin.report.audits import to_percent, to_percent_interval
from eosin.report.facts import list_facts

EOS_KEEPING_PREFIX = "consistent-"


@dataclass(frozen=True)
class Sentence:
    """A sentence of the verdict."""

    text: str
    tone: str = ""
    """`good`, `bad`, or neither."""


def write_verdict(audited: Sequence[Record], elsewhere: Sequence[Record] = ()) -> Iterator[Sentence]:
    """The verdict on counted records; estimates are left out. A remedy must also end on all contexts of `elsewhere`."""
    records = [record for record in audited if not record.signature.estimates_survival]
    if not records:
        yield Sentence("Survival was estimated, and no ending counted." if audited else "Nothing has been audited yet.")
        return
    worst = max(records, key=lambda record: record.ratio.value)
    if not worst.ratio.value:
        most = max(to_percent_interval(record.ratio)[1] for record in records)
        text = f"It stopped on every context; the true ratios may be up to {most:.2f}% (95% intervals)."
        yield Sentence(text, "good")
        return
    yield Sentence(f"It does not always stop: {describe_worst(worst)}.", "bad")
    keeping = [record for record in [*records, *elsewhere] if record.signature.decoder.startswith(EOS_KEEPING_PREFIX)]
    failing = dict.fromkeys(record.signature.decoder for record in keeping if record.ratio.value > 0)
    ending = dict.fromkeys(record.signature.decoder for record in keeping if record.signature.decoder not in failing)
    if ending:
        yield Sentence(f"Samplers that keep eos ended on every context: {', '.join(ending)}.", "good")
    if failing:
        yield Sentence(f"These keep eos, but had not ended on every context at the limit: {', '.join(failing)}.")


def describe_worst(record: Record) -> str:
    counts, signature = record.counts, record.signature
    model, proved = list_facts(signature).get("model", "the model"), counts.causes[Cause.PROVED]
    ratio = (
        f"{model} with {signature.decoder} has not ended on {to_percent(record.ratio):.2f}% of "
        f"{counts.contexts:,} contexts after {signature.max_steps:,} tokens"
    )
    share = 100 * proved / counts.contexts
    return ratio + (f", and on {share:.2f}% it is proved that it never would" if proved else "")
