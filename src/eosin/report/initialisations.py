"""Models by decoders, as in the paper's Table 1: mean and standard deviation across initialisations.

Records whose signatures differ only in the weights, the run and the training seed are initialisations of one model.
They are never added up: an interval over pooled contexts would say nothing about the next initialisation.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from eosin.records.record import Record
from eosin.records.signature import Signature
from eosin.records.statistics import compute_mean_and_deviation
from eosin.report.audits import to_percent
from eosin.report.facts import find_differing_facts, list_facts, make_title
from eosin.report.tables import Column, Table, Value

MODEL_KEYS = {"run", "model", "settings", "initialisation"}
MACHINE_KEYS = {"device", "threads", "torch", "eosin"}
"""These change the last bits only; initialisations may have been audited on different machines."""


def identify_model(signature: Signature) -> str:
    """What initialisations of one model share: the settings, else the name of the run, else the weights."""
    name = next((key for key in ("settings", "run") if key in signature.table), None)
    return json.dumps([signature.model.kind, signature.table[name] if name else signature.model.weights])


def identify_conditions(signature: Signature, ignored: set[str]) -> str:
    """What else was asked: the decoder, the contexts, the limit, ..."""
    return json.dumps({key: it for key, it in signature.table.items() if key not in ignored}, sort_keys=True)


def choose_ignored_keys(records: Sequence[Record]) -> set[str]:
    """The keys that are no condition. Machines are one only if the same weights were audited on several."""
    usual = {"shard", *MODEL_KEYS, *MACHINE_KEYS}
    exact = usual - MACHINE_KEYS

    def count_asked(ignored: set[str]) -> int:
        return len({(each.signature.model.weights, identify_conditions(each.signature, ignored)) for each in records})

    return usual if count_asked(usual) == count_asked(exact) else exact


def has_several_models(records: Sequence[Record]) -> bool:
    """Whether there is more than one model, or one with more than one initialisation."""
    return len({(identify_model(record.signature), record.signature.model.weights) for record in records}) > 1


def has_several_initialisations(records: Sequence[Record]) -> bool:
    """Whether a model has more than one; a single one has no deviation."""
    pairs = {(identify_model(record.signature), record.signature.model.weights) for record in records}
    return len(pairs) > len({model for model, _ in pairs})


def tabulate_models(records: Sequence[Record]) -> Table:
    """A row for each decoder, a column for each model."""
    ignored = choose_ignored_keys(records)
    ratios: dict[tuple[str, str], dict[str | None, float]] = defaultdict(dict)
    rows: dict[str, Signature] = {}
    for record in records:
        conditions = identify_conditions(record.signature, ignored)
        rows.setdefault(conditions, record.signature)
        of_model = ratios[conditions, identify_model(record.signature)]
        of_model[record.signature.model.weights] = to_percent(record.ratio)
    names = name_models(records)
    signatures = list(rows.values())
    facts = find_differing_facts(signatures, ignoring={"model", "initialisation", "settings", "weights"})
    has_deviations = any(len(of_model) > 1 for of_model in ratios.values())
    subject = "r_L (%)" + (", mean ± standard deviation across initialisations" if has_deviations else "")
    return Table(
        columns=(
            *(Column(name, left=True) for name in [*facts, "decoder"]),
            *(Column(name, _format_mean, tuple(f"{name}: {part}" for part in PARTS)) for name in names.values()),
        ),
        rows=tuple(
            (
                *(list_facts(signature).get(fact) for fact in facts),
                signature.decoder,
                *(_summarize(ratios.get((conditions, model))) for model in names),
            )
            for conditions, signature in rows.items()
        ),
        title=make_title(subject, signatures, ignoring={"model", "initialisation"}),
        note=_count_initialisations(ratios, names),
    )


PARTS = ("mean", "deviation", "initialisations")


def _count_initialisations(
    ratios: Mapping[tuple[str, str], Mapping[str | None, float]], names: Mapping[str, str]
) -> str:
    counts = {name: {len(found) for (_, key), found in ratios.items() if key == model} for model, name in names.items()}
    parts = [f"{name} {' to '.join(map(str, sorted({min(of), max(of)})))}" for name, of in counts.items()]
    return f"initialisations: {', '.join(parts)}"


def _summarize(ratios: Mapping[str | None, float] | None) -> Value:
    """Mean, deviation and number; a single initialisation has no deviation."""
    if not ratios:
        return None
    mean, deviation = compute_mean_and_deviation(list(ratios.values()))
    return mean, deviation if len(ratios) > 1 else None, len(ratios)


def _format_mean(value: tuple[float, float | None, int]) -> str:
    mean, deviation, _ = value
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def name_models(records: Sequence[Record]) -> dict[str, str]:
    """A name for each model. The second one with the same name gets a number."""
    runs: dict[str, list[str]] = defaultdict(list)
    for record in records:
        runs[identify_model(record.signature)].append(str(list_facts(record.signature).get("model", "model")))
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for model, its_runs in runs.items():
        name = find_common_name(its_runs)
        seen[name] += 1
        names[model] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def find_common_name(runs: Sequence[str]) -> str:
    """The words with which the names of all runs begin: lstm for lstm-seed-10 and lstm-seed-11."""
    if len(set(runs)) == 1:
        return runs[0]
    words = zip(*(re.split(r"([-_. ]+)", run) for run in runs), strict=False)
    start = "".join(same[0] for same in itertools.takewhile(lambda same: len(set(same)) == 1, words))
    return re.sub(r"(^|[-_. ]+)(seed)?[-_. ]*$", "", start) or f"{runs[0]}, ..."
