"""The tokens that end a text, as tokenizer, configurations and chat template name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CONTENT = "xyzzy"
"""A message that can be found again in the output of a chat template."""
USER_TURN = {"role": "user", "content": "hello"}


def find_endings(tokenizer: Any, config: Any, generation_config: Any) -> dict[str, tuple[int, ...]]:
    """The tokens that each source names as the end of a text."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = {
        "tokenizer": to_ids(getattr(tokenizer, "eos_token_id", None)),
        "config": to_ids(getattr(text_config, "eos_token_id", None)),
        "generation config": to_ids(getattr(generation_config, "eos_token_id", None)),
        "chat template": find_turn_end(tokenizer),
    }
    return {source: ids for source, ids in found.items() if ids}


def join_endings(named: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({token for ids in named.values() for token in ids}))


def to_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(map(int, value)) if isinstance(value, Iterable) else (int(value),)


def find_turn_end(tokenizer: Any) -> tuple[int, ...]:
    """The special token that a chat template puts after an answer, at once or when the user goes on."""
    special = {*getattr(tokenizer, "all_special_ids", ()), *list_added_special(tokenizer)}
    ids = encode_after_answer(tokenizer) or encode_after_answer(tokenizer, USER_TURN) or []
    return tuple(ids[:1]) if special.issuperset(ids[:1]) else ()


def list_added_special(tokenizer: Any) -> list[int]:
    """Special tokens of no special name: transformers does not count them among the special ones."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return [int(token) for token, about in added.items() if about.special]


def encode_after_answer(tokenizer: Any, *more: dict[str, str]) -> list[int] | None:
    """The tokens that a chat template puts after an answer, without space; None without a template that works."""
    rest = render_after_answer(tokenizer, *more)
    return None if rest is None else tokenizer.encode(rest.strip(), add_special_tokens=False)


def render_after_answer(tokenizer: Any, *more: dict[str, str]) -> str | None:
    """The text that a chat template puts after an answer, and `more` messages; None without a template that works."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    messages = [USER_TURN, {"role": "assistant", "content": CONTENT}, *more]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # a chat template is a program from elsewhere: it may reject these messages, or be broken
        return None
    _, found, rest = text.rpartition(CONTENT)
    return rest if found else None


def find_turn_text(tokenizer: Any) -> str | None:
    """The text that begins the user's next turn, where a chat template ends an answer with no special token."""
    if find_turn_end(tokenizer):
        return None
    text = (render_after_answer(tokenizer, USER_TURN) or "").partition(USER_TURN["content"])[0].rstrip()
    return text if text.strip() else None
