"""Compare engines with local workers on the same cores: seconds until a study starts, and the time of a trial.

Run: python tests/benchmarks/engines.py [rounds] [--same STUDY.yaml]. A study of 24 short trials runs on two workers:
local ones, those of a real Slurm of two nodes, and actors of a real Ray cluster of two nodes, in turn, all with one
PostgreSQL and a tracking database that exists already. Before timing, all must reach the same losses, bit for bit.

With --same nothing is timed: local workers and three nodes of Slurm and of Ray run the study by random search and
without a pruner, and all losses of all runs are compared bit for bit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import ray_cluster
import slurm_cluster
from benchmarks.setting import print_table, setting
from faults.kills import N_TRIALS, STUDY, curve
from postgres_server import started as database

from sweeplab.records.folders import StudyFolder


def run(folder: Path, words: list[str], number: int) -> tuple[float, float, dict[int, object]]:
    """Return the seconds from the command to the first trial, those of a trial from then on, and what each came to."""
    name = f"engines{number}"
    (folder / "study.yaml").write_text(STUDY.replace("name: killed", f"name: {name}"))
    study = StudyFolder(folder / "lab", name)
    began = time.perf_counter()
    command = [sys.executable, "-m", "sweeplab", "study", "run", "study.yaml", "--lab", "lab", *words]
    with (folder / f"said-{name}").open("w") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
        while not (starts := [*study.path.glob("runs/*/*/run.json")]):
            assert process.poll() is None, (folder / f"said-{name}").read_text()
            time.sleep(0.01)
        first = time.perf_counter()
        assert process.wait() == 0, (folder / f"said-{name}").read_text()
    assert starts
    trial = (time.perf_counter() - first) / N_TRIALS
    found = {each.trial: curve(each) for each in study.runs()}
    shutil.rmtree(study.path)
    return first - began, trial, found


def main(n_rounds: int) -> None:
    print(setting(), flush=True)
    with (
        tempfile.TemporaryDirectory() as place,
        database() as server,
        slurm_cluster.started(n_nodes=2),
        ray_cluster.started(2) as cluster,
    ):
        os.environ |= {"SWEEPLAB_STORAGE": server.url, "OMP_NUM_THREADS": "1"}
        engines = {
            "local": [],
            "slurm": ["--engine", "slurm", "-o", "engine.time=1h"],
            "ray": ["--engine", "ray", "-o", f"engine.address={cluster.address}"],
        }
        folder, number = Path(place), 0
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
        expected = run(folder, [], number)[2]  # which makes tracking's database, too
        for _ in range(n_rounds):
            for name, words in engines.items():
                number += 1
                start, trial, found = run(folder, words, number)
                assert found == expected, f"{name} trains otherwise"
                took[name].append((start, trial))
                print(f"# {name}: {start:.1f} s, {1e3 * trial:.0f} ms", flush=True)
    rows = []
    for name, pairs in took.items():
        starts, trials = zip(*pairs, strict=True)
        row = [f"{statistics.median(starts):.1f} s ({min(starts):.1f}–{max(starts):.1f})"]
        row.append(
            f"{1e3 * statistics.median(trials):.0f} ms ({1e3 * min(trials):.0f}–{1e3 * max(trials):.0f})"
        )
        rows.append([name, *row])
    print_table(["engine", "to the first trial", "a trial"], rows)


def compare(file: Path) -> None:
    """Run a study on each engine and compare what its runs came to."""
    print(setting(), flush=True)
    with (
        tempfile.TemporaryDirectory() as place,
        database() as server,
        slurm_cluster.started(n_nodes=3),
        ray_cluster.started(3) as cluster,
    ):
        os.environ |= {"SWEEPLAB_STORAGE": server.url, "OMP_NUM_THREADS": "1"}
        engines = {
            "local": ["-o", "engine.workers=2"],
            "slurm": ["--engine", "slurm", "-o", "engine.time=1h", "-o", "engine.workers=3"],
            "ray": ["--engine", "ray", "-o", f"engine.address={cluster.address}", "-o", "engine.workers=3"],
        }
        found = {}
        for name, words in engines.items():
            command = [sys.executable, "-m", "sweeplab", "study", "run", str(file.resolve()), "--name", name]
            command += [
                "--lab",
                str(Path(place) / "lab"),
                "-o",
                "sampler=random",
                "-o",
                "pruner=none",
                *words,
            ]
            began = time.perf_counter()
            done = subprocess.run(command, cwd=place, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            study = StudyFolder(Path(place) / "lab", name)
            found[name] = {(each.cell, each.trial, each.seed): curve(each) for each in study.runs()}
            print(f"{name}: {len(found[name])} runs, {time.perf_counter() - began:.0f} s", flush=True)
            assert found[name] == found["local"], f"{name} trains otherwise"
    print("the same trials, and the same losses to the bit")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--same", type=Path)
    chosen = parser.parse_args()
    if chosen.same:
        compare(chosen.same)
    else:
        main(chosen.rounds)
