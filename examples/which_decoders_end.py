"""Which decoders end? The model of Theorem 3.4, a loop, and three ways to make them stop.

Theorem 3.4 of the paper builds a recurrent language model that ends with probability one, and from which every
decoder that can drop eos returns a sequence that never does. Here it is decoded with each of them.
"""

import torch

import eosin
from eosin.models.heads import SelfTerminating
from eosin.proofs.constructions import Repeater, build_theorem_3_4

VOCAB, CONTEXTS, MAX_STEPS = 8, 100, 400
DECODERS = {
    "complete": ["ancestral", f"top-k:{VOCAB}"],
    "incomplete": [
        *("greedy", "beam:2", "beam:4", f"beam:{VOCAB - 1}", "top-k:2", f"top-k:{VOCAB - 1}", "nucleus:0.2"),
        *("nucleus:0.8", "min-p:0.1", "epsilon:0.1", "eta:0.1", "typical:0.9", "top-n-sigma:1"),
    ],
    "the same, with eos kept": [
        *("consistent-top-k:2", "consistent-nucleus:0.2", "consistent-min-p:0.1", "consistent-typical:0.9"),
    ],
}


def build_self_terminating_twin():
    """The same weights under the paper's self-terminating head."""
    model = build_theorem_3_4(VOCAB)
    model.head = SelfTerminating(epsilon=0.01)
    return model


def main() -> None:
    models = {
        "Theorem 3.4": build_theorem_3_4(VOCAB),
        "a loop": Repeater(VOCAB - 1, p=0.02),
        "3.4, self-terminating": build_self_terminating_twin(),
        "3.4 on a floor": eosin.Floor(build_theorem_3_4(VOCAB), epsilon=0.01),
    }
    prefixes = torch.randint(1, VOCAB, (CONTEXTS, 5), generator=torch.Generator().manual_seed(0))
    print(f"Share of {CONTEXTS} contexts that have not ended after {MAX_STEPS} tokens:\n")
    print(f"{'':26}" + "".join(f"{name:>24}" for name in models))
    for kind, specs in DECODERS.items():
        print(kind)
        for spec in specs:
            found = [eosin.decode(model, prefixes, spec, max_steps=MAX_STEPS, seed=0) for model in models.values()]
            ratios = [1 - float(completions.terminated.double().mean()) for completions in found]
            print(f"  {spec:24}" + "".join(f"{ratio:>24.0%}" for ratio in ratios), flush=True)
    print(
        "\nThe first model ends with probability one, yet it ranks eos last at every step: decoders that drop the least"
        "\nprobable token never end it (Theorem 3.4)."
        "\nKeeping eos in the kept set makes any of them end (Theorem 4.1); a self-terminating head (Theorem 4.2) or a"
        "\ntermination floor, which needs no training, makes even greedy decoding and beam search end."
    )


if __name__ == "__main__":
    main()
