"""Provide what every benchmark prints beside its table, and the corpus that benchmarks train on."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent


def setting():
    """Return hardware, versions and commit on one line."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "optuna", "mlflow"))
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores; Python {platform.python_version()}, {packages}; commit {commit}"


def print_table(headings, rows):
    """Print a Markdown table."""
    for row in (headings, ["---"] * len(headings), *rows):
        print(f"| {' | '.join(row)} |", flush=True)
