"""eosin certify"""

from __future__ import annotations

import argparse
import json
from typing import Any

from eosin.decoding.floor import Floor
from eosin.errors import BadInput
from eosin.models.checkpoint import load
from eosin.models.language_model import NeuralLM
from eosin.theory.certificate import Certificate, certify, epsilon_for_budget, floor_for_budget

DESCRIPTION = """RUN is the directory of a trained run, DECODER a specification. Nothing is decoded: the weights, the
head and the decoder say what must be so. With a budget of steps, it also says which floor under p(eos) keeps to it.

examples:
  eosin certify runs/lstm greedy beam:4 nucleus:0.2 consistent-nucleus:0.2
  eosin certify runs/lstm nucleus:0.9,temperature=0.7 --budget 500
  eosin certify runs/lstm greedy --floor-epsilon 0.003 --floor-grace 250"""


def add_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run_directory", metavar="RUN", help="a run directory")
    verb.add_argument("decoders", metavar="DECODER", nargs="+", help="a specification, as greedy or nucleus:0.2")
    verb.add_argument("--budget", type=int, metavar="N", help="propose what makes decoding end within N steps")
    verb.add_argument("--floor-epsilon", type=float, metavar="E", help="ask about the model with this floor under it")
    verb.add_argument("--floor-grace", type=int, metavar="N", help="the steps that the floor leaves alone (default: 0)")


def run(options: argparse.Namespace) -> None:
    model = load(options.run_directory)
    asked = floored(model, options.floor_epsilon, options.floor_grace)
    found = {spec: certify(asked, spec) for spec in options.decoders}
    if options.json:
        print(json.dumps({spec: for_machines(model, it, options.budget) for spec, it in found.items()}))
    else:
        print("\n".join(for_people(model, found, options.budget)))


def for_people(model: NeuralLM, found: dict[str, Certificate], budget: int | None) -> list[str]:
    if budget is None:
        return [str(certificate) for certificate in found.values()]
    with_proposals = [f"{it}\n  {proposal(model, spec, it, budget)}" for spec, it in found.items()]
    return [*with_proposals, head_proposal(budget)]


def floored(model: NeuralLM, epsilon: float | None, grace: int | None) -> NeuralLM | Floor:
    if epsilon is None and grace is not None:
        raise BadInput(f"--floor-grace {grace} needs --floor-epsilon as well")
    if epsilon is None:
        return model
    try:
        return Floor(model, epsilon, grace or 0)
    except ValueError as error:
        raise BadInput(f"--floor: {error}") from error


def proposal(model: NeuralLM, spec: str, certificate: Certificate, budget: int) -> str:
    if certificate.within(budget):
        return f"Within {budget:,} steps: as it is."
    floor = floor_for_budget(model, spec, budget)
    return (
        f"Within {budget:,} steps, without training: eosin.Floor(model, epsilon={floor.epsilon}, grace={floor.grace})"
    )


def head_proposal(budget: int) -> str:
    return (
        f"Greedy decoding ends within {budget:,} steps if the model is trained with\n"
        f'  [head]\n  kind = "self-terminating"\n  epsilon = {epsilon_for_budget(budget)}'
    )


def for_machines(model: NeuralLM, certificate: Certificate, budget: int | None) -> dict[str, Any]:
    if budget is None:
        return certificate.as_json()
    floor = floor_for_budget(model, certificate.decoder, budget)
    return certificate.as_json() | {
        "within_budget": certificate.within(budget),
        "floor": {"epsilon": floor.epsilon, "grace": floor.grace},
        "self_terminating": {"epsilon": epsilon_for_budget(budget)},
    }
