"""What it saves to follow only a random share of the loops, and how much wider the interval becomes.

SmolLM2-135M decodes contexts of ten tokens of WikiText-2 greedily to L = 2,000, in bfloat16. The completions are
kept in the user's cache folder. Row-steps and interval then follow from them for every share, and for every length at
which a loop may be left: a completion says at which step its loop was seen.
1,000 contexts are drawn from those that were decoded, with replacement, many times, and so are the followed loops.

A loop is not decoded token by token. Its next tokens are read in one pass, and hold as long as each is the most
probable one. Where one is not, decoding goes on. That is faster, but may round otherwise.

With --records, only records of a full count are read: their loops say when each began. That takes a second. It is exact
but for the step, within 16, at which a loop is seen; how many loops end late, records do not say.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import hub
import numpy as np
import torch
from audit import CACHE
from torch import Tensor

from eosin.auditing.shards import FOLLOWED
from eosin.causes import Cause
from eosin.decoding.decode import complete
from eosin.decoding.job import Job
from eosin.decoding.loop_sampling import LOOK_EVERY, REPEATING, LoopSampler, is_long_loop
from eosin.decoding.loops import find_tail
from eosin.events import Watch, ignore
from eosin.hub.causal_lm import CausalLM
from eosin.hub.loading import Pretrained
from eosin.records.record import add_shards, read_records
from eosin.records.statistics import Ratio, SampledRatio, Share, count_survivors

L, CONTEXTS, SHARD = 2000, 1000, 128
KEPT = CACHE / "smollm2-greedy-2000.jsonl"
LENGTHS, SHARES = (32, 64, 128, 256), (0.05, 0.08, FOLLOWED / CONTEXTS**0.5, 0.12, 0.2, 0.5)
DRAWS = 300
AT_LEAST, AT_MOST = 3.0, 1.5
"""How many times fewer row-steps the defaults take, and how many times as wide their interval is."""
NEVER = 1e-300
Completed = tuple[int, list[int], bool]
"""The number of a context, what was produced, and whether it ended."""


def decode_shard(lm: CausalLM, prefixes: Tensor, indices: Iterable[int], watch: Watch = ignore) -> Iterator[Completed]:
    """Greedy completions up to the limit."""
    waiting: dict[int, list[int]] = {index: [] for index in indices}
    while waiting:
        steps, numbers = L - min(map(len, waiting.values())), list(waiting)
        texts = [prefixes[index].tolist() + waiting[index] for index in numbers]
        job = Job.create(lm, texts, max_steps=steps, indices=numbers, pool=SHARD)
        for completion in list(complete(job, "greedy", watch=watch, prove=LoopSampler(NEVER, 0))):
            index = completion.index
            tokens = waiting.pop(index) + completion.tokens.tolist()
            if completion.cause is Cause.SAMPLED:
                tokens, goes_on = follow_loop(lm, prefixes[index].tolist(), tokens)
                if not goes_on and tokens[-1] not in lm.eos_ids:
                    waiting[index] = tokens
                    continue
            yield index, tokens[:L], len(tokens) <= L and tokens[-1] in lm.eos_ids


@torch.inference_mode()
def follow_loop(lm: CausalLM, prefix: list[int], tokens: list[int]) -> tuple[list[int], bool]:
    """The tokens with those that follow, up to the first that leaves the loop; and whether none does."""
    tail = find_tail(np.array(tokens))
    assert tail is not None
    guess = tokens + np.resize(tokens[-tail.period :], L - len(tokens)).tolist()
    read = lm.model.model(torch.tensor([prefix + guess[:-1]]), use_cache=False).last_hidden_state[0]
    best = lm.model.lm_head(read[len(prefix) - 1 + len(tokens) :]).argmax(-1).tolist()
    wrong = next((place for place, token in enumerate(best) if token != guess[len(tokens) + place]), None)
    return (guess, True) if wrong is None else ([*guess[: len(tokens) + wrong], best[wrong]], False)


def open_completions(shards: int, watch: Watch = ignore) -> list[Completed]:
    """Those that are kept, and more if they are not enough."""
    kept = [tuple(json.loads(line)) for line in KEPT.open()] if KEPT.exists() else []
    if len(kept) < shards * SHARD:
        lm, tokenizer = Pretrained("smollm2").load()
        lm.model.to(torch.bfloat16)
        hub.CONTEXTS = shards * SHARD
        prefixes = hub.contexts(tokenizer)
        for start in range(len(kept), shards * SHARD, SHARD):
            found = sorted(decode_shard(lm, prefixes, range(start, start + SHARD), watch))
            KEPT.parent.mkdir(parents=True, exist_ok=True)
            with KEPT.open("a") as file:
                file.write("".join(json.dumps(each) + "\n" for each in found))
            kept += found
    return kept


def find_seen(tokens: list[int], least: int) -> int:
    """The step at which the loop is seen; L + 1 if there is none."""
    steps = range(LOOK_EVERY, len(tokens), LOOK_EVERY)
    return next((step for step in steps if is_long_loop(np.array(tokens[:step]), least)), L + 1)


def width(ratio: Share) -> float:
    low, high = ratio.interval()
    return high - low


def measure(completions: list[Completed], least: int, share: float) -> tuple[float, float, float]:
    """Of a full count: how many times fewer row-steps, how much wider an interval; and the share left too early."""
    lengths = np.array([len(tokens) for _, tokens, _ in completions])
    ended = np.array([end for _, _, end in completions])
    seen = np.array([find_seen(tokens, least) for _, tokens, _ in completions])
    random, loops = np.random.default_rng(0), seen <= L
    steps, widths = [], []
    for _ in range(DRAWS):
        drawn = random.integers(0, len(completions), CONTEXTS)
        followed = random.random(CONTEXTS) < share
        left = loops[drawn] & ~followed
        late = int((loops[drawn] & followed & ended[drawn]).sum())
        count = int((~ended[drawn] | left).sum())
        sampled = SampledRatio(count, int(left.sum()), late, share, CONTEXTS)
        steps.append(np.where(left, seen[drawn], lengths[drawn]).sum() / lengths[drawn].sum())
        widths.append(width(sampled) / width(Ratio(int((~ended[drawn]).sum()), CONTEXTS)))
    return 1 / float(np.mean(steps)), float(np.mean(widths)), float((loops & ended).mean())


def measure_records(path: Path) -> None:
    """Row-steps and width at several shares, if no followed loop ends."""
    print(f"{'repeats':>8}{'share':>8}{'row-steps':>12}{'width':>8}")
    record = next(each for each in add_shards(read_records(path)) if each.signature.decoder == "greedy")
    counts, limit, n = record.counts, record.signature.max_steps, record.counts.contexts
    for least, share in itertools.product(LENGTHS, (0.05, 0.1, FOLLOWED / n**0.5, 0.5)):
        turns = [(loop, max(least, 2 * len(cycle)) + len(cycle)) for cycle, loop in counts.loops.items()]
        seen = [(loop.looping, -LOOK_EVERY * (int(1 - loop.onset.mean - turn) // LOOK_EVERY)) for loop, turn in turns]
        saved = sum(looping * max(0, limit - step) for looping, step in seen) * (1 - share)
        left = sum(looping for looping, step in seen if step < limit) * (1 - share)
        count = count_survivors(counts.ended, n, limit)
        wider = width(SampledRatio(count, round(left), 0, share, n)) / width(Ratio(count, n))
        print(f"{least:8}{share:8.3f}{f'1/{counts.tokens / (counts.tokens - saved):.2f}':>12}{wider:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1, metavar="N", help=f"contexts, in shards of {SHARD}")
    parser.add_argument("--records", type=Path, metavar="FILE", help="read these records only")
    options = parser.parse_args()
    if options.records:
        measure_records(options.records)
        return
    completions = open_completions(options.shards)
    not_ended, looping = (sum(map(is_so, completions)) for is_so in (lambda each: not each[2], loops_at_end))
    print(f"{len(completions)} contexts, {not_ended} not ended, {looping} of these in a loop at the limit")
    print(f"{'repeats':>8}{'share':>8}{'row-steps':>12}{'width':>8}{'ended late (%)':>16}")
    for least in LENGTHS:
        for share in SHARES:
            fewer, wider, late = measure(completions, least, share)
            print(f"{least:8}{share:8.3f}{f'1/{fewer:.2f}':>12}{wider:8.2f}{100 * late:16.2f}")
    fewer, wider, _ = measure(completions, REPEATING, FOLLOWED / CONTEXTS**0.5)
    if fewer < AT_LEAST or wider > AT_MOST:
        sys.exit(f"not as promised: 1/{fewer:.2f} of the row-steps, {wider:.2f} times the width")


loops_at_end: Callable[[Completed], bool] = lambda each: not each[2] and find_tail(np.array(each[1])) is not None  # noqa: E731

if __name__ == "__main__":
    main()
