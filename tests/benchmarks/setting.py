"""Provide what benchmarks share: what each prints beside its table, and how they run commands and studies."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
STUDIES = HERE.parents[1] / "studies"


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
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores; Python {platform.python_version()}, {packages}; commit {commit}"


def sweeplab(*arguments):
    """Return what a command prints."""
    command = [sys.executable, "-P", "-m", "sweeplab", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def run_timed(file, lab, on_tick=lambda: None):
    """Run a study and return the seconds from the first claim to the last number shipped."""
    from sweeplab.lab.events import Tick, TrialClaimed
    from sweeplab.study.file.reading import read_study
    from sweeplab.sweep.supervisor import run_study

    started = []

    def listen(event, progress):
        if isinstance(event, TrialClaimed) and not started:
            started.append(time.perf_counter())
        if isinstance(event, Tick):
            on_tick()

    ending = run_study(read_study(file), lab, listen)
    assert ending.status == "complete", ending
    return time.perf_counter() - started[0]


def print_table(headings, rows):
    """Print a Markdown table."""
    for row in (headings, ["---"] * len(headings), *rows):
        print(f"| {' | '.join(row)} |", flush=True)
