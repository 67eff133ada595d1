"""Which code and data a process works with: workers that differ in them train what cannot be compared."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sweeplab

# What a person calls each part.
PARTS = {
    "sweeplab": "sweeplab",
    "sources": "sweeplab's sources",
    "torch": "torch",
    "python": "Python",
    "data": "the data's tokens",
}
DIGEST_CHARACTERS = 12


def versions(token_digest: str) -> dict[str, str]:
    """Return what this process works with; sources and data as the start of their digest."""
    return {**code(), "data": token_digest[:DIGEST_CHARACTERS]}


def code() -> dict[str, str]:
    """Return the versions of the code that this process works with; sources as the start of their digest."""
    return {
        "sweeplab": sweeplab.__version__,
        "sources": _sources_digest()[:DIGEST_CHARACTERS],
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def code_versions() -> dict[str, Any]:
    """Return what code this process works with, and the commit that it is of where there is one."""
    from sweeplab.tracking.environment import git_of_code

    return {**code(), "git": git_of_code()}


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Say in which parts two processes differ; a part that one of them does not name is no difference."""
    return [
        f"{words} ({ours[part]} here, {theirs[part]} there)"
        for part, words in PARTS.items()
        if part in ours and part in theirs and ours[part] != theirs[part]
    ]


def machine() -> str:
    """Return what tells this machine from others: containers of one machine have it in common."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()


def _sources_digest() -> str:
    root, digest = Path(sweeplab.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()
