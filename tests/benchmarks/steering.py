"""Measure how soon a study in another process obeys a command: evaluations until then, and seconds.

Run: python tests/benchmarks/steering.py [times]. It counts the evaluations that any one run makes from the moment when
the command is in the storage until it is obeyed: until the workers are gone (stop, pause), train again (resume, which
has to wait for an evaluation), the new trial has begun (extend, enqueue, retry) or the trial has ended (trial stop). 0
or 1 means obeyed within one evaluation. It also prints what reading the commands costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import optuna
import psutil
from benchmarks.setting import print_table, setting
from optuna.trial import TrialState, create_trial

from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.control import steering
from sweeplab.sweep.trials.commands import Commands

STUDY = """\
name: long
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 32, batch_size: 8, max_iters: 10000000, n_layer: 2, n_embd: 32, n_head: 2, warmup_iters: 2,
        dropout: 0.0, eval_interval: 30, eval_iters: 2, save_interval: 1000000, patience: null, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-3, log: true}}
budget: {trials_per_cell: 1}
engine: {workers: 1, stack: 4}
track: {checkpoints: none}
"""
PROGRAM = [sys.executable, "-c", "from sweeplab.cli import main; main()"]
MOST_SECONDS = 60


class Evaluations(threading.Thread):
    """When each run's evaluations were written down, as seen from here every few milliseconds."""

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(daemon=True)
        self.times: dict[Path, list[float]] = defaultdict(list)
        self._runs, self._read = folder.path / "runs" / "all", defaultdict(int)
        self.start()

    def run(self) -> None:
        """Look for what is new, again and again."""
        while True:
            for path in sorted(self._runs.glob("*")):
                try:
                    with (path / "points.jsonl").open("rb") as file:
                        file.seek(self._read[path])
                        text = file.read()
                except FileNotFoundError:
                    continue
                self._read[path] += len(text)
                self.times[path] += [time.time()] * text.count(b'"val_loss"')
            threading.Event().wait(0.002)

    def most_between(self, start: float, end: float) -> int:
        """Return the most evaluations that a run made after `start` and until `end`."""
        return max(
            (sum(start < each <= end for each in times) for times in list(self.times.values())), default=0
        )


class Steered:
    """A study in another process, and what it did after each command."""

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        self.evaluations = Evaluations(folder)
        self.found: dict[str, list[tuple[int, float]]] = defaultdict(list)

    def n_evaluations(self) -> int:
        """Return how many evaluations all runs have made."""
        return sum(map(len, list(self.evaluations.times.values())))

    def order(self, kind: str, give: Callable[[], object], is_obeyed: Callable[[], bool]) -> None:
        """Give a command and take note of the evaluations and seconds from then until it is obeyed."""
        commands, started = Commands.open(self.folder), time.time()
        give()
        while not is_obeyed():
            assert time.time() - started < MOST_SECONDS, f"{kind}: never obeyed"
            threading.Event().wait(0.001)
        obeyed, given = time.time(), commands.read()[0].given
        evaluations, seconds = self.evaluations.most_between(given, obeyed), obeyed - given
        self.found[kind].append((evaluations, seconds))
        print(f"# {kind} {len(self.found[kind])}: {evaluations} evaluations, {seconds:.2f} s", flush=True)

    def begun(self) -> int:
        """Return the number of the trial that was last begun."""
        return max(int(run.path.name.partition("-")[0]) for run in self.folder.runs())

    def with_new_trial(self, kind: str, give: Callable[[], object]) -> None:
        """Give a command that begins a trial, and then stop that trial, to free its row of the stack."""
        last = self.begun()
        self.order(kind, give, lambda: self.begun() > last)
        new = self.folder.run("all", self.begun(), 0)
        while not new.points():
            threading.Event().wait(0.01)
        number = self.begun()
        self.order(
            "trial stop",
            lambda: steering.stop_trial(self.folder, number),
            lambda: new.read_end() is not None,
        )


def extend_by_one(folder: StudyFolder) -> None:
    """Make room for one trial more than those that count or run."""
    (counts,) = steering.open_store(folder).counts()
    steering.extend(folder, str(counts.counted + counts.running + 1), None)


def add_failed(folder: StudyFolder) -> None:
    """Put a trial into the storage that has failed."""
    store = steering.open_store(folder)
    with store.lock():
        failed = create_trial(state=TrialState.FAIL, user_attrs={"outcome": "failed"})
        store.study(store.cells[0]).add_trial(failed)


@contextmanager
def running(file: Path, steered: Steered):
    """Run the study in another process until it has made an evaluation; yield the process."""
    before = steered.n_evaluations()
    process = subprocess.Popen(
        [*PROGRAM, "study", "run", str(file), "--lab", str(steered.folder.lab)],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        while steered.n_evaluations() <= before:
            assert process.poll() is None, "it ended"
            threading.Event().wait(0.02)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=60)


def has_workers(process: subprocess.Popen) -> bool:
    """Say whether the study's workers are there."""
    try:
        found = psutil.Process(process.pid).children()
        return any("sweeplab.sweep.work.worker" in each.cmdline() for each in found)
    except psutil.NoSuchProcess:  # one of them, just now
        return process.poll() is None


def read_cost(folder: StudyFolder) -> float:
    """Return the median microseconds of reading the commands when there are no new ones."""
    store = steering.open_store(folder)
    times = []
    for _ in range(500):
        started = time.perf_counter()
        store.poll_commands()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] * 1e6


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(setting())
    with tempfile.TemporaryDirectory() as place:
        file, folder = Path(place) / "long.yaml", StudyFolder(Path(place) / "lab", "long")
        file.write_text(STUDY)
        steered = Steered(folder)
        with running(file, steered) as process:
            for _ in range(times):
                steered.with_new_trial("extend", lambda: extend_by_one(folder))
            steering.extend(folder, "1", None)
            for _ in range(times):
                point = ["learning_rate=5e-4"]
                steered.with_new_trial("enqueue", lambda point=point: steering.enqueue(folder, point))
            for _ in range(times):
                add_failed(folder)
                steered.with_new_trial("retry", lambda: steering.retry(folder))
            for _ in range(times):
                steered.order("pause", lambda: steering.pause(folder), lambda: not has_workers(process))
                n = steered.n_evaluations()
                steered.order(
                    "resume",
                    lambda: steering.resume(folder),
                    lambda n=n: steered.n_evaluations() > n,
                )
            cost = read_cost(folder)
        for _ in range(times):
            with running(file, steered) as process:
                steered.order("stop", lambda: steering.stop(folder), lambda: not has_workers(process))
                process.wait(timeout=60)
        rows = []
        for kind, found in steered.found.items():
            n_within = sum(evaluations <= 1 for evaluations, _ in found)
            most, seconds = max(each for each, _ in found), sorted(seconds for _, seconds in found)
            middle = f"{seconds[len(seconds) // 2]:.2f} ({seconds[0]:.2f}–{seconds[-1]:.2f})"
            rows.append([kind, f"{n_within} of {len(found)}", str(most), middle])
    print(f"\nreading the commands: {cost:.0f} µs, once an evaluation\n")
    print_table(["command", "within one evaluation", "most evaluations", "seconds"], rows)


if __name__ == "__main__":
    main()
