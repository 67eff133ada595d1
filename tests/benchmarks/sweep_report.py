"""Time the sweep report of a large study, and measure the size of its page.

Run: python tests/benchmarks/sweep_report.py [trials] [folder]. The study's runs are written as workers would write
them, with planted losses, and shipped to MLflow; then the command runs three times, each in its own process.
"""

import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from benchmarks.setting import print_table, setting

STUDY = Path(__file__).parents[2] / "studies" / "small.yaml"


def plant(lab: Path, n_trials: int) -> None:
    """Write down and ship a study of so many trials in nine cells."""
    from sweeplab.lab.identity import write_study
    from sweeplab.records.folders import StudyFolder
    from sweeplab.records.runs import CurvePoint, RunEnd, RunStart, RunState, TrialEnding, run_key
    from sweeplab.study.file.reading import read_study
    from sweeplab.study.rules import facts
    from sweeplab.study.space import Space
    from sweeplab.sweep.planning import make_plan
    from sweeplab.tracking import open_tracker
    from sweeplab.train.devices import settle_devices

    spec = read_study(STUDY, [f"budget.trials_per_cell={math.ceil(n_trials / 9)}"])
    plan, cells, _ = make_plan(spec, lab)
    folder = StudyFolder(lab, spec.name)
    folder.path.mkdir(parents=True)
    write_study(spec, folder, plan.data)
    tracker = open_tracker(lab, spec.name, None)
    tracker.open({"study": STUDY.read_text()})
    spaces = [Space(spec, cell, plan.data.vocab_size) for cell in cells]
    draws = [list(space.draws(math.ceil(n_trials / 9))) for space in spaces]
    for at in range(n_trials):
        cell, values = cells[at % 9], settle_devices(draws[at % 9][at // 9])
        apart = abs(math.log10(values.learning_rate) + 2.5)
        rng = random.Random(at)
        lost = apart > 0.9 and rng.random() < 0.5
        state = RunState("diverged" if lost else "pruned" if apart > 0.35 else "complete")
        last = {"complete": 300, "pruned": 100, "diverged": 50}[state]
        run = folder.run(cell.key, at // 9, 0)
        sampled = {name: getattr(values, name) for name in spec.search}
        key = run_key(cell.key, at // 9, 0)
        place = {"key": key, "cell": cell.key, "trial": at // 9, "seed": 0}
        known = {"sampled": sampled, "facts": facts(values)._asdict(), "started": 1.7e9 + at}
        run.write_start(RunStart(study=spec.name, values=values, **place, **known))
        floor = 2.2 + apart + rng.gauss(0, 0.02)
        trained = {"train_loss": 2.0, "learning_rate": 1e-3, "grad_norm": 1.0, "tokens_per_second": 51200.0}
        points = [
            CurvePoint(
                iteration=i,
                train_tokens=i * 1024,
                wall_seconds=i / 50 + 0.1,
                val_loss=floor + 2 / (1 + i / 50),
                **(trained if i else {}),
            )
            for i in range(0, last + 1, 50)
        ]
        run.append(points)
        value = points[-1].val_loss
        run.write_end(
            RunEnd(
                state=state,
                iteration=last,
                best_val_loss=value,
                final_val_loss=value,
                value=value,
                train_tokens=last * 1024,
                train_flops=facts(values).train_flops * last / 300,
                wall_seconds=points[-1].wall_seconds,
                ending=TrialEnding(state, value),
            )
        )
        tracker.ship(run.path)
    tracker.close({"state": "complete"})


def main(n_trials: int, lab: Path) -> None:
    """Plant the study where it is not there yet, and time the command."""
    if not (lab / "studies").exists():
        plant(lab, n_trials)
    program = "from sweeplab.cli import main; main()"
    rows = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", program, "report", "sweep", "small", "--lab", str(lab)], check=True
        )
        seconds = time.perf_counter() - started
        size = (lab / "studies" / "small" / "report" / "sweep.html").stat().st_size
        rows.append([str(n_trials), f"{seconds:.1f}", f"{size / 1e6:.2f}"])
    print(setting())
    print_table(["trials", "seconds", "MB"], rows)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as place:
        main(count, Path(sys.argv[2]) if len(sys.argv) > 2 else Path(place))
