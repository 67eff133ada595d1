"""Checkpoints that a kill never leaves broken: safetensors beside a JSON that names it and holds its hash.

The tensors are written under a name of their own, then the JSON is put in place by one rename: whoever reads
finds the old pair or the new one. The hash tells a damaged file from a good one, which loading would not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from sweeplab.files import write_whole
from sweeplab.train.member import Snapshot


class DamagedCheckpoint(Exception):  # noqa: N818 - a state of a file
    """Say that a checkpoint's tensors are missing or are not the ones that were written."""


def write_checkpoint(
    folder: Path, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write `<name>.json` with `facts` and the tensors beside it, in place of an earlier pair."""
    folder.mkdir(parents=True, exist_ok=True)
    content = save({key: tensor.contiguous() for key, tensor in tensors.items()})
    digest = hashlib.sha256(content).hexdigest()
    tensor_file = f"{name}-{digest[:12]}.safetensors"
    write_whole(folder / tensor_file, content)
    description = {"tensors": tensor_file, "sha256": digest, **facts}
    write_whole(folder / f"{name}.json", json.dumps(description, indent=1).encode())
    for old in folder.glob(f"{name}-*.safetensors*"):  # a killed write's temporary file among them
        if old.name != tensor_file:
            old.unlink()


def read_checkpoint(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a pair back as tensors and facts.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        DamagedCheckpoint: the tensors are not those that were written.
    """
    facts = json.loads((folder / f"{name}.json").read_bytes())
    path = folder / facts.pop("tensors")
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != facts.pop("sha256"):
        raise DamagedCheckpoint(f"{path} is not what was written there: its hash differs")
    return load(content), facts


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write what a run needs to go on, with what its bits depend on: threads and the torch that made them."""
    facts = {"numbers": snapshot.numbers, "threads": torch.get_num_threads(), "torch": torch.__version__}
    write_checkpoint(folder, "state", snapshot.rows, facts)


def read_snapshot(folder: Path) -> Snapshot | None:
    """Read a run's snapshot; None when there is none, or none that can be trusted."""
    try:
        rows, facts = read_checkpoint(folder, "state")
    except (FileNotFoundError, DamagedCheckpoint):
        return None
    return Snapshot(rows, facts["numbers"])


def remove_snapshot(folder: Path) -> None:
    """Remove a run's snapshot once the run has ended."""
    for path in (folder / "state.json", *folder.glob("state-*.safetensors*")):
        path.unlink(missing_ok=True)
