"""Commands that steer, follow and move studies: on a finished one, and on one that runs in another process."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from terminal import PROGRAM, play

from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.trials.sharing import Commands

LONG = """\
name: long
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 1000000, n_layer: 1, n_embd: 16, n_head: 2, warmup_iters: 2,
        dropout: 0.0, eval_interval: 50, eval_iters: 1, save_interval: 1000, patience: null, device: cpu,
        compile: false}
search: {learning_rate: {min: 3e-4, max: 1e-3, log: true}}
budget: {trials_per_cell: 1}
sampler: random
engine: {workers: 1, stack: 4}
"""


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.05)


def undo(cli, said: str) -> None:
    """Do what a command said takes it back."""
    commands = [line.removeprefix("undo: ") for line in said.splitlines() if line.startswith("undo: ")]
    assert commands
    for command in commands:
        if command.startswith("sweeplab "):
            assert cli(*shlex.split(command)[1:]).code == 0
        else:
            environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            subprocess.run(command, shell=True, check=True, env=environment, capture_output=True)


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_run_takes_the_values_of_its_file_and_resume_those_that_were_extended(cli, finished, lab, folder):
    file = shutil.copy(finished.file, folder / "tiny.yaml")

    def went_on(*words: str) -> tuple[dict[str, int], int]:
        assert cli(*words).code == 0
        shown = json.loads(cli("study", "show", "tiny", "--json").out)
        assert shown["state"] == "finished"
        return {cell["cell"]: cell["complete"] for cell in shown["cells"]}, shown["trials_per_cell"]

    assert cli("study", "extend", "tiny", "--trials-per-cell", "3", "--no-run").code == 0
    assert went_on("resume", "tiny") == ({"n_embd=8": 3, "n_embd=16": 3}, 3)
    assert went_on("run", file) == ({"n_embd=8": 3, "n_embd=16": 3}, 2), "totals: nothing is added"
    added = ("-o", "budget.trials_per_cell=4", "--grid", "n_embd=8,24", "-o", "track.snapshots=1")
    assert went_on("run", file, *added)[0] == {"n_embd=8": 4, "n_embd=24": 4, "n_embd=16": 3}
    assert went_on("run", file)[1] == 2, "-o is for one run"
    changed = cli("study", "run", file, "-o", "max_iters=40")
    assert changed.code == 2 and "fixed.max_iters is 40 and was 20" in changed.err, "this is asked"


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_finished_study_is_extended_enqueued_and_goes_on(cli, lab: Path) -> None:
    said = cli("study", "extend", "tiny", "--trials-per-cell", "3", "--no-run")
    assert "trials_per_cell 3 (was 2): 2 trials to go; sweeplab resume tiny runs it" in said.out
    undo(cli, said.out)
    assert json.loads(cli("study", "show", "tiny", "--json").out)["trials_per_cell"] == 2
    asked = json.loads(cli("study", "enqueue", "tiny", "n_embd=16", "lr=5e-3", "--json").out)
    assert asked["trials"] == [{"cell": "n_embd=16", "trial": 2}]
    withdrawn = cli(*shlex.split(asked["undo"][0])[1:])
    assert "trial 2 in cell n_embd=16 is withdrawn" in withdrawn.out
    undo(cli, withdrawn.out)
    written = (lab / "studies" / "tiny" / "study.yaml").read_bytes()
    went_on = json.loads(cli("study", "resume", "tiny", "--json").out)
    assert (went_on["status"], went_on["runs"]) == ("complete", {"complete": 5})
    assert (lab / "studies" / "tiny" / "study.yaml").read_bytes() == written, "what the user wrote is kept"
    shown = json.loads(cli("study", "show", "tiny", "--trial", "3", "--cell", "n_embd=16", "--json").out)
    origins = {each["name"]: (each["value"], each["from"]) for each in shown["hyperparameters"]}
    assert origins["learning_rate"] == (5e-3, "enqueued") and origins["n_embd"] == (16, "grid")
    (run,) = shown["runs"]
    assert (run["stop_reason"], run["state"]) == ("reached max_iters", "complete")
    printed = cli("study", "show", "tiny", "--trial", "3").out
    assert ["learning_rate", "0.005", "enqueued"] in [line.split() for line in printed.splitlines()]
    assert "seed 0: complete: reached max_iters" in printed
    assert "time: training" in printed
    log = cli("watch", "tiny", "--log").out
    assert "study: withdraw trial 2 in cell n_embd=16" in log and "study: ended: complete" in log
    assert log.count("(reached max_iters)") == 5


def has_workers(process: subprocess.Popen) -> bool:
    try:
        found = psutil.Process(process.pid).children()
        return any("sweeplab.sweep.worker" in each.cmdline() for each in found)
    except psutil.NoSuchProcess:  # one of them, just now
        return True


@pytest.fixture
def long(folder: Path):
    """Return a study that runs in another process, and never ends by itself."""
    (folder / "long.yaml").write_text(LONG)
    log = (folder / "said.txt").open("w")
    process = subprocess.Popen([*PROGRAM, "study", "run", "long.yaml"], stderr=log, stdout=log)
    study = StudyFolder(folder / "lab", "long")
    try:
        wait_for(lambda: study.path.exists() and any(run.points() for run in study.runs()))
        yield process, study
    finally:
        process.terminate()
        process.wait(timeout=120)
        log.close()


@pytest.mark.slow
def test_a_running_study_is_steered_from_other_processes(long, cli, folder: Path) -> None:
    process, study = long
    first = study.run("all", 0, 0)
    assert "study long is running and not paused" in cli("study", "resume", "long").err
    removed = cli("study", "rm", "long", "--yes").err
    assert "study long is running; stop it first: sweeplab stop long" in removed

    assert cli("study", "pause", "long").code == 0
    wait_for(lambda: not has_workers(process))
    rested = len(first.points())
    assert "study long is paused" in cli("study", "pause", "long").err
    assert list(first.path.glob("state-*")), "what to go on from is kept"
    assert "undo: sweeplab pause long" in cli("study", "resume", "long").out
    wait_for(lambda: len(first.points()) > rested)

    assert (
        "its workers follow this after their next evaluation"
        in cli("study", "extend", "long", "--trials-per-cell", "2", "--no-run").out
    )
    wait_for(lambda: study.run("all", 1, 0).points())
    assert cli("study", "enqueue", "long", "learning_rate=5e-4").code == 0
    wait_for(lambda: study.run("all", 2, 0).points())
    assert study.run("all", 2, 0).read_start().sampled == {"learning_rate": 5e-4}
    assert cli("stop", "long/2").code == 0
    wait_for(lambda: study.run("all", 2, 0).read_end())
    assert study.run("all", 2, 0).read_end().state == "stopped"

    watched = play(
        ["study", "watch", "long"],
        folder,
        signals=[(lambda screen: "#0 " in screen.text and "1000000" in screen.text, signal.SIGINT)],
    )
    assert watched.code == 0 and "long continues; sweeplab stop long stops it" in watched.screen.text
    assert process.poll() is None

    followers = [
        subprocess.Popen(
            [*PROGRAM, "study", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for words in (["watch", "long"], ["watch", "long", "--log"])
    ]
    assert "long: 1 of 2 trials" in followers[0].stderr.readline()
    assert cli("study", "stop", "long").code == 0
    assert process.wait(timeout=300) == 130
    watched, logged = (follower.communicate(timeout=300)[0] for follower in followers)
    assert [follower.returncode for follower in followers] == [130, 0]
    assert "long   interrupted: " in watched
    assert "study: stop\n" in logged and "study: ended: interrupted" in logged
    assert "trial: all trial 2 stopped, val_loss" in logged and "(asked to stop, at iteration" in logged
    said = (folder / "said.txt").read_text()
    assert "long   interrupted: " in said
    assert "next   sweeplab resume long\n" in said, "with the options of `run` it would undo the extension"
    assert Commands.open(study).state.status == "interrupted"
    assert "study long is not running: 1 trial done; sweeplab resume long" in cli("study", "stop", "long").err


@pytest.mark.slow
def test_a_detached_study_outlives_who_started_it_and_is_stopped(cli, folder: Path) -> None:
    (folder / "long.yaml").write_text(LONG)
    command = [sys.executable, "-m", "sweeplab", "study", "run", "long.yaml", "--detach"]
    # Its own session ends with it, as that of a terminal does that is closed.
    started = subprocess.run(command, cwd=folder, capture_output=True, text=True, start_new_session=True)
    assert started.returncode == 0, started.stderr
    study = StudyFolder(folder / "lab", "long")
    process = psutil.Process(int(started.stdout.partition("process ")[2].partition(",")[0]))
    try:
        assert started.stdout.splitlines()[1:] == [
            f"{what}: sweeplab {what} long" for what in ("watch", "stop")
        ]
        assert os.getsid(process.pid) == process.pid and study.is_run
        twice = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert (twice.returncode, twice.stderr.count("\n")) == (2, 1) and "is running" in twice.stderr
        wait_for(lambda: any(run.points() for run in study.runs()))
        assert cli("study", "stop", "long").code == 0
        wait_for(lambda: not study.is_run)
        assert all([*run.path.glob("state-*.safetensors")] for run in study.runs())
    finally:
        if process.is_running():
            process.kill()
    (folder / "long.yaml").write_text(LONG.replace("batch_size: 4", "batch_size: none"))
    wrong = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1) and "batch_size" in wrong.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("forgets_plugins", "workers_here")
def test_failed_trials_are_trained_again_and_the_study_goes_on(cli, folder: Path) -> None:
    parts = "from pathlib import Path\nfrom sweeplab.plugins import metric\n@metric('fragile')\n"
    parts += "def fragile(val_loss, iteration, values):\n"
    parts += "    return val_loss / (not Path(__file__).with_name('bad').exists())\n"
    (folder / "parts.py").write_text(parts)
    text = LONG.replace("1000000", "20").replace("eval_interval: 50", "eval_interval: 10")
    text += "plugins: [parts.py]\nobjective: {metric: fragile}\n"
    (folder / "long.yaml").write_text(text)
    (folder / "bad").touch()
    assert cli("study", "run", "long.yaml", "--allow-plugins").code == 1
    study = StudyFolder(folder / "lab", "long")
    failed = {run.trial: run.read_start().sampled for run in study.runs()}
    assert {run.read_end().ending.outcome for run in study.runs()} == {"failed"}
    (folder / "bad").unlink()
    assert cli("study", "resume", "long", "--failed", "--allow-plugins").code == 0
    again = [run.read_start() for run in study.runs() if run.trial not in failed]
    assert {start.retries: start.sampled for start in again if start.retries is not None} == failed
    assert {run.read_end().ending.outcome for run in study.runs() if run.trial not in failed} == {"complete"}
    refused = cli("study", "resume", "long", "--failed", "--allow-plugins")
    assert refused.code == 2 and "has no failed trial that is not already being retried" in refused.err
