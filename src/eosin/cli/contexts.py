"""What the verbs that show completions share: a model, a decoder, and contexts of its corpus or prompts."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from torch import Tensor

from eosin.cli.subjects import Subject, add_subject_options, open_subject
from eosin.contracts import Decoder
from eosin.decoding.job import check_whole
from eosin.decoding.spec import parse_decoder
from eosin.errors import BadInput

MOST_RANDOM = 1_000_000
"""Random contexts are made from the first on, so there has to be a last one."""


@dataclass(frozen=True)
class Opened:
    """A model that is ready to decode."""

    subject: Subject
    decoder: Decoder


def add_decoding_options(verb: argparse.ArgumentParser) -> None:
    add_subject_options(verb)
    verb.add_argument("--decoder", default="greedy", metavar="SPEC", help="a specification (default: greedy)")
    verb.add_argument("--max-steps", type=int, default=1500, metavar="L", help="the paper's L (default: 1500)")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="decides every draw (default: 0)")


def opened(options: argparse.Namespace) -> Opened:
    """What the options name, if all of it can be used."""
    decoder = parse_decoder(options.decoder)
    subject = open_subject(options.subject, options)
    decoder.check(subject.model.vocab_size)
    check_whole("max_steps", options.max_steps, 1, 2**31)
    check_whole("seed", options.seed, 0, 2**64)
    return Opened(subject, decoder)


def numbered_context(subject: Subject, which: str, number: int, seed: int) -> Tensor:
    """The context that has this number in an audit: one row."""
    there = MOST_RANDOM if which == "random" else len(subject.contexts(which, None, seed))
    if number not in range(there):
        raise BadInput(f"context must be a number from 0 to {there - 1}, the last one of {which}, got {number}")
    return subject.contexts(which, number + 1, seed)[number:]
