"""Which tokens end a text: everything that tokenizer, configurations and chat template name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CONTENT = "xyzzy"
"""A message whose end can be found in what a chat template makes of it."""


def named_endings(tokenizer: Any, config: Any, generation_config: Any) -> dict[str, tuple[int, ...]]:
    """The tokens that each source names as ends."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = {
        "tokenizer": as_ids(getattr(tokenizer, "eos_token_id", None)),
        "config": as_ids(getattr(text_config, "eos_token_id", None)),
        "generation config": as_ids(getattr(generation_config, "eos_token_id", None)),
        "chat template": turn_end(tokenizer),
    }
    return {source: ids for source, ids in found.items() if ids}


def all_endings(named: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({token for ids in named.values() for token in ids}))


def as_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(map(int, value)) if isinstance(value, Iterable) else (int(value),)


def turn_end(tokenizer: Any) -> tuple[int, ...]:
    """The special token that a chat template puts behind an answer."""
    if getattr(tokenizer, "chat_template", None) is None:
        return ()
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": CONTENT}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # a template is a program of somebody else's: it may want other messages, or be broken
        return ()
    _, there, rest = text.rpartition(CONTENT)
    ids = tokenizer.encode(rest, add_special_tokens=False) if there else []
    special = set(getattr(tokenizer, "all_special_ids", ()))
    return tuple(ids[:1]) if ids and ids[0] in special else ()
