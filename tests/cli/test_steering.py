"""Commands that steer, follow and move studies: on a finished one, and on one that runs in another process."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from terminal import PROGRAM, captured, play, wait_until

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


def undo(cli, *commands):
    """Do what a command said takes it back."""
    assert commands
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        subprocess.run(command, shell=True, check=True, env=environment, capture_output=True)


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_run_takes_the_values_of_its_file_and_resume_those_that_were_extended(
    cli, json_of, finished, lab, folder
):
    file = shutil.copy(finished.file, folder / "tiny.yaml")

    def went_on(*words):
        assert cli(*words).code == 0
        shown = json_of("study show tiny")
        assert shown["state"] == "finished"
        return {cell["cell"]: cell["complete"] for cell in shown["cells"]}, shown[
            "trials_per_cell"
        ]

    assert cli("study", "extend", "tiny", "--trials-per-cell", "3", "--no-run").code == 0
    assert went_on("resume", "tiny") == ({"n_embd=8": 3, "n_embd=16": 3}, 3)
    assert went_on("run", file) == ({"n_embd=8": 3, "n_embd=16": 3}, 2), (
        "totals: nothing is added"
    )
    added = (
        "-o",
        "budget.trials_per_cell=4",
        "--grid",
        "n_embd=8,24",
        "-o",
        "track.snapshots=1",
    )
    assert went_on("run", file, *added)[0] == {"n_embd=8": 4, "n_embd=24": 4, "n_embd=16": 3}
    assert went_on("run", file)[1] == 2, "-o is for one run"
    changed = cli("study", "run", file, "-o", "max_iters=40")
    assert changed.code == 2 and "fixed.max_iters is 40 and was 20" in changed.err, (
        "this is asked"
    )


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_finished_study_is_extended_enqueued_and_goes_on(cli, json_of, lab):
    extended = json_of("extend tiny --trials-per-cell 3 --no-run")
    undo(cli, *extended["undo"])
    assert json_of("show tiny")["trials_per_cell"] == 2
    asked = json_of("enqueue tiny n_embd=16 lr=5e-3")
    assert asked["trials"] == [{"cell": "n_embd=16", "trial": 2}]
    withdrawn = json_of(asked["undo"][0].removeprefix("sweeplab "))
    assert json_of("show tiny")["state"] == "finished"
    undo(cli, *withdrawn["undo"])
    file = lab / "studies" / "tiny" / "study.yaml"
    written = file.read_bytes()
    went_on = json_of("resume tiny")
    assert (went_on["status"], went_on["runs"]) == ("complete", {"complete": 5})
    assert file.read_bytes() == written, "what the user wrote is kept"
    shown = json_of("show tiny --trial 3 --cell n_embd=16")
    origins = {each["name"]: (each["value"], each["from"]) for each in shown["hyperparameters"]}
    assert origins["learning_rate"] == (5e-3, "enqueued") and origins["n_embd"] == (16, "grid")
    (run,) = shown["runs"]
    assert (run["stop_reason"], run["state"]) == ("reached max_iters", "complete")
    printed = [line.split() for line in cli("show", "tiny", "--trial", "3").out.splitlines()]
    assert ["learning_rate", "0.005", "enqueued"] in printed
    log = cli("watch", "tiny", "--log").out
    assert "study: withdraw: " in log and "study: ended: complete" in log
    assert log.count("(reached max_iters)") == 5


def has_workers(process):
    try:
        found = psutil.Process(process.pid).children()
        return any("sweeplab.sweep.worker" in each.cmdline() for each in found)
    except psutil.NoSuchProcess:  # one of them, just now
        return True


@pytest.fixture
def long(folder):
    """Return a study that runs in another process, and never ends by itself."""
    (folder / "long.yaml").write_text(LONG)
    study = StudyFolder(folder / "lab", "long")
    with (folder / "said.txt").open("w") as log:
        process = subprocess.Popen([*PROGRAM, "run", "long.yaml"], stderr=log, stdout=log)
        try:
            wait_until(
                lambda: study.path.exists() and any(run.points() for run in study.runs())
            )
            yield process, study
        finally:
            process.terminate()
            process.wait(timeout=120)


@pytest.mark.slow
def test_a_running_study_is_steered_from_other_processes(long, cli, json_of, folder):
    process, study = long
    first, second, third = (study.run("all", trial, 0) for trial in range(3))
    for words, why in (
        ("resume long", "running and not paused"),
        ("rm long --yes", "sweeplab stop long"),
    ):
        assert why in cli(*words.split()).err

    assert cli("pause", "long").code == 0
    wait_until(lambda: not has_workers(process))
    rested = len(first.points())
    assert "is paused" in cli("pause", "long").err
    assert [*first.path.glob("state-*")], "what to go on from is kept"
    assert json_of("resume long")["undo"] == ["sweeplab pause long"]
    wait_until(lambda: len(first.points()) > rested)

    assert cli("extend", "long", "--trials-per-cell", "2", "--no-run").code == 0
    wait_until(second.points)
    assert cli("enqueue", "long", "learning_rate=5e-4").code == 0
    wait_until(third.points)
    assert third.read_start().sampled == {"learning_rate": 5e-4}
    assert cli("stop", "long/2").code == 0
    wait_until(third.read_end)
    assert third.read_end().state == "stopped"

    is_shown = [
        (lambda screen: "#0 " in screen.text and "1000000" in screen.text, signal.SIGINT)
    ]
    watched = play(["watch", "long"], folder, signals=is_shown)
    assert (
        watched.code == 0
        and "long continues; sweeplab stop long stops it" in watched.screen.text
    )
    assert process.poll() is None

    pipe = subprocess.PIPE
    followers = [
        subprocess.Popen(
            [*PROGRAM, "watch", "long", *words], stdout=pipe, stderr=pipe, text=True
        )
        for words in ([], ["--log"])
    ]
    assert "long: 1 of 2 trials" in followers[0].stderr.readline()
    assert cli("stop", "long").code == 0
    assert process.wait(timeout=300) == 130
    watched, logged = (follower.communicate(timeout=300)[0] for follower in followers)
    assert [follower.returncode for follower in followers] == [130, 0]
    assert "study: stop\n" in logged and "study: ended: interrupted" in logged
    assert "trial: all trial 2 stopped, val_loss" in logged
    for said in (watched, (folder / "said.txt").read_text()):
        assert "long   interrupted: " in said
    assert "next   sweeplab resume long\n" in said, (
        "with the options of `run` it would undo the extension"
    )
    commands = Commands.open(study)
    assert commands.read() and commands.state.status == "interrupted"
    assert cli("stop", "long").code == 2


@pytest.mark.slow
def test_a_detached_study_outlives_who_started_it_and_is_stopped(cli, folder):
    def detached():
        """Run in a session that ends with the command, as that of a terminal does that is closed."""
        command = [sys.executable, "-m", "sweeplab", "run", "long.yaml", "--detach"]
        return captured(command, start_new_session=True)

    (folder / "long.yaml").write_text(LONG)
    started = detached()
    assert started.returncode == 0, started.stderr
    study = StudyFolder(folder / "lab", "long")
    process = psutil.Process(int(started.stdout.partition("process ")[2].partition(",")[0]))
    try:
        assert os.getsid(process.pid) == process.pid and study.is_run
        twice = detached()
        assert (twice.returncode, twice.stderr.count("\n")) == (
            2,
            1,
        ) and "is running" in twice.stderr
        wait_until(lambda: any(run.points() for run in study.runs()))
        assert cli("stop", "long").code == 0
        wait_until(lambda: not study.is_run)
        assert all([*run.path.glob("state-*.safetensors")] for run in study.runs())
    finally:
        if process.is_running():
            process.kill()
    (folder / "long.yaml").write_text(LONG.replace("batch_size: 4", "batch_size: none"))
    wrong = detached()
    assert (wrong.returncode, wrong.stderr.count("\n")) == (
        2,
        1,
    ) and "batch_size" in wrong.stderr


FRAGILE = """\
from pathlib import Path
from sweeplab.plugins import metric

@metric("fragile")
def fragile(model, batches, record):
    return record.val_loss / (not Path(__file__).with_name("bad").exists())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forgets_plugins", "workers_here")
def test_failed_trials_do_not_count_and_the_study_goes_on(cli, folder):
    (folder / "parts.py").write_text(FRAGILE)
    text = LONG.replace("1000000", "20").replace("eval_interval: 50", "eval_interval: 10")
    (folder / "long.yaml").write_text(
        f"{text}plugins: [parts.py]\nobjective: {{metric: fragile}}\n"
    )
    (folder / "bad").touch()
    assert cli("run", "long.yaml", "--allow-plugins").code == 1
    study = StudyFolder(folder / "lab", "long")
    failed = {run.trial for run in study.runs()}
    assert {run.read_end().ending.outcome for run in study.runs()} == {"failed"}
    (folder / "bad").unlink()
    assert cli("resume", "long", "--allow-plugins").code == 0
    again = [run for run in study.runs() if run.trial not in failed]
    assert {run.read_end().ending.outcome for run in again} == {"complete"}
