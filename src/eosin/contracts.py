"""The words of this library: what a model, a state, a head, a truncation and a decoder are.

Everything that generates is `prefill` and `step` over an explicit state; everything that truncates is a set of kept
tokens. These are the shapes that the other modules fill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from eosin.outcome import Completion

if TYPE_CHECKING:
    from eosin.decoding.distribution import NextToken
    from eosin.decoding.selection import Line
    from eosin.decoding.truncation import Kept
    from eosin.logits import Logits

# Shape names, batch first everywhere. A row is one context under decoding, or one hypothesis of its beam.
Token = Int[Tensor, " batch"]
Tokens = Int[Tensor, "batch time"]
Prefix = Int[Tensor, "batch prefix"]
Rows = Int[Tensor, " rows"]
EosIds = Int[Tensor, " eos"]
EosLogits = Float[Tensor, "batch time"]
LogSurvival = Float64[Tensor, "batch time"]
Uniforms = Float64[Tensor, "batch 2"]


@runtime_checkable
class State(Protocol):
    """What a model carries from one token to the next: a value, batch first, opaque to every decoder.

    Two more methods are optional. `join(other)` puts the rows of another state behind one's own; a model whose state
    has none is decoded in shrinking cohorts. `same(other)` tells for each row whether two states agree bit for bit.
    """

    def select(self, rows: Rows) -> State:
        """The given rows in the given order; a row may be asked for more than once."""


@runtime_checkable
class Generative(Protocol):
    """All that decoding asks of a model. softmax(logits) is the next-token distribution, whatever head made it.

    Logits are a (batch, vocab) tensor or, where writing them out would be waste, an `eosin.logits.Logits`.
    More is optional. `promise(temperature)` is what the model promises about eos, an `eosin.log_odds.Promise`;
    `grounds` says it in words. `pool` is the number of rows that are best decoded at a time.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens; ids run from 0 to vocab_size - 1."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a sequence; chat models have more than one."""

    def prefill(self, prefix: Prefix) -> tuple[Logits | Tensor, State]:
        """Read prefixes of one length; the logits are those of the first token after them."""

    def step(self, token: Token, state: Any) -> tuple[Logits | Tensor, State]:
        """Read one more token a row."""


@runtime_checkable
class LanguageModel(Generative, Protocol):
    """A model that can also say how probable a given text is."""

    def score(self, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
        """The log-probability of each token of the continuation."""


@runtime_checkable
class Core(Protocol):
    """A network from embedded tokens to hidden vectors: a recurrent one or a transformer.

    One more method is optional. `reach(directions)` says how large d . h can get over all hidden vectors h, for each
    row d of a (directions, width) tensor; with it Lemma 3.2 bounds p(eos) from the weights.
    """

    width: int

    def initial(self, batch: int) -> State:
        """The state before the first token."""

    def __call__(
        self, inputs: Float[Tensor, "batch time width"], state: Any
    ) -> tuple[Float[Tensor, "batch time width"], State]:
        """Hidden vectors after each input. A single step is a sequence of length one."""


@runtime_checkable
class Head(Protocol):
    """Decides how probable eos is, from the eos logit and a memory of its own.

    `None` as log-survival means that the softmax over all logits stands.

    One more method is optional. `promise(steps)` says what log(1 - p(eos)) never exceeds at each step, counted from 1,
    whatever the logits; it never rises, and None means again that the softmax stands. `grounds` says it in words.
    """

    def initial(self, batch: int, device: torch.device) -> State:
        """The memory at the end of the context, before any token has counted."""

    def __call__(self, eos_logits: EosLogits, memory: Any) -> tuple[LogSurvival | None, State]:
        """log(1 - p(eos)) at each position. A single step is a sequence of length one."""


@runtime_checkable
class Truncation(Protocol):
    """A rule that says which tokens may be drawn. It keeps; it never edits probabilities."""

    @property
    def keeps_eos(self) -> bool:
        """True where eos can never be dropped, whatever the model says."""

    @property
    def complete(self) -> bool:
        """True where no token can ever be dropped."""

    def check(self, vocab_size: int) -> None:
        """Raise a ValueError if the rule does not fit a vocabulary of this size."""

    def keep(self, next_token: NextToken) -> Kept | None:
        """The kept tokens as a list, where they are few; None where the rule cannot list them."""

    def line(self, next_token: NextToken) -> Line:
        """The kept tokens as the front of an order, where they are many."""

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        """How safely a token is kept alone, in nats, given the least by which it leads each other one; not positive
        where others may be kept as well.
        """


@runtime_checkable
class Search(Protocol):
    """Contexts under way with one decoder: the bookkeeping between two steps of the model."""

    eos_ids: EosIds

    @property
    def contexts(self) -> int:
        """How many contexts are still under way."""

    @property
    def rows(self) -> int:
        """How many rows of the model's batch they take."""

    def advance(self, next_token: NextToken) -> tuple[Token, Rows]:
        """Take one step on every row: the next tokens, and the rows of the present batch that they follow."""

    def join(self, other: Any) -> Search:
        """Both sets of contexts, the rows of `other` last."""

    def finished(self) -> list[Completion]:
        """The contexts that have ended since this was last asked."""

    def whereabouts(self, row: int) -> tuple[int, int]:
        """The index of the context in a row, and the step it is about to take, counted from 1."""


@runtime_checkable
class Decoder(Protocol):
    """A decoding algorithm; its `str` is its specification, as in "consistent-nucleus:0.2".

    One more method is optional, here and in a `Truncation`. `passes_on(log_odds, vocab_size, eos_count)` says what is
    left of a promise about eos: the least log-odds of ending, given the least of eos under the model.
    """

    @property
    def rows_per_context(self) -> int:
        """The widest that one context gets: 1, or the width of the beam."""

    @property
    def keeps_eos(self) -> bool:
        """True where q(eos) >= p(eos) at the decoder's temperature, always: the condition of Theorem 4.1."""

    def check(self, vocab_size: int) -> None:
        """Raise a ValueError if the decoder does not fit a vocabulary of this size."""

    def begin(self, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int) -> Search:
        """A search over contexts that have just been prefilled, one row each."""
