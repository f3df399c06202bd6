"""Why a model may not stop: static checks of a model folder and of its training texts, or of a run.

Each check is a function from `ModelFiles` to findings, listed in CHECKS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig

from eosin.data.prompts import Prompt, parse_messages, parse_text, read_entries
from eosin.errors import BadInput
from eosin.guarantees.certificate import certify
from eosin.hub.endings import encode_after_answer, find_endings, find_turn_end, find_turn_text, join_endings, to_ids
from eosin.hub.loading import NO_TOKENIZER, Pretrained, explain_errors
from eosin.hub.sampling import USUAL_TOP_K
from eosin.training.run import Run

USUAL_NEW_TOKENS = 20
"""What `generate` does where nothing is set."""
GENERATION = "generation_config.json"
NAME_AN_EOS = "set generation_config.eos_token_id to the token that ends the training texts"
HEAVY_PENALTY = 1.2
"""Models that stop well are published with 1.05 and 1.1."""
MOST_TEXTS = 2000
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
class ModelFiles:
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
    def endings_by_source(self) -> dict[str, tuple[int, ...]]:
        return find_endings(self.tokenizer, self.config, self.generation)

    @property
    def endings(self) -> tuple[int, ...]:
        return join_endings(self.endings_by_source)

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
    def pad_id(self) -> int | None:
        return getattr(self.tokenizer, "pad_token_id", None)

    def spell(self, ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ", ".join(map(str, ids))
        known = range(len(self.tokenizer))
        names = (self.tokenizer.convert_ids_to_tokens(token) if token in known else "no token" for token in ids)
        return ", ".join(f"{token} ({name})" for token, name in zip(ids, names, strict=True))


def read_model_files(
    folder: str, trained_on: Path | None = None, max_length: int | None = None, trust_remote_code: bool = False
) -> ModelFiles:
    """Read everything but the weights. A hub id is read from the local cache, or downloaded."""
    model = Pretrained(folder, trust_remote_code)
    with explain_errors(folder):
        base = model.base
        config = AutoConfig.from_pretrained(base.place, **base.options)
    tokenizer = model.open_tokenizer()
    if tokenizer is None and trained_on is not None:
        raise BadInput(f"{folder} has {NO_TOKENIZER}, and {trained_on} cannot be read without them; leave out --train")
    written = Path(base.place) / GENERATION
    try:
        generation = GenerationConfig.from_pretrained(base.place)
    except Exception as error:
        if written.is_file():
            raise BadInput(
                f"{written} cannot be read ({' '.join(str(error).split())}); mend it, or remove it"
            ) from error
        generation = GenerationConfig.from_model_config(config)
    texts = [] if trained_on is None else read_examples(trained_on, tokenizer)
    return ModelFiles(tokenizer, config, generation, texts, max_length)


def read_examples(path: Path, tokenizer: Any) -> list[list[int]]:
    """The first texts of a file, tokenised as by a trainer."""
    examples = read_entries(
        path, "example (JSON lines: `text`, `messages`, or `prompt` and `completion`)", parse_example, MOST_TEXTS
    )
    return [encode_example(each, number, path, tokenizer) for number, each in enumerate(examples, 1)]


def parse_example(table: dict[str, Any]) -> Prompt:
    if "completion" in table:
        return parse_text(table["prompt"] + table["completion"])
    return parse_messages(table["messages"]) if "messages" in table else parse_text(table["text"])


def encode_example(example: Prompt, number: int, path: Path, tokenizer: Any) -> list[int]:
    if isinstance(example, str):
        return tokenizer(example)["input_ids"]
    try:
        return tokenizer.apply_chat_template(example, tokenize=True, return_dict=False)
    except Exception as error:  # a template may raise anything
        raise BadInput(f"the chat template does not accept example {number} of {path}: {error}") from error


# the checks


def find_missing_tokenizer(files: ModelFiles) -> Iterator[Finding]:
    if files.tokenizer is None:
        yield Finding(
            f"there are {NO_TOKENIZER}",
            "which token ends a text is known from the configurations only; transformers may invent a tokenizer "
            "with another eos",
            "put the files of the tokenizer that the model was trained with beside config.json",
            wrong=False,
        )


def find_missing_eos(files: ModelFiles) -> Iterator[Finding]:
    if not files.endings:
        yield Finding(
            "no token ends a text: tokenizer, config and generation config name no eos",
            "decoding can only stop at the length limit",
            "set tokenizer.eos_token and generation_config.eos_token_id to the token that ends your training texts",
        )


def find_disagreeing_eos(files: ModelFiles) -> Iterator[Finding]:
    """The chat template has a check of its own."""
    sources = {name: ids for name, ids in files.endings_by_source.items() if name != "chat template"}
    if len({frozenset(ids) for ids in sources.values()}) > 1:
        said = "; ".join(f"{name}: {files.spell(ids)}" for name, ids in sources.items())
        advised = files.keep_valid(i for ids in sources.values() for i in ids)
        yield Finding(
            f"eos ids disagree ({said})",
            "generate stops at those of the generation config only, and a trainer teaches those of the tokenizer",
            f"set generation_config.eos_token_id = {advised}" if advised else NAME_AN_EOS,
            wrong=not set(advised) <= set(files.stops_at),
        )


def find_unknown_eos(files: ModelFiles) -> Iterator[Finding]:
    left = files.keep_valid(files.endings)
    beyond = [token for token in files.endings if token not in left]
    if beyond:
        sources = [name for name, ids in files.endings_by_source.items() if set(ids) & set(beyond)]
        size = "" if files.vocab_size is None else f", which has {files.vocab_size:,}"
        yield Finding(
            f"eos {', '.join(map(str, beyond))} ({', '.join(sources)}) is no token of the model{size}",
            "the model can never stop by it" + ("" if left else ", and no other token is named that ends a text"),
            f"remove it; these are tokens of the model: {left}" if left else NAME_AN_EOS,
        )


def find_unlisted_turn_end(files: ModelFiles) -> Iterator[Finding]:
    ends = find_turn_end(files.tokenizer)
    if files.keep_valid(ends) and not set(ends) & set(files.stops_at):
        yield Finding(
            f"the chat template ends a turn with {files.spell(ends)}, which is not among the eos ids of generate",
            "the model writes the end of its turn and goes on",
            f"add {ends[0]} to generation_config.eos_token_id",
        )


def find_open_turn(files: ModelFiles) -> Iterator[Finding]:
    if encode_after_answer(files.tokenizer) is not None and not find_turn_end(files.tokenizer):
        text = find_turn_text(files.tokenizer)
        hint = f", or stop at what begins the next turn: stop_strings=[{text!r}]" if text else ""
        yield Finding(
            "the chat template writes no special token after an answer",
            "a model that is trained on such texts never sees an answer end",
            f"end answers with eos_token in the template{hint}",
        )


def find_padding_as_eos(files: ModelFiles) -> Iterator[Finding]:
    """Wrong only if a training set shows harm: collators that mask by the attention mask do none."""
    if files.pad_id is None or files.pad_id not in files.endings:
        return
    masked = sum(files.pad_id in ids[-2:] for ids in files.examples)
    seen = f"; {masked:,} of {len(files.examples):,} examples end with it" if masked else ""
    yield Finding(
        f"the padding token is an eos: {files.spell([files.pad_id])}{seen}",
        "a collator that masks padding (DataCollatorForLanguageModeling) masks this eos too, and it is never trained",
        "if you fine-tune, give the tokenizer a padding token of its own, or build labels from the attention mask",
        wrong=masked > 0,
    )


def find_untrained_eos(files: ModelFiles) -> Iterator[Finding]:
    if not files.examples:
        return
    cut = [ids[: files.max_length] for ids in files.examples]
    taught = sum(any(i in files.endings and i != files.pad_id for i in ids[-2:]) for ids in cut)
    share = taught / len(cut)
    if share < 1:
        yield Finding(
            f"of {len(cut):,} examples {taught:,} ({share:.0%}) end with an eos whose label is trained",
            "a model learns to stop from these labels only",
            "append tokenizer.eos_token to every text, and keep it out of what the collator masks",
            wrong=share < 0.5,
        )


def find_truncated_eos(files: ModelFiles) -> Iterator[Finding]:
    limit = files.max_length
    long = sum(len(ids) > limit for ids in files.examples) if limit else 0
    if long:
        yield Finding(
            f"{long:,} of {len(files.examples):,} examples are longer than {limit:,} tokens and lose their eos",
            "what is cut off teaches the model to go on",
            "raise max_length, or leave long examples out",
            wrong=long > 0.05 * len(files.examples),
        )


def find_penalised_eos(files: ModelFiles) -> Iterator[Finding]:
    penalty = files.generation.repetition_penalty
    if penalty and penalty > 1:
        yield Finding(
            f"repetition_penalty is {penalty}",
            "it lowers eos too, as soon as the prompt contains it: chat prompts do",
            "set it to 1.0, or use no_repeat_ngram_size or a penalty that leaves eos out",
            wrong=penalty >= HEAVY_PENALTY,
        )


def find_banned_eos(files: ModelFiles) -> Iterator[Finding]:
    generation = files.generation
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
    if banned & set(files.endings):
        yield Finding(
            f"bad_words_ids or suppress_tokens ban {files.spell(sorted(banned & set(files.endings)))}",
            "decoding can only stop at the length limit",
            "take the eos out of them",
        )


def find_incomplete_sampling(files: ModelFiles) -> Iterator[Finding]:
    generation = files.generation
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


def find_forced_eos(files: ModelFiles) -> Iterator[Finding]:
    if getattr(files.generation, "forced_eos_token_id", None) is not None:
        yield Finding(
            "forced_eos_token_id is set",
            "an eos is written at the length limit, so outputs look as if they had ended",
            "unset it when you measure whether the model stops",
            wrong=False,
        )


def find_longest_output(files: ModelFiles) -> Iterator[Finding]:
    generation = files.generation
    positions = getattr(files.config.get_text_config(), "max_position_embeddings", None)
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


CHECKS: tuple[Callable[[ModelFiles], Iterator[Finding]], ...] = (
    find_missing_tokenizer,
    find_missing_eos,
    find_disagreeing_eos,
    find_unknown_eos,
    find_unlisted_turn_end,
    find_open_turn,
    find_padding_as_eos,
    find_untrained_eos,
    find_truncated_eos,
    find_penalised_eos,
    find_banned_eos,
    find_incomplete_sampling,
    find_forced_eos,
    find_longest_output,
)


def examine(files: ModelFiles) -> list[Finding]:
    """All findings, wrong ones first."""
    found = [finding for check in CHECKS for finding in run_check(check, files)]
    return sorted(found, key=lambda finding: not finding.wrong)


def examine_run(run: Run) -> list[Finding]:
    """What there is to say about a run of `eosin train`, whose parts cannot disagree."""
    (eos, *_), promise = run.model.eos_ids, certify(run.model, "greedy")
    verdict = f"ends by step {promise.ends_by:,}" if promise.ends_by else f"may not end ({promise.theorem})"
    return [
        Finding(
            f"eos is {eos} ({run.tokenizer.spell(eos)}): every training text ended with it, and decoding stops at it",
            "a model of `eosin train` has one tokenizer and one configuration",
            "nothing",
            wrong=False,
        ),
        Finding(
            f"greedy decoding {verdict}",
            promise.explanation[0],
            "eosin audit counts how often it does not end; a self-terminating head or a floor ends it",
            wrong=False,
        ),
    ]


def run_check(check: Callable[[ModelFiles], Iterator[Finding]], files: ModelFiles) -> list[Finding]:
    """The findings of a check. If it fails, that is a finding too."""
    try:
        return list(check(files))
    except Exception as error:  # configurations hold arbitrary values
        said = " ".join(str(error).split())
        return [
            Finding(
                f"the check {check.__name__} failed: {type(error).__name__}: {said}",
                "a value in the configuration has another type than transformers expects",
                "correct it in config.json, generation_config.json or tokenizer_config.json",
            )
        ]
