"""Measure what shipping a run of ten points to MLflow costs beside many ended runs: `shipping.py [RUNS …]`.

For each number of ended runs (100 and 2,000), in a study's folder and in MLflow's database, fifteen more runs of ten
evaluations and a checkpoint are shipped in three looks each: the start with four points, four more, two more with the
end. It prints medians of CPU time per run, for looking at what changed and for looking at all runs each time.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.pop("MLFLOW_TRACKING_URI", None)

from benchmarks.setting import print_table, setting

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.events import RunEvaluated, TrialEnded, TrialEvent
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurvePoint, RunEnd, RunStart, RunState, TrialEnding, run_key
from sweeplab.sweep import shipping
from sweeplab.tracking import open_tracker

TIMES, LOOKS = 15, (4, 4, 2)
shipping.SEND_SECONDS = 0.05
ENDING = TrialEnding(RunState.COMPLETE, 3.0)


def train(folder: StudyFolder, trial: int) -> Iterator[TrialEvent]:
    """Write a run as a worker does; yield an event where it is looked at."""
    run = folder.run("all", trial, 0)
    place = {"cell": "all", "trial": trial}
    key = run_key("all", trial, 0)
    facts = {"n_params": 1234, "n_params_active": 1234, "n_params_non_embedding": 1000}
    values = Hyperparameters()
    run.write_start(RunStart(key=key, **place, seed=0, values=values, facts=facts, started=time.time()))
    iteration = 0
    for n_points in LOOKS:
        for _ in range(n_points):
            counted = {
                "iteration": iteration,
                "train_tokens": 64 * iteration,
                "wall_seconds": float(iteration),
            }
            speed = {"train_loss": 3.0, "learning_rate": 1e-3, "grad_norm": 0.5, "tokens_per_second": 1e3}
            run.append([CurvePoint(**counted, **speed, val_loss=3.0, bits_per_byte=1.5)])
            iteration += 10
        if n_points == LOOKS[-1]:
            (run.path / "best").mkdir()
            (run.path / "best" / "model.safetensors").write_bytes(b"w" * 100_000)
            run.write_end(RunEnd(state=RunState.COMPLETE, iteration=iteration, value=3.0, ending=ENDING))
            yield TrialEnded(**place, ending=ENDING, ended=time.time())
        else:
            yield RunEvaluated(**place, seed=0, iteration=iteration, val_loss=3.0)


def cost(n_ended: int, place: Path) -> tuple[float, float, float]:
    """Return the milliseconds of CPU: a run by what changed, a run by looking at all, one of the many at the start."""
    folder = StudyFolder(place / "lab", "shipped")
    for trial in range(n_ended):
        list(train(folder, trial))
    tracker = open_tracker(folder.lab, folder.name)
    tracker.open({})
    last = folder.run("all", n_ended - 1, 0).path / "shipped"
    started = time.process_time()
    ships = shipping.Shipping(folder, [tracker], {"all": (0,)})
    ships.start()
    while not all((run.path / "shipped").exists() for run in folder.runs()):
        time.sleep(5)
    assert last.exists()
    filled = (time.process_time() - started) / n_ended
    time.sleep(1)
    changed, everything = [], []
    for trial in range(n_ended, n_ended + TIMES):
        used = 0.0
        for event in train(folder, trial):
            started = time.process_time()
            ships.hear(event)
            time.sleep(0.4)
            used += time.process_time() - started
        assert (folder.run("all", trial, 0).path / "shipped").exists()
        changed.append(used)
    ships.finish()
    for trial in range(n_ended + TIMES, n_ended + 2 * TIMES):
        used = 0.0
        for _ in train(folder, trial):
            started = time.process_time()
            for run in folder.runs():
                tracker.ship(run.path)
            used += time.process_time() - started
        everything.append(used)
    return median(changed) * 1e3, median(everything) * 1e3, filled * 1e3


def main() -> None:
    print(setting())
    rows = []
    for n_ended in [int(each) for each in sys.argv[1:]] or [100, 2000]:
        with tempfile.TemporaryDirectory() as place:
            rows.append([f"{n_ended:,}", *(f"{each:.1f}" for each in cost(n_ended, Path(place)))])
    print("\nms of CPU a run\n")
    print_table(["ended runs", "what changed", "all runs each time", "at the start, at once"], rows)


if __name__ == "__main__":
    main()
