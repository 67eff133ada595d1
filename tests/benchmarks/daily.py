"""Measure the CPU seconds of everyday commands, which other work on the machine hardly changes.

Run: python tests/benchmarks/daily.py LAB [repeats [BEFORE]], on a lab where studies/small.yaml has been run. The
commands take turns, also with those of the source tree BEFORE where it is given; the table has medians.
"""

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
    "doctor",
    "doctor small",
    "generate small --prompt The",
    "report sweep small",
    "report scaling small",
)
HERE = Path(__file__).parents[2]
REPEATS = 5


def measured(command: str, lab: str, tree: Path) -> tuple[float, float]:
    """Return CPU and wall seconds of a command of a source tree."""
    words = command.split() + ([] if command == "--help" else ["--lab", lab])
    environment = os.environ | {"PYTHONPATH": str(tree)}
    before, began = os.times(), time.perf_counter()
    run = [sys.executable, "-m", "sweeplab", *words]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.perf_counter() - began


if __name__ == "__main__":
    lab, repeats = str(Path(sys.argv[1]).absolute()), int((sys.argv[2:] or [REPEATS])[0])
    trees = [HERE, *(Path(each).absolute() for each in sys.argv[3:])]
    taken: dict[str, list[list[tuple[float, float]]]] = {command: [[] for _ in trees] for command in COMMANDS}
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        for _ in range(repeats):
            for command, times in taken.items():
                for tree, own in zip(trees, times, strict=True):
                    own.append(measured(command, lab, tree))
    rows = [
        [
            command.replace(str(STUDY), STUDY.name),
            *(f"{statistics.median(each):.2f}" for own in times for each in zip(*own, strict=True)),
        ]
        for command, times in taken.items()
    ]
    print(setting())
    print_table(["command", "CPU s", "wall s", "before: CPU s", "wall s"][: 1 + 2 * len(trees)], rows)
