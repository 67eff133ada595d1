"""Compare studies/shakespeare.yaml, which has nanoGPT's CPU settings, with a plain eager loop: loss and time.

Run: SWEEPLAB_TINYSHAKESPEARE=… python tests/benchmarks/nanogpt.py [rounds]. Each round trains both for 2,000
iterations in their own processes, on all cores, one after the other; which is first alternates.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.setting import STUDIES, print_table, setting, sweeplab

STUDY = STUDIES / "shakespeare.yaml"

PLAIN = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from references import serial_loop
from sweeplab.data.dataset import prepare
from sweeplab.hyperparameters import Hyperparameters
data = prepare("tinyshakespeare", "char")
values = Hyperparameters.from_json(json.loads(sys.argv[2]))
started = time.perf_counter()
losses = serial_loop.train(values, data.train, data.val)
print(json.dumps([time.perf_counter() - started, losses]))
"""


def product(folder):
    """Run the study and return its run's seconds of training and evaluation, its losses and values."""
    sweeplab("run", STUDY, "--lab", folder)
    (run,) = (folder / "studies" / "shakespeare" / "runs").glob("*/*")
    points = [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]
    losses = [point["val_loss"] for point in points if "val_loss" in point]
    return (
        points[-1]["wall_seconds"],
        losses,
        json.loads((run / "run.json").read_text())["values"],
    )


def plain(values):
    """Train the same with torch's own modules and fused AdamW; return seconds and losses."""
    command = [sys.executable, "-c", PLAIN, str(Path(__file__).parents[1]), json.dumps(values)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, losses = json.loads(said)
    return seconds, losses


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(setting())
    ours, theirs, values = [], [], {}
    for index in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            if index % 2 and values:
                theirs.append(plain(values))
            seconds, losses, values = product(Path(place))
            ours.append((seconds, losses))
            if not index % 2:
                theirs.append(plain(values))
        ratio = ours[-1][0] / theirs[-1][0]
        print(f"# {ours[-1][0]:.1f} s against {theirs[-1][0]:.1f} s, {ratio:.3f}", flush=True)
    gate = max(abs(one - other) for one, other in zip(ours[0][1], theirs[0][1], strict=True))
    ratios = [one[0] / other[0] for one, other in zip(ours, theirs, strict=True)]
    medians = [statistics.median(seconds for seconds, _ in each) for each in (ours, theirs)]
    row = [f"{min(ours[0][1]):.3f}", f"{min(theirs[0][1]):.3f}", f"{gate:.3f}"]
    row += [f"{medians[0]:.1f}", f"{medians[1]:.1f}", f"{statistics.median(ratios):.3f}"]
    print(f"\nmedians of {rounds} rounds\n")
    headings = [
        "val_loss",
        "plain loop's",
        "largest difference",
        "seconds",
        "plain loop's",
        "ratio (aim: at most 1.03)",
    ]
    print_table(headings, [[*row[:-1], f"{row[-1]} ({min(ratios):.3f}–{max(ratios):.3f})"]])


if __name__ == "__main__":
    main()
