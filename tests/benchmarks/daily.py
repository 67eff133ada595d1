"""What the commands cost that a person types all day: CPU seconds, which other work on the machine hardly changes.

Run: python tests/benchmarks/daily.py LAB [repeats], on a lab where studies/small.yaml has been run. The commands take
turns; the table has medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.setting import print_table, setting

STUDY = Path(__file__).parents[2] / "studies" / "small.yaml"
COMMANDS = (
    "--help",
    "list",
    f"study plan {STUDY}",
    "show small",
    "show small --trial 0 --cell n_layer=4,n_embd=64",
    "best small",
    "best small --yaml",
    "logs small",
    "export small",
    "diff small small",
)
REPEATS = 5


def measured(command: str, lab: str) -> tuple[float, float]:
    """Return CPU and wall seconds of a command."""
    words = command.split() + ([] if command == "--help" else ["--lab", lab])
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "sweeplab", *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.perf_counter() - began


if __name__ == "__main__":
    lab, repeats = str(Path(sys.argv[1]).absolute()), int((sys.argv[2:] or [REPEATS])[0])
    taken: dict[str, list[tuple[float, float]]] = {command: [] for command in COMMANDS}
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        for _ in range(repeats):
            for command, times in taken.items():
                times.append(measured(command, lab))
    rows = [
        [
            command.replace(str(STUDY), STUDY.name),
            *(f"{statistics.median(each):.2f}" for each in zip(*times, strict=True)),
        ]
        for command, times in taken.items()
    ]
    print(setting())
    print_table(["command", "CPU s", "wall s"], rows)
