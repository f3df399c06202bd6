"""What the verbs that show completions share: a run, a decoder, and contexts of its corpus or prompts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eosin.decoding.decode import whole
from eosin.decoding.spec import parse_decoder
from eosin.errors import BadInput
from eosin.interfaces import Decoder, Prefix
from eosin.models.checkpoint import CONFIG, load, run_folder
from eosin.models.language_model import NeuralLM
from eosin.settings import build, read_toml, section
from eosin.text.corpus import Recipe
from eosin.text.prompts import as_contexts
from eosin.text.tokenization import Tokenizer
from eosin.training.run import corpus_of

MOST_RANDOM = 1_000_000
"""Random contexts are made from the first on, so there has to be a last one."""


@dataclass(frozen=True)
class Opened:
    """A run that is ready to decode."""

    folder: Path
    model: NeuralLM
    tokenizer: Tokenizer
    decoder: Decoder


def add_decoding_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run_directory", metavar="RUN", help="a run directory, or demo")
    verb.add_argument("--decoder", default="greedy", metavar="SPEC", help="a specification (default: greedy)")
    verb.add_argument("--max-steps", type=int, default=1500, metavar="L", help="the paper's L (default: 1500)")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="decides every draw (default: 0)")


def opened(options: argparse.Namespace) -> Opened:
    """What the options name, if all of it can be used."""
    folder, decoder = run_folder(options.run_directory), parse_decoder(options.decoder)
    model = load(folder)
    decoder.check(model.vocab_size)
    whole("max_steps", options.max_steps, 1, 2**31)
    whole("seed", options.seed, 0, 2**64)
    return Opened(folder, model, Tokenizer.load(folder), decoder)


def numbered_context(folder: Path, which: str, number: int, seed: int) -> Prefix:
    """The context that has this number in an audit of the run: one row."""
    corpus = corpus_of(folder)
    there = MOST_RANDOM if which == "random" else len(corpus.splits[which])
    if number not in range(there):
        raise BadInput(f"context must be a number from 0 to {there - 1}, the last one of {which}, got {number}")
    return corpus.contexts(which, number + 1, seed)[number:]


def prompt_contexts(prompts: Sequence[str], run: Opened, verb: str) -> Prefix:
    """Prompts as the run's model reads them; what is lost on the way is said on standard error."""
    config = run.folder / CONFIG
    length = build(Recipe, section(read_toml(config), "data", config), "data").context
    made = as_contexts(prompts, run.tokenizer, length)
    if made.unknown:
        sys.stderr.write(f"eosin {verb}: not in the vocabulary, and read as <unk>: {made.unknown} of the words\n")
    if made.shortened:
        longer = f"{made.shortened} of {len(prompts)} prompts"
        sys.stderr.write(f"eosin {verb}: longer than a context: {longer}, read from the last {length} tokens on\n")
    return made.contexts
