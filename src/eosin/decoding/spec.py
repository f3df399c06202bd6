"""Decoder specifications: "consistent-nucleus:0.2,temperature=0.7" to a Decoder, and back with `str`.

greedy | ancestral | beam:WIDTH | RULE:VALUE | consistent-RULE:VALUE        RULE is a name in TRUNCATIONS
,temperature=T after any sampler; ,stop=first after a beam
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from eosin.contracts import Decoder, Truncation
from eosin.decoding.beam import Beam
from eosin.decoding.samplers import Greedy, Sampler
from eosin.decoding.truncation import TRUNCATIONS, Consistent
from eosin.errors import BadInput

CONSISTENT = "consistent-"
NAMES = ("greedy", "ancestral", "beam", *TRUNCATIONS, *(CONSISTENT + name for name in TRUNCATIONS))


def parse_decoder(spec: str) -> Decoder:
    """The decoder that a specification names; a ValueError says what is wrong with one that names none."""
    rule, *settings = spec.split(",")
    name, colon, value = rule.partition(":")
    options = parse_options(settings, spec)
    if name not in NAMES:
        raise BadInput(f"unknown decoder {spec!r}: {suggestion(name, NAMES)}")
    if name in ("greedy", "ancestral") and colon:
        raise BadInput(f"{name} takes no value, got {value!r} in {spec!r}")
    if name == "greedy":
        return Greedy(**allowed(options, {}, spec))
    if name == "beam":
        return Beam(whole(value, spec), **allowed(options, {"stop": str}, spec))
    return Sampler(parse_truncation(name, value, spec), **allowed(options, {"temperature": float}, spec))


def is_specified(decoder: Decoder) -> bool:
    """Whether its specification makes this very decoder. One with a rule of one's own is made by no specification."""
    try:
        return parse_decoder(str(decoder)) == decoder
    except BadInput:
        return False


def parse_truncation(name: str, value: str, spec: str) -> Truncation | None:
    if name == "ancestral":
        return None
    rule = TRUNCATIONS[name.removeprefix(CONSISTENT)]
    if not value:
        raise BadInput(f"{name} needs a value, as in '{name}:{rule.examples[0]:g}', got {spec!r}")
    truncation = rule(number(value, spec))  # type: ignore[call-arg]
    return Consistent(truncation) if name.startswith(CONSISTENT) else truncation


def parse_options(settings: list[str], spec: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if not value:
            raise BadInput(f"options are written key=value, got {setting!r} in {spec!r}")
        if key in options:
            raise BadInput(f"{key} is given twice in {spec!r}")
        options[key] = value
    return options


def allowed(options: dict[str, str], known: dict[str, type], spec: str) -> dict[str, Any]:
    """The options converted, if the decoder has them all."""
    for key in options.keys() - known.keys():
        hint = suggestion(key, tuple(known)) if known else "this decoder takes none"
        raise BadInput(f"unknown option {key!r} in {spec!r}: {hint}")
    return {key: number(value, spec) if known[key] is float else value for key, value in options.items()}


def number(text: str, spec: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        raise BadInput(f"{text!r} is not a number, in {spec!r}")
    value = float(text)
    return int(value) if value.is_integer() else value


def whole(text: str, spec: str) -> int:
    if not re.fullmatch("[0-9]+", text):
        raise BadInput(f"a beam needs a whole number as its width, as in 'beam:4', got {spec!r}")
    return int(text)


def suggestion(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
