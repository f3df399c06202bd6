"""Models by decoders, as in the paper's Table 1: mean and standard deviation across initialisations.

Records whose signatures differ in the weights, the run and the seed of training only are initialisations of one model.
They are never added up: an interval of pooled contexts would say nothing about the next initialisation.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eosin.records.record import Record
from eosin.records.statistics import across_initialisations
from eosin.report.audits import facts, in_common, percent, ratio_of, titled, told_apart
from eosin.report.tables import Column, Table, Value

OF_THE_MODEL = {"run", "model", "settings", "initialisation"}
OF_THE_MACHINE = {"device", "threads", "torch", "eosin"}
"""These decide the last bits only; initialisations may have been audited on different machines."""


def model_of(record: Record) -> str:
    """What initialisations of one model have in common: the settings, or if they are not known the name of the run."""
    signature, model = record.signature, record.signature.get("model", {})
    name = next((key for key in ("settings", "run") if key in signature), None)
    return json.dumps([model.get("kind"), signature[name] if name else weights_of(record)])


def weights_of(record: Record) -> str:
    return record.signature.get("model", {}).get("weights", "")


@dataclass(frozen=True)
class Conditions:
    """What else was asked: the decoder, the contexts, the limit, ..."""

    ignoring: frozenset[str]

    def of(self, record: Record) -> str:
        asked = {key: value for key, value in record.signature.items() if key not in self.ignoring}
        return json.dumps(asked, sort_keys=True)


def conditions_for(records: Sequence[Record]) -> Conditions:
    """Machines are told apart only if the same weights were asked the same on several."""
    usual = Conditions(frozenset({"shard", *OF_THE_MODEL, *OF_THE_MACHINE}))
    asked = {(weights_of(record), usual.of(record)) for record in records}
    exact = Conditions(usual.ignoring - OF_THE_MACHINE)
    exactly_asked = {(weights_of(record), exact.of(record)) for record in records}
    return usual if len(asked) == len(exactly_asked) else exact


def several(records: Sequence[Record]) -> bool:
    """Whether there is more than one model, or one with more than one initialisation."""
    return len({(model_of(record), weights_of(record)) for record in records}) > 1


def across_models(records: Sequence[Record]) -> Table:
    """A row for each decoder, a column for each model."""
    conditions = conditions_for(records)
    ratios: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    rows: dict[str, Mapping[str, Any]] = {}
    for record in records:
        rows.setdefault(conditions.of(record), record.signature)
        ratios[conditions.of(record), model_of(record)][weights_of(record)] = percent(ratio_of(record))
    names = names_of(records)
    told = told_apart(list(rows.values()), ignoring={"model", "initialisation", "settings", "weights"})
    return Table(
        columns=(
            *(Column(name, left=True) for name in [*told, "decoder"]),
            *(Column(name, spread, tuple(f"{name}: {part}" for part in PARTS)) for name in names.values()),
        ),
        rows=tuple(
            (*_identity(signature, told), *(mean_and_deviation(ratios.get((asked, model))) for model in names))
            for asked, signature in rows.items()
        ),
        title=_title(list(rows.values())),
        note=_note(ratios, names),
    )


PARTS = ("mean", "deviation", "initialisations")


def _identity(signature: Mapping[str, Any], names: Sequence[str]) -> list[Value]:
    known = facts(signature)
    return [*(known.get(name) for name in names), signature["decoder"]]


def _title(signatures: Sequence[Mapping[str, Any]]) -> str:
    what = "r_L (%), mean ± standard deviation across initialisations"
    return titled(what, in_common(signatures, ignoring={"model", "initialisation"}))


def _note(ratios: Mapping[tuple[str, str], Mapping[str, float]], names: Mapping[str, str]) -> str:
    """How many initialisations each model has."""
    numbers = {
        name: {len(found) for (_, key), found in ratios.items() if key == model} for model, name in names.items()
    }
    said = [f"{name} {' to '.join(map(str, sorted({min(of), max(of)})))}" for name, of in numbers.items()]
    return f"initialisations: {', '.join(said)}"


def mean_and_deviation(ratios: Mapping[str, float] | None) -> Value:
    """Across initialisations; one has no deviation."""
    if not ratios:
        return None
    mean, deviation = across_initialisations(list(ratios.values()))
    return mean, deviation if len(ratios) > 1 else None, len(ratios)


def spread(value: tuple[float, float | None, int]) -> str:
    mean, deviation, _ = value
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def names_of(records: Sequence[Record]) -> dict[str, str]:
    """What each model is called. A second one of the same name gets a number."""
    runs: dict[str, list[str]] = defaultdict(list)
    for record in records:
        runs[model_of(record)].append(str(facts(record.signature).get("model", "model")))
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for model, each in runs.items():
        name = common_name(each)
        seen[name] += 1
        names[model] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def common_name(runs: Sequence[str]) -> str:
    """The words with which the names of all runs begin: lstm for lstm-seed-10 and lstm-seed-11."""
    if len(set(runs)) == 1:
        return runs[0]
    words = zip(*(re.split(r"([-_. ]+)", run) for run in runs), strict=False)
    start = "".join(same[0] for same in itertools.takewhile(lambda same: len(set(same)) == 1, words))
    return re.sub(r"(^|[-_. ]+)(seed)?[-_. ]*$", "", start) or f"{runs[0]}, ..."
