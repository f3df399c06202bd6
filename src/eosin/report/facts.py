"""What records are of: the facts of their signatures, which of them differ, and which are common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eosin.records.signature import Signature
from eosin.report.tables import Value

CODE = "code of the decoder"
"""A digest of the code of a decoder that does not come with the package."""
LAST_RESORT = (
    CODE, "model_from", "settings", "weights", "digest", "proofs", "loop_tokens", "device", "threads", "torch", "eosin",
)  # fmt: skip
"""Facts of little use to people: shown only if nothing else distinguishes two records."""
REWORDED = {"model", "run", "contexts", "contexts_from", "max_steps", "decoder", "shard", "estimator", "made_of"}


def list_facts(signature: Signature) -> dict[str, Value]:
    """A signature in the words of a table. Other keys keep their names."""
    facts = {
        "model": signature.model.kind if signature.run is None else signature.run,
        "context set": _describe_contexts(signature),
        "L": signature.max_steps,
        "weights": signature.model.weights,
        "digest": signature.contexts.digest,
        "estimator": "survival" if signature.estimates_survival else None,
        CODE: ", ".join(signature.table.get("made_of", ())) or None,
        **{key: _simplify(value) for key, value in signature.table.items() if key not in REWORDED},
    }
    return {key: value for key, value in facts.items() if value is not None}


def _describe_contexts(signature: Signature) -> str | None:
    if signature.contexts.count is None:
        return None
    origin = signature.contexts_from
    return f"{signature.contexts.count:,}" + (f" of {origin}" if origin else "")


def _simplify(value: Any) -> Value:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)


def find_differing_facts(signatures: Sequence[Signature], ignoring: Iterable[str] = ()) -> list[str]:
    """The names of facts that differ; those of the last resort only if they distinguish more signatures."""
    rows = [{**list_facts(signature), "decoder": signature.decoder} for signature in signatures]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in set(ignoring)]
    usual = [name for name in names if name not in {*LAST_RESORT, "decoder"}]
    chosen = [name for name in usual if _count_kinds(rows, [name]) > 1]
    for name in (name for name in LAST_RESORT if name in names):
        if _count_kinds(rows, [*chosen, name, "decoder"]) > _count_kinds(rows, [*chosen, "decoder"]):
            chosen.append(name)
    return chosen


def _count_kinds(rows: Sequence[Mapping[str, Value]], names: Sequence[str]) -> int:
    return len({tuple(row.get(name) for name in names) for row in rows})


def make_title(subject: str, signatures: Sequence[Signature], ignoring: Iterable[str] = ()) -> str:
    """The subject, and the facts that all signatures share."""
    first, *others = [list_facts(signature) for signature in signatures]
    common = ", ".join(
        f"{name} {value}"
        for name, value in first.items()
        if name not in {*LAST_RESORT, *ignoring} and all(other.get(name) == value for other in others)
    )
    return (" " if subject.endswith("?") else ": ").join(part for part in (subject, common) if part)
