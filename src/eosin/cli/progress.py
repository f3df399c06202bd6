"""A progress bar that counts the steps of a model: where contexts are few, they all end at the very end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from eosin.contracts import Generative, Prefix, Token


@contextmanager
def watched(model: Generative, most_steps: int) -> Iterator[Generative]:
    """The model, with a bar for the steps it takes."""
    with tqdm(total=most_steps, desc="steps", unit="", disable=None, delay=2, leave=False) as bar:
        yield Watched(model, bar.update)


class Watched:
    """A model that tells of each of its steps."""

    def __init__(self, model: Generative, tell: Callable[[], object]):
        self.model = model
        self.tell = tell

    def __getattr__(self, name: str) -> Any:
        """Everything else is the model's."""
        return getattr(self.model, name)

    def prefill(self, prefix: Prefix) -> Any:
        self.tell()
        return self.model.prefill(prefix)

    def step(self, token: Token, state: Any) -> Any:
        self.tell()
        return self.model.step(token, state)
