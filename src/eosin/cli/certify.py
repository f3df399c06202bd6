"""eosin certify"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch

from eosin.auditing.identity import find_differences, identify
from eosin.cli.subjects import Subject, add_subject_options, open_subject
from eosin.cli.terminal import printable
from eosin.contracts import Generative
from eosin.decoding.floor import Floor
from eosin.errors import BadInput
from eosin.guarantees.certificate import Certificate, certify, epsilon_for_budget, floor_for_budget
from eosin.proofs.cycles import Cycle
from eosin.proofs.saved_cycles import CertifiedCycle, read_certificates

DESCRIPTION = """MODEL is a trained run or an hf: model, DECODER a specification. Nothing is decoded: the weights, the
head and the decoder say what must be so. With a budget of steps, it also says which floor under p(eos) keeps to it.
With --check, proofs that decodings never end, which `eosin audit` wrote, are done again on the run's weights.

examples:
  eosin certify runs/lstm greedy beam:4 nucleus:0.2 consistent-nucleus:0.2
  eosin certify runs/lstm nucleus:0.9,temperature=0.7 --budget 500
  eosin certify runs/lstm greedy --floor-epsilon 0.003 --floor-grace 250
  eosin certify runs/tanh --check runs/tanh/audits/test-10190-1500-0-float32.cycles"""


def add_options(verb: argparse.ArgumentParser) -> None:
    add_subject_options(verb)
    verb.add_argument("decoders", metavar="DECODER", nargs="*", help="a specification, as greedy or nucleus:0.2")
    verb.add_argument("--budget", type=int, metavar="N", help="propose what makes decoding end within N steps")
    verb.add_argument("--check", type=Path, metavar="FILE", help="do the proofs in this file of cycles again")
    verb.add_argument("--floor-epsilon", type=float, metavar="E", help="ask about the model with this floor under it")
    verb.add_argument("--floor-grace", type=int, metavar="N", help="the steps that the floor leaves alone (default: 0)")


def run(options: argparse.Namespace) -> None:
    subject = open_subject(options.subject, options)
    model = subject.model
    if options.check is not None:
        check(subject, options)
        return
    if not options.decoders:
        raise BadInput("name at least one decoder, as in 'greedy', or a file of cycles to --check")
    asked = floored(model, options.floor_epsilon, options.floor_grace)
    found = {spec: certify(asked, spec) for spec in options.decoders}
    if options.json:
        print(json.dumps({spec: for_machines(model, it, options.budget) for spec, it in found.items()}))
    else:
        print("\n".join(for_people(model, found, options.budget)))


def check(subject: Subject, options: argparse.Namespace) -> None:
    """Exit with 1 if a proof does not hold."""
    model = subject.model
    if options.budget is not None or options.floor_epsilon is not None or options.floor_grace is not None:
        raise BadInput("--check does the proofs of a file again; --budget and --floor-... do not go with it")
    if options.decoders:
        raise BadInput(f"--check takes the decoders from the file; leave out {' '.join(options.decoders)}")
    certificates = list(read_certificates(options.check))
    if not certificates:
        raise BadInput(f"{options.check} has no certificate of a cycle")
    tokenizer = subject.tokenizer
    certified = as_certified(model, certificates)
    checked = [(certificate, certificate.reprove(certified)) for certificate in certificates]
    if options.json:
        print(json.dumps([checked_json(certificate, now) for certificate, now in checked]))
    else:
        print("\n".join(checked_line(certificate, now, tokenizer) for certificate, now in checked))
    if any(now is None for _, now in checked):
        sys.exit(1)


def as_certified(model: Any, certificates: list[CertifiedCycle]) -> Any:
    """The model in the precision in which its weights are those of the certificates."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        converted = copy.deepcopy(model).to(dtype)
        here = identify(converted)
        if not any(find_differences(certificate.model, here) for certificate in certificates):
            return converted
    here = identify(model)
    differing = {key: None for certificate in certificates for key in find_differences(certificate.model, here)}
    raise BadInput(f"the certificate is of another model, which differs from this run in: {', '.join(differing)}")


def figures(cycle: Cycle | None) -> dict[str, Any]:
    names = ("radius", "repeats", "contraction", "widest", "margin", "rounding")
    return {} if cycle is None else {name: vars(cycle)[name] for name in names}


def checked_json(certificate: CertifiedCycle, now: Cycle | None) -> dict[str, Any]:
    about = {"decoder": certificate.decoder, "tokens": certificate.cycle.tokens}
    return {**about, "holds": now is not None, **figures(now)}


def checked_line(certificate: CertifiedCycle, now: Cycle | None, tokenizer: Any) -> str:
    known = [token for token in certificate.cycle.tokens if 0 <= token < tokenizer.vocab_size]
    text = printable(tokenizer.decode(known))
    said = "does NOT hold" if now is None else "holds"
    shown = ", ".join(f"{name} {value:.3g}" for name, value in figures(now).items())
    return f"{certificate.decoder}: the proof that {text!r} repeats for ever {said}" + (f" ({shown})" if shown else "")


def for_people(model: Generative, found: dict[str, Certificate], budget: int | None) -> list[str]:
    if budget is None:
        return [str(certificate) for certificate in found.values()]
    with_proposals = [f"{it}\n  {proposal(model, spec, it, budget)}" for spec, it in found.items()]
    return [*with_proposals, head_proposal(budget)]


def floored(model: Generative, epsilon: float | None, grace: int | None) -> Generative:
    if epsilon is None and grace is not None:
        raise BadInput(f"--floor-grace {grace} needs --floor-epsilon as well")
    if epsilon is None:
        return model
    try:
        return Floor(model, epsilon, grace or 0)
    except ValueError as error:
        raise BadInput(f"--floor: {error}") from error


def proposal(model: Generative, spec: str, certificate: Certificate, budget: int) -> str:
    if certificate.ends_within(budget):
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


def for_machines(model: Generative, certificate: Certificate, budget: int | None) -> dict[str, Any]:
    if budget is None:
        return certificate.as_json()
    floor = floor_for_budget(model, certificate.decoder, budget)
    return certificate.as_json() | {
        "within_budget": certificate.ends_within(budget),
        "floor": {"epsilon": floor.epsilon, "grace": floor.grace},
        "self_terminating": {"epsilon": epsilon_for_budget(budget)},
    }
