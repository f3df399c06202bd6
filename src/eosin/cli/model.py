"""The model of a command: its options, how it is opened, and the contexts that it continues."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eosin.auditing.shards import is_steady_for
from eosin.cli.numbers import DEVICE_HELP, whole_number
from eosin.cli.progress import announce
from eosin.contracts import Decoder, Movable, Words
from eosin.data.prompts import Prompt, read_prompts
from eosin.data.sources import CONTEXTS
from eosin.data.tokenizer import PAD_ID
from eosin.decoding.job import Job, Prefixes, check_whole, window_of
from eosin.decoding.spec import parse_decoder
from eosin.decoding.stopping import StopStrings
from eosin.devices import PRECISIONS, Network, choose_device, has_float64
from eosin.errors import BadInput
from eosin.loading import import_hub, open_run
from eosin.own_models import encode_text, open_own_model
from eosin.proofs.prover import Prover, prover_of
from eosin.records.reading import choose_audit_folder
from eosin.storage.files import HUB, OWN
from eosin.training.run import Run

DTYPES = {**PRECISIONS, "float64": torch.float64}
MAX_STEPS, MAX_HUB_STEPS = 1500, 1000
"""The longest completions where no limit is given."""
MOST_RANDOM = 1_000_000
"""Random contexts are drawn from the first one on, so there has to be a last one."""
MODELS = (
    "a run directory, demo, demo-lstm; hf: and a model folder, .gguf or hub id; or py:FILE:FUNCTION, a function that "
    "returns a model, for which the code of the file is run"
)
SOURCES: dict[str, dict[str, Any]] = {
    "context": {"type": int, "metavar": "N", "help": "take context N, counted from 0 as in audits"},
    "prompt": {"metavar": "TEXT", "help": "continue this text"},
    "prompts": {
        "type": Path,
        "metavar": "FILE",
        "help": "continue each line of a UTF-8 text file, or JSON lines with `prompt` or `messages`",
    },
}


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device, with its tokenizer."""

    name: str
    model: Any
    tokenizer: Any
    """With `decode` and `spell`."""
    encode_prompts: Callable[[Sequence[Prompt]], Prefixes]
    stop: StopStrings | None
    run: Run | None = None
    """None of a model of Hugging Face or of the user's own."""
    origin: dict[str, str] = field(default_factory=dict)
    """The file and the function of a model of the user's own."""
    decoders: tuple[Decoder, ...] = ()
    """Those of the model's own generation config, if it has one."""

    def describe_precision(self) -> dict[str, str]:
        """The part of a signature that says the precision of the weights; none for a model without parameters."""
        first = next(iter(self.model.parameters()), None) if isinstance(self.model, Network) else None
        return {} if first is None else {"dtype": str(first.dtype).removeprefix("torch.")}

    @property
    def audits(self) -> Path:
        """The folder for records."""
        beside = self.run.audits if self.run else None
        return beside or choose_audit_folder(self.name)

    def describe(self) -> dict[str, Any]:
        """The part of a record's signature that names the model."""
        return self.run.origin if self.run else {"run": self.audits.name, **self.origin}

    def take_contexts(self, split: str, count: int | None, seed: int) -> Tensor:
        """The first `count` contexts of a split of the run's corpus."""
        if self.run is None:
            raise BadInput(f"{self.name} comes without a corpus: give prompts of your own (--prompts FILE)")
        return self.run.corpus.take_contexts(split, count, seed)

    def take_context(self, split: str, number: int, seed: int) -> Tensor:
        """The context that has this number in an audit, as one row."""
        count = MOST_RANDOM if split == "random" else len(self.take_contexts(split, None, seed))
        if number not in range(count):
            raise BadInput(f"context must be a number from 0 to {count - 1}, the last one of {split}, got {number}")
        return self.take_contexts(split, number + 1, seed)[number:]

    def decode_prefix(self, prefix: Sequence[int]) -> str:
        """The text of a prefix without its padding."""
        has_padding = self.run is not None and not self.run.is_fine_tuned
        return self.tokenizer.decode([token for token in prefix if not (has_padding and token == PAD_ID)])


# options


def add_model_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The model and how it is read; returns the group of options for hf: models."""
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODELS)
    add(
        "--dtype",
        choices=list(DTYPES),
        help="precision of the weights (default: the model's own; bfloat16 and float16 are read as float32 on a CPU "
        "that cannot multiply them)",
    )
    hub = parser.add_argument_group("for hf: models only")
    hub.add_argument(
        "--eos", type=int, nargs="+", metavar="ID", help="the tokens that end a text (default: all the model names)"
    )
    hub.add_argument("--trust-remote-code", action="store_true", help="run code from the model folder")
    return hub


USUAL_LONGEST = f"{MAX_STEPS}, hf: models {MAX_HUB_STEPS}; less if its window is short"


def add_decoding_options(parser: argparse.ArgumentParser, *sources: str, longest: str = USUAL_LONGEST) -> None:
    """What decides a decoding, apart from the decoder; `sources` are those of SOURCES that the command offers."""
    add, hub = parser.add_argument, add_model_options(parser)
    hub.add_argument("--chat", action="store_true", help="put prompts into the chat template")
    hub.add_argument(
        "--prompt-tokens", type=whole_number(1), metavar="N", help="read only the first N tokens of each prompt"
    )
    add("--device", default="auto", help=DEVICE_HELP)
    add(
        "--stop",
        action="append",
        default=[],
        metavar="STRING",
        help="end a completion at this string; may be repeated (default: those of the generation config; '' for none)",
    )
    add(
        "--max-steps",
        type=int,
        metavar="L",
        help=f"longest completion (default: {longest})",
    )
    add("--seed", type=int, default=0, metavar="N", help="decides every draw (default: 0)")
    add("--no-proofs", action="store_true", help="decode loops to the limit; do not prove them infinite")
    add("--contexts", choices=CONTEXTS, help="take contexts from this part of the corpus (default: test)")
    parser.set_defaults(**dict.fromkeys(SOURCES))
    exclusive = parser.add_mutually_exclusive_group()
    for source in sources:
        exclusive.add_argument(f"--{source}", **SOURCES[source])


def add_decoder_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decoder", "--decoders", default="greedy", metavar="DECODER", help="as nucleus:0.9 (default: greedy)"
    )


def parse_decoders(text: str) -> list[Decoder]:
    """Comma-separated specifications. A comma before `name=value` belongs to the specification."""
    return [parse_decoder(spec.strip()) for spec in re.split(r",(?!\s*[a-z]+=)", text) if spec.strip()]


def parse_one_decoder(text: str) -> Decoder:
    decoders = parse_decoders(text)
    if len(decoders) != 1:
        raise BadInput(f"--decoder names one decoder, got {text!r}; `eosin audit` compares several")
    return decoders[0]


# opening


def open_model(name: str, options: argparse.Namespace) -> LoadedModel:
    """The model that a command names. Commands that do not decode lack some of the options."""
    given = {"device": "auto", "stop": [], "chat": False, "prompt_tokens": None, **vars(options)}
    device, dtype = choose_device(given["device"]), DTYPES.get(options.dtype)
    if dtype is torch.float64 and not has_float64(device):
        raise BadInput(f"--dtype float64: device {device.type} has no float64; choose float32, or --device cpu")
    if name.startswith(HUB):
        with announce(f"eosin {options.command}: reading {name}"):
            return open_hub_model(name, given, device, dtype)
    for option in ("eos", "trust_remote_code", "chat", "prompt_tokens"):
        if given[option] not in (None, False):
            raise BadInput(f"--{option.replace('_', '-')} is for {HUB} models, and {name} is none: leave it out")
    if name.startswith(OWN):
        with announce(f"eosin {options.command}: reading {name}"):
            return open_user_model(name, given, device, dtype)
    run = open_run(name)
    return LoadedModel(
        name=name,
        model=run.model.to(device, dtype),
        tokenizer=run.tokenizer,
        encode_prompts=partial(encode_run_prompts, run, options.command),
        stop=parse_stop_strings(given["stop"], run.tokenizer),
        run=run,
    )


def open_hub_model(name: str, given: dict[str, Any], device: torch.device, dtype: torch.dtype | None) -> LoadedModel:
    pretrained = import_hub("loading").Pretrained(name.removeprefix(HUB), given["trust_remote_code"])
    model, tokenizer = pretrained.load(device=device, dtype=dtype, eos_ids=given["eos"] or ())
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        encode_prompts=lambda texts: tokenizer.encode_prompts(texts, given["chat"], given["prompt_tokens"]),
        stop=parse_stop_strings(given["stop"] or model.stop_strings, tokenizer),
        decoders=tuple(import_hub("sampling").list_decoders(model.model.generation_config, model.vocab_size)),
    )


def open_user_model(name: str, given: dict[str, Any], device: torch.device, dtype: torch.dtype | None) -> LoadedModel:
    own = open_own_model(name)
    if not isinstance(own.model, Movable) and (given["device"] != "auto" or dtype is not None):
        raise BadInput(f"{name} has no `to`, as a torch.nn.Module has: leave out --device and --dtype")
    words = Tokens(own.words or NumbersAsWords(), own.model.vocab_size)
    return LoadedModel(
        name=name,
        model=own.model.to(device, dtype) if isinstance(own.model, Movable) else own.model,
        tokenizer=words,
        encode_prompts=words.encode_prompts,
        stop=parse_stop_strings(given["stop"], words),
        origin={"file": str(own.file), "function": own.function},
    )


@dataclass(frozen=True)
class Tokens:
    """Words of the user's own, with the methods of a tokenizer that the commands use."""

    words: Words
    vocab_size: int

    def decode(self, ids: Sequence[int]) -> str:
        return self.words.decode(list(ids))

    def spell(self, token: int) -> str:
        return self.words.decode([token])

    def encode_prompts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        return [encode_text(self.words, text) for text in check_texts(prompts)]


class NumbersAsWords:
    """Token ids with spaces between them, for a model without words."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def parse_stop_strings(strings: Sequence[str], tokenizer: Any) -> StopStrings | None:
    """A single empty string means none."""
    return StopStrings(tuple(strings), tokenizer.decode) if list(strings) not in ([], [""]) else None


def check_texts(prompts: Sequence[Prompt]) -> list[str]:
    """Prompts for a model without a chat template."""
    texts = [each for each in prompts if isinstance(each, str)]
    if len(texts) < len(prompts):
        raise BadInput("this model has no chat template for prompts with `messages`: give `prompt`")
    return texts


def encode_run_prompts(run: Run, command: str, given: Sequence[Prompt]) -> Prefixes:
    """Prompts as contexts of the run. Notes on standard error say what was lost."""
    texts = check_texts(given)
    prompts = run.settings.encode_prompts(run.folder, texts)
    if prompts.unknown:
        sys.stderr.write(
            f"eosin {command}: {prompts.unknown} words are not in the vocabulary; they are read as <unk>\n"
        )
    if prompts.shortened:
        sys.stderr.write(
            f"eosin {command}: {prompts.shortened} of {len(texts)} prompts are longer than a context; "
            f"only their last {run.settings.data.context} tokens are read\n"
        )
    return prompts.contexts


# contexts


def choose_prefixes(loaded: LoadedModel, options: argparse.Namespace, count: int | None) -> Prefixes:
    """The contexts or prompts that the options name; of contexts and of the lines of a file, the first `count`."""
    check_whole("seed", options.seed, 0, 2**64)
    if options.contexts is not None and (options.prompt is not None or options.prompts is not None):
        raise BadInput("--contexts names a part of the corpus; prompts take its place, so leave it out")
    if options.prompt is not None:
        return loaded.encode_prompts([options.prompt])
    if options.prompts is not None:
        return loaded.encode_prompts(read_prompts(options.prompts, count))
    split = options.contexts or "test"
    if options.context is not None:
        return loaded.take_context(split, options.context, options.seed)
    return loaded.take_contexts(split, count, options.seed)


def name_contexts(options: argparse.Namespace) -> str:
    """Where the contexts come from, in a word."""
    if options.prompts is None:
        return options.contexts or "test"
    return re.sub(r"[^\w.+]+", "_", options.prompts.stem) + ("_chat" if options.chat else "")


def choose_max_steps(loaded: LoadedModel, prefixes: Prefixes, options: argparse.Namespace) -> int:
    """The limit that is given, or the usual one that the window leaves. A note on standard error says a lower one."""
    if options.max_steps is not None:
        return options.max_steps
    usual = MAX_HUB_STEPS if loaded.name.startswith(HUB) else MAX_STEPS
    window = window_of(loaded.model)
    left = usual if window is None else window - max(map(len, prefixes)) + 1
    if left < 1:
        return 1  # too much for the window, as decoding will say
    steps = min(usual, left)
    if steps < MAX_STEPS:
        sys.stderr.write(
            f"eosin {options.command}: a completion has at most {steps:,} tokens; --max-steps changes that\n"
        )
    return steps


def create_prover(job: Job, decoder: Decoder, options: argparse.Namespace) -> Prover | None:
    """The prover that an audit of this job has."""
    if options.no_proofs or job.stop is not None:
        return None
    return prover_of(job.model, decoder, is_steady_for(job, [decoder]))
