"""What to do, from what was measured: a remedy with its reason and its code, or nothing where nothing is wrong."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eosin.errors import BadInput
from eosin.guarantees.certificate import find_epsilon
from eosin.remedies.candidates import Candidate
from eosin.remedies.measurement import Measurement
from eosin.report.verdict import write_generate_arguments

MOST_CUT = 0.5
"""A budget that cuts so many of all completions, which would end by themselves, is refused."""


@dataclass(frozen=True)
class Advice:
    """A recommendation; `code` is empty if nothing needs fixing."""

    name: str | None
    why: tuple[str, ...]
    code: str = ""
    better: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"recommended": self.name, "why": self.why, "code": self.code, "better": self.better}


def check_budget(measured: Measurement) -> None:
    """Refuse a budget that would cut most completions before they end by themselves."""
    if measured.late.count > MOST_CUT * len(measured.completions):
        raise BadInput(f"--budget {measured.budget} is too short: {describe_late(measured)}")


def describe_late(measured: Measurement) -> str:
    """The share of what ends by itself that the budget cuts, and the budget that would not."""
    late, lengths = measured.late, measured.lengths
    enough = lengths.quantiles[-1] if lengths else measured.budget
    return (
        f"of {late.n:,} completions that end by themselves within {measured.max_steps:,} tokens, {late.count:,} "
        f"({late.value:.0%}) have more than {measured.budget:,} and would be cut; 95% have at most {enough:,}"
    )


def advise(measured: Sequence[Measurement], write_code: Callable[[Candidate], str], better: str) -> Advice:
    """The first remedy with which all completions end within the budget, or else the one that leaves the fewest."""
    baseline, *remedies = measured
    count, budget = len(baseline.completions), baseline.budget
    if not baseline.ratio.count:
        most = baseline.ratio.interval()[1]
        return Advice(
            None,
            (
                f"Nothing to fix: all {count:,} completions end by themselves within {budget:,} tokens. "
                f"The true ratio may be up to {most:.2%}.",
            ),
        )
    best = min(remedies, key=lambda each: each.ratio.count, default=None)
    if best is None or best.ratio.count >= baseline.ratio.count:
        return Advice(
            None, (f"No remedy without training ended more completions within {budget:,} tokens.",), "", better
        )
    return Advice(best.candidate.name, tuple(explain(best, measured)), write_code(best.candidate), better)


def explain(best: Measurement, measured: Sequence[Measurement]) -> Iterator[str]:
    """Why this remedy: what it ends and leaves, how its completions differ, and why the ones before are not enough."""
    baseline, count, budget = measured[0], len(best.completions), best.budget
    ended = "all" if not best.ratio.count else f"{count - best.ratio.count:,} of"
    yield (
        f"With it {ended} {count:,} completions end within {budget:,} tokens; as it is, "
        f"{baseline.ratio.count:,} do not."
    )
    if baseline.late.count == baseline.ratio.count:
        longest = max(baseline.ended)
        yield f"All of these end by themselves within {longest:,} tokens: with that budget nothing needs fixing."
    before = [each for each in measured[1:] if each.ratio.count > best.ratio.count]
    if before:
        yield "Less leaves some: " + ", ".join(f"{each.candidate.name} {each.ratio.value:.2%}" for each in before) + "."
    if best.kept:
        yield f"Of {best.kept.n:,} that end by themselves, {best.kept.count:,} stay the same, token for token."
    if best.cut.count:
        yield f"{best.cut.count:,} completions are loops that eos cuts: they end, and are not better for it."
    if best.candidate.floor:
        grace = best.candidate.floor.grace
        yield (
            f"The floor leaves the first {grace:,} tokens alone; fewer than one decoding in a million exceeds the "
            "budget."
        )


# code to paste


def write_generate_code(candidate: Candidate, named: Sequence[int], budget: int) -> str:
    """A call of `generate` in transformers, which stops at the eos ids `named` unless it is told others."""
    eos_ids, floor = sorted(map(int, candidate.plain.eos_ids)), candidate.floor
    arguments = [write_generate_arguments(str(candidate.decoder)), f"max_new_tokens={budget}"]
    imports, lines = ["import eosin.hub"], []
    if eos_ids != sorted(named):
        arguments.append(f"eos_token_id={eos_ids}")
    if candidate.stop:  # as a criterion: `generate` does not pass its tokenizer on with a custom function
        imports.append("from transformers import StoppingCriteriaList, StopStringCriteria")
        criterion = f"StopStringCriteria(tokenizer, {list(candidate.stop_strings)})"
        lines.append(f"stops = StoppingCriteriaList([{criterion}])")
        arguments.append("stop_strings=None, stopping_criteria=stops")
    if floor:
        lines.append(f"floor = eosin.hub.TerminationFloor({eos_ids}, epsilon={floor.epsilon}, grace={floor.grace})")
        arguments.append("logits_processor=[floor]")
    call = ["output = model.generate(", "    **inputs,", *(f"    {each}," for each in arguments), ")"]
    return "\n".join([*imports, "", *lines, *call])


def write_decode_code(candidate: Candidate, name: str, budget: int) -> str:
    """A call of `eosin.decode`."""
    floor, loaded = candidate.floor, f"eosin.load({name!r})"
    model = f"eosin.Floor({loaded}, epsilon={floor.epsilon}, grace={floor.grace})" if floor else loaded
    call = f"eosin.decode(model, prefixes, {str(candidate.decoder)!r}, max_steps={budget})"
    return f"import eosin\n\nmodel = {model}\ncompletions = {call}"


def propose_training(budget: int, base: str | None) -> str:
    """What it takes to do better than a floor; `base` is the name of a pretrained model."""
    epsilon = find_epsilon(budget)
    what = "Better, with training: a self-terminating head, which learns where to end and bounds greedy decoding too."
    if base is None:
        return f'{what}\n    [head]\n    kind = "self-terminating"\n    epsilon = {epsilon}'
    settings = [f"pretrained.model={base}", f"head.epsilon={epsilon}", "data.source=my-lines.txt"]
    command = " ".join(f"--set {shlex.quote(each)}" for each in settings)
    return f"{what}\n    eosin train smollm2-st-2.5e-3 {command} --out runs/mine"
