"""What decoders ask about the next token: normalisers, the top few, single entries.

`survey` goes through the logits once, in blocks of columns that fit into the processor's cache. It computes and sums up
a block while it is in the cache, so the normaliser and the largest entry of every small group of tokens cost almost
nothing. The most probable m tokens are in the m groups with the largest entries, so nothing sorts the vocabulary.

The tokens that end the sequence are kept apart: a decoder decides first whether to stop, and then how to continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from eosin.contracts import EosIds, Rows, Token
from eosin.devices import choose_exact_device
from eosin.logits import Fetched, Logits

BLOCK_BITS = 10
BLOCK = 2**BLOCK_BITS
"""Columns computed at a time."""
GROUP = 32
"""Columns whose largest entry is remembered."""
CACHED = 2**18
"""Logits that are summed up at a time: small batches take many blocks at once."""
LARGEST_TIE, EXACT_TIE = 1e-6, 1e-12
"""Sums of probabilities that differ by less are equal, where logits are of float32 and of float64."""


@dataclass(frozen=True)
class Ranked:
    """The first tokens of a vocabulary in some order of preference."""

    ids: Int[Tensor, "batch ranked"]
    log_probs: Float64[Tensor, "batch ranked"]
    sure: Bool[Tensor, "batch ranked"] | None = None
    """False where another token that is as probable may belong here; None where there is no such doubt."""

    def mask(self, vocab_size: int) -> Bool[Tensor, "batch vocab"]:
        """True at these tokens, as far as they can occur."""
        return mask_tokens(self.ids, self.log_probs, vocab_size)


@dataclass(frozen=True)
class NextToken:
    """Next-token distributions, one per row.

    What can be read here depends on the probabilities alone: logits that differ by a constant or by a temperature, but
    give the same distribution, look the same. Promises and proofs rely on that, since they speak of probabilities.
    """

    _store: Float[Tensor, "blocks batch columns"]
    """The logits in blocks of columns; -inf at the tokens that end and after the last token."""
    _group_max: Float[Tensor, "blocks batch groups"]
    _peak: Float[Tensor, "batch 1"]
    """The largest logit. It is subtracted from every logit first, so that large logits lose no digits."""
    _exact_peak: Float64[Tensor, "batch 1"]
    eos_ids: EosIds
    _eos_logits: Float64[Tensor, "batch eos"]
    """The peak is subtracted already; in `_store` it is not."""
    vocab_size: int
    _block_log_mass: Float64[Tensor, "batch blocks"]
    """log of the sum of exp((logit - peak) / temperature) over each block, the tokens that end left out."""
    _temperature: float = 1.0

    @property
    def rows(self) -> int:
        return self._peak.shape[0]

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
        return (self._block_log_mass - self._log_total).exp()

    @property
    def log_total(self) -> Float64[Tensor, " batch"]:
        return self._log_total[:, 0]

    @cached_property
    def _log_total(self) -> Float64[Tensor, "batch 1"]:
        # not logaddexp: the last bits of that depend on where in a batch a row stands (docs/log.md)
        terms = torch.cat([self._block_log_mass, self._temper(self._eos_logits)], dim=1)
        peak = terms.amax(1, keepdim=True)
        return (terms - peak).exp_().sum(1, keepdim=True).log_() + peak

    @property
    def is_finite(self) -> Bool[Tensor, " batch"]:
        """Where the logits are a distribution: no NaN, no +inf, not all of them -inf."""
        return self.log_total.abs() < math.inf

    @property
    def eos_log_probs(self) -> Float64[Tensor, "batch eos"]:
        return self._temper(self._eos_logits) - self._log_total

    @property
    def rounded_eos_log_probs(self) -> Float[Tensor, "batch eos"]:
        """In the precision of `parts`: there, equally probable tokens have equal log-probabilities."""
        return self._scale(self._eos_logits.to(self.dtype, copy=True))

    def log_probs_of(self, token: Token) -> Float64[Tensor, " batch"]:
        if "_best" in vars(self) and token is self._best[0]:  # what greedy decoding has just chosen
            return (self._temper(self._best[1]) - self._log_total)[:, 0]
        others = self._find_above_peak(token[:, None])
        ends = self._eos_logits.masked_fill(token[:, None] != self.eos_ids, -math.inf)
        logits = torch.cat([others, ends], dim=1).amax(1, keepdim=True)
        return (self._temper(logits) - self._log_total)[:, 0]

    def _find_above_peak(self, ids: Int[Tensor, "batch n"]) -> Float64[Tensor, "batch n"]:
        """Single logits, less the peak; -inf at the tokens that end."""
        return self._find_logits(ids).double() - self._exact_peak

    def _find_logits(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        if self._store.shape[0] == 1:
            return self._store[0].gather(1, ids)
        row = torch.arange(self.rows, device=ids.device)[:, None]
        return self._store[ids >> BLOCK_BITS, row, ids & (BLOCK - 1)]  # divisions would take longer than all the rest

    def rounded_log_probs_of(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        """In the precision of `parts`; -inf for ids behind the vocabulary."""
        above_peak = self._find_logits(ids.clamp(max=self.vocab_size - 1)) - self._peak
        for place, eos_logit in enumerate(self._eos_logits.to(self.dtype).unbind(1)):
            above_peak = torch.where(ids == self.eos_ids[place], eos_logit[:, None], above_peak)
        return self._scale(above_peak.masked_fill(ids >= self.vocab_size, -math.inf))

    def rounded_log_probs(self) -> Float[Tensor, "batch vocab"]:
        """In the precision of `parts`; for small vocabularies."""
        others = torch.cat([log_probs for _, log_probs in self.others()], dim=1)
        return others.index_copy_(1, self.eos_ids, self.rounded_eos_log_probs)

    def best(self) -> Token:
        """The most probable token; of equal ones the lower id."""
        return self._best[0]

    @cached_property
    def _best(self) -> tuple[Token, Float64[Tensor, "batch 1"]]:
        """The most probable token, and its logit less the peak."""
        ids, logits = self._list_top_groups(1, find_first)
        place = logits.argmax(1, keepdim=True)
        token, above_peak = ids.gather(1, place), logits.gather(1, place).double() - self._exact_peak
        for eos, eos_logit in zip(self.eos_ids, self._eos_logits.unsqueeze(2).unbind(1), strict=True):
            ends = (eos_logit > above_peak) | ((eos_logit == above_peak) & (eos < token))
            token, above_peak = torch.where(ends, eos, token), torch.where(ends, eos_logit, above_peak)
        return token[:, 0], above_peak

    def top(self, count: int) -> Ranked:
        """The most probable `count` tokens, most probable first; of equal ones the lower id first.

        Where fewer tokens can occur at all, the last places have log-probability -inf and mean nothing.
        """
        ranked = self.guess_top(count)
        if ranked.sure is None:
            return ranked
        rows = (~ranked.sure).any(1).nonzero()[:, 0]
        if not len(rows):
            return ranked
        exact = self.select(rows)._rank(count, sort_first)
        pairs = ((ranked.ids, exact.ids), (ranked.log_probs, exact.log_probs))
        return Ranked(*(guess.index_copy(0, rows, right) for guess, right in pairs))

    def guess_top(self, count: int) -> Ranked:
        """The same without a wait for the device: of tokens that tie for the last place, any may have been taken."""
        return self._rank(count, find_first)

    def _rank(self, count: int, first: Callable[[Tensor, int], Tensor]) -> Ranked:
        count = min(count, self.vocab_size)
        ids, logits = self._list_top_groups(count, first)
        best = first(logits, min(count, ids.shape[1]))
        found = logits.gather(1, best)
        ids = torch.cat([ids.gather(1, best), self.eos_ids.expand(self.rows, -1)], dim=1)
        above_peak = torch.cat([found.double() - self._exact_peak, self._eos_logits], dim=1)
        place = sort_places(above_peak, ids)[:, :count]
        ids, above_peak = ids.gather(1, place), above_peak.gather(1, place)
        sure = self._is_sure(above_peak, found, logits) if 1 < count < self.vocab_size and first is find_first else None
        return Ranked(ids, self._temper(above_peak) - self._log_total, sure)

    def _list_top_groups(self, count: int, first: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, Tensor]:
        """Ids and logits of all tokens in the `count` groups with the largest entries."""
        maxima = self._group_max.transpose(0, 1).flatten(1)
        if count >= maxima.shape[1] and self._store.shape[0] == 1:
            return torch.arange(self._store.shape[2], device=self.device).expand(self.rows, -1), self._store[0]
        group = first(maxima, min(count, maxima.shape[1]))
        if first is sort_first:
            group = group.sort(1).values
        ids = torch.add(torch.arange(GROUP, device=group.device), group[..., None], alpha=GROUP).flatten(1)
        return ids, self._find_logits(ids)

    def _is_sure(
        self,
        above_peak: Float64[Tensor, "batch ranked"],
        found: Float[Tensor, "batch n"],
        logits: Float[Tensor, "batch m"],
    ) -> Bool[Tensor, "batch ranked"]:
        """Where no token that was not among those found has the same logit."""
        last = found.amin(1, keepdim=True).clamp(min=torch.finfo(found.dtype).min)  # -inf is no token
        reaching = (logits >= last).sum(1, keepdim=True)
        if logits.shape[1] < self._store.shape[0] * self._store.shape[2]:
            reaching = reaching.maximum((self._group_max >= last).sum((0, 2))[:, None])
        return (above_peak > last.double() - self._exact_peak) | (reaching <= found.shape[1])

    @cached_property
    def best_log_prob(self) -> Float64[Tensor, " batch"]:
        """Of the most probable token."""
        best = (self._group_max.amax((0, 2)) - self._peak[:, 0]).double().maximum(self._eos_logits.amax(-1))
        return self._temper(best) - self.log_total

    def parts(self) -> Iterator[tuple[Int[Tensor, " n"], Float[Tensor, "batch n"]]]:
        """Ids and log-probabilities of the whole vocabulary, some columns at a time; the tokens that end come last."""
        yield from self.others()
        yield self.eos_ids, self.rounded_eos_log_probs

    def others(self) -> Iterator[tuple[Int[Tensor, " n"], Float[Tensor, "batch n"]]]:
        """The same without the tokens that end, which have -inf in their places."""
        columns = self._store.shape[-1]
        for number, block in enumerate(self._store):
            start, stop = number * columns, min((number + 1) * columns, self.vocab_size)
            ids = torch.arange(start, stop, device=block.device)
            yield ids, self._normalize(block if stop - start == columns else block[:, : stop - start])

    def block(self, number: Int[Tensor, " batch"]) -> tuple[Int[Tensor, "batch n"], Float[Tensor, "batch n"]]:
        """Ids and log-probabilities of one block of columns of each row."""
        columns = torch.arange(self._store.shape[-1], device=number.device)
        rows = torch.arange(self.rows, device=number.device)
        return number[:, None] * len(columns) + columns, self._normalize(self._store[number, rows])

    def _normalize(self, logits: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        return self._scale(logits - self._peak)

    def _scale(self, above_peak: Float[Tensor, "batch n"]) -> Float[Tensor, "batch n"]:
        scaled = above_peak if self._temperature == 1 else above_peak.div_(self._temperature)
        return scaled.sub_(self._log_total.to(above_peak.dtype))

    def _temper(self, above_peak: Float64[Tensor, "*batch"]) -> Float64[Tensor, "*batch"]:
        return above_peak if self._temperature == 1 else above_peak / self._temperature

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
        return self._temper(self._above_peak()) - self._log_total

    def _above_peak(self) -> Float64[Tensor, "batch vocab"]:
        """Every logit, less the peak."""
        others = self._store.movedim(0, 1).flatten(1)[:, : self.vocab_size].double()
        return (others - self._exact_peak).index_copy(1, self.eos_ids, self._eos_logits)

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
        parts = torch.split(self._store, blocks_at_a_time(self._store))
        scratch = torch.empty_like(parts[0])
        masses = [log_mass(blocks, self._peak, scratch[: len(blocks)], temperature) for blocks in parts]
        return replace(self, _block_log_mass=join_parts(masses).squeeze(2).T.contiguous(), _temperature=temperature)

    def select(self, rows: Rows) -> NextToken:
        return replace(
            self,
            _store=self._store.index_select(1, rows),
            _group_max=self._group_max.index_select(1, rows),
            _peak=self._peak[rows],
            _exact_peak=self._exact_peak[rows],
            _eos_logits=self._eos_logits[rows],
            _block_log_mass=self._block_log_mass[rows],
        )


class Part(NamedTuple):
    """As many blocks as are summed up at a time, so that they stay in the cache."""

    blocks: Float[Tensor, "some batch columns"]
    groups: Float[Tensor, "some batch groups size"]
    """The same, in groups of columns."""
    scratch: Float[Tensor, "some batch columns"]
    columns: list[Columns]


class Columns(NamedTuple):
    """The columns of one block that tokens have."""

    start: int
    stop: int
    logits: Float[Tensor, "batch columns"]
    eos: Int[Tensor, " some"] | None
    """Those of the tokens that end; None where there is none."""


class Workspace:
    """Memory for the logits of one step, reused at the next: new memory would cost half as much as the product.

    `eos_ids` are the tokens that end a sequence.
    """

    def __init__(self, eos_ids: Sequence[int]) -> None:
        self.eos_ids = tuple(eos_ids)
        self._store = torch.empty(0, 0, 0)
        self._made_for: tuple[object, ...] = ()
        self._cut_for: tuple[object, ...] = ()

    def prepare(self, logits: Logits) -> Logits:
        """Make room for logits, and return them, brought to where there is float64."""
        rows, vocab = logits.shape
        made_for = (vocab, logits.dtype, logits.device)
        if (rows, *made_for) != self._cut_for:
            self.device = choose_exact_device(logits.device)
            if made_for != self._made_for or rows > self._store.shape[1]:
                self._store = allocate_store(rows, vocab, logits.dtype, self.device)
            self._cut(rows, vocab)
            self._made_for, self._cut_for = made_for, (rows, *made_for)
        return logits if logits.device == self.device else Fetched(logits, self.device)

    def _cut(self, rows: int, vocab: int) -> None:
        """Views of the memory for so many rows, and the tokens that end in the order of their blocks."""
        self.store = self._store[:, :rows]
        width, at_a_time = self.store.shape[2], blocks_at_a_time(self.store)
        scratch = torch.empty_like(self.store[:at_a_time])
        self.parts = []
        for first, blocks in zip(range(0, len(self.store), at_a_time), torch.split(self.store, at_a_time), strict=True):
            starts = range(first * width, (first + len(blocks)) * width, width)
            columns = [self._cut_block(block, start, vocab) for block, start in zip(blocks, starts, strict=True)]
            self.parts.append(Part(blocks, blocks.view(*blocks.shape[:2], -1, GROUP), scratch[: len(blocks)], columns))
        self.ends = torch.tensor(self.eos_ids, device=self.device)
        by_block = torch.tensor(sorted(self.eos_ids, key=lambda token: token // width), device=self.device)
        self.order = None if torch.equal(by_block, self.ends) else (by_block == self.ends[:, None]).int().argmax(1)

    def _cut_block(self, block: Float[Tensor, "batch columns"], start: int, vocab: int) -> Columns:
        stop = min(start + block.shape[1], vocab)
        ends = [token - start for token in self.eos_ids if start <= token < stop]
        eos = torch.tensor(ends, device=self.device) if ends else None
        return Columns(start, stop, block[:, : stop - start], eos)


def allocate_store(rows: int, vocab: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    width = min(BLOCK, GROUP * math.ceil(vocab / GROUP))
    dtype = torch.promote_types(dtype, torch.float32)  # sums of half-precision numbers would be worthless
    return torch.full((math.ceil(vocab / width), rows, width), -math.inf, dtype=dtype, device=device)


def blocks_at_a_time(store: Float[Tensor, "blocks batch columns"]) -> int:
    return min(len(store), max(1, CACHED // store[0].numel()))


def survey(logits: Logits, rows: int, workspace: Workspace) -> NextToken:
    """Everything decoders need to know about the first `rows` rows; valid until the workspace is used again."""
    logits = workspace.prepare(logits)
    lowest = torch.finfo(workspace.store.dtype).min  # the peak of a block in which no token can occur
    eos_parts, maxima_parts, peaks, masses = [], [], [], []
    for part in workspace.parts:
        for columns in part.columns:
            logits.columns(columns.start, columns.stop, out=columns.logits)
            if columns.eos is not None:
                eos_parts.append(columns.logits.index_select(1, columns.eos))
                columns.logits.index_fill_(1, columns.eos, -math.inf)
        maxima_parts.append(part.groups.amax(-1))
        peaks.append(maxima_parts[-1].amax(-1, keepdim=True).clamp_(min=lowest))
        masses.append(log_mass(part.blocks, peaks[-1], part.scratch))
    eos_logits = join_parts(eos_parts, dim=1)
    if workspace.order is not None:
        eos_logits = eos_logits.index_select(1, workspace.order)
    block_peaks = join_parts(peaks)
    best = block_peaks[0] if len(block_peaks) == 1 else block_peaks.amax(0)
    peak = torch.where(best > lowest, best, eos_logits.amax(1, keepdim=True))
    exact_peak = peak.double()
    log_masses = join_parts(masses) + (block_peaks.double() - exact_peak)
    block_log_mass = log_masses.squeeze(2).T.contiguous()
    eos = logits.eos(eos_logits.double() - exact_peak, block_log_mass)
    store, maxima = workspace.store, join_parts(maxima_parts)
    if rows < peak.shape[0]:
        store, maxima = store[:, :rows], maxima[:, :rows]
        peak, exact_peak, eos, block_log_mass = (each[:rows] for each in (peak, exact_peak, eos, block_log_mass))
    return NextToken(store, maxima, peak, exact_peak, workspace.ends, eos, logits.shape[-1], block_log_mass)


def join_parts(parts: list[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def log_mass(
    blocks: Float[Tensor, "some batch columns"],
    peak: Float[Tensor, "*some batch 1"],
    scratch: Float[Tensor, "some batch columns"],
    temperature: float = 1.0,
) -> Float64[Tensor, "some batch 1"]:
    """log of the sum of exp((logit - peak) / temperature) over each row of each block."""
    above_peak = torch.sub(blocks, peak, out=scratch)
    if temperature != 1:
        above_peak /= temperature
    return above_peak.exp_().sum(-1, keepdim=True).double().log_()


def raw_numbers(next_token: NextToken) -> list[Tensor]:
    """Everything that the distributions are computed from, except single logits: to compare bits."""
    maxima = next_token._group_max.transpose(0, 1)
    return [maxima, next_token._block_log_mass, next_token._eos_logits, next_token.log_total]


def is_one_of(token: Int[Tensor, "*batch"], ends: Sequence[int]) -> Bool[Tensor, "*batch"]:
    return reduce(torch.logical_or, (token == end for end in ends))


def mask_tokens(
    ids: Int[Tensor, "batch n"], log_probs: Float64[Tensor, "batch n"], vocab_size: int
) -> Bool[Tensor, "batch vocab"]:
    """True at these tokens, as far as they can occur."""
    possible, known = (log_probs > -math.inf).int(), ids.clamp(max=vocab_size - 1)
    return torch.zeros(len(ids), vocab_size, dtype=torch.int, device=ids.device).scatter_add_(1, known, possible) > 0


def find_first(values: Float[Tensor, "batch n"], count: int) -> Int[Tensor, "batch count"]:
    """The places of the `count` largest values of each row; of those that tie for the last place, any.

    For a count of one it is the first place with the largest value.
    """
    return values.argmax(1, keepdim=True) if count == 1 else values.topk(count).indices


def sort_first(values: Float[Tensor, "batch n"], count: int) -> Int[Tensor, "batch count"]:
    """The places of the `count` largest values of each row; of equal ones the earlier."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]


def sort_places(values: Float[Tensor, "batch n"], ids: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
    """The places of the values, largest first; of equal ones the lower id first."""
    by_id = ids.argsort(1)
    return by_id.gather(1, values.gather(1, by_id).sort(dim=1, descending=True, stable=True).indices)
