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
from eosin.cli.model import LoadedModel, add_model_options, open_model
from eosin.cli.terminal import escape_for_terminal
from eosin.contracts import Generative, Movable
from eosin.decoding.floor import Floor
from eosin.errors import BadInput
from eosin.guarantees.certificate import Certificate, certify, find_epsilon, find_floor
from eosin.proofs.cycles import Cycle
from eosin.proofs.saved_cycles import CertifiedCycle, read_certificates

DESCRIPTION = """MODEL is a trained run, hf:... or py:FILE:FUNCTION. Nothing is decoded: what is guaranteed follows
from the weights, the head and the decoder. With --budget N it also proposes a floor under p(eos), with which all but
one decoding in a million end within N steps, and a head, with which every greedy decoding does. With --check it
repeats the proofs of loops that `eosin audit` wrote, on the weights of the run.

examples:
  eosin certify demo
  eosin certify runs/lstm greedy beam:4 nucleus:0.2 consistent-nucleus:0.2
  eosin certify runs/lstm nucleus:0.9,temperature=0.7 --budget 500
  eosin certify runs/lstm greedy --floor-epsilon 0.003 --floor-grace 250
  eosin certify runs/tanh --check runs/tanh/audits/test-10190-1500-0-float32.cycles"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model_options(parser)
    add("decoders", metavar="DECODER", nargs="*", default=[], help="as greedy or nucleus:0.2 (default: greedy)")
    add("--budget", type=int, metavar="N", help="propose what makes decoding end within N steps")
    add("--check", type=Path, metavar="FILE", help="repeat the proofs of this file of certificates")
    add("--floor-epsilon", type=float, metavar="E", help="certify the model with this floor under it")
    add("--floor-grace", type=int, metavar="N", help="steps that the floor leaves alone (default: 0)")


def run(options: argparse.Namespace) -> None:
    loaded = open_model(options.model, options)
    if options.check is not None:
        check_proofs(loaded, options)
        return
    model = add_floor(loaded.model, options.floor_epsilon, options.floor_grace)
    certificates = {spec: certify(model, spec) for spec in options.decoders or ["greedy"]}
    if options.json:
        tables = {spec: to_json(loaded.model, each, options.budget) for spec, each in certificates.items()}
        print(json.dumps(tables))
    else:
        print("\n".join(format_certificates(loaded.model, certificates, options.budget)))


def add_floor(model: Generative, epsilon: float | None, grace: int | None) -> Generative:
    if epsilon is None and grace is not None:
        raise BadInput(f"--floor-grace {grace} needs --floor-epsilon as well")
    if epsilon is None:
        return model
    try:
        return Floor(model, epsilon, grace or 0)
    except ValueError as error:
        raise BadInput(f"--floor: {error}") from error


def format_certificates(model: Generative, certificates: dict[str, Certificate], budget: int | None) -> list[str]:
    if budget is None:
        return [str(certificate) for certificate in certificates.values()]
    proposals = [f"{each}\n  {propose_floor(model, spec, each, budget)}" for spec, each in certificates.items()]
    ended = all(each.ends_within(budget) for each in certificates.values())
    return proposals if ended else [*proposals, propose_head(budget)]


def propose_floor(model: Generative, spec: str, certificate: Certificate, budget: int) -> str:
    """A budget holds for all but one decoding in a million: a bound on every decoding may be later, or not exist."""
    if certificate.ends_within(budget):
        return f"Within {budget:,} steps, but for one decoding in a million: as it is."
    floor = find_floor(model, spec, budget)
    how = f"eosin.Floor(model, epsilon={floor.epsilon}, grace={floor.grace})"
    return f"Within {budget:,} steps, but for one decoding in a million, without training: {how}"


def propose_head(budget: int) -> str:
    return (
        f"Every greedy decoding ends within {budget:,} steps if the model is trained with\n"
        f'  [head]\n  kind = "self-terminating"\n  epsilon = {find_epsilon(budget)}'
    )


def to_json(model: Generative, certificate: Certificate, budget: int | None) -> dict[str, Any]:
    if budget is None:
        return certificate.as_json()
    floor = find_floor(model, certificate.decoder, budget)
    return certificate.as_json() | {
        "within_budget": certificate.ends_within(budget),
        "floor": {"epsilon": floor.epsilon, "grace": floor.grace},
        "self_terminating": {"epsilon": find_epsilon(budget)},
    }


# --check


def check_proofs(loaded: LoadedModel, options: argparse.Namespace) -> None:
    """Prove the cycles of a file again. Exit with 1 if a proof does not hold."""
    if options.budget is not None or options.floor_epsilon is not None or options.floor_grace is not None:
        raise BadInput("--check repeats the proofs of a file; --budget and --floor-... do not go with it")
    if options.decoders:
        raise BadInput(f"--check takes the decoders from the file; leave out {' '.join(options.decoders)}")
    certificates = list(read_certificates(options.check))
    if not certificates:
        raise BadInput(f"{options.check} has no certificate of a cycle")
    model = convert_to_certified(loaded.model, certificates)
    proofs = [(certificate, certificate.reprove(model)) for certificate in certificates]
    if options.json:
        print(json.dumps([proof_to_json(*proof) for proof in proofs]))
    else:
        print("\n".join(format_proof(*proof, loaded.tokenizer) for proof in proofs))
    if any(cycle is None for _, cycle in proofs):
        sys.exit(1)


def convert_to_certified(model: Any, certificates: list[CertifiedCycle]) -> Any:
    """The model in the precision in which its weights are those of the certificates."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    for converted in (copy.deepcopy(model).to(dtype) for dtype in dtypes) if isinstance(model, Movable) else [model]:
        here = identify(converted)
        if not any(find_differences(certificate.model, here) for certificate in certificates):
            return converted
    here = identify(model)
    differing = {key: None for certificate in certificates for key in find_differences(certificate.model, here)}
    raise BadInput(f"the certificate is of another model, which differs from this run in: {', '.join(differing)}")


def list_numbers(cycle: Cycle | None) -> dict[str, float]:
    """The numbers of a proof."""
    names = ("radius", "repeats", "contraction", "widest", "margin", "rounding")
    return {} if cycle is None else {name: vars(cycle)[name] for name in names}


def proof_to_json(certificate: CertifiedCycle, cycle: Cycle | None) -> dict[str, Any]:
    about = {"decoder": certificate.decoder, "tokens": certificate.cycle.tokens}
    return {**about, "holds": cycle is not None, **list_numbers(cycle)}


def format_proof(certificate: CertifiedCycle, cycle: Cycle | None, tokenizer: Any) -> str:
    known = [token for token in certificate.cycle.tokens if 0 <= token < tokenizer.vocab_size]
    sentence = (
        f"{certificate.decoder}: the proof that {escape_for_terminal(tokenizer.decode(known))!r} repeats for ever"
    )
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in list_numbers(cycle).items())
    return f"{sentence} does NOT hold" if cycle is None else f"{sentence} holds ({numbers})"
