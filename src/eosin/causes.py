"""Why a decoding ended, or was left."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    EOS = "eos"
    STOP = "stop string"
    STOPPED = "eos or stop string"
    """By itself, and a log does not say how."""
    PROVED = "proved infinite"
    LOOPING = "looping"
    """Met the limit in a loop that nothing was proved about."""
    SAMPLED = "loop, sampled"
    """Left in a loop that nothing was proved about, and counted as not ended: only a random share goes on."""
    TEMPLATED = "templated loop"
    """Met the limit while it repeated phrases in changing order."""
    LIMIT = "limit"
    FILTER = "filter"
    """Ended by a filter of contents."""
    UNKNOWN = "unknown"
    """A log does not say."""

    @property
    def ends(self) -> bool:
        """Whether decoding ended by itself."""
        return self in (Cause.EOS, Cause.STOP, Cause.STOPPED)
