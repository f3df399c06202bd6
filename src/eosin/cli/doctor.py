"""eosin doctor"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eosin.cli.numbers import whole_number
from eosin.cli.terminal import escape_for_terminal
from eosin.errors import BadInput
from eosin.loading import find_run, import_hub
from eosin.storage.files import HUB

if TYPE_CHECKING:
    from eosin.hub.doctor import Finding

DESCRIPTION = """MODEL is the folder of a Hugging Face model or adapter, a .gguf file or a hub id; or a run. The command
compares the tokenizer, the configurations and the chat template, and with --train the training texts. It does not read
the weights of models of Hugging Face.
A finding says what is the case, why it matters and what to do. The exit code is 1 if something is wrong.

examples:
  eosin doctor my-model/
  eosin doctor my-model/ --train train.jsonl --max-length 2048
  eosin doctor HuggingFaceTB/SmolLM2-135M-Instruct --json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model folder, a .gguf file or a hub id")
    add("--train", type=Path, metavar="FILE", help="texts, one a line, or JSON lines with `text` or `messages`")
    add("--max-length", type=whole_number(1), metavar="N", help="tokens to which training cuts its examples")
    add("--trust-remote-code", action="store_true", help="run code that the model folder contains")


def run(options: argparse.Namespace) -> None:
    doctor = import_hub("doctor")
    if options.train is not None and not options.train.is_file():
        raise BadInput(f"there is no file {options.train}")
    findings = find_faults(doctor, options)
    print(json.dumps({"findings": [asdict(each) for each in findings]}) if options.json else format_findings(findings))
    if any(finding.wrong for finding in findings):
        sys.exit(1)


def find_faults(doctor: Any, options: argparse.Namespace) -> list[Finding]:
    run = find_run(options.model)
    if run is not None and not run.is_fine_tuned:
        if options.train is not None:
            raise BadInput(f"--train is for models of Hugging Face, and {options.model} is a trained run: leave it out")
        return doctor.examine_run(run)
    name = str(run.folder / import_hub("tuning").EXPORT) if run else options.model.removeprefix(HUB)
    return doctor.examine(doctor.read_model_files(name, options.train, options.max_length, options.trust_remote_code))


def format_findings(findings: list[Finding]) -> str:
    parts = []
    for each in findings:
        mark = "WRONG" if each.wrong else "note"
        parts.append(
            f"{mark}: {escape_for_terminal(each.what)}\n  why: {each.why}\n  fix: {escape_for_terminal(each.fix)}"
        )
    wrong = sum(each.wrong for each in findings)
    return "\n\n".join([*parts, f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong"])
