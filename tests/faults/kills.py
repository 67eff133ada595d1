"""Real faults on real studies: processes killed and stopped, bits flipped in snapshots.

Each study is started again until it ends, and then held against an undisturbed one: trials lost, told twice or beyond
the budget, runs of which a bit differs, numbers that MLflow lacks or has twice. `PYTHONPATH=tests python -m
faults.kills [FAULTS [SEED]]` runs studies of 16 faults each until there were so many (200), and prints what they did.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
from terminal import heeds_hangups
from tracked import Tracked

from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.trials.sharing import LEASE_SECONDS
from sweeplab.sweep.trials.store import open_store

N_TRIALS = 24
STUDY = f"""\
name: killed
data: {{corpus: python-docs, tokenizer: char}}
fixed: {{block_size: 32, batch_size: 8, max_iters: 200, n_layer: 1, n_head: 2, n_embd: 16, dropout: 0.1,
        warmup_iters: 2, eval_interval: 20, eval_iters: 2, save_interval: 40, log_interval: 10, device: cpu}}
search: {{learning_rate: {{min: 3e-4, max: 1e-2, log: true}}}}
budget: {{trials_per_cell: {N_TRIALS}}}
sampler: random
pruner: none
engine: {{workers: 2, stack: 2}}
"""
# A study that was started so often without coming to its end never does.
MOST_STARTS = 60


class Study:
    """One study in a lab of its own, and what befalls it."""

    def __init__(
        self,
        folder,
        lab,
        dice,
        server=None,
        text=STUDY,
    ):
        self.place, self.folder, self.dice = folder, StudyFolder(lab, "killed"), dice
        self.server = server
        self.said = folder / "said.txt"
        self.counts = Counter()
        self._stopped = []
        (folder / "killed.yaml").write_text(text)

    def start(self, *more):
        """Start the study, or go on with it, in a process group of its own."""
        words = ["study", "run", "killed.yaml", "--lab", str(self.folder.lab), *more]
        known = os.environ | {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
        known |= {"SWEEPLAB_STORAGE": self.server.url} if self.server else {}
        command = [sys.executable, "-m", "sweeplab", *words]
        with self.said.open("ab") as said:
            own = {
                "start_new_session": True,
                "preexec_fn": heeds_hangups,
                "stdout": said,
                "stderr": said,
            }
            self.process = subprocess.Popen(command, cwd=self.place, env=known, **own)

    @property
    def n_points(self):
        """Return how many points all curves have."""
        files = self.folder.path.glob("runs/*/*/points.jsonl")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def workers(self):
        """Return the worker processes."""
        with suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children()
            return [
                each
                for each in children
                if any(word.endswith("sweep.worker") for word in each.cmdline())
            ]
        return []

    def pass_time(self, is_over):
        """Wait until something is so; wake up what was stopped in the meantime. Say whether the study still runs."""
        while not is_over() and self.process.poll() is None:
            self._undo(time.monotonic())
            time.sleep(0.05)
        return self.process.poll() is None

    def _undo(self, now):
        for until, process in [*self._stopped]:
            if now >= until:
                self._stopped.remove((until, process))
                with suppress(psutil.Error):
                    process.resume()

    def befall(self):
        """Let one fault befall the study, as the dice say."""
        faults = {"SIGKILL to the supervisor": self.process.kill}
        faults["bits flipped in snapshots"] = self._flip
        for sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            faults[f"{sent.name} to all"] = partial(os.killpg, self.process.pid, sent)
        if workers := self.workers():
            one = self.dice.choice(workers)
            faults["SIGKILL to a worker"] = one.kill
            faults["SIGTERM to a worker"] = one.terminate
            faults["SIGSTOP to a worker, past its lease"] = lambda: self._stop(one)
        kind = self.dice.choice(sorted(faults))
        with suppress(ProcessLookupError, psutil.Error):
            faults[kind]()
        self.counts[kind] += 1

    def _stop(self, worker):
        worker.suspend()
        self._stopped.append((time.monotonic() + LEASE_SECONDS + 5, worker))

    def _flip(self):
        """Kill all, and flip a bit of the latest snapshot of each run."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for run in self.folder.runs():
            kept = sorted(
                run.path.glob("state-*.safetensors"),
                key=lambda file: int(file.name.split("-")[1]),
            )
            for file in kept[-1:]:
                content = bytearray(file.read_bytes())
                content[self.dice.randrange(len(content))] ^= 1 << self.dice.randrange(8)
                file.write_bytes(content)

    def next_fault(self):
        """Return what tells that the next fault is due: a time while the study starts, or points of its curves."""
        until = time.monotonic() + self.dice.uniform(0, 8)
        points = self.n_points + self.dice.randrange(2, 25)
        if self.dice.random() < 0.25:
            return lambda: time.monotonic() > until
        return lambda: self.n_points >= points

    def run(self, n_faults):
        """Run the study to its end, through at most so many faults."""
        for _ in range(MOST_STARTS):
            self.start()
            while sum(self.counts.values()) < n_faults:
                if not self.pass_time(self.next_fault()):
                    break
                self.befall()
            self.pass_time(lambda: False)
            if self.process.returncode == 0:
                break
        self.pass_time(lambda: not self._stopped)
        for _, process in self._stopped:
            with suppress(psutil.Error):
                process.kill()

    def problems(self, expected):
        """Yield what is not as it should be now that the study has ended."""
        if self.process.returncode != 0:
            yield f"did not end: exit code {self.process.returncode}"
        for log in [self.said, *self.folder.path.glob("worker-*.log")]:
            if "Traceback" in (said := log.read_text(errors="replace")):
                yield f"in {log.name}: {said[max(0, said.index('Traceback') - 500) :][:12000]}"
        store = open_store(self.folder)
        trials = store.trials(store.cells[0])
        if [trial.number for trial in trials] != [*range(N_TRIALS)]:
            yield f"the trials are {[trial.number for trial in trials]}"
        if store.n_held():
            yield "a lease is left"
        store.storage.engine.dispose()
        found = {run.trial: curve(run) for run in self.folder.runs()}
        yield from (f"trial {n} differs" for n in expected if found.get(n) != expected[n])
        for trial in trials:
            ended = (trial.value, str(trial.state.name))
            if trial.number in found and ended != (found[trial.number][2], "COMPLETE"):
                yield f"trial {trial.number} is told otherwise than it ended"
        tracked = Tracked(self.folder.lab, "killed")
        runs = tracked.runs()
        if sorted(run.trial for run in runs) != [*range(N_TRIALS)]:
            yield f"MLflow has the trials {sorted(run.trial for run in runs)}"
        for run in runs:
            steps = tracked.steps(run.run_id, "val_loss")
            if steps != list(range(0, 201, 20)) or run.state != "complete":
                yield f"trial {run.trial} in MLflow is {run.state} with points at {steps}"


def curve(run):
    """Return what no fault may change of a run."""
    end = run.read_end()
    points = [(each.iteration, each.val_loss, each.train_loss) for each in run.points()]
    return points, end and str(end.state), end and end.value


def undisturbed(root):
    """Return what the runs of a study come to that nothing befalls."""
    whole = Study(root, root / "lab", random.Random(0))
    whole.run(0)
    found = {run.trial: curve(run) for run in whole.folder.runs()}
    assert len(found) == N_TRIALS, whole.said.read_text()
    return found


def main(n_faults=200, seed=0):
    """Print the faults of each study as it ends, with what they did, and their sum."""
    counts = Counter()
    with tempfile.TemporaryDirectory() as place:
        expected = undisturbed(Path(place))
        while counts.total() < n_faults:
            folder = Path(place, str(seed))
            folder.mkdir()
            study = Study(folder, folder / "lab", random.Random(seed))
            study.run(16)
            counts += study.counts
            print(seed, dict(study.counts), [*study.problems(expected)], flush=True)
            seed += 1
    print(counts.total(), dict(counts))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
