"""What a verb is about: a trained run, or a causal language model of Hugging Face. Either is a model with its words."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eosin.data.corpus import Recipe
from eosin.data.prompts import as_contexts, checked_prompt
from eosin.data.tokenizer import Tokenizer
from eosin.decoding.stopping import StopStrings
from eosin.devices import choose_device
from eosin.errors import BadInput
from eosin.loading import HUB, hub, is_tuned, load
from eosin.models.checkpoint import CONFIG, is_bundled, run_folder
from eosin.settings import build, read_toml, section
from eosin.training.run import corpus_of, origin

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Subject:
    """A model, its tokenizer, and where contexts come from."""

    model: Any
    tokenizer: Any
    """With `decode` and `spelling`."""
    about: Callable[[], dict[str, Any]]
    """What belongs into the signature of a record."""
    contexts: Callable[[str, int | None, int], Tensor]
    """Of a split, so many, with this seed."""
    prompts: Callable[[Sequence[str], argparse.Namespace], Sequence[Sequence[int]] | Tensor]
    audits: Path | None
    """The folder for its records; None where none must be made."""
    stop: StopStrings | None


def add_subject_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "subject", metavar="MODEL", help="a run directory, demo, or hf: and a model folder, .gguf or hub id"
    )
    verb.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    verb.add_argument("--dtype", choices=list(DTYPES), default="float32", help="of the weights (default: float32)")
    verb.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="STRING",
        help="a string that ends a completion; may be repeated (default: those of the generation config; '' is none)",
    )
    hub = verb.add_argument_group("for hf: models")
    hub.add_argument("--chat", action="store_true", help="prompts are turns of a chat (chat template)")
    hub.add_argument("--prompt-tokens", type=int, metavar="N", help="only the first N tokens of every prompt")
    hub.add_argument(
        "--eos", type=int, nargs="+", default=[], metavar="ID", help="what ends a text (default: all named)"
    )
    hub.add_argument("--trust-remote-code", action="store_true", help="run code that the model folder contains")


def opened_subject(name: str, options: argparse.Namespace) -> Subject:
    return of_hub(name.removeprefix(HUB), options) if name.startswith(HUB) else of_run(name, options)


def of_run(name: str, options: argparse.Namespace) -> Subject:
    folder = run_folder(name)
    model = load(folder).to(choose_device(options.device), DTYPES[options.dtype])
    tokenizer = Tokenizer.load(folder)
    return Subject(
        model=model,
        tokenizer=tokenizer,
        about=lambda: origin(folder, corpus_of(folder)),
        contexts=lambda which, count, seed: corpus_of(folder).contexts(which, count, seed),
        prompts=lambda texts, options: run_prompts(folder, tokenizer, texts, options.verb),
        audits=None if is_bundled(folder) else folder / "audits",
        stop=stop_strings(options.stop, tokenizer),
    )


def stop_strings(strings: Sequence[str], tokenizer: Any) -> StopStrings | None:
    """An empty string alone is none."""
    return StopStrings(tuple(strings), tokenizer.decode) if list(strings) not in ([], [""]) else None


def run_prompts(
    folder: Path, tokenizer: Tokenizer, texts: Sequence[str], verb: str
) -> Sequence[Sequence[int]] | Tensor:
    """Prompts as the run's model reads them; what is lost on the way is said on standard error."""
    if is_tuned(folder):
        return hub("tuning").prompts_of(folder, texts)
    length = build(Recipe, section(read_toml(folder / CONFIG), "data", folder / CONFIG), "data").context
    made = as_contexts([checked_prompt(text, number) for number, text in enumerate(texts, 1)], tokenizer, length)
    if made.unknown:
        sys.stderr.write(f"eosin {verb}: not in the vocabulary, and read as <unk>: {made.unknown} of the words\n")
    if made.shortened:
        longer = f"{made.shortened} of {len(texts)} prompts"
        sys.stderr.write(f"eosin {verb}: longer than a context: {longer}, read from the last {length} tokens on\n")
    return made.contexts


def of_hub(name: str, options: argparse.Namespace) -> Subject:
    model, words = hub("loading").load_causal(
        name,
        device=choose_device(options.device),
        dtype=DTYPES[options.dtype],
        eos_ids=options.eos,
        trust_remote_code=options.trust_remote_code,
    )

    if options.prompt_tokens is not None and options.prompt_tokens < 1:
        raise BadInput(f"--prompt-tokens must be at least 1, got {options.prompt_tokens}")

    def no_corpus(which: str, count: int | None, seed: int) -> Tensor:
        raise BadInput(f"{name} comes without a corpus: give prompts of your own (--prompts FILE)")

    called = re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "model"
    return Subject(
        model=model,
        tokenizer=words,
        about=lambda: {"run": called},
        contexts=no_corpus,
        prompts=lambda texts, options: words.prompts(texts, options.chat, options.prompt_tokens),
        audits=Path("audits") / called,
        stop=stop_strings(options.stop or model.stop_strings, words),
    )
