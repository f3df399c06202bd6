"""Models with closed forms: the construction of Theorem 3.4, and toys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from eosin.contracts import Prefix, Token, Tokens
from eosin.decoding.scoring import score_by_steps
from eosin.models.heads import Softmax
from eosin.models.neural_lm import NeuralLM
from eosin.models.recurrent import TanhRNN
from eosin.states import TensorState


def build_theorem_3_4(vocab_size: int, eos_id: int = 0, upper: int = 2) -> NeuralLM:
    """The tanh-RNN from the proof of Theorem 3.4: consistent as a model, yet eos is always ranked last.

    The hidden vector has an upper block of `upper` entries, which feeds only on itself, and a lower block with one
    entry per token, which counts how often the token was read:

        h_t = tanh( [W 0; 0 I] h_{t-1} + [0; e(y_t)] ),   u_v = [u; e(v)],  u_eos = [-u'; e(eos)],  c = 0

    with every entry of W, u, u' and of the state before the context positive. Each logit of another token is then
    positive and that of eos negative. Two choices that the proof leaves open make this hold in floating point: the rows
    of W sum to 2, so that the upper block tends to a positive number and not to zero; and u' outweighs the entry of the
    lower block for eos, which is positive but below one even if the prefix contains eos.
    """
    if vocab_size < 2 or upper < 1:
        raise ValueError(f"vocab_size must be at least 2 and upper at least 1, got {vocab_size} and {upper}")
    core = TanhRNN(upper + vocab_size, layers=1)
    model = NeuralLM(core, Softmax(), vocab_size, eos_id)
    cell = dict(core.layers[0].named_parameters())
    one_hot = torch.eye(vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[:, upper:] = one_hot
        cell["weight_ih_l0"].copy_(torch.eye(upper + vocab_size))
        cell["weight_hh_l0"][:upper, :upper] = 2 / upper
        cell["weight_hh_l0"][upper:, upper:] = one_hot
        core.start.fill_(0.5)
        # the upper block is tanh(1) = 0.76 after one token and climbs to the fixed point of tanh(2x), 0.96; the entry
        # for eos stays below 0.96: the logit of eos below -0.5
        model.output.weight[:, :upper] = 0.5 / upper
        model.output.weight[eos_id, :upper] = -2 / upper
        model.output.weight[:, upper:] = one_hot
    return model.eval()


class Coin:
    """Ends with probability p at every step: r_L under ancestral sampling is (1 - p)^L, and so is every survival.

    The other tokens share the rest equally. eos is token 0.
    """

    eos_ids = (0,)

    def __init__(self, p: float, vocab_size: int = 2):
        if not 0 <= p <= 1:
            raise ValueError(f"p must lie in [0, 1], got {p}")
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")
        self.vocab_size = vocab_size
        self.probs = torch.tensor([p] + [(1 - p) / (vocab_size - 1)] * (vocab_size - 1), dtype=torch.float64)

    def prefill(self, prefix: Prefix) -> tuple[Float[Tensor, "batch vocab"], TensorState]:
        return self.step(prefix[:, -1], TensorState((prefix.new_empty(len(prefix), 0),)))

    def step(self, token: Token, state: TensorState) -> tuple[Float[Tensor, "batch vocab"], TensorState]:
        return self.probs.log().expand(len(token), -1), state

    def score(self, prefix: Prefix, continuation: Tokens) -> Float[Tensor, "batch time"]:
        return self.probs.log()[continuation]


class Script:
    """Produces fixed lines: the last token of the prefix picks one, and eos (token 0) follows its last word.

    Every scripted token has probability `certainty` and all others share the rest. So greedy decoding gives the line
    and eos, with log-probability (words + 1) log(certainty). After its line a script produces eos only.
    """

    eos_ids = (0,)
    score = score_by_steps

    def __init__(self, lines: Sequence[Sequence[int]], vocab_size: int, certainty: float = 0.9):
        if not lines or any(token not in range(vocab_size) for line in lines for token in line):
            raise ValueError(f"lines must be one or more lists of token ids in [0, {vocab_size}), got {lines}")
        if not 1 / vocab_size < certainty < 1:
            raise ValueError(f"certainty must lie between 1/vocab_size = {1 / vocab_size:g} and 1, got {certainty}")
        self.vocab_size = vocab_size
        longest = max(map(len, lines))
        self.lines = torch.tensor([[*line, *[0] * (longest + 1 - len(line))] for line in lines])
        self.certain = math.log(certainty)
        self.other = math.log((1 - certainty) / (vocab_size - 1))

    def prefill(self, prefix: Prefix) -> tuple[Float[Tensor, "batch vocab"], TensorState]:
        line = prefix[:, -1] % len(self.lines)
        return self._say(line, torch.zeros_like(line))

    def step(self, token: Token, state: TensorState) -> tuple[Float[Tensor, "batch vocab"], TensorState]:
        line, place = state.tensors
        return self._say(line, (place + 1).clamp(max=self.lines.shape[1] - 1))

    def _say(self, line: Tensor, place: Tensor) -> tuple[Tensor, TensorState]:
        word = self.lines[line, place]
        logits = torch.full((len(line), self.vocab_size), self.other, dtype=torch.float64)
        return logits.scatter(1, word[:, None], self.certain), TensorState((line, place))


class Repeater:
    """Repeats tokens 1 to `period` for ever; eos (token 0) always has probability p and is never the most probable.

    Greedy decoding never ends, and its state returns bit for bit after one period. The last token of the prefix decides
    where the loop starts. Ancestral sampling survives L steps with probability (1 - p)^L.
    """

    eos_ids = (0,)
    score = score_by_steps

    def __init__(self, period: int, p: float = 0.1):
        if period < 1:
            raise ValueError(f"period must be at least 1, got {period}")
        if not 0 <= p < 0.5:
            raise ValueError(f"p must lie in [0, 0.5), or eos would be the most probable token, got {p}")
        self.period = period
        self.p = p
        self.vocab_size = period + 1

    def prefill(self, prefix: Prefix) -> tuple[Float[Tensor, "batch vocab"], TensorState]:
        return self._at(prefix[:, -1] % self.period)

    def step(self, token: Token, state: TensorState) -> tuple[Float[Tensor, "batch vocab"], TensorState]:
        (place,) = state.tensors
        return self._at((place + 1) % self.period)

    def _at(self, place: Tensor) -> tuple[Tensor, TensorState]:
        probs = torch.zeros(len(place), self.vocab_size, dtype=torch.float64)
        probs[:, 0] = self.p
        return probs.scatter(1, place[:, None] + 1, 1 - self.p).log(), TensorState((place,))
