"""Pages of the site that are not in docs/: the help of every command, and the committed tables of results."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
HELP_GOES_HERE = "<!-- help of every command -->"


def on_files(files: Files, config: Any) -> Files:
    """Add results/*/README.md and their figures."""
    for path in sorted((ROOT / "results").rglob("*")):
        if path.name == "README.md" or path.suffix == ".svg":
            place = str(path.relative_to(ROOT)).replace("README.md", "index.md")
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the help of the commands, and let links to results lead to their pages."""
    if HELP_GOES_HERE in markdown:
        markdown = markdown.replace(HELP_GOES_HERE, format_help_of_all_commands())
    return markdown.replace("](../results/", "](results/").replace("/README.md)", "/index.md)")


def format_help_of_all_commands() -> str:
    from eosin.cli.main import COMMANDS

    os.environ["COLUMNS"] = "100"
    return "\n".join(
        f"## eosin {command}\n\n{summary}\n\n```text\n{read_help(command)}```\n"
        for command, summary in COMMANDS.items()
    )


def read_help(command: str) -> str:
    from eosin.cli.main import main

    text = io.StringIO()
    with redirect_stdout(text):
        try:
            main([command, "--help"])
        except SystemExit as exit:
            if exit.code:
                raise
    return text.getvalue()
