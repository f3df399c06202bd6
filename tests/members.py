"""The members of every table, so that a new one is tested by being added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import pytest
import torch
from own_parts import CappedNucleus, Leaky

import eosin.decoding.spec  # noqa: F401 (remembers the rules that come with the package)
from eosin.decoding.floor import Floor
from eosin.decoding.truncation import TRUNCATIONS
from eosin.models.heads import HEADS, EpsilonHead
from eosin.models.neural_lm import CORES, NeuralLM
from eosin.proofs.constructions import Coin, Repeater, Script, build_theorem_3_4
from eosin.settings import get_parameters

TRUNCATIONS["capped-nucleus"] = CappedNucleus
CORES["leaky"] = Leaky
VOCAB = 7
EOS = 3
FORMULAS = [name for name, core in CORES.items() if hasattr(core, "next_memory")]
"""Cores whose step is a formula."""
REACHING = [name for name, core in CORES.items() if hasattr(core, "reach")]
"""Cores with bounded hidden vectors."""
BOUNDED = [name for name, head in HEADS.items() if hasattr(head, "bound")]
"""Heads that bound p(eos) from below."""
EPSILON = [name for name in BOUNDED if issubclass(HEADS[name], EpsilonHead)]
"""Heads with p_t(eos) >= 1 - (1 - epsilon)^t, the bound of Theorems 4.2 and 4.3."""


def logit_against_eos(head: str, size: float) -> float:
    """An eos logit of this size that speaks against eos."""
    return -size if HEADS[head].logit_favors_eos else size


def neural(
    core: str,
    head: str,
    *,
    vocab: int = VOCAB,
    eos: int = EOS,
    width: int = 16,
    layers: int = 2,
    tied: bool = False,
    seed: int = 0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
    epsilon: float | None = None,
    gain: float = 1.0,
    eos_bias: float | None = None,
) -> NeuralLM:
    """A small model with random weights; a large `gain` makes what it read matter, a large `scale` makes it sure.

    The head is its first example; `epsilon` changes it where it has one.
    """
    torch.manual_seed(seed)
    head_settings = dict(HEADS[head].examples[0])
    if epsilon is not None and "epsilon" in head_settings:
        head_settings["epsilon"] = epsilon
    core_settings = {"width": width, "layers": layers}
    known = get_parameters(CORES[core])
    made = CORES[core](**{name: value for name, value in core_settings.items() if name in known})
    model = NeuralLM(made, HEADS[head](**head_settings), vocab, eos, tied=tied)
    with torch.no_grad():
        model.embedding.weight.normal_()
        model.output.weight.normal_(0, scale)
        model.output.bias.normal_(0, scale)
        model.output.bias[eos] = model.output.bias[eos] if eos_bias is None else eos_bias
        for parameter in model.core.parameters():
            parameter.mul_(gain)
    return model.to(dtype).eval()


@dataclass(frozen=True, eq=False)
class Specimen:
    name: str
    make: Callable[[], object]

    def __str__(self) -> str:
        return self.name

    @cached_property
    def model(self):
        """One for all tests: decoding changes nothing in a model."""
        return self.make()


class TwoEnds(Repeater):
    """Two ways to end, of which the model likes neither; token 2 is all it says."""

    eos_ids = (0, 1)

    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__(2, p=0.0)
        self.dtype = dtype

    def _at(self, place):
        logits, state = super()._at(torch.ones_like(place))
        return logits.to(self.dtype), state


def _neural(core: str, head: str) -> Specimen:
    return Specimen(f"{core}-{head}", lambda: neural(core, head))


NEURAL = [_neural(core, head) for core in CORES for head in HEADS]
MODELS = [
    *NEURAL,
    Specimen("tied-lstm", lambda: neural("lstm", "self-terminating", tied=True)),
    Specimen("one-layer-gru", lambda: neural("gru", "softmax", layers=1)),
    Specimen("three-layer-tanh", lambda: neural("tanh", "non-monotonic", layers=3)),
    Specimen("theorem-3.4", lambda: build_theorem_3_4(VOCAB, eos_id=EOS)),
    Specimen("coin", lambda: Coin(0.2, vocab_size=VOCAB)),
    Specimen("script", lambda: Script([[1, 2, 4], [5], [6, 6, 1, 2, 5, 1, 1]], VOCAB, certainty=0.83)),
    Specimen("loop", lambda: Repeater(VOCAB - 1, p=0.1)),
    Specimen("floor-lstm", lambda: Floor(neural("lstm", "softmax"), epsilon=0.05, grace=2)),
    Specimen("floor-floor-st", lambda: Floor(Floor(neural("gru", "self-terminating"), epsilon=0.1), epsilon=0.05)),
    Specimen("floor-loop", lambda: Floor(Repeater(VOCAB - 1, p=0.0), epsilon=0.1)),
    Specimen("lively-lstm", lambda: neural("lstm", "softmax", gain=5.0, eos_bias=0.5)),
    Specimen("lively-transformer", lambda: neural("transformer", "softmax", gain=4.0, eos_bias=1.0)),
]

RULES = [rule.parse(value) for rule in TRUNCATIONS.values() for value in rule.examples]
TRUNCATION_SPECS = [prefix + str(rule) for rule in RULES for prefix in ("", "consistent-")]
SAMPLERS = ["ancestral", "nucleus:1", *TRUNCATION_SPECS]
SEARCHES = ["greedy", "beam:1", "beam:3", "beam:3,stop=first"]
TEMPERED = ["ancestral,temperature=0.7", "nucleus:0.4,temperature=1.5", "consistent-typical:0.2,temperature=0.5"]
DECODERS = [*SEARCHES, *SAMPLERS, *TEMPERED]


def fits(spec: str, vocab_size: int) -> bool:
    from eosin.decoding.spec import parse_decoder

    try:
        parse_decoder(spec).check(vocab_size)
    except ValueError:
        return False
    return True


def crossed(*tables: Sequence[object]) -> list:
    """Every combination of the members of some tables; the fast ones are few, and every member is in one of them."""
    fast = {tuple(i % len(table) for table in tables) for i in range(max(map(len, tables)))}
    combinations = product(*map(enumerate, tables))
    return [
        pytest.param(
            *(member for _, member in combination),
            id="-".join(getattr(member, "__name__", str(member)) for _, member in combination),
            marks=() if tuple(i for i, _ in combination) in fast else pytest.mark.slow,
        )
        for combination in combinations
    ]


def prefixes(count: int, length: int = 3, vocab: int = VOCAB, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, vocab, (count, length), generator=torch.Generator().manual_seed(seed))
