"""Why a decoding ended, or was left."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    EOS = "eos"
    STOP = "stop string"
    PROVED = "proved infinite"
    LOOPING = "looping"
    """Met the limit in a loop that nothing was proved about."""
    LIMIT = "limit"

    @property
    def ends(self) -> bool:
        """Whether decoding ended by itself."""
        return self in (Cause.EOS, Cause.STOP)
