"""Tensor files: safetensors with a digest of their contents, so that an altered or truncated file is refused.

Reading such a file runs no code from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from eosin.errors import BadInput
from eosin.storage.files import write_atomically


def save_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write tensors, and beside them notes: anything that JSON can hold."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    digest = hash_tensors(tensors, json.dumps(notes, sort_keys=True))
    # a single entry, because the order of several differs between processes
    metadata = {"eosin": json.dumps({"notes": notes, "digest": digest}, sort_keys=True)}
    write_atomically(path, lambda partial: partial.write_bytes(safetensors.torch.save(tensors, metadata)))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and notes that `save_tensors` wrote, and check their digest."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            content = json.loads((file.metadata() or {}).get("eosin", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
    except (safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} is damaged and cannot be read ({error}); put back a good copy of it") from error
    notes = content.get("notes", {})
    if content.get("digest") != hash_tensors(tensors, json.dumps(notes, sort_keys=True)):
        raise BadInput(f"{path} has been altered since it was written: its digest differs; put back a good copy")
    return tensors, notes


def hash_tensors(tensors: Mapping[str, Tensor], notes: str = "") -> str:
    """SHA-256 of names, types, shapes and every byte."""
    digest = hashlib.sha256(notes.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
