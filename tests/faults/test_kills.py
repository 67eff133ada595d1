"""A study that is killed again and again ends as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from sweeplab.tracking.connection import connect, tracking_uri

NINE = Path(__file__).parent / "nine.yaml"
# Shapes as small as kills, claims and pruning allow: a trial takes a second or two, and is saved twice on its way.
SHORT = ("max_iters=90", "eval_interval=15", "save_interval=30", "pruner.min_iters=30")
SHORT += ("batch_size=4", "block_size=16", "eval_tokens=1024")
COMMAND = [sys.executable, "-c", "from sweeplab.cli import main; main()", "study", "run"]


def run(file: Path, lab: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [*COMMAND, str(file), "--lab", str(lab), *(word for each in overrides for word in ("-o", each))]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(file: Path, lab: Path, *overrides: str) -> None:
    process = run(file, lab, *overrides)
    said = process.communicate()[1]
    assert process.returncode == 0, said


def optuna_trials(lab: Path, name: str) -> dict[tuple[str, int], optuna.trial.FrozenTrial]:
    storage = f"sqlite:///{lab / 'studies' / name / 'trials.db'}"
    return {
        (study.removeprefix(f"{name}/"), trial.number): trial
        for study in optuna.get_all_study_names(storage)
        for trial in optuna.load_study(study_name=study, storage=storage).get_trials()
        if "infeasible" not in trial.user_attrs
    }


def assert_whole(lab: Path, name: str, n_trials: int) -> dict[tuple[str, int], optuna.trial.FrozenTrial]:
    """Every trial once, ended, and the same in Optuna and MLflow."""
    trials = optuna_trials(lab, name)
    assert len(trials) == n_trials
    assert {trial.state for trial in trials.values()} <= {TrialState.COMPLETE, TrialState.PRUNED}
    client = connect(lab, tracking_uri(lab))
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id], max_results=5000)
    runs = [each for each in runs if "sweeplab.trial" in each.data.tags]
    keys = Counter((each.data.tags["sweeplab.cell"], int(each.data.tags["sweeplab.trial"])) for each in runs)
    assert keys == Counter(trials.keys())
    assert {each.info.status for each in runs} == {"FINISHED"}
    for each in runs:
        trial = trials[each.data.tags["sweeplab.cell"], int(each.data.tags["sweeplab.trial"])]
        assert each.data.tags["sweeplab.state"] == trial.user_attrs["outcome"]
        assert each.data.metrics["value"] == trial.value
        history = client.get_metric_history(each.info.run_id, "val_loss")
        curve = {point.step: point.value for point in history}
        assert len(curve) == len(history), "no point twice"
        assert curve == trial.intermediate_values
    return trials


@pytest.mark.faults
def test_five_kills_of_the_whole_process_group_at_random_moments(tmp_path):
    seed = int(os.environ.get("SWEEPLAB_FAULT_SEED", random.randrange(10**6)))
    print(f"SWEEPLAB_FAULT_SEED={seed}")
    dice = random.Random(seed)
    file, lab, n_trials = NINE, tmp_path / "lab", 36
    few = (*SHORT, "n_layer=1", "budget.trials_per_cell=12")
    # One kill falls in the seconds in which a study, or its continuation, starts; each of the others in its quarter
    # of the study, some time after as many trials have ended.
    quarters = [dice.randrange(first, min(first + 9, n_trials - 2)) for first in range(0, n_trials, 9)]
    moments: list[int | None] = [*quarters]
    moments.insert(dice.randrange(4), None)  # never last: a start with few trials left may be the end
    for n_ended in moments:
        process = run(file, lab, *few)
        if n_ended is not None:
            wait_for_trials(process, n_ended)
        try:
            process.wait(dice.uniform(0, 6 if n_ended is None else 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was killed before it ended"
    finish(file, lab, *few)
    assert_whole(lab, "nine", n_trials)


def wait_for_trials(process: subprocess.Popen[str], n_ended: int) -> None:
    """Wait until a study that was started says that so many trials of it have ended; for none it does not wait."""
    while n_ended and (line := process.stderr.readline()):
        counted = line.partition("/")[0]
        if counted.isdigit() and int(counted) >= n_ended:
            return


@pytest.mark.faults
def test_a_killed_supervisor_takes_its_workers_along_and_a_killed_worker_is_replaced(tmp_path):
    import psutil

    file, lab = NINE, tmp_path / "lab"
    shorter = (*SHORT, "n_layer=1", "budget.trials_per_cell=6")
    process = run(file, lab, *shorter)
    supervisor = psutil.Process(process.pid)
    workers = wait_for_workers(process)
    workers[0].kill()
    psutil.wait_procs([workers[0]], timeout=300)
    workers = wait_for_workers(process)
    supervisor.kill()
    process.communicate()
    _gone, alive = psutil.wait_procs(workers, timeout=300)
    assert not alive
    finish(file, lab, *shorter)
    assert_whole(lab, "nine", 18)


def wait_for_workers(process):
    """Wait until both workers of a study are at work."""
    import psutil

    for line in process.stderr:
        children = psutil.Process(process.pid).children()
        workers = [each for each in children if "sweeplab.sweep.worker" in each.cmdline()]
        if "val_loss" in line and len(workers) == 2:
            return workers
    raise AssertionError("the study ended too early")
