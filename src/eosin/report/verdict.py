"""The first lines of a report: does it stop, how often not, what fixes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eosin.causes import Cause
from eosin.records.record import Record
from eosin.report.audits import facts, percent, percent_interval, ratio_of
from eosin.report.page import Said

KEEPS_EOS = "consistent-"


def verdict(audited: Sequence[Record], elsewhere: Sequence[Record] = ()) -> Iterator[Said]:
    """Of what was counted; an estimate is never quite zero. A remedy also has to end on the contexts of `elsewhere`."""
    records = [record for record in audited if record.signature.get("estimator") != "survival"]
    if not records:
        yield Said("Survival was estimated, and no ending counted." if audited else "Nothing has been audited yet.")
        return
    worst = max(records, key=lambda record: ratio_of(record).value)
    if not ratio_of(worst).value:
        most = max(percent_interval(ratio_of(record))[1] for record in records)
        yield Said(f"It stopped on every context; the true ratios may be up to {most:.2f}% (95% intervals).", "good")
        return
    yield Said(f"It does not always stop: {worst_in_words(worst)}.", "bad")
    keeping = [record for record in [*records, *elsewhere] if record.signature["decoder"].startswith(KEEPS_EOS)]
    left = dict.fromkeys(record.signature["decoder"] for record in keeping if ratio_of(record).value > 0)
    ended = dict.fromkeys(r.signature["decoder"] for r in keeping if r.signature["decoder"] not in left)
    if ended:
        yield Said(f"Samplers that keep eos ended on every context: {', '.join(ended)}.", "good")
    if left:
        yield Said(f"These keep eos, and had not ended on every context at the limit: {', '.join(left)}.")


def worst_in_words(record: Record) -> str:
    counts, signature = record.counts, record.signature
    model, proved = facts(signature).get("model", "the model"), counts.causes[Cause.PROVED]
    said = (
        f"{model} with {signature['decoder']} has not ended on {percent(ratio_of(record)):.2f}% of "
        f"{counts.contexts:,} contexts after {signature['max_steps']:,} tokens"
    )
    share = 100 * proved / counts.contexts
    return said + (f", and on {share:.2f}% it is proved that it never would" if proved else "")
