"""Damage of every kind, planted in a finished study: `doctor --repair` lets storage, folders and MLflow agree again."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from sweeplab import open_study
from sweeplab.doctor import examine
from sweeplab.doctor.findings import OpenedStudy
from sweeplab.doctor.repair import repair_study
from sweeplab.errors import BadInput
from sweeplab.tracking.connection import connect, tracking_uri

STUDY = """\
name: ill
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, n_embd: 8, warmup_iters: 2,
        dropout: 0.0, eval_interval: 10, eval_iters: 1, save_interval: 10, grad_clip: null, device: cpu}
search: {learning_rate: [1.0e-6, 3.0e-2], weight_decay: {min: 0.0, max: 0.1}}
budget: {trials_per_cell: 4}
sampler: random
pruner: {type: threshold, upper: 4.6, n_warmup_steps: 5}
engine: {workers: 1, threads: 1, stack: 4}
"""


def execute(study, statement, *values):
    with closing(sqlite3.connect(study.database, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        assert connection.execute(statement, values).rowcount


def forget_trials(study, first):
    """Forget trials, as a storage does that was restored from a copy."""
    with closing(sqlite3.connect(study.database, isolation_level=None)) as connection:
        own = "trial_id IN (SELECT trial_id FROM trials WHERE number >= ?)"
        for table in (
            "params",
            "values",
            "intermediate_values",
            "user_attributes",
            "system_attributes",
        ):
            connection.execute(f"DELETE FROM trial_{table} WHERE {own}", [first])
        connection.execute("DELETE FROM trials WHERE number >= ?", [first])


def mlflow(study):
    client = connect(study.lab, tracking_uri(study.lab))
    experiment = client.get_experiment_by_name("ill").experiment_id
    runs = client.search_runs([experiment], "tags.`sweeplab.trial` LIKE '%'")
    assert len({run.data.tags["sweeplab.key"] for run in runs}) == len(runs)
    return client, {run.data.tags["sweeplab.key"]: run for run in runs}


def content(study):
    """Return what all three have of the study."""
    opened = OpenedStudy(study)
    trials = {
        number: (
            trial.state.name,
            trial.params,
            trial.value,
            trial.intermediate_values,
            trial.user_attrs["outcome"],
        )
        for (_, number), trial in opened.trials.items()
    }
    client, runs = mlflow(study)
    tracked = {
        key: (run.info.status, run.data.tags["sweeplab.state"], run.data.params, run.data.metrics["value"],
              [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "val_loss")])
        for key, run in runs.items()
    }  # fmt: skip
    ends = {run.path.name: run.read_end() for run in study.runs()}
    curves = {
        run.path.name: [(each.iteration, each.val_loss) for each in run.points()]
        for run in study.runs()
    }
    found = {
        name: end and (end.state, end.value, end.iteration, end.best_val_loss)
        for name, end in ends.items()
    }
    return {"trials": trials, "tracked": tracked, "ends": found, "curves": curves}


def pick(study, outcome):
    """Return the number of a trial that ended so."""
    trials = OpenedStudy(study).trials
    return next(
        number
        for (_, number), trial in trials.items()
        if trial.user_attrs["outcome"] == outcome
    )


# ------------------------------------------------------------------ what is damaged


def untold(study):
    number = pick(study, "complete")
    execute(
        study,
        "UPDATE trials SET state = 'RUNNING', datetime_complete = NULL WHERE number = ?",
        number,
    )
    own = "trial_id = (SELECT trial_id FROM trials WHERE number = ?)"
    execute(study, f"DELETE FROM trial_values WHERE {own}", number)
    execute(study, f"DELETE FROM trial_user_attributes WHERE key = 'outcome' AND {own}", number)
    execute(study, f"DELETE FROM trial_intermediate_values WHERE step = 20 AND {own}", number)
    return "unreported"


def endless(study):
    study.run("all", pick(study, "complete"), 0).end_file.unlink()
    return "lost"


def endless_and_pruned(study):
    study.run("all", pick(study, "pruned"), 0).end_file.unlink()
    return "lost"


def torn_end(study):
    study.run("all", 0, 0).end_file.write_text('{"state": "comp')
    return "damaged"


def torn_description(study):
    study.run("all", pick(study, "complete"), 0).start_file.write_text('{"key": "al')
    return "damaged"


def restored_storage(study):
    forget_trials(study, 2)
    return "unknown"


def restored_storage_that_went_on(study):
    """Let the storage have another trial of the number that a folder has."""
    number = pick(study, "complete")
    own = "param_name = 'weight_decay' AND trial_id = (SELECT trial_id FROM trials WHERE number = ?)"
    execute(study, f"UPDATE trial_params SET param_value = 0.0321 WHERE {own}", number)
    return "differs"


def another_value(study):
    number = pick(study, "complete")
    own = "trial_id = (SELECT trial_id FROM trials WHERE number = ?)"
    execute(study, f"UPDATE trial_values SET value = 0.5 WHERE {own}", number)
    return "differs"


def another_state(study):
    execute(study, "UPDATE trials SET state = 'FAIL' WHERE number = ?", pick(study, "pruned"))
    return "differs"


def temporary(study):
    (study.run("all", 0, 0).path / "end.json.tmp").write_text("{")
    return "temporary"


def orphan(study):
    (study.run("all", 9, 0).path).mkdir()
    (study.run("all", 9, 0).path / "points.jsonl").write_text("{")
    return "orphaned"


def gone_from_mlflow(study):
    client, runs = mlflow(study)
    client.delete_run(runs["ill/all/1/0"].info.run_id)
    return "gone"


def never_sent(study):
    gone_from_mlflow(study)
    study.run("all", 1, 0).shipped_file.unlink()
    study.run("all", 1, 0).tracked_file.unlink()
    return "unsent"


STORAGE = (
    untold,
    restored_storage,
    restored_storage_that_went_on,
    another_value,
    another_state,
)
FOLDERS = (endless, endless_and_pruned, torn_end, torn_description, temporary, orphan)
MLFLOW = (gone_from_mlflow, never_sent)


def faults(repaired):
    return {finding.kind for finding, _ in repaired.done}


@pytest.mark.slow
@pytest.mark.parametrize("harm", STORAGE + FOLDERS + MLFLOW)
def test_what_was_damaged_agrees_again(harm, study):
    before = content(study)
    kind = harm(study)
    named = [
        check
        for check in examine(study.lab, study)
        if check.cure and check.name in ("runs", "agreement")
    ]
    assert any("sweeplab doctor ill --repair" in check.cure for check in named), (
        "the doctor names it"
    )
    said = repair_study(study, dry_run=True)
    assert kind in faults(said)
    repaired = repair_study(study)
    assert faults(said) <= faults(repaired) and not repaired.left and not repaired.to_train
    assert content(study) == before
    again = repair_study(study)
    assert (again.done, again.left, again.to_train) == ([], [], [])
    checks = [
        each
        for each in examine(study.lab, study)
        if each.name in ("storage", "workers", "runs", "agreement")
    ]
    assert {each.verdict for each in checks} == {"ok"}, checks


@pytest.mark.slow
def test_a_trial_without_a_folder_is_trained_again_to_the_same_bits(study):
    before, number = content(study), pick(study, "complete")
    shutil.rmtree(study.run("all", number, 0).path)
    repaired = repair_study(study)
    assert faults(repaired) == {"lost"} and repaired.to_train == [("all", number)]
    assert open_study("ill", study.lab).run().status == "complete"
    assert content(study) == before


@pytest.mark.slow
def test_a_folder_of_all_runs_that_is_gone_is_no_reason_to_train_them_again(study):
    (study.path / "runs").rename(study.path / "elsewhere")
    (study.path / "runs").mkdir()
    with pytest.raises(BadInput, match="has no run folders, though 4 trials ended"):
        repair_study(study)


def test_what_a_live_worker_holds_is_left_alone(study):
    assert untold(study) == "unreported"
    worker = OpenedStudy(study).store
    (claim,) = worker.claim_many(9, asks=False)
    repaired = repair_study(study)
    assert [(finding and finding.kind, why) for finding, why in repaired.left] == [
        ("unreported", "a worker holds its trial")
    ]
    assert not repaired.done
    worker.requeue([claim])
    assert faults(repair_study(study)) == {"unreported"}


def test_beside_a_process_that_runs_the_study_mlflow_is_left_to_it(study):
    another_value(study)
    gone_from_mlflow(study)
    with study.held("held"):
        repaired = repair_study(study)
        assert faults(repaired) == {"differs"}
        assert [why for _, why in repaired.left] == [
            "MLflow is left to the process that runs the study"
        ]
    assert faults(repair_study(study)) == {"gone"}


def test_a_server_that_is_down_leaves_the_rest_mended(study, monkeypatch):
    from sweeplab.errors import TrackingUnavailable

    untold(study)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TrackingUnavailable):
        repair_study(study)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert not repair_study(study).done
