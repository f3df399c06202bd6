"""The subject of a verb: a trained run or a causal language model of Hugging Face, with its tokenizer."""

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

from eosin.decoding.stopping import StopStrings
from eosin.devices import choose_device
from eosin.errors import BadInput
from eosin.loading import HUB, import_hub, open_run
from eosin.training.run import Run

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Subject:
    """A model, its tokenizer, and where contexts come from."""

    model: Any
    tokenizer: Any
    """With `decode` and `spell`."""
    describe: Callable[[], dict[str, Any]]
    """The part of a record's signature that names the model."""
    contexts: Callable[[str, int | None, int], Tensor]
    """contexts(split, count, seed)."""
    prompts: Callable[[Sequence[str], argparse.Namespace], Sequence[Sequence[int]] | Tensor]
    """prompts(texts, options)."""
    audits: Path | None
    """The folder for records; None if none may be written."""
    stop: StopStrings | None


def add_subject_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "subject", metavar="MODEL", help="a run directory, demo, or hf: and a model folder, .gguf or hub id"
    )
    verb.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    verb.add_argument(
        "--dtype", choices=list(DTYPES), default="float32", help="precision of the weights (default: float32)"
    )
    verb.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="STRING",
        help="a string that ends a completion; may be repeated (default: from the generation config; '' is none)",
    )
    hub = verb.add_argument_group("for hf: models")
    hub.add_argument("--chat", action="store_true", help="put prompts into the chat template")
    hub.add_argument("--prompt-tokens", type=int, metavar="N", help="read only the first N tokens of each prompt")
    hub.add_argument(
        "--eos",
        type=int,
        nargs="+",
        default=[],
        metavar="ID",
        help="the tokens that end a text (default: all that the model names)",
    )
    hub.add_argument("--trust-remote-code", action="store_true", help="run code from the model folder")


def open_subject(name: str, options: argparse.Namespace) -> Subject:
    return open_hub_model(name.removeprefix(HUB), options) if name.startswith(HUB) else open_trained_run(name, options)


def open_trained_run(name: str, options: argparse.Namespace) -> Subject:
    run = open_run(name)
    return Subject(
        model=run.model.to(choose_device(options.device), DTYPES[options.dtype]),
        tokenizer=run.tokenizer,
        describe=lambda: run.origin,
        contexts=lambda split, count, seed: run.corpus.contexts(split, count, seed),
        prompts=lambda texts, options: encode_run_prompts(run, texts, options.verb),
        audits=run.audits,
        stop=parse_stop_strings(options.stop, run.tokenizer),
    )


def parse_stop_strings(strings: Sequence[str], tokenizer: Any) -> StopStrings | None:
    """A single empty string means none."""
    return StopStrings(tuple(strings), tokenizer.decode) if list(strings) not in ([], [""]) else None


def encode_run_prompts(run: Run, texts: Sequence[str], verb: str) -> Sequence[Sequence[int]] | Tensor:
    """Prompts as the run's model reads them. Notes on standard error say what was lost."""
    prompts = run.encode_prompts(texts)
    if prompts.unknown:
        sys.stderr.write(f"eosin {verb}: {prompts.unknown} words are not in the vocabulary, and are read as <unk>\n")
    if prompts.shortened:
        sys.stderr.write(
            f"eosin {verb}: {prompts.shortened} of {len(texts)} prompts are longer than a context; "
            f"only their last {run.settings.data.context} tokens are read\n"
        )
    return prompts.contexts


def open_hub_model(name: str, options: argparse.Namespace) -> Subject:
    if options.prompt_tokens is not None and options.prompt_tokens < 1:
        raise BadInput(f"--prompt-tokens must be at least 1, got {options.prompt_tokens}")
    model, words = import_hub("loading").load_causal(
        name,
        device=choose_device(options.device),
        dtype=DTYPES[options.dtype],
        eos_ids=options.eos,
        trust_remote_code=options.trust_remote_code,
    )

    def refuse(split: str, count: int | None, seed: int) -> Tensor:
        raise BadInput(f"{name} comes without a corpus: give prompts of your own (--prompts FILE)")

    label = re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "model"
    return Subject(
        model=model,
        tokenizer=words,
        describe=lambda: {"run": label},
        contexts=refuse,
        prompts=lambda texts, options: words.encode_prompts(texts, options.chat, options.prompt_tokens),
        audits=Path("audits") / label,
        stop=parse_stop_strings(options.stop or model.stop_strings, words),
    )
