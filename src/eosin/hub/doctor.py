"""Why a model may not stop: static checks of a model folder and of its training texts.

Each check is a function from a `Patient` to findings, listed in CHECKS.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig

from eosin.errors import BadInput
from eosin.hub.endings import find_endings, find_turn_end, join_endings, to_ids
from eosin.hub.loading import NO_TOKENIZER, explain_errors, locate, open_tokenizer

USUAL_TOP_K, USUAL_NEW_TOKENS = 50, 20
"""What `generate` does where nothing is set."""
GENERATION = "generation_config.json"
NAME_AN_EOS = "set generation_config.eos_token_id to the token that ends the training texts"
MOST_EXAMPLES = 2000
"""Examples of a training set that are read."""


@dataclass(frozen=True)
class Finding:
    """A fact, why it matters, and what to do about it."""

    what: str
    why: str
    fix: str
    wrong: bool = True
    """False for a note: worth knowing, but not wrong."""


@dataclass(frozen=True)
class Patient:
    """A model folder without its weights, and training texts."""

    tokenizer: Any
    """None if the model has no tokenizer files."""
    config: Any
    generation: Any
    examples: Sequence[list[int]] = ()
    """Token ids, as training sees them."""
    max_length: int | None = None
    """The length to which training cuts them."""

    @property
    def named(self) -> dict[str, tuple[int, ...]]:
        return find_endings(self.tokenizer, self.config, self.generation)

    @property
    def endings(self) -> tuple[int, ...]:
        return join_endings(self.named)

    @property
    def stops_at(self) -> tuple[int, ...]:
        """The tokens at which `generate` stops."""
        return to_ids(self.generation.eos_token_id) or to_ids(self.config.get_text_config().eos_token_id)

    @property
    def vocab_size(self) -> int | None:
        return getattr(self.config.get_text_config(), "vocab_size", None)

    def keep_valid(self, ids: Iterable[int]) -> list[int]:
        """The tokens that the model has, sorted."""
        end = math.inf if self.vocab_size is None else self.vocab_size
        return sorted({token for token in ids if 0 <= token < end})

    @property
    def padding(self) -> int | None:
        return getattr(self.tokenizer, "pad_token_id", None)

    def spell(self, ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ", ".join(map(str, ids))
        known = range(len(self.tokenizer))
        names = (self.tokenizer.convert_ids_to_tokens(token) if token in known else "no token" for token in ids)
        return ", ".join(f"{token} ({name})" for token, name in zip(ids, names, strict=True))


def open_patient(
    folder: str, trained_on: Path | None = None, max_length: int | None = None, trust_remote_code: bool = False
) -> Patient:
    """Read what the folder has. A hub id is read from the local cache, or downloaded."""
    name, more = locate(folder, trust_remote_code)
    with explain_errors(folder):
        config = AutoConfig.from_pretrained(name, **more)
    tokenizer = open_tokenizer(folder, trust_remote_code)
    if tokenizer is None and trained_on is not None:
        raise BadInput(f"{folder} has {NO_TOKENIZER}, and {trained_on} cannot be read without; leave out --train")
    written = Path(name) / GENERATION
    try:
        generation = GenerationConfig.from_pretrained(name)
    except Exception as error:
        if written.is_file():
            raise BadInput(
                f"{written} cannot be read ({' '.join(str(error).split())}); mend it, or remove it"
            ) from error
        generation = GenerationConfig.from_model_config(config)
    texts = [] if trained_on is None else read_examples(trained_on, tokenizer)
    return Patient(tokenizer, config, generation, texts, max_length)


def read_examples(path: Path, tokenizer: Any) -> list[list[int]]:
    """Read texts, or JSON lines with `text` or `messages`, tokenised as by a trainer."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()][:MOST_EXAMPLES]
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error.reason}; convert it first") from error
    if not lines:
        raise BadInput(f"{path} holds no example")
    return [encode_example(line, number, path, tokenizer) for number, line in enumerate(lines, 1)]


def encode_example(line: str, number: int, path: Path, tokenizer: Any) -> list[int]:
    if path.suffix not in (".json", ".jsonl"):
        return tokenizer(line)["input_ids"]
    try:
        table = json.loads(line)
        if "messages" in table:
            return tokenizer.apply_chat_template(table["messages"], tokenize=True, return_dict=False)
        return tokenizer(str(table["text"]))["input_ids"]
    except Exception as error:  # a template may raise anything
        raise BadInput(f"line {number} of {path} is no example with `text` or `messages`: {error}") from error


# the checks


def no_tokenizer(patient: Patient) -> Iterator[Finding]:
    if patient.tokenizer is None:
        yield Finding(
            f"there are {NO_TOKENIZER}",
            "which token ends a text is known from the configurations only; transformers may invent a tokenizer "
            "with another eos",
            "put the files of the tokenizer that the model was trained with beside config.json",
            wrong=False,
        )


def no_eos(patient: Patient) -> Iterator[Finding]:
    if not patient.endings:
        yield Finding(
            "no token ends a text: tokenizer, config and generation config name no eos",
            "decoding can only stop at the length limit",
            "set tokenizer.eos_token and generation_config.eos_token_id to the token that ends your training texts",
        )


def disagreeing_eos(patient: Patient) -> Iterator[Finding]:
    """The chat template has a check of its own."""
    sources = {name: ids for name, ids in patient.named.items() if name != "chat template"}
    if len({frozenset(ids) for ids in sources.values()}) > 1:
        said = "; ".join(f"{name}: {patient.spell(ids)}" for name, ids in sources.items())
        advised = patient.keep_valid(i for ids in sources.values() for i in ids)
        yield Finding(
            f"eos ids disagree ({said})",
            "generate stops at those of the generation config only, and a trainer teaches those of the tokenizer",
            f"set generation_config.eos_token_id = {advised}" if advised else NAME_AN_EOS,
            wrong=not set(advised) <= set(patient.stops_at),
        )


def unknown_eos(patient: Patient) -> Iterator[Finding]:
    left = patient.keep_valid(patient.endings)
    beyond = [token for token in patient.endings if token not in left]
    if beyond:
        sources = [name for name, ids in patient.named.items() if set(ids) & set(beyond)]
        size = "" if patient.vocab_size is None else f", which has {patient.vocab_size:,}"
        yield Finding(
            f"eos {', '.join(map(str, beyond))} ({', '.join(sources)}) is no token of the model{size}",
            "the model can never stop by it" + ("" if left else ", and no other token is named that ends a text"),
            f"remove it; these are tokens of the model: {left}" if left else NAME_AN_EOS,
        )


def turn_end_is_no_eos(patient: Patient) -> Iterator[Finding]:
    ends = find_turn_end(patient.tokenizer)
    if patient.keep_valid(ends) and not set(ends) & set(patient.stops_at):
        yield Finding(
            f"the chat template ends a turn with {patient.spell(ends)}, which is not among the eos ids of generate",
            "the model writes the end of its turn and goes on",
            f"add {ends[0]} to generation_config.eos_token_id",
        )


def padding_is_eos(patient: Patient) -> Iterator[Finding]:
    if patient.padding is not None and patient.padding in patient.endings:
        yield Finding(
            f"the padding token is an eos: {patient.spell([patient.padding])}",
            "a collator that masks padding (DataCollatorForLanguageModeling) masks every eos too: none is ever trained",
            "give the tokenizer a padding token of its own, or build labels from the attention mask",
        )


def untrained_eos(patient: Patient) -> Iterator[Finding]:
    if not patient.examples:
        return
    cut = [ids[: patient.max_length] for ids in patient.examples]
    taught = sum(any(i in patient.endings and i != patient.padding for i in ids[-2:]) for ids in cut)
    share = taught / len(cut)
    if share < 1:
        yield Finding(
            f"of {len(cut):,} examples {taught:,} ({share:.0%}) end with an eos whose label is trained",
            "a model learns to stop from these labels only",
            "append tokenizer.eos_token to every text, and keep it out of what the collator masks",
            wrong=share < 0.5,
        )


def truncated_eos(patient: Patient) -> Iterator[Finding]:
    limit = patient.max_length
    long = sum(len(ids) > limit for ids in patient.examples) if limit else 0
    if long:
        yield Finding(
            f"{long:,} of {len(patient.examples):,} examples are longer than {limit:,} tokens and lose their eos",
            "what is cut off teaches the model to go on",
            "raise max_length, or leave long examples out",
            wrong=long > 0.05 * len(patient.examples),
        )


def penalised_eos(patient: Patient) -> Iterator[Finding]:
    penalty = patient.generation.repetition_penalty
    if penalty and penalty > 1:
        yield Finding(
            f"repetition_penalty is {penalty}",
            "it lowers eos too, as soon as the prompt contains it: chat prompts do",
            "set it to 1.0, or use no_repeat_ngram_size or a penalty that leaves eos out",
        )


def banned_eos(patient: Patient) -> Iterator[Finding]:
    generation = patient.generation
    for name in ("min_new_tokens", "min_length"):
        value = getattr(generation, name, None)
        if value:
            yield Finding(
                f"{name} is {value}",
                "eos is forbidden until then; a model that wanted to stop earlier may have fallen into a loop",
                f"set {name} to 0 unless you need it",
                wrong=value > 32,
            )
    banned = {ids[0] for ids in generation.bad_words_ids or () if len(ids) == 1} | set(generation.suppress_tokens or ())
    if banned & set(patient.endings):
        yield Finding(
            f"bad_words_ids or suppress_tokens ban {patient.spell(sorted(banned & set(patient.endings)))}",
            "decoding can only stop at the length limit",
            "take the eos out of them",
        )


def incomplete_sampling(patient: Patient) -> Iterator[Finding]:
    generation = patient.generation
    top_k = USUAL_TOP_K if generation.top_k is None else generation.top_k
    names = ("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
    cuts = [f"{name}={value}" for name in names if (value := getattr(generation, name, None)) not in (None, 0.0, 1.0)]
    cuts = [*([f"top_k={top_k}"] if top_k else []), *cuts]
    if cuts:
        when = "sampling is" if generation.do_sample else "do_sample=True would be"
        yield Finding(
            f"{when} truncated ({', '.join(cuts)}{'; top_k is 50 by default' if top_k == USUAL_TOP_K else ''})",
            "each of these can drop eos at every step, and then decoding never ends (Theorem 3.4 of the paper)",
            "model.generate(..., custom_generate=eosin.hub.consistent) keeps eos in all of them",
            wrong=False,
        )


def forced_eos(patient: Patient) -> Iterator[Finding]:
    if getattr(patient.generation, "forced_eos_token_id", None) is not None:
        yield Finding(
            "forced_eos_token_id is set",
            "an eos is written at the length limit, so outputs look as if they had ended",
            "unset it when you measure whether the model stops",
            wrong=False,
        )


def longest_output(patient: Patient) -> Iterator[Finding]:
    generation = patient.generation
    positions = getattr(patient.config.get_text_config(), "max_position_embeddings", None)
    if generation.max_new_tokens:
        said = f"{generation.max_new_tokens:,} new tokens (max_new_tokens)"
    elif generation.max_length:
        said = f"{generation.max_length:,} tokens with the prompt (max_length)"
    else:
        said = f"{USUAL_NEW_TOKENS} new tokens, the default of generate"
    more = f"; the model has {positions:,} positions" if positions else ""
    yield Finding(
        f"the longest output that these settings allow: {said}{more}",
        "that is what a decoding that does not end costs",
        "set max_new_tokens, or a TerminationFloor with a budget",
        wrong=False,
    )


CHECKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    no_tokenizer,
    no_eos,
    disagreeing_eos,
    unknown_eos,
    turn_end_is_no_eos,
    padding_is_eos,
    untrained_eos,
    truncated_eos,
    penalised_eos,
    banned_eos,
    incomplete_sampling,
    forced_eos,
    longest_output,
)


def examine(patient: Patient) -> list[Finding]:
    """All findings, wrong ones first."""
    found = [finding for check in CHECKS for finding in run_check(check, patient)]
    return sorted(found, key=lambda finding: not finding.wrong)


def run_check(check: Callable[[Patient], Iterator[Finding]], patient: Patient) -> list[Finding]:
    """The findings of a check. If it fails, that is a finding too."""
    try:
        return list(check(patient))
    except Exception as error:  # configurations hold arbitrary values
        said = " ".join(str(error).split())
        return [
            Finding(
                f"the check {check.__name__} failed: {type(error).__name__}: {said}",
                "a value in the configuration has another type than transformers expects",
                "correct it in config.json, generation_config.json or tokenizer_config.json",
            )
        ]
