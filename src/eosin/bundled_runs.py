"""The trained models that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BUNDLED_RUNS = Path(str(files("eosin") / "bundled" / "runs"))
TWINS = {"demo": ("demo", "demo-st"), "demo-lstm": ("demo-lstm", "demo-lstm-st")}
"""Models that are audited and decoded together: the demo of each name and its self-terminating twin."""
