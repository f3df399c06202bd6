"""The signature of a record: everything that decides its counts."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

ALL = "all"
"""The shard of a record whose shards have been added up."""


class ModelSignature(Struct, frozen=True):
    """What a signature says of the model."""

    kind: str | None = None
    weights: str | None = None


class ContextsSignature(Struct, frozen=True):
    """What a signature says of the contexts."""

    count: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    digest: str | None = None


class Signature(Struct, frozen=True, kw_only=True):
    """The keys that Eosin reads, typed and checked. `table` holds all keys, as they stand on the disk."""

    decoder: str
    shard: str
    max_steps: Annotated[int, Meta(ge=1, le=2**62)]
    model: ModelSignature = ModelSignature()
    contexts: ContextsSignature = ContextsSignature()
    contexts_from: str | None = None
    run: str | None = None
    settings: str | None = None
    """The settings of the run but for its seed: initialisations of one model share them."""
    estimator: str = "count"
    threads: int | None = None
    eosin: str | None = None
    """The version that counted."""
    table: dict[str, Any] = {}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Signature:
        return replace(convert(table, cls), table=table)

    def change(self, **keys: Any) -> Signature:
        """The same signature with other values for some keys."""
        return Signature.from_table({**self.table, **keys})

    @property
    def estimates_survival(self) -> bool:
        return self.estimator == "survival"
