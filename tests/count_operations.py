"""How many operations a step launches on a simulated accelerator, how often it waits, and which line asks for it.

    python tests/count_operations.py greedy nucleus:0.95
    python tests/count_operations.py --no-float64 --launches beam:4 audit

A step is that of 64 rows of which none ends, beside the model; `audit` is a step of an audit with proofs whose rows
go around in loops, the model included.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial

import torch
from simulated_accelerator import NAME, Counts, Places, simulated_accelerator
from torch import Tensor

import eosin

ROWS, VOCAB = 64, 512
STEPS, STEPS_OF_AUDIT = 16, 24
"""Steps that are counted, after as many others. Of an audit they are more: rows are remembered at step 16."""


@dataclass(frozen=True)
class Moment:
    """The state of `Steady`: the number of the step, for all rows."""

    step: int

    def select(self, rows: Tensor) -> Moment:
        return self


class Steady:
    """Dense logits that depend on the row and the step alone; eos hardly ever. Its step is one operation, a view."""

    vocab_size, eos_ids = VOCAB, (0,)

    def __init__(self) -> None:
        logits = torch.randn(2 * STEPS, ROWS, VOCAB, generator=torch.Generator().manual_seed(0))
        logits[..., 0] = -60.0
        self.logits = logits.to(NAME).unbind()

    def prefill(self, prefix: Tensor) -> tuple[Tensor, Moment]:
        return self.logits[0][: len(prefix)], Moment(0)

    def step(self, token: Tensor, state: Moment) -> tuple[Tensor, Moment]:
        return self.logits[state.step + 1][: len(token)], Moment(state.step + 1)


def decode(spec: str, steps: int) -> None:
    prefixes = torch.ones(ROWS // eosin.parse_decoder(spec).rows_per_context, 1, dtype=torch.int64, device=NAME)
    assert not eosin.decode(Steady(), prefixes, spec, max_steps=steps).terminated.any()


def audit_loops(steps: int) -> None:
    """An LSTM whose logits hardly differ: its rows go around in a loop that is not proved before step 64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = eosin.NeuralLM(eosin.CORES["lstm"](width=16), eosin.HEADS["softmax"](), vocab_size=300, eos_id=0)
    with torch.no_grad():
        model.output.bias[0] = -30.0
    prefixes = torch.randint(300, (ROWS, 5), generator=torch.Generator().manual_seed(1))
    counts = eosin.audit(model.to(NAME), prefixes, ["greedy"], max_steps=steps).by_decoder["greedy"].counts
    assert counts.tokens == ROWS * steps
    assert sum(loop.looping for loop in counts.loops.values()) > ROWS / 2


def count_step(what: str, float64: bool = True) -> Counts:
    """What a step of a decoder costs, or of an "audit": by how much twice as many steps cost more."""
    take, steps = (audit_loops, STEPS_OF_AUDIT) if what == "audit" else (partial(decode, what), STEPS)
    counted = []
    for so_many in (steps, 2 * steps):
        with simulated_accelerator(float64) as counts:
            take(so_many)
        counted.append(counts)
    return (counted[1] - counted[0]) / steps


def tabulate_places(title: str, counts: Places) -> str:
    lines = [
        f"  {count:8.2f}  {name.removeprefix('aten::'):22} {place}" for (name, place), count in counts.most_common()
    ]
    return "\n".join([f"  {title}", *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", metavar="DECODER", help="a specification, or audit")
    parser.add_argument("--no-float64", action="store_true", help="the device has no float64")
    parser.add_argument("--launches", action="store_true", help="list every operation, not only those waited for")
    options = parser.parse_args()
    for what in options.what:
        counts = count_step(what, float64=not options.no_float64)
        text = f"{what}: {counts.launched:.1f} launched and {counts.waited:.1f} waits a step\n"
        text += tabulate_places("waits", counts.waits)
        sys.stdout.write(text + (tabulate_places("launches", counts.launches) if options.launches else ""))


if __name__ == "__main__":
    main()
