"""Kill a tracking server for a minute in the middle of a study: what it costs, and that nothing is lost or doubled.

Run: python tests/benchmarks/server_killed.py [repeats] [seconds]. A real MLflow server on loopback tracks
studies/small.yaml with eight trials a cell, undisturbed and disturbed in turn. Throughput is trials per second from the
first trial's claim to the last one's end. MLflow's start takes many seconds of the cores that train here, which it
would not with a machine of its own. So a third variant starts an unrelated server when the killed one comes back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

from benchmarks.setting import print_table, setting

STUDY = Path(__file__).parents[2] / "studies" / "small.yaml"
FIRST_SECONDS = 30.0
UNDISTURBED, STARTED, KILLED = ARMS = ("undisturbed", "another server started", "killed")


class Server:
    """MLflow's own server on a port that it keeps, over one database."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self.database = f"http://127.0.0.1:{self.port}", folder / "mlflow.db"
        self._command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        self._command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.database}"]
        self._command += ["--artifacts-destination", str(folder / "artifacts")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet, start_new_session=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urlopen(f"{self.url}/health", timeout=1):
                return
            threading.Event().wait(0.2)
        raise TimeoutError("MLflow's server did not come up")

    def kill(self) -> None:
        """Kill it and all that it started."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def run(folder: Path, arm: str, seconds: float) -> tuple[float, list[str]]:
    """Run the study, disturbed as the arm says; return its throughput and what is wrong with it."""
    import sweeplab
    from sweeplab.lab.events import Event, TrialClaimed, TrialEnded

    (folder / "other").mkdir()
    server, other = Server(folder), Server(folder / "other")
    server.start()
    study = sweeplab.load_study(
        STUDY, lab=folder / "lab", overrides=["budget.trials_per_cell=8", f"track.uri={server.url}"]
    )
    times: list[float] = []
    outcomes: Counter[str] = Counter()

    def hear(event: Event, _progress: object) -> None:
        if isinstance(event, TrialClaimed | TrialEnded):
            times.append(time.monotonic())
        if isinstance(event, TrialEnded):
            outcomes[str(event.ending.outcome)] += 1

    def disturb() -> None:
        if arm == KILLED:
            server.kill()
        threading.Event().wait(seconds)
        if arm != UNDISTURBED:
            (server if arm == KILLED else other).start()

    timer = threading.Timer(FIRST_SECONDS, disturb)
    try:
        timer.start()
        result = study.run(hear)
        timer.join()
    finally:
        server.kill()
        other.kill()
    wrong = [f"{count} failed" for state, count in outcomes.items() if state == "failed"]
    wrong += [*result.errors, *doubled_or_missing(folder, server.database)]
    return sum(outcomes.values()) / (times[-1] - times[0]), wrong


def doubled_or_missing(folder: Path, database: Path) -> list[str]:
    """Compare every point of every run with what MLflow has of it."""
    wrong = []
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT value, run_uuid FROM tags WHERE key = 'sweeplab.key'"
        runs = Counter(key for key, _ in connection.execute(query))
        wrong += [f"{key} is there {times} times" for key, times in runs.items() if times > 1]
        ids = {key.partition("/")[2]: run for key, run in connection.execute(query)}
        for file in (folder / "lab" / "studies" / "small" / "runs").glob("*/*/points.jsonl"):
            key = json.loads((file.parent / "run.json").read_text())["key"]
            points = [json.loads(line) for line in file.read_text().splitlines()]
            for name in ("val_loss", "train_loss"):
                expected = [point["iteration"] for point in points if point.get(name) is not None]
                rows = connection.execute(
                    "SELECT step FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step",
                    (ids.get(key), name),
                )
                if [step for (step,) in rows] != expected:
                    wrong.append(f"{name} of {key}")
    return wrong


def main() -> None:
    repeats, seconds = int((sys.argv[1:2] or ["2"])[0]), float((sys.argv[2:3] or ["60"])[0])
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    wrong: list[str] = []
    for _ in range(repeats):
        for arm, each in found.items():
            with tempfile.TemporaryDirectory() as made:
                throughput, problems = run(Path(made), arm, seconds)
            each.append(throughput)
            wrong += [f"{arm}: {problem}" for problem in problems]
    print(setting())
    medians = {arm: statistics.median(each) for arm, each in found.items()}
    rows = [
        [arm, f"{medians[arm]:.3f}", ", ".join(f"{one:.3f}" for one in each)] for arm, each in found.items()
    ]
    print_table(["server", "trials a second, median", "each"], rows)
    for arm in (UNDISTURBED, STARTED):
        print(f"\nkilled for {seconds:g} s over {arm}: {medians[KILLED] / medians[arm]:.3f}")
    print(f"lost, doubled or failed: {wrong or 'nothing'}")


if __name__ == "__main__":
    main()
