"""Compare the time that a study says it still takes with the time that it took.

Run: python tests/benchmarks/eta.py [rounds]. Studies of several kinds run in a fresh lab each; the estimate of the
plan and those of the run are compared with the truth, the end of the last trial.
"""

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from benchmarks.setting import print_table, setting

import sweeplab
from sweeplab.lab.events import Event, TrialEnded
from sweeplab.sweep.progress import StudyProgress, TimeInterval

COMMON = """
data: {corpus: python-docs, tokenizer: char}
search: {learning_rate: {min: 1e-4, max: 1e-2, log: true}}
"""
STUDIES = {
    "tpe, no pruner, one cell": """
fixed: {n_layer: 2, n_embd: 64, n_head: 4, block_size: 32, batch_size: 8, max_iters: 200, eval_interval: 25,
  compile: false}
sampler: {type: tpe}
pruner: {type: none}
budget: {trials_per_cell: 24}
""",
    "asha, two cells": """
fixed: {n_layer: 2, n_head: 4, block_size: 32, batch_size: 8, max_iters: 400, eval_interval: 20, compile: false}
grid: {n_embd: [32, 64]}
sampler: {type: random}
pruner: {type: asha}
budget: {trials_per_cell: 24}
""",
    "four unlike cells, stacks": """
fixed: {n_head: 4, block_size: 32, batch_size: 8, max_iters: 200, eval_interval: 25, compile: false}
grid: {n_embd: [16, 96], n_layer: [1, 3]}
sampler: {type: random}
pruner: {type: none}
budget: {trials_per_cell: 8}
""",
}
MARKS = (0.1, 0.25, 0.5, 0.75)


def rounds_of(text: str, folder: Path) -> dict[str, tuple[float, bool]]:
    """Run a study; return at each mark the likeliest estimate over the truth, and whether the truth was inside."""
    folder.mkdir()
    (folder / "eta.yaml").write_text(f"name: eta\n{COMMON}{text}")
    study = sweeplab.load_study(folder / "eta.yaml", lab=folder / "lab")
    ahead = study.look_ahead()
    said: list[tuple[float, TimeInterval]] = []
    began, ended = time.time(), 0.0

    def listen(event: Event, progress: StudyProgress) -> None:
        nonlocal ended
        said.append((time.time(), progress.left))
        if isinstance(event, TrialEnded):
            ended = time.time()

    assert study.run(listen).status == "complete"
    if os.environ.get("ETA_TRACE"):
        for at, left in said[:: max(1, len(said) // 40)]:
            print(
                f"  {at - began:6.1f} of {ended - began:.1f}: {left.in_words} {left.likely:.1f} {ended - at:.1f}"
            )
    found = {
        "plan": (ahead.seconds / (ended - began), ahead.low_seconds <= ended - began <= ahead.high_seconds)
    }
    for mark in MARKS:
        at, left = next(each for each in said if each[0] >= began + mark * (ended - began))
        found[f"{mark:.0%}"] = left.likely / (ended - at), left.low <= ended - at <= left.high
    return found


def main() -> None:
    """Print the ratios' medians and ranges, and how often the truth was in the interval."""
    n_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SWEEPLAB_CACHE"] = f"{folder}/cache"
        for number in range(n_rounds):
            for index, (name, text) in enumerate(STUDIES.items()):
                for mark, result in rounds_of(text, Path(folder) / f"{number}-{index}").items():
                    found[name, mark].append(result)
    print(setting(), f"load {os.getloadavg()[0]:.1f}", sep="; ")
    marks = ["plan", *(f"{mark:.0%}" for mark in MARKS)]
    rows = []
    for name in STUDIES:
        of = [[ratio for ratio, _ in found[name, mark]] for mark in marks]
        rows.append(
            [name, *(f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in of)]
        )
    inside = [sum(is_in for name in STUDIES for _, is_in in found[name, mark]) for mark in marks]
    rows.append(["truth in the interval", *(f"{count} of {len(STUDIES) * n_rounds}" for count in inside)])
    print_table(["estimate over truth", *marks], rows)


if __name__ == "__main__":
    main()
