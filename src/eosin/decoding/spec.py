"""Decoder specifications: "consistent-nucleus:0.2,temperature=0.7" to a Decoder, and back with `str`.

greedy | ancestral | beam:WIDTH | RULE:VALUE | consistent-RULE:VALUE        RULE is a name in TRUNCATIONS
NAME | NAME:TEXT                                                           NAME is one in DECODERS
,temperature=T after any sampler; ,stop=first after a beam

The names that `generate` of Hugging Face uses are understood too: top_p:0.9 is nucleus:0.9. `str` gives the name here.
"""

from __future__ import annotations

from collections.abc import Callable

from eosin.contracts import Decoder
from eosin.decoding.beam import Beam
from eosin.decoding.samplers import Greedy, Sampler
from eosin.decoding.truncation import TRUNCATIONS, Consistent, parse_number
from eosin.errors import BadInput
from eosin.settings import OWN_PARTS, suggest

CONSISTENT = "consistent-"
BUILT_IN = {None, *TRUNCATIONS.values()}
"""The rules that come with the package, and none."""
DECODERS: dict[str, Callable[[str], Decoder]] = {}
"""Decoders of your own by their names in a specification: what makes one from the text after the colon."""


def parse_decoder(spec: str) -> Decoder:
    """The decoder that a specification names; a ValueError says what is wrong with one that names none."""
    rule, *settings = spec.split(",")
    name, colon, value = rule.partition(":")
    name = resolve_name(name)
    if name not in decoder_names():
        raise BadInput(f"unknown decoder {spec!r}: {suggest(name, decoder_names())}{OWN_PARTS}")
    if name in ("greedy", "ancestral") and colon:
        raise BadInput(f"{name} takes no value, got {value!r} in {spec!r}")
    try:
        return build_decoder(name, value, parse_options(settings))
    except ValueError as error:  # a rule of somebody's own may raise any
        raise BadInput(f"decoder {spec!r}: {error}") from None


def build_decoder(name: str, value: str, options: dict[str, str]) -> Decoder:
    if name in DECODERS:
        check_options(options)
        return DECODERS[name](value)
    if name == "greedy":
        check_options(options)
        return Greedy()
    if name == "beam":
        check_options(options, "stop")
        return Beam(parse_width(value), **options)
    check_options(options, "temperature")
    temperature = parse_number(options.get("temperature", "1"))
    if name == "ancestral":
        return Sampler(None, temperature)
    rule = TRUNCATIONS[name.removeprefix(CONSISTENT)].parse(value)
    return Sampler(Consistent(rule) if name.startswith(CONSISTENT) else rule, temperature)


def is_specified(decoder: Decoder) -> bool:
    """Whether a decoder's specification says all about it. A part that was added may have other code next time."""
    name = str(decoder).partition(":")[0].removeprefix(CONSISTENT)
    try:
        return name not in DECODERS and TRUNCATIONS.get(name) in BUILT_IN and parse_decoder(str(decoder)) == decoder
    except BadInput:
        return False


def decoder_names() -> list[str]:
    """Every name that a specification can begin with, those that were added included."""
    return ["greedy", "ancestral", "beam", *DECODERS, *TRUNCATIONS, *(CONSISTENT + name for name in TRUNCATIONS)]


def resolve_name(name: str) -> str:
    """The name as it is printed: underscores are hyphens, and a rule may have aliases."""
    name = name.replace("_", "-")
    aliases = {alias: rule.name for rule in TRUNCATIONS.values() for alias in rule.aliases}
    inner = name.removeprefix(CONSISTENT)
    return name.removesuffix(inner) + aliases.get(inner, inner)


def parse_options(settings: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if not value:
            raise BadInput(f"options are written key=value, got {setting!r}")
        if key in options:
            raise BadInput(f"{key} is given twice")
        options[key] = value
    return options


def check_options(options: dict[str, str], *known: str) -> None:
    for key in options.keys() - set(known):
        raise BadInput(f"unknown option {key!r}: {suggest(key, known) if known else 'this decoder takes none'}")


def parse_width(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadInput(f"a beam needs a whole number as its width, as in 'beam:4', got {text!r}")
    return int(text)
