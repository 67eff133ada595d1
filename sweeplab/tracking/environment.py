"""The environment of a study: packages, git, machine. It asks metadata and small programs, and imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from sweeplab.train.devices import n_cores

# Variables that affect the bits and speed of CPU and GPU kernels. Named one by one: an environment also holds secrets.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
)
DIFF_BYTES = 2**20
# A repository's configuration can name programs: a study in somebody else's folder must not start them. The pager needs
# no option: git starts it only for a terminal, and its output here goes into a pipe.
_ASKS_ONLY = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "diff.autoRefreshIndex=false"),  # nothing is written either
)
# Never fetch what a partial clone lacks, whatever the repository's configuration allows.
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_OPTIONAL_LOCKS": "0"}


def environment(study_folder: Path | None = None) -> dict[str, Any]:
    """Collect packages, git commits, machine and kernel settings as a dict for JSON.

    `git.code` is the repository of sweeplab's sources, `git.study` that of the study file; either is None outside of
    a repository, without a commit, or without git.
    """
    # Each access to `metadata` reads a file.
    read = [package.metadata for package in distributions()]
    packages = {metadata["Name"]: metadata["Version"] for metadata in read}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
        "git": {"code": git_of_code(), "study": study_folder and git(study_folder)},
        "device": device(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def git(folder: Path) -> dict[str, Any] | None:
    """Return the repository's `commit`, and `dirty`: whether files are changed or untracked (None if unknown)."""
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return None
    status = ("status", "--porcelain", "--ignore-submodules=all")
    changes = _git(folder, *status, variables=_without_filters(folder))
    return {"commit": commit.strip(), "dirty": None if changes is None else bool(changes)}


def changes(study_folder: Path | None) -> dict[str, str]:
    """Return what differs from the last commit in tracked files, as patches `code.diff` and `study.diff`.

    A repository without changes, or with more than DIFF_BYTES of them, has none.
    """
    folders = {"code.diff": _folder_of_code(), "study.diff": study_folder}
    show = (
        "diff",
        "HEAD",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--ignore-submodules=all",
    )
    patches = {}
    for name, folder in folders.items():
        if folder is None:
            continue
        patch = _git(folder, *show, variables=_without_filters(folder))
        if patch and len(patch.encode()) <= DIFF_BYTES:
            patches[name] = patch
    return patches


def device() -> dict[str, Any]:
    """Return the processor, its cores, the memory, and the GPUs that the driver lists."""
    import psutil

    fields = "name,memory.total,driver_version"
    gpus = _output(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]) or ""
    return {
        "cpu": _cpu_name(),
        "n_cores": n_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus.splitlines(),
    }


def git_of_code() -> dict[str, Any] | None:
    """Return `commit` and `dirty` of the repository of sweeplab's sources, or None."""
    source = _folder_of_code()
    return git(source) if source else None


def _folder_of_code() -> Path | None:
    # An installed package may lie in a virtual environment inside of somebody else's repository.
    source = Path(__file__).parent
    if _git(source, "ls-files", "--", Path(__file__).name):
        return source
    return None


def _cpu_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(folder: Path, *command: str, variables: Mapping[str, str] | None = None) -> str | None:
    return _output(
        ["git", "-C", str(folder), *_ASKS_ONLY, *command], _NO_FETCH | dict(variables or {})
    )


def _without_filters(folder: Path) -> dict[str, str]:
    """Turn off every filter in git's configuration, by environment variables.

    Options would not do: they end a filter's name at its first equals sign. A file with a filter then counts as changed
    if git's index is older than the file.
    """
    pattern = r"^filter\..*\.(clean|process|required)$"
    names = (_git(folder, "config", "-z", "--name-only", "--get-regexp", pattern) or "").split(
        "\0"
    )
    first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    variables = {"GIT_CONFIG_COUNT": str(first + len(names))}
    # The last name is empty, and its entry changes nothing.
    for number, name in enumerate(names, first):
        variables |= {
            f"GIT_CONFIG_KEY_{number}": name or "core.fsmonitor",
            f"GIT_CONFIG_VALUE_{number}": "",
        }
    return variables


def _output(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str | None:
    try:
        settings = os.environ | (variables or {})
        done = subprocess.run(
            command, capture_output=True, timeout=10, check=True, env=settings
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
