"""Time a study up to its first training step, and from its last trial on: in a lab that has its tracking database.

Run: python tests/benchmarks/starting.py [rounds]. Seconds from the command to its first line, to the workers'
processes, to the first claimed trial, and to its first evaluation, which training steps follow; from the line of the
last trial to that of the results, to the last line and to the command's end. And the CPU seconds of all its processes.
"""

import os
import pty
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from benchmarks.setting import print_table, setting

STUDY = """
name: starting
data: {corpus: python-docs, tokenizer: char}
fixed: {n_layer: 2, n_embd: 32, n_head: 4, block_size: 16, batch_size: 4, max_iters: 100, eval_interval: 100,
  eval_iters: 2, dropout: 0.0, compile: false}
search: {learning_rate: {min: 1e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 16}
"""
MARKS = {"workers": "worker-*.log", "first trial": "runs/*/*/run.json", "first step": "runs/*/*/points.jsonl"}


def seconds(folder: Path) -> dict[str, float]:
    """Run the study in a lab without studies; return the seconds from the command to each mark."""
    place = folder / "lab" / "studies" / "starting"
    shutil.rmtree(place, ignore_errors=True)
    command = [sys.executable, "-m", "sweeplab", "study", "run", "starting.yaml", "--lab", "lab"]
    first = _first_line(command, folder)
    shutil.rmtree(place, ignore_errors=True)
    began = time.perf_counter()
    pipe, lines, before = subprocess.PIPE, list[tuple[float, str]](), os.times()
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True) as study:
        reading = Thread(
            target=lambda: lines.extend((time.perf_counter(), line) for line in study.stdout or ())
        )
        reading.start()
        found = {name: _once(lambda of=of: any(place.glob(of)), study) - began for name, of in MARKS.items()}
        reading.join()
    ended, after = time.perf_counter(), os.times()
    assert study.returncode == 0
    last = max(at for at, line in lines if line.startswith("16/16"))
    results = next(at for at, line in lines if line.startswith("starting: complete"))
    return {
        "first line in a terminal": first,
        "first line in a file": lines[0][0] - began,
        **found,
        "last trial to results": results - last,
        "last trial to last line": lines[-1][0] - last,
        "last trial to end": ended - last,
        "CPU of all processes": sum(after[2:4]) - sum(before[2:4]),
    }


def _first_line(command: Sequence[str], folder: Path) -> float:
    """Return the seconds from the command to its first line in a terminal, then stop it."""
    terminal, end = pty.openpty()
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=end, stderr=end) as study:
        os.read(terminal, 1)
        shown = time.perf_counter() - began
        study.kill()
    os.close(end)
    os.close(terminal)
    return shown


def _once(holds: Callable[[], bool], study: subprocess.Popen[str]) -> float:
    while not holds():
        assert study.poll() is None
        time.sleep(0.005)
    return time.perf_counter()


def main() -> None:
    """Print medians and ranges, beside a bare interpreter that imports torch."""
    n_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "starting.yaml").write_text(STUDY)
        seconds(Path(folder))  # makes tracking's database
        for _ in range(n_rounds):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import torch"], check=True)
            found.append({"import torch alone": time.perf_counter() - began} | seconds(Path(folder)))
    print(setting(), f"load {os.getloadavg()[0]:.1f}", sep="; ")
    rows = []
    for name in found[0]:
        own = [each[name] for each in found]
        rows.append([name, f"{statistics.median(own):.2f} s ({min(own):.2f}–{max(own):.2f})"])
    print_table(["from the command to; or from the last trial", "seconds"], rows)


if __name__ == "__main__":
    main()
