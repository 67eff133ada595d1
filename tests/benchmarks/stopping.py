"""Time how long a study takes after a signal to save its runs, and to end.

Run: python tests/benchmarks/stopping.py [repeats] [--busy N]. A study of two workers with full stacks starts, gets
SIGINT (the supervisor alone, as by Ctrl-C) or SIGTERM (all processes, as by a batch system) once every run has trained,
and starts again, in turn. `saved` is when the last worker has exited, after its snapshots are on disk and its leases
given back. `--busy` adds N processes that only compute.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from benchmarks.setting import print_table, setting

from sweeplab.records.folders import StudyFolder

STUDY = """\
name: stopped
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 64, batch_size: 16, max_iters: 1000000, n_layer: 2, n_head: 2, n_embd: 64,
        eval_interval: 1000000, save_interval: 1000000, log_interval: 1, eval_tokens: 1024, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 8}
sampler: random
engine: {workers: 2, stack: 4}
"""
# A worker that has used so much CPU is past its imports, and trains.
TRAINS_SECONDS = 8.0


def stop(place: Path, number: signal.Signals) -> tuple[float, float]:
    """Start the study, stop it, and return after how many seconds its runs were saved and it had ended."""
    command = [sys.executable, "-m", "sweeplab", "study", "run", "stopped.yaml", "--lab", "lab", "--quiet"]
    folder = StudyFolder(place / "lab", "stopped")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=place, start_new_session=True, env=environment) as study:
        begun = time.time()
        while len(trained := [run for run in folder.runs() if run.start_file.stat().st_mtime]) < 8:
            time.sleep(0.1)
        seconds: dict[psutil.Process, float] = {}
        while len(seconds) < 2 or min(seconds.values()) < TRAINS_SECONDS:
            time.sleep(0.1)
            for each in psutil.Process(study.pid).children():
                with suppress(psutil.Error):  # one that has just ended, such as git
                    if any(word.endswith("work.worker") for word in each.cmdline()):
                        seconds[each] = each.cpu_times().user
        sent = time.monotonic()
        (os.kill if number == signal.SIGINT else os.killpg)(study.pid, number)
        psutil.wait_procs([*seconds])
        saved = time.monotonic() - sent
        assert study.wait() == 130
        ended = time.monotonic() - sent
    for run in trained:
        assert any(file.stat().st_mtime > begun for file in run.path.glob("state-*")), "every run was saved"
    return saved, ended


@contextmanager
def busy(n_processes: int) -> Iterator[None]:
    """Keep so many processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_processes)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()


def main(repeats: int, n_busy: int) -> None:
    print(setting(), f"load {os.getloadavg()[0]:.0f}", flush=True)
    rows = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as place, busy(n_busy):
            Path(place, "stopped.yaml").write_text(STUDY)
            found = [stop(Path(place), number) for _ in range(repeats)]
        for what, seconds in zip(("saved", "ended"), zip(*found, strict=True), strict=True):
            rows.append([number.name, what, f"{statistics.median(seconds):.1f} s", f"{max(seconds):.1f} s"])
    print_table(["signal", f"beside {n_busy} busy processes", "median", "longest"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    chosen = parser.parse_args()
    main(chosen.repeats, chosen.busy)
