"""The command `eosin`: a table of commands. Each reads its options, calls the library and prints the result."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import eosin
from eosin.errors import BadInput
from eosin.python_files import run_python_file

GROUPS = {
    "my model": {
        "doctor": "check a Hugging Face model, and what it was trained on, for reasons why it may not stop",
        "audit": "count how often decoding does not end, by decoder, with 95% intervals",
        "trace": "show the probability and the rank of eos at each step of one decoding, and what removed it",
        "decode": "continue contexts of the corpus, or your own prompts",
        "certify": "say what is guaranteed before decoding: whether it ends, by which theorem and which step",
        "fix": "try what needs no training on your prompts, recommend one, and print the code to paste",
        "report": "make tables, comparisons and a page from the records of audits, without decoding",
    },
    "the paper": {
        "prepare": "make a corpus of contexts and continuations from a text",
        "train": "train a model, or resume a run",
        "reproduce": "make the paper's tables and figures; what is missing is trained and audited first",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
"""Each is a module of eosin.cli with a DESCRIPTION, `add_options` and `run`."""
WITHOUT_PLUGINS = {"doctor", "report", "prepare"}
"""Commands that take neither a model of Eosin nor settings."""
EXAMPLES = """start here:
  eosin audit demo
  eosin COMMAND --help"""


class Parser(argparse.ArgumentParser):
    """An error of usage is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class CommandParser(Parser):
    """Positional arguments may also follow options, as in `eosin certify demo --budget 200 greedy`."""

    is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.is_mixing:  # parse_known_intermixed_args calls this method twice
            return super().parse_known_args(args, namespace)
        self.is_mixing = True
        return self.parse_known_intermixed_args(args, namespace)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. Bad input is one line on standard error and exit code 2."""
    # OpenMP reads these when torch is imported. Its threads spin while they wait for each other, and on a busy machine
    # they take the processor from the very thread they wait for: an audit of 24 seconds took ten minutes. Threads that
    # never spin are woken at every operation, which makes the small steps of small models three times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    arguments = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    command = f" {find_command(arguments)}".rstrip()
    escape_missing_characters()
    try:
        run_command(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # the reader has seen enough, as `head` does; Python's own last flush must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except UnicodeEncodeError as error:
        sys.exit(print_error(command, f"{error.object!r} is not UTF-8: rename it", code=2))
    except ModuleNotFoundError as error:
        sys.exit(print_error(command, f"the package {error.name or error} is missing: pip install eosin", code=2))
    except (BadInput, OSError) as error:
        sys.exit(print_error(command, str(error), code=2))
    except KeyboardInterrupt as interrupt:
        message = "; ".join(["interrupted", *map(str, interrupt.args)])
        sys.exit(print_error(command, message, code=128 + signal.SIGINT))


def run_command(arguments: Sequence[str]) -> None:
    for argument in arguments:
        argument.encode()
    options = parse_options(arguments)
    options.run(options)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command, which workers read too; plugins are run."""
    options = build_parser(arguments).parse_args(arguments)
    for path in options.plugin:
        run_plugin(path)
    options.arguments = list(arguments)
    return options


def run_plugin(path: Path) -> None:
    """Run a Python file that registers rules, decoders, heads or cores."""
    try:
        run_python_file(path, "plugin")
    except BadInput:
        raise
    except Exception as error:  # the file may raise anything
        raise BadInput(f"--plugin {path} fails with {type(error).__name__}: {error}") from error


def escape_missing_characters() -> None:
    """Print characters that the terminal does not have as escapes."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_error(command: str, message: str, code: int) -> int:
    sys.stderr.write(f"eosin{command}: {message}\n")
    return code


def find_command(arguments: Sequence[str]) -> str:
    """The first word that names a command. A later one may be the name of a file."""
    return next((argument for argument in arguments if argument in COMMANDS), "")


def list_commands() -> str:
    groups = [
        "\n".join([f"{group}:", *(f"  {name:10} {summary}" for name, summary in commands.items())])
        for group, commands in GROUPS.items()
    ]
    return "\n\n".join([*groups, EXAMPLES])


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """All commands by name, with the options of the one that is asked for. The others are not imported."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="eosin",
        usage="eosin [--version] COMMAND ...",
        description="Does your language model stop? Measure it, prove it, fix it.",
        epilog=list_commands(),
        formatter_class=layout,
    )
    parser.add_argument("--version", action="version", version=f"eosin {eosin.__version__}")
    subparsers = parser.add_subparsers(
        prog="eosin", dest="command", required=True, help=argparse.SUPPRESS, parser_class=CommandParser
    )
    for name, summary in COMMANDS.items():
        command = subparsers.add_parser(name, formatter_class=layout, allow_abbrev=False)
        if name == find_command(arguments):
            module = import_module(f"eosin.cli.{name}")
            command.description = f"{summary[0].upper()}{summary[1:]}.\n\n{module.DESCRIPTION}"
            command.add_argument("--json", action="store_true", help="print the result as JSON")
            command.set_defaults(run=module.run, plugin=[])
            module.add_options(command)
            if name not in WITHOUT_PLUGINS:
                command.add_argument(
                    "--plugin",
                    action="append",
                    type=Path,
                    metavar="FILE",
                    help="run the code of this Python file first: it may register truncation rules, decoders, heads "
                    "and cores (may be repeated)",
                )
    return parser
