"""The interfaces of this library: what a model, a state, a head, a truncation rule and a decoder are.

Everything that generates is `prefill` and `step` over an explicit state. Everything that truncates is a set of kept
tokens. The other modules implement these interfaces.

Each section ends with its optional capabilities. An object has a capability if it has the methods. The library asks for
each of them in one place, and does without where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

if TYPE_CHECKING:
    from eosin.decoding.distribution import NextToken
    from eosin.decoding.samplers import Draw
    from eosin.decoding.search import Search
    from eosin.decoding.selection import Line
    from eosin.decoding.truncation import Kept
    from eosin.log_odds import LogOdds, Promise
    from eosin.logits import Logits

# Shape names, batch first everywhere. A row is one context under decoding, or one hypothesis of its beam.
Token = Int[Tensor, " batch"]
Tokens = Int[Tensor, "batch time"]
Prefix = Int[Tensor, "batch prefix"]
Rows = Int[Tensor, " rows"]
EosIds = Int[Tensor, " eos"]
EosLogits = Float[Tensor, "batch time"]
LogSurvival = Float64[Tensor, "batch time"]
HeadMemory = Float64[Tensor, "batch *numbers"]
HeadMemories = Float64[Tensor, "batch time *numbers"]
Uniforms = Float64[Tensor, "batch 2"]

Stop = Callable[[list[int]], bool]
"""Whether a completion ends with the last of these tokens. It is asked after every step."""


# States and models


@runtime_checkable
class State(Protocol):
    """What a model carries from one token to the next: a value, batch first. Decoders do not look inside."""

    def select(self, rows: Rows) -> State:
        """The given rows in the given order; a row may be asked for more than once."""


@runtime_checkable
class Joinable(State, Protocol):
    """Optional: new contexts can enter while others are under way. Without it a model is decoded in cohorts."""

    def join(self, other: Any) -> State:
        """The rows of both states, those of `other` last."""


@runtime_checkable
class SometimesJoinable(Joinable, Protocol):
    """Optional: a state that has `join`, but cannot always use it."""

    @property
    def joinable(self) -> bool: ...


@runtime_checkable
class Comparable(State, Protocol):
    """Optional: rows can be compared, so exact recurrence can be proved."""

    def same(self, other: Any) -> Bool[Tensor, " batch"]:
        """For each row, whether the two states agree bit for bit."""


@runtime_checkable
class Measurable(Comparable, Protocol):
    """Optional: the size of a row is known. It must be known where a row can be empty."""

    @property
    def size(self) -> int | None:
        """How many numbers a row holds; None where rows cannot be compared after all."""


@runtime_checkable
class Growing(State, Protocol):
    """Optional: a row may grow with each token, as keys and values do. Such a state must say so.

    It never recurs. Its bits depend on the lengths of the other rows anyway, so its batches are not padded.
    """

    @property
    def grows(self) -> bool: ...


@runtime_checkable
class Generative(Protocol):
    """All that decoding asks of a model. softmax(logits) is the next-token distribution, whatever head made it.

    Logits are a (batch, vocab) tensor or, to save memory, an `eosin.logits.Logits`.
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
        """Read one more token per row."""


@runtime_checkable
class LanguageModel(Generative, Protocol):
    """A model that can also say how probable a given text is."""

    def score(self, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
        """The log-probability of each token of the continuation."""


@runtime_checkable
class Promising(Protocol):
    """A model that knows a lower bound on the log-odds of eos before it reads anything; certificates need it."""

    def promise(self, temperature: float = 1.0) -> Promise:
        """The bound at a temperature."""


@runtime_checkable
class Pooled(Generative, Protocol):
    """Optional: the model says how many rows are best decoded together."""

    @property
    def pool(self) -> int: ...


@runtime_checkable
class Windowed(Generative, Protocol):
    """Optional: the model reads texts up to a length only."""

    @property
    def window(self) -> int | None:
        """The greatest length of prefix and completion; None where there is no limit."""


@runtime_checkable
class Selective(LanguageModel, Protocol):
    """Optional: the model can score some tokens without computing the logits of the others."""

    def log_probs(
        self, prefix: Prefix, continuation: Tokens, wanted: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, " wanted"]:
        """The log-probability of the wanted tokens."""


@runtime_checkable
class Digested(Protocol):
    """Optional: a model that knows a digest of its weights. Its records carry it, and distinguish it from others."""

    @property
    def weights_digest(self) -> str: ...


@runtime_checkable
class Movable(Protocol):
    """Optional: a model that can be put on a device, in a precision, as every `torch.nn.Module` can."""

    def to(self, *where: Any) -> Any: ...


@runtime_checkable
class Words(Protocol):
    """Optional, beside a model of one's own: text as token ids and back. Without it, prompts are token ids."""

    def encode(self, text: str) -> Sequence[int]:
        """A prompt as a prefix, with the tokens that stand before every text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Any tokens as text, those that end a text too."""


@runtime_checkable
class Core(Protocol):
    """A network from embedded tokens to hidden vectors: a recurrent one or a transformer.

    More is optional: `BoundedCore` and `FormulaCore`.
    """

    width: int

    def initial(self, batch: int) -> State:
        """The state before the first token."""

    def __call__(
        self, inputs: Float[Tensor, "batch time width"], state: Any
    ) -> tuple[Float[Tensor, "batch time width"], State]:
        """Hidden vectors after each input. A single step is a sequence of length one."""


@runtime_checkable
class BoundedCore(Protocol):
    """A core with bounded hidden vectors: with it Lemma 3.2 bounds p(eos) from the weights."""

    def reach(self, directions: Float64[Tensor, "directions width"]) -> Float64[Tensor, " directions"]:
        """How large d . h can get for each direction d, over all hidden vectors h."""


@runtime_checkable
class FormulaCore(Core, Protocol):
    """A recurrent core whose step is also a formula; proofs of loops need it.

    Its state is a `TensorState` of `depth * tensors_per_layer` tensors of shape (batch, width), the lowest layer first,
    the hidden vector first in each layer. The class that defines `forward` must define `next_memory` too.
    """

    @property
    def depth(self) -> int: ...

    @property
    def tensors_per_layer(self) -> int: ...

    def next_memory(self, inputs: Any, memory: tuple[Any, ...]) -> tuple[Any, ...]:
        """One step of one row, on float64 vectors or on expansions with error bounds.

        It may use `+ - *`, products with matrices, `tanh`, `sigmoid`, `chunk` and slices.
        """


@dataclass(frozen=True)
class StepFormula:
    """One step of a model as a formula: logits = weight h + bias, with h from the core and the embedded token."""

    core: FormulaCore
    embedding: Float[Tensor, "vocab inputs"]
    weight: Float[Tensor, "vocab width"]
    bias: Float[Tensor, " vocab"]


@runtime_checkable
class HasStepFormula(Protocol):
    """A model whose step is a formula; proofs of loops need it.

    Its state is a `PairState` with the state of the core first. The class that defines `step_formula` must define
    `prefill` and `step` too.
    """

    def step_formula(self) -> StepFormula | None:
        """None where a part of the model has no formula."""


@runtime_checkable
class Head(Protocol):
    """Decides how probable eos is, from the eos logit and a memory of its own.

    The memory is a float64 tensor of shape (batch, *memory_shape), zero before the first position that counts.
    More is optional: `BoundedHead`. A head with `keeps_softmax = True` always answers None, for the softmax over all
    logits; the class that says so must define `forward` too.
    """

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """() for one number a row."""

    @property
    def logit_favors_eos(self) -> bool:
        """Whether a larger eos logit makes eos more probable."""

    def __call__(self, eos_logits: EosLogits, memory: HeadMemory) -> tuple[LogSurvival | None, HeadMemories]:
        """log(1 - p(eos)) at each position, and the memory after each. A single step is a sequence of length one."""


@runtime_checkable
class BoundedHead(Protocol):
    """A head that bounds p(eos) from below, whatever the logits; certificates need it."""

    @property
    def grounds(self) -> str:
        """The bound in words."""

    def bound(self, steps: Float64[Tensor, " steps"]) -> Float64[Tensor, " steps"]:
        """An upper bound on log(1 - p(eos)) at each step, counted from 1; it never rises."""


# Truncation rules


@runtime_checkable
class Truncation(Protocol):
    """A rule that says which tokens may be drawn. It keeps tokens; it never edits probabilities."""

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
        """How safely a token is kept alone, in nats, if its logit leads each other one by at least `leads`.

        Not positive where other tokens may be kept as well. The lead of the token over itself is infinite.
        """


@runtime_checkable
class Passing(Protocol):
    """Optional, for truncation rules and decoders: how much of a model's promise is left."""

    def passes_on(self, log_odds: LogOdds, vocab_size: int, eos_count: int) -> LogOdds:
        """The least log-odds of drawing eos, or of ending, given the least log-odds of eos under the model."""


# Decoders


@runtime_checkable
class Decoder(Protocol):
    """A decoding algorithm; its `str` is its specification, as in "consistent-nucleus:0.2"."""

    @property
    def rows_per_context(self) -> int:
        """The most rows that one context takes: 1, or the width of the beam."""

    @property
    def keeps_eos(self) -> bool:
        """True where q(eos) >= p(eos) at the decoder's temperature, always: the condition of Theorem 4.1."""

    def check(self, vocab_size: int) -> None:
        """Raise a ValueError if the decoder does not fit a vocabulary of this size."""

    def begin(self, indices: Rows, eos_ids: EosIds, max_steps: int, seed: int, stop: Stop | None) -> Search[Any]:
        """A search over contexts that have just been prefilled, one row each."""


@runtime_checkable
class Chooser(Protocol):
    """Optional: a decoder that chooses one token per row, from left to right."""

    @property
    def draws(self) -> bool:
        """Whether it uses the uniform numbers, which need not be drawn for it otherwise."""

    def choose(self, next_token: NextToken, uniforms: Uniforms) -> Token: ...


@runtime_checkable
class Traceable(Decoder, Protocol):
    """Optional: a decoder that says which tokens it may choose, so it can be traced."""

    @property
    def rule(self) -> str:
        """The specification of what removes tokens, as in "nucleus:0.2"."""

    def kept(self, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
        """The tokens that can be chosen; none that cannot occur."""


@runtime_checkable
class Predictable(Chooser, Protocol):
    """Optional: a decoder whose choices can be proved, so loops under it can be proved infinite."""

    def kept(self, next_token: NextToken) -> Bool[Tensor, "batch vocab"]:
        """The tokens that can be chosen; none that cannot occur."""

    def margin(self, leads: Float64[Tensor, "vocab n"]) -> Float64[Tensor, " n"]:
        """As `Truncation.margin`: how safely a token is the only one that may be chosen."""


@runtime_checkable
class Drawing(Decoder, Protocol):
    """Optional: a decoder that draws eos by chance, so survival can be estimated."""

    def draw(self, next_token: NextToken, uniforms: Uniforms) -> Draw: ...


@runtime_checkable
class Tempered(Protocol):
    """Optional: a decoder that changes the temperature."""

    @property
    def temperature(self) -> float: ...


@runtime_checkable
class Collecting(Protocol):
    """Optional: a decoder that needs more than one finished hypothesis to end."""

    @property
    def needed(self) -> int: ...


def is_defined_together(owner: object, *names: str) -> bool:
    """Whether one class defines all these attributes of an object.

    A claim about a method, such as a formula for `step`, holds for the method of the same class only: a subclass, a
    wrapper or an instance that replaces the method must not inherit the claim.
    """
    if any(name in getattr(owner, "__dict__", {}) for name in names):
        return False
    classes = {next((cls for cls in type(owner).__mro__ if name in vars(cls)), None) for name in names}
    return len(classes) == 1 and None not in classes
