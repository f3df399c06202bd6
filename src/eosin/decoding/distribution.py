"""What decoders ask about the next token: normalisers, the top few, single entries.

`survey` goes through the logits once, in blocks of columns that fit into the processor's cache. It computes and sums up
a block while it is in the cache, so the normaliser and the largest entry of every small group of tokens cost almost
nothing. The most probable m tokens are in the m groups with the largest entries, so nothing sorts the vocabulary.

The tokens that end the sequence are kept apart: a decoder decides first whether to stop, and then how to continue.
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
    """Next-token distributions, one per row.

    What can be read here depends on the probabilities alone: logits that differ by a constant or by a temperature, but
    give the same distribution, look the same. Promises and proofs rely on that, since they speak of probabilities.
    """

    _store: Float[Tensor, "blocks batch columns"]
    """The logits in blocks of columns; -inf at the tokens that end and after the last token."""
    _group_max: Float[Tensor, "batch groups"]
    _peak: Float[Tensor, " batch"]
    """The largest logit. It is subtracted from every logit first, so that large logits lose no digits."""
    eos_ids: EosIds
    _eos_logits: Float64[Tensor, "batch eos"]
    """The peak is subtracted already; in `_store` it is not."""
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
        """Sums of probabilities that differ by less count as equal, because each was rounded."""
        return EXACT_TIE if self.dtype is torch.float64 else LARGEST_TIE

    @property
    def block_masses(self) -> Float64[Tensor, "batch blocks"]:
        """The probability of each block, the tokens that end left out."""
        return (self._block_log_mass - self.log_total[:, None]).exp()

    @cached_property
    def log_total(self) -> Float64[Tensor, " batch"]:
        # not logaddexp: the last bits of that depend on where in a batch a row stands (docs/log.md)
        return torch.cat([self._block_log_mass, self._eos_logits / self._temperature], dim=1).logsumexp(-1)

    @property
    def eos_log_probs(self) -> Float64[Tensor, "batch eos"]:
        return self._eos_logits / self._temperature - self.log_total[:, None]

    @property
    def rounded_eos_log_probs(self) -> Float[Tensor, "batch eos"]:
        """In the precision of `parts`: there, equally probable tokens have equal log-probabilities."""
        return self._scale(self._eos_logits.to(self.dtype, copy=True))

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
        best = top_places(logits, ids, min(count, ids.shape[1]))
        above_peak = logits.gather(1, best).double() - self._peak.double()[:, None]
        ids = torch.cat([ids.gather(1, best), self.eos_ids.expand(self.rows, -1)], dim=1)
        logits = torch.cat([above_peak, self._eos_logits], dim=1)
        place = sort_places(logits, ids)[:, :count]
        return Ranked(ids.gather(1, place), logits.gather(1, place) / self._temperature - self.log_total[:, None])

    def _members_of_top_groups(self, count: int) -> tuple[Tensor, Tensor]:
        """Ids and logits of all tokens in the `count` groups with the largest entries."""
        groups = self._group_max.shape[1]
        group = torch.arange(groups, device=self._group_max.device).expand(self.rows, -1)
        if count < groups:
            group = top_places(self._group_max, group, count)
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
        """The same without the tokens that end, which have -inf in their places."""
        columns = self._store.shape[-1]
        for number, block in enumerate(self._store):
            size = min(columns, self.vocab_size - number * columns)
            yield number * columns + torch.arange(size, device=block.device), self._normalize(block[:, :size])

    def block(self, number: Int[Tensor, " batch"]) -> tuple[Int[Tensor, "batch n"], Float[Tensor, "batch n"]]:
        """Ids and log-probabilities of one block of columns of each row."""
        columns = torch.arange(self._store.shape[-1], device=number.device)
        rows = torch.arange(self.rows, device=number.device)
        return number[:, None] * len(columns) + columns, self._normalize(self._store[number, rows])

    def _normalize(self, logits: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        return self._scale(logits - self._peak[:, None])

    def _scale(self, above_peak: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
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

    def support(self) -> Bool[Tensor, "batch vocab"]:
        """The tokens that can occur at all: a mask."""
        return self._above_peak() > -math.inf

    def eos_rank(self) -> Int[Tensor, " batch"]:
        """The place of the best token that ends the sequence, most probable first: 1 is where greedy decoding ends."""
        place = sort_places(self._eos_logits, self.eos_ids.expand(self.rows, -1))[:, :1]
        best, best_id = self._eos_logits.gather(1, place), self.eos_ids[place]
        logits, ids = self._above_peak(), torch.arange(self.vocab_size, device=self.eos_ids.device)
        return 1 + ((logits > best) | ((logits == best) & (ids < best_id))).sum(1)

    def at(self, temperature: float) -> NextToken:
        """The distributions p^(1 / temperature), normalised."""
        if temperature == 1:
            return self
        temperature *= self._temperature
        scratch = torch.empty_like(self._store[0])
        masses = [log_mass(block, self._peak, scratch, temperature) for block in self._store]
        return replace(self, _block_log_mass=torch.stack(masses, dim=1), _temperature=temperature)

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
    """Memory for the logits of one step, reused at the next: new memory would cost half as much as the product."""

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
        peaks.append(replace_inf(group_max[-1].amax(-1), 0.0))
        masses.append(log_mass(block, peaks[-1], scratch))
    peak = replace_inf(torch.cat(group_max, dim=1).amax(-1), replace_inf(eos_logits.amax(-1), 0.0))
    above_peak = torch.stack(peaks, dim=1).double() - peak.double()[:, None]
    block_log_mass = torch.stack(masses, dim=1) + above_peak
    eos = logits.eos(eos_logits.double() - peak.double()[:, None], block_log_mass.logsumexp(-1))
    group_maxima = torch.cat(group_max, dim=1)[:rows]
    return NextToken(store[:, :rows], group_maxima, peak[:rows], eos_ids, eos[:rows], vocab, block_log_mass[:rows])


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


def raw_numbers(next_token: NextToken) -> list[Tensor]:
    """Everything that the distributions are computed from, except single logits: to compare bits."""
    return [next_token._group_max, next_token._block_log_mass, next_token._eos_logits, next_token.log_total]


def replace_inf(value: Float[Tensor, " batch"], other: Float[Tensor, " batch"] | float) -> Float[Tensor, " batch"]:
    """The value, or the other one where it is -inf."""
    return torch.where(value == -math.inf, other, value)


def top_places(values: Float[Tensor, "batch n"], ids: Int[Tensor, "batch n"], count: int) -> Int[Tensor, "batch count"]:
    """The places of the `count` largest values of each row, largest first; of equal ones the lower id first."""
    found, place = values.topk(count)
    contested = (values >= found[:, -1:]).sum(1) > count
    if contested.any():
        place[contested] = sort_places(values[contested], ids[contested])[:, :count]
    if count == 1:
        return place
    return place.gather(1, sort_places(values.gather(1, place), ids.gather(1, place)))


def sort_places(values: Float[Tensor, "batch n"], ids: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
    """The places of the values, largest first; of equal ones the lower id first."""
    by_id = ids.argsort(1)
    return by_id.gather(1, values.gather(1, by_id).sort(dim=1, descending=True, stable=True).indices)
