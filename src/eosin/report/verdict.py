"""The first sentences of a report: does it stop, how often not, what is proved, and which measured remedy ends it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from eosin.bundled_runs import TWINS
from eosin.causes import Cause
from eosin.records.record import Record
from eosin.records.statistics import summarize_lengths
from eosin.report.audits import to_percent, to_percent_interval
from eosin.report.charts import EOS_KEEPING_PREFIX, find_plain, keeps_eos
from eosin.report.facts import list_facts
from eosin.report.origin import Origins, find_origin, is_twin
from eosin.report.tables import WIDTH

NOTHING_KNOWN: Origins = {}
CONTEXTS = ("train", "valid", "test", "random")
"""Contexts of a corpus; others are of a file of prompts."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of the verdict."""

    text: str
    tone: str = ""
    """`good`, `bad`, or neither."""


@dataclass(frozen=True)
class Fix:
    """Lines to copy, and what is known about them."""

    code: str
    why: str


@dataclass(frozen=True)
class Remedy:
    """What ended where a decoding had not."""

    name: str
    kind: str
    """`keeping`: the same rule with eos; `floor`: the same model on a floor; `model`: another model."""
    records: tuple[Record, ...]


def find_worst(records: Sequence[Record]) -> Record | None:
    """The counted record that failed most; None if all ended."""
    counted = [record for record in records if not record.signature.estimates_survival]
    worst = max(counted, key=lambda record: (record.ratio.value, not record.all_ended), default=None)
    return worst if worst and not worst.all_ended else None


def name_model(record: Record) -> str:
    """The run, and the floor under it."""
    facts = list_facts(record.signature)
    floor = facts.get("floor")
    return f"{facts.get('model', 'the model')}{f' on a floor of {floor:g}' if isinstance(floor, float) else ''}"


def write_verdict(
    audited: Sequence[Record], elsewhere: Sequence[Record] = (), origins: Origins = NOTHING_KNOWN
) -> Iterator[Sentence]:
    """The verdict on counted records; estimates are left out. A remedy must also end on all contexts of `elsewhere`."""
    records = [record for record in audited if not record.signature.estimates_survival]
    if not records:
        yield Sentence("Survival was estimated, and no ending counted." if audited else "Nothing has been audited yet.")
        return
    worst = find_worst(records)
    if worst is None:
        most = max(to_percent_interval(record.ratio)[1] for record in records)
        text = f"Every decoding stopped, {describe_extent(records)}; the true ratios may be up to {most:.2f}%."
        yield Sentence(text, "good")
        return
    yield Sentence(f"{name_model(worst)} does not always stop: {describe_worst(worst)}.", "bad")
    by_model = group_by_model(records)
    yield from describe_remedies(records, elsewhere, origins)
    ended = [name for name, group in by_model.items() if all(record.all_ended for record in group)]
    if len(by_model) > 1:
        which = f": {', '.join(ended)}" if ended else ""
        yield Sentence(
            f"{len(ended)} of {len(by_model)} models ended on every context with every decoder tried{which}."
        )
    yield from describe_late([*records, *elsewhere])


def describe_extent(records: Sequence[Record]) -> str:
    """How many models, decoders and contexts there are, and whether they are all that were asked for."""
    models, decoders = len(group_by_model(records)), len({record.signature.decoder for record in records})
    counts = [
        f"{models} models" * (models > 1),
        f"{decoders} decoder{'s' * (decoders > 1)} on {describe_contexts(records[0])}",
    ]
    return "with " + " and ".join(filter(None, counts))


def describe_contexts(record: Record) -> str:
    origin, count = record.signature.contexts_from, f"{record.counts.contexts:,}"
    if not origin:
        return f"{count} contexts"
    return f"{count} {origin} contexts" if origin in CONTEXTS else f"{count} prompts ({origin})"


def group_by_model(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(name_model(record), []).append(record)
    return groups


def describe_worst(record: Record) -> str:
    """The ratio, and what is proved of it."""
    counts, signature = record.counts, record.signature
    unended = counts.contexts - sum(counts.ended.values())
    proved = counts.causes[Cause.PROVED]
    ratio = (
        f"{signature.decoder} had not ended on {to_percent(record.ratio):.2f}% of {describe_contexts(record)} "
        f"after {signature.max_steps:,} tokens"
    )
    if not proved:
        return ratio
    how_many = f"all {unended:,}" if proved == unended else f"{proved:,} of {unended:,}"
    return f"{ratio}; {how_many} are proved never to end"


# remedies: what was measured to end where a decoding did not


def find_remedies(
    failed: Record, records: Sequence[Record], elsewhere: Sequence[Record] = (), origins: Origins = NOTHING_KNOWN
) -> list[Remedy]:
    """On the same contexts: the eos-keeping form of the rule, the network with another head, the model on a floor."""
    decoder = failed.signature.decoder
    keeping = EOS_KEEPING_PREFIX + decoder
    same = [record for record in records if is_same_question(record, failed)]
    others = [each for each in same if each.signature.decoder == decoder and name_model(each) != name_model(failed)]
    forms = tuple(each for each in [*same, *elsewhere] if is_form(each, failed, keeping))
    found = [
        Remedy(keeping, "keeping", forms),
        *(Remedy(name_model(each), "model", (each,)) for each in others if is_twin(origins, each, failed)),
        *(Remedy(name_model(each), "floor", (each,)) for each in others if each.signature.run == failed.signature.run),
    ]
    return [each for each in found if each.records and all(record.all_ended for record in each.records)]


def is_same_question(record: Record, other: Record) -> bool:
    one, two = record.signature, other.signature
    return (one.contexts, one.contexts_from, one.max_steps) == (two.contexts, two.contexts_from, two.max_steps)


def is_form(record: Record, failed: Record, decoder: str) -> bool:
    return record.signature.decoder == decoder and name_model(record) == name_model(failed)


def describe_remedies(records: Sequence[Record], elsewhere: Sequence[Record], origins: Origins) -> Iterator[Sentence]:
    """A sentence for each remedy: where it was measured to end. The last one names what has no remedy."""
    failed = sorted((record for record in records if not record.all_ended), key=lambda record: -record.ratio.value)
    remedies: dict[tuple[str, str], list[tuple[Record, Remedy]]] = {}
    helpless = []
    for record in failed:
        found = find_remedies(record, records, elsewhere, origins)
        for remedy in found:
            name = name_model(record) if remedy.kind == "keeping" else remedy.name
            remedies.setdefault((remedy.kind, name), []).append((record, remedy))
        if not found:
            helpless.append(record)
    for (kind, name), pairs in remedies.items():
        if kind == "keeping":
            which = ", ".join(remedy.name for _, remedy in pairs)
            plain = ", ".join(record.signature.decoder for record, _ in pairs)
            yield Sentence(f"{name}: {which} ended on every context, where {plain} had not.", "good")
            continue
        ended = pairs[0][1].records[0]
        where, lengths = list_decodings([record for record, _ in pairs]), describe_lengths(ended, origins)
        is_good = ended.counts.cut is not None and not cuts_loops(ended)
        which = f"{name}{describe_head(ended, origins) if kind == 'model' else ''}"
        yield Sentence(f"{which} ended on every context, where {where} had not; {lengths}.", "good" if is_good else "")
    if helpless:
        yield Sentence(f"No remedy was measured that ended on every context for {list_decodings(helpless)}.")


def list_decodings(records: Sequence[Record]) -> str:
    """Models, each with its decoders."""
    groups = group_by_model(records).items()
    return " and ".join(f"{name} ({', '.join(each.signature.decoder for each in group)})" for name, group in groups)


LOOPS_CUT = 0.05
"""A remedy that cuts loops in more of its completions is said to cut them."""


def cuts_loops(record: Record) -> bool:
    counts = record.counts
    return bool(counts.cut) and (counts.cut or 0) > LOOPS_CUT * sum(counts.ended.values())


def describe_head(record: Record, origins: Origins) -> str:
    origin = find_origin(origins, record)
    return f", the same network with a {origin.head} head," if origin else ""


def describe_lengths(record: Record, origins: Origins) -> str:
    """The lengths of what ended, beside the data's, and how many were loops that eos cut."""
    counts, lengths = record.counts, record.counts.lengths
    if lengths is None:
        return "nothing ended"
    origin = find_origin(origins, record)
    data = summarize_lengths(origin.lengths) if origin else None
    beside = f" (the data's: {data.mean:.1f})" if data else ""
    text = f"its {record.signature.decoder} completions have {lengths.mean:.1f} tokens on average{beside}"
    if counts.cut is None:
        return f"{text}; loops that were cut were not counted"
    if not cuts_loops(record):
        return text
    share = 100 * counts.cut / sum(counts.ended.values())
    return f"{text}, but {share:.1f}% of them are loops that were cut; all had ended by step {max(counts.ended):,}"


def describe_late(records: Sequence[Record]) -> Iterator[Sentence]:
    """Samplers that keep eos end with probability one, but not always before the limit."""
    failing = (record for record in records if keeps_eos(record.signature.decoder) and not record.all_ended)
    if late := list(dict.fromkeys(record.signature.decoder for record in failing)):
        yield Sentence(f"These keep eos, but had not ended on every context at the limit: {', '.join(late)}.")


# the fix to copy


GENERATE = {
    "nucleus": ("top_p",),
    "top-k": ("top_k",),
    "top-k-nucleus": ("top_k", "top_p"),
    "min-p": ("min_p",),
    "typical": ("typical_p",),
    "epsilon": ("epsilon_cutoff",),
    "eta": ("eta_cutoff",),
    "top-h": ("top_h",),
}
"""Truncation rules as arguments of `generate` in transformers."""
WHOLE_DISTRIBUTION = {"top_k": "0", "top_p": "1.0", "temperature": "1.0"}
"""Arguments of `generate` that would otherwise come from the generation config, or be 50."""


def write_generate_arguments(decoder: str) -> str | None:
    """A greedy decoder or a sampler as arguments of `generate`; None for what `generate` does not have."""
    rule, *settings = find_plain(decoder).split(",")
    name, *values = rule.split(":")
    if name == "greedy":
        return "do_sample=False"
    if name not in ("ancestral", *GENERATE):
        return None
    given = {**dict(zip(GENERATE.get(name, ()), values, strict=False)), **dict(each.split("=") for each in settings)}
    keeping = {"custom_generate": "eosin.hub.consistent"} if keeps_eos(decoder) else {}
    arguments = {"do_sample": "True", **WHOLE_DISTRIBUTION, **given, **keeping}
    return ", ".join(f"{key}={value}" for key, value in arguments.items())


def propose_fix(
    records: Sequence[Record], elsewhere: Sequence[Record] = (), origins: Origins = NOTHING_KNOWN, model: str = ""
) -> Fix | None:
    """For the worst decoding; None if all ended. `model` is its name on the command line, if that is known."""
    worst = find_worst(records)
    if worst is None:
        return None
    found = find_remedies(worst, records, elsewhere, origins)
    measured = f"{' and '.join(each.name for each in found)} ended on all of these contexts. " if found else ""
    name = find_plain(worst.signature.decoder).partition(":")[0]
    keeping = EOS_KEEPING_PREFIX + worst.signature.decoder
    was_tried = any(is_form(record, worst, keeping) for record in records)
    is_sampler = name in GENERATE and not keeps_eos(worst.signature.decoder)
    is_sampler = is_sampler and (not was_tried or any(each.kind == "keeping" for each in found))
    is_hub = worst.signature.model.kind == "CausalLM"
    write: Callable[..., str] = write_hub_fix if is_hub else write_run_fix
    is_measured = any(each.kind == "floor" for each in found)
    why = KEEPING if is_sampler else describe_floor(worst.signature.decoder, is_measured)
    return Fix(write(worst, is_sampler, model), measured + why)


KEEPING = "A sampler that keeps eos ends with probability one (Theorem 4.1)."


def describe_floor(decoder: str, is_measured: bool) -> str:
    what = "greedy decoding by a known step" if decoder == "greedy" else decoder
    untried = "" if is_measured else f" With {decoder} it was not tried on these contexts."
    return f"A floor under p(eos) needs no training. It ends {what}, and cuts loops short.{untried}"


def write_hub_fix(worst: Record, is_sampler: bool, model: str = "") -> str:
    if is_sampler:
        how = write_generate_arguments(EOS_KEEPING_PREFIX + worst.signature.decoder)
        return f"import eosin.hub\nmodel.generate(**inputs, {how})"
    return (
        "import eosin.hub\n"
        "floor = eosin.hub.TerminationFloor(model.generation_config.eos_token_id, "
        f"budget={worst.signature.max_steps})\n"
        "model.generate(**inputs, logits_processor=[floor])"
    )


def write_run_fix(worst: Record, is_sampler: bool, model: str = "") -> str:
    run, decoder = worst.signature.run, worst.signature.decoder
    is_bundled = any(run in twins for twins in TWINS.values())
    trained = f"runs/{run}" if worst.signature.settings else "MODEL"  # records do not say where a file of one's own is
    place = str(run) if is_bundled else model or trained
    if is_sampler:
        return f"eosin decode {place} --decoder {EOS_KEEPING_PREFIX}{decoder}"
    limit = "model.greedy_bound" if decoder == "greedy" else worst.signature.max_steps
    return (
        "import eosin\n"
        f"model = eosin.Floor(eosin.load({place!r}), epsilon=1e-3)\n"
        f"eosin.decode(model, prefixes, {decoder!r}, max_steps={limit})"
    )


MOST_SENTENCES = 2
"""Of the verdict in a terminal."""


def render_verdict(sentences: Sequence[Sentence], fix: Fix | None) -> list[str]:
    """Lines for a terminal: the verdict and the fix."""
    lines = [line for each in sentences[:MOST_SENTENCES] for line in textwrap.wrap(each.text, WIDTH)]
    if fix:
        lines += [*textwrap.wrap(f"fix: {fix.why}", WIDTH), *(f"    {line}" for line in fix.code.splitlines())]
    return lines
