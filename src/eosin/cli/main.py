"""The command `eosin`: a table of verbs. Each reads its options, calls the library and prints what it made."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

import eosin
from eosin.errors import BadInput

VERBS = {
    "prepare": "make a corpus of contexts and continuations from a text",
    "train": "train a model; the same command goes on with a run that was stopped or killed",
    "decode": "continue contexts of the corpus, or prompts of your own",
    "trace": "what became of eos at every step of one decoding: its rank, and which rule removed it",
    "audit": "how often decoding does not end, by decoder, with intervals",
    "certify": "what is guaranteed before decoding: whether it ends, by which theorem and which step",
    "doctor": "why a Hugging Face model may not stop: checks of its folder and of what it was trained on",
    "reproduce": "the paper's tables and figures: trains and audits what is missing, and makes a page of it",
    "report": "tables and comparisons from the records of audits, without decoding",
}
"""Each is a module of eosin.cli with a DESCRIPTION, `add_options` and `run`."""


class Parser(argparse.ArgumentParser):
    """A wrong command line is one line too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb. Bad input is one line on standard error and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    verb = f" {meant(arguments)}".rstrip()
    escape_letters_that_the_terminal_lacks()
    try:
        for argument in arguments:
            argument.encode()
        options = parser(arguments).parse_args(arguments)
        options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # whoever read this has seen enough, as `head` does; Python's own last flush must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except UnicodeEncodeError as error:
        sys.exit(_said(verb, f"{error.object!r} is not UTF-8: rename it", code=2))
    except ModuleNotFoundError as error:
        sys.exit(_said(verb, f"the package {error.name or error} is missing: pip install eosin installs it", code=2))
    except (BadInput, OSError) as error:
        sys.exit(_said(verb, str(error), code=2))
    except KeyboardInterrupt as interrupt:
        said = "; ".join(["interrupted", *map(str, interrupt.args)])
        sys.exit(_said(verb, said, code=128 + signal.SIGINT))


def escape_letters_that_the_terminal_lacks() -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _said(verb: str, message: str, code: int) -> int:
    sys.stderr.write(f"eosin{verb}: {message}\n")
    return code


def meant(arguments: Sequence[str]) -> str:
    """The verb: the first word that is one. A later one may be the name of a file."""
    return next((argument for argument in arguments if argument in VERBS), "")


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """All verbs by name; the options of the one that is meant. The others need not be imported."""
    whole = Parser(prog="eosin", description="Does your language model stop? Measure it, prove it, fix it.")
    whole.add_argument("--version", action="version", version=f"eosin {eosin.__version__}")
    verbs = whole.add_subparsers(title="verbs", dest="verb", required=True, metavar="VERB")
    for name, summary in VERBS.items():
        verb = verbs.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name == meant(arguments):
            module = import_module(f"eosin.cli.{name}")
            verb.description = f"{summary}\n\n{module.DESCRIPTION}"
            verb.add_argument("--json", action="store_true", help="print the result as JSON")
            verb.set_defaults(run=module.run)
            module.add_options(verb)
    return whole
