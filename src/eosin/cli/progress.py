"""A progress bar that counts the steps of a model: where contexts are few, they all end at the very end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from eosin.events import Event, Watch


@contextmanager
def show_steps(most: int) -> Iterator[Watch]:
    """A watch that draws a bar for at most so many steps."""
    with tqdm(total=most, desc="steps", unit="", disable=None, delay=2, leave=False) as bar:

        def watch(event: Event) -> None:
            bar.update(event.kind == "step")

        yield watch
