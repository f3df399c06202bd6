"""eosin doctor"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from eosin.cli.terminal import printable
from eosin.errors import BadInput

if TYPE_CHECKING:
    from eosin.hub.doctor import Finding

DESCRIPTION = """MODEL is the folder of a Hugging Face model, a .gguf file or a hub id. No weights are read: tokenizer,
configurations and chat template are compared, and with --train what the model was trained on. Each finding is what is
so, why it matters and what to do about it. The exit code is 1 when something is wrong.

examples:
  eosin doctor my-model/
  eosin doctor my-model/ --train train.jsonl --max-length 2048
  eosin doctor HuggingFaceTB/SmolLM2-135M-Instruct --json"""


def add_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", metavar="MODEL", help="a model folder, a .gguf file or a hub id")
    verb.add_argument(
        "--train", type=Path, metavar="FILE", help="texts, one a line, or JSON lines with `text` or `messages`"
    )
    verb.add_argument("--max-length", type=int, metavar="N", help="tokens to which training cuts its examples")
    verb.add_argument("--trust-remote-code", action="store_true", help="run code that the model folder contains")


def run(options: argparse.Namespace) -> None:
    if options.max_length is not None and options.max_length < 1:
        raise BadInput(f"--max-length must be at least 1, got {options.max_length}")
    try:
        from eosin.hub.doctor import examine, open_patient
    except ImportError as error:
        raise BadInput(f"this needs transformers ({error}): pip install 'eosin[hub]'") from error
    if options.train is not None and not options.train.is_file():
        raise BadInput(f"there is no file {options.train}")
    name = options.model.removeprefix("hf:")
    found = examine(open_patient(name, options.train, options.max_length, options.trust_remote_code))
    print(json.dumps({"findings": [asdict(each) for each in found]}) if options.json else described(found))
    if any(finding.wrong for finding in found):
        sys.exit(1)


def described(found: list[Finding]) -> str:
    parts = []
    for each in found:
        mark = "WRONG" if each.wrong else "note"
        parts.append(f"{mark}: {printable(each.what)}\n  why: {each.why}\n  fix: {printable(each.fix)}")
    wrong = sum(each.wrong for each in found)
    return "\n\n".join([*parts, f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong"])
