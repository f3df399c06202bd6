"""What decoders ask about the next token: normalisers, the top few, single entries.

`survey` goes through the logits once, in blocks of columns that fit into the processor's cache: each block is
computed, summed up and kept while it is hot, so that the normaliser and the largest entry of every small group of
tokens come almost free. The most probable m tokens then lie in the m groups with the largest entries, and nobody
sorts a vocabulary.

Tokens that end the sequence are held apart from the rest, since everything here turns on them: a decoder decides
first whether to stop, and only then how to go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from eosin.contracts import EosIds, Rows, Token
from eosin.logits import Logits

BLOCK = 1024
"""Columns computed at a time."""
GROUP = 32
"""Columns whose largest entry is remembered."""
LARGEST_TIE, EXACT_TIE = 1e-6, 1e-12
"""Sums of probabilities that differ by less are equal, where logits are of float32 and of float64."""


@dataclass(frozen=True)
class Ranked:
    """The first tokens of a vocabulary in some order of preference."""

    ids: Int[Tensor, "batch ranked"]
    log_probs: Float64[Tensor, "batch ranked"]

    def mask(self, vocab_size: int) -> Bool[Tensor, "batch vocab"]:
        """True at these tokens, as far as they can occur."""
        mask = torch.zeros(len(self.ids), vocab_size, dtype=torch.bool, device=self.ids.device)
        row, place = (self.log_probs > -math.inf).nonzero(as_tuple=True)
        mask[row, self.ids[row, place]] = True
        return mask


@dataclass(frozen=True)
class NextToken:
    """Next-token distributions, a row each.

    Whatever can be read here is the same for softmax(logits / temperature), however large the logits were before. So a
    truncation may rely on nothing else in a decoding than what is known of it in a promise: the probabilities.
    """

    _store: Float[Tensor, "blocks batch columns"]
    """The logits in blocks of columns; -inf at the tokens that end and after the last token."""
    _group_max: Float[Tensor, "batch groups"]
    _peak: Float[Tensor, " batch"]
    """What is subtracted from every logit before anything else, so that large logits lose no digits: the largest."""
    eos_ids: EosIds
    _eos_logits: Float64[Tensor, "batch eos"]
    """Above the peak, where the others are raw."""
    vocab_size: int
    _block_log_mass: Float64[Tensor, "batch blocks"]
    """log of the sum of exp((logit - peak) / temperature) over each block, the tokens that end left out."""
    _temperature: float = 1.0

    @property
    def rows(self) -> int:
        return len(self._group_max)

    @property
    def dtype(self) -> torch.dtype:
        """Of the log-probabilities that come in parts."""
        return self._store.dtype

    @property
    def device(self) -> torch.device:
        return self._store.device

    @property
    def tie(self) -> float:
        """Sums of probabilities that differ by less are equal: each was rounded."""
        return EXACT_TIE if self.dtype is torch.float64 else LARGEST_TIE

    @property
    def block_masses(self) -> Float64[Tensor, "batch blocks"]:
        """The probability of each block, the tokens that end left out."""
        return (self._block_log_mass - self.log_total[:, None]).exp()

    @cached_property
    def log_rest(self) -> Float64[Tensor, " batch"]:
        """The log of the unnormalised mass of all tokens that do not end the sequence."""
        return self._block_log_mass.logsumexp(-1)

    @cached_property
    def log_total(self) -> Float64[Tensor, " batch"]:
        # not logaddexp: the last bits of that depend on where in a batch a row stands (docs/log.md)
        return torch.cat([self._block_log_mass, self._eos_logits / self._temperature], dim=1).logsumexp(-1)

    @property
    def eos_log_probs(self) -> Float64[Tensor, "batch eos"]:
        return self._eos_logits / self._temperature - self.log_total[:, None]

    @property
    def rounded_eos_log_probs(self) -> Float[Tensor, "batch eos"]:
        """As the others come in parts: tokens that are equally probable are so to the last bit."""
        return self._scaled(self._eos_logits.to(self.dtype, copy=True))

    def log_probs_of(self, token: Token) -> Float64[Tensor, " batch"]:
        columns = self._store.shape[-1]
        row = torch.arange(self.rows, device=token.device)
        others = self._store[token // columns, row, token % columns].double() - self._peak.double()
        ends = token[:, None] == self.eos_ids
        logits = torch.where(ends, self._eos_logits, -math.inf).amax(-1).maximum(others)
        return logits / self._temperature - self.log_total

    def top(self, count: int) -> Ranked:
        """The most probable `count` tokens, most probable first; of equal ones the lower id first.

        Where fewer tokens can occur at all, the last places have log-probability -inf and mean nothing.
        """
        count = min(count, self.vocab_size)
        ids, logits = self._members_of_top_groups(count)
        best = largest(logits, ids, min(count, ids.shape[1]))
        above_peak = logits.gather(1, best).double() - self._peak.double()[:, None]
        ids = torch.cat([ids.gather(1, best), self.eos_ids.expand(self.rows, -1)], dim=1)
        logits = torch.cat([above_peak, self._eos_logits], dim=1)
        place = in_order(logits, ids)[:, :count]
        return Ranked(ids.gather(1, place), logits.gather(1, place) / self._temperature - self.log_total[:, None])

    def _members_of_top_groups(self, count: int) -> tuple[Tensor, Tensor]:
        """Ids and logits of all tokens in the `count` groups with the largest entries."""
        groups = self._group_max.shape[1]
        group = torch.arange(groups, device=self._group_max.device).expand(self.rows, -1)
        if count < groups:
            group = largest(self._group_max, group, count)
        per_block = self._store.shape[-1] // GROUP
        row = torch.arange(self.rows, device=group.device)[:, None]
        logits = self._store.view(*self._store.shape[:2], per_block, GROUP)[group // per_block, row, group % per_block]
        ids = group[..., None] * GROUP + torch.arange(GROUP, device=group.device)
        return ids.flatten(1), logits.flatten(1)

    @cached_property
    def best_log_prob(self) -> Float64[Tensor, " batch"]:
        """Of the most probable token."""
        best = (self._group_max.amax(-1) - self._peak).double().maximum(self._eos_logits.amax(-1))
        return best / self._temperature - self.log_total

    def parts(self) -> Iterator[tuple[Int[Tensor, " n"], Float[Tensor, "batch n"]]]:
        """Ids and log-probabilities of the whole vocabulary, some columns at a time; the tokens that end come last."""
        yield from self.others()
        yield self.eos_ids, self.rounded_eos_log_probs

    def others(self) -> Iterator[tuple[Int[Tensor, " n"], Float[Tensor, "batch n"]]]:
        """The same without the tokens that end: in their places stands -inf."""
        columns = self._store.shape[-1]
        for number, block in enumerate(self._store):
            size = min(columns, self.vocab_size - number * columns)
            yield number * columns + torch.arange(size, device=block.device), self._normalised(block[:, :size])

    def block(self, number: Int[Tensor, " batch"]) -> tuple[Int[Tensor, "batch n"], Float[Tensor, "batch n"]]:
        """Ids and log-probabilities of one block of columns of each row."""
        columns = torch.arange(self._store.shape[-1], device=number.device)
        rows = torch.arange(self.rows, device=number.device)
        return number[:, None] * len(columns) + columns, self._normalised(self._store[number, rows])

    def _normalised(self, logits: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        return self._scaled(logits - self._peak[:, None])

    def _scaled(self, above_peak: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        scaled = above_peak if self._temperature == 1 else above_peak.div_(self._temperature)
        return scaled.sub_(self.log_total[:, None].to(above_peak.dtype))

    @cached_property
    def entropy(self) -> Float64[Tensor, " batch"]:
        """The entropy of each distribution, in nats."""
        # a token of probability zero adds zero, not zero times infinity
        terms = [(lp.exp() * lp.clamp(min=-1e4)).sum(-1).double() for _, lp in self.parts()]
        return -torch.stack(terms).sum(0)

    @cached_property
    def deviation(self) -> Float64[Tensor, " batch"]:
        """The standard deviation of each row's logits at this temperature, over the tokens that can occur at all."""
        count, total, squares = torch.zeros(3, self.rows, dtype=torch.float64, device=self._store.device)
        for _, log_probs in self.parts():
            possible = log_probs > -math.inf
            below = torch.where(possible, log_probs - self.best_log_prob[:, None].to(log_probs.dtype), 0.0)
            count += possible.sum(-1)
            total += below.sum(-1)
            squares += below.square().sum(-1)
        return (squares / count - (total / count).square()).clamp(min=0).sqrt()

    def log_probs(self) -> Float64[Tensor, "batch vocab"]:
        """The whole distribution, written out."""
        return self._above_peak() / self._temperature - self.log_total[:, None]

    def _above_peak(self) -> Float64[Tensor, "batch vocab"]:
        """Every logit, less the peak."""
        others = self._store.movedim(0, 1).flatten(1)[:, : self.vocab_size].double()
        return (others - self._peak.double()[:, None]).index_copy(1, self.eos_ids, self._eos_logits)

    def possible(self) -> Bool[Tensor, "batch vocab"]:
        """Every token that can occur at all."""
        return self._above_peak() > -math.inf

    def eos_rank(self) -> Int[Tensor, " batch"]:
        """The place of the best token that ends the sequence, most probable first: 1 is where greedy decoding ends."""
        place = in_order(self._eos_logits, self.eos_ids.expand(self.rows, -1))[:, :1]
        best, best_id = self._eos_logits.gather(1, place), self.eos_ids[place]
        logits, ids = self._above_peak(), torch.arange(self.vocab_size, device=self.eos_ids.device)
        return 1 + ((logits > best) | ((logits == best) & (ids < best_id))).sum(1)

    def at(self, temperature: float) -> NextToken:
        """The distributions p^(1 / temperature), normalised. Nothing in them tells that there was a temperature."""
        if temperature == 1:
            return self
        temperature *= self._temperature
        scratch = torch.empty_like(self._store[0])
        masses = [log_mass(block, self._peak, scratch, temperature) for block in self._store]
        return replace(self, _block_log_mass=torch.stack(masses, dim=1), _temperature=temperature)

    def first(self, rows: int) -> NextToken:
        """The first rows, without copying them."""
        return replace(
            self,
            _store=self._store[:, :rows],
            _group_max=self._group_max[:rows],
            _peak=self._peak[:rows],
            _eos_logits=self._eos_logits[:rows],
            _block_log_mass=self._block_log_mass[:rows],
        )

    def select(self, rows: Rows) -> NextToken:
        return replace(
            self,
            _store=self._store.index_select(1, rows),
            _group_max=self._group_max[rows],
            _peak=self._peak[rows],
            _eos_logits=self._eos_logits[rows],
            _block_log_mass=self._block_log_mass[rows],
        )


class Workspace:
    """Memory for one step's logits, used again at the next step: fresh memory costs as much as half the product."""

    def __init__(self) -> None:
        self._store = torch.empty(0, 0, 0)
        self._made_for: tuple[object, ...] = ()

    def blocks(self, logits: Logits) -> tuple[Float[Tensor, "blocks batch columns"], Float[Tensor, "batch columns"]]:
        """Room for all blocks of the logits, and for one more."""
        rows, vocab = logits.shape
        dtype = torch.promote_types(logits.dtype, torch.float32)  # sums of half-precision numbers would be worthless
        made_for = (vocab, dtype, logits.device)
        if made_for != self._made_for or rows > self._store.shape[1]:
            columns = min(BLOCK, GROUP * math.ceil(vocab / GROUP))
            shape = (math.ceil(vocab / columns) + 1, rows, columns)
            self._store = torch.full(shape, -math.inf, dtype=dtype, device=logits.device)
            self._made_for = made_for
        return self._store[:-1, :rows], self._store[-1, :rows]


def survey(logits: Logits, eos_ids: EosIds, rows: int, workspace: Workspace) -> NextToken:
    """Everything decoders need to know about the first `rows` rows; valid until the workspace is used again."""
    store, scratch = workspace.blocks(logits)
    vocab, columns, ends = logits.shape[-1], store.shape[-1], eos_ids.tolist()
    eos_logits = torch.empty(store.shape[1], len(eos_ids), dtype=store.dtype, device=store.device)
    group_max, peaks, masses = [], [], []
    for number, block in enumerate(store):
        start = number * columns
        stop = min(start + columns, vocab)
        logits.columns(start, stop, out=block[:, : stop - start])
        for place, token in enumerate(ends):
            if start <= token < stop:
                eos_logits[:, place] = block[:, token - start]
                block[:, token - start] = -math.inf
        group_max.append(block.view(len(block), -1, GROUP).amax(-1))
        peaks.append(finite_or(group_max[-1].amax(-1), 0.0))
        masses.append(log_mass(block, peaks[-1], scratch))
    peak = finite_or(torch.cat(group_max, dim=1).amax(-1), finite_or(eos_logits.amax(-1), 0.0))
    above_peak = torch.stack(peaks, dim=1).double() - peak.double()[:, None]
    block_log_mass = torch.stack(masses, dim=1) + above_peak
    eos = logits.eos(eos_logits.double() - peak.double()[:, None], block_log_mass.logsumexp(-1))
    whole = NextToken(store, torch.cat(group_max, dim=1), peak, eos_ids, eos, vocab, block_log_mass)
    return whole.first(rows)


def log_mass(
    block: Float[Tensor, "batch columns"],
    peak: Float[Tensor, " batch"],
    scratch: Float[Tensor, "batch columns"],
    temperature: float = 1.0,
) -> Float64[Tensor, " batch"]:
    """log of the sum of exp((logit - peak) / temperature) in each row."""
    above_peak = torch.sub(block, peak[:, None], out=scratch)
    if temperature != 1:
        above_peak /= temperature
    return above_peak.exp_().sum(-1).double().log()


def numbers_of(next_token: NextToken) -> list[Tensor]:
    """Everything that the distributions are worked out from, but for the single logits: to compare bits."""
    return [next_token._group_max, next_token._block_log_mass, next_token._eos_logits, next_token.log_total]


def finite_or(value: Float[Tensor, " batch"], other: Float[Tensor, " batch"] | float) -> Float[Tensor, " batch"]:
    """The value, or the other where it is -inf."""
    return torch.where(value == -math.inf, other, value)


def largest(values: Float[Tensor, "batch n"], ids: Int[Tensor, "batch n"], count: int) -> Int[Tensor, "batch count"]:
    """Where the `count` largest values of each row stand, largest first; of equal ones the lower id first."""
    found, place = values.topk(count)
    contested = (values >= found[:, -1:]).sum(1) > count
    if contested.any():
        place[contested] = in_order(values[contested], ids[contested])[:, :count]
    if count == 1:
        return place
    return place.gather(1, in_order(values.gather(1, place), ids.gather(1, place)))


def in_order(values: Float[Tensor, "batch n"], ids: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
    """Where the values stand, largest first; of equal ones the lower id first."""
    by_id = ids.argsort(1)
    return by_id.gather(1, values.gather(1, by_id).sort(dim=1, descending=True, stable=True).indices)
