"""What the doctor finds in a study that was harmed, and whether the cure that it prints is one."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from terminal import said

from sweeplab.doctor import examine, tracking_check

STUDY = """\
name: ill
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, n_embd: 8, warmup_iters: 2,
        dropout: 0.0, eval_interval: 10, eval_iters: 1, grad_clip: null, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 3}
pruner: {type: none}
engine: {workers: 1}
"""
CLAIM = """
import os, sys
from pathlib import Path
from sweeplab.doctor.findings import OpenedStudy
from sweeplab.records.folders import StudyFolder
store = OpenedStudy(StudyFolder(Path(sys.argv[1]), "ill")).store
object.__setattr__(store.spec.budget, "trials_per_cell", 4)
store.commands.add("start", {})
print(store.claim_many(1)[0].number, flush=True)
os._exit(0) if sys.argv[2] == "die" else sys.stdin.read()
"""
OF_THE_STUDY = ("tracking", "storage", "workers", "leases", "runs", "agreement")


def of_the_study(study):
    return [check for check in examine(study.lab, study) if check.name in OF_THE_STUDY]


def wrong(study):
    """Return the one check that is not ok."""
    (check,) = [check for check in of_the_study(study) if check.verdict != "ok"]
    return check


def follow(cure):
    """Do what a cure says, word for word."""
    program = 'sweeplab() { "$PYTHON" -c "from sweeplab.cli import main; main()" "$@"; }; '
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHON": sys.executable, "PATH": path}
    said(["bash", "-ec", program + cure], env=environment)


def runs(study):
    return [run.path for run in study.runs()]


def execute(study, statement, database="studies/ill/trials.db"):
    with closing(sqlite3.connect(study.lab / database, isolation_level=None)) as connection:
        connection.execute(statement)


@pytest.mark.slow
def test_a_healthy_study(study):
    assert [(check.name, check.verdict, check.found) for check in of_the_study(study)] == [
        ("tracking", "ok", "answers; studies: 1"),
        ("storage", "ok", "whole; trials: 3"),
        ("workers", "ok", "trials being trained: 0, waiting to be continued: 0"),
        ("runs", "ok", "whole: 3"),
        ("agreement", "ok", "runs in MLflow: 3"),
    ]


@pytest.mark.slow
def test_a_worker_that_is_gone(study):
    subprocess.run(
        [sys.executable, "-c", CLAIM, str(study.lab), "die"], check=True, capture_output=True
    )
    check = wrong(study)
    assert (check.name, check.verdict) == ("workers", "warn")
    assert check.found == "trials of workers that are gone: all #3"
    follow(check.cure)
    assert [each.found for each in of_the_study(study)[-3:]] == [
        "trials being trained: 0, waiting to be continued: 0", "whole: 4", "runs in MLflow: 4",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_worker_that_hangs(study):
    command = [sys.executable, "-c", CLAIM, str(study.lab), "stay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout.readline() == b"3\n"
        execute(study, "UPDATE sweeplab_lease SET expires = 1")
        check = wrong(study)
        kill, _, again = check.cure.partition(" && ")
        assert kill == f"kill -9 {worker.pid}" and again.startswith("sweeplab resume ")
        worker.kill()
    found = "trials of workers that exist but hang: all #3"
    assert (check.name, check.verdict, check.found) == ("workers", "bad", found)
    assert wrong(study).found == "trials of workers that are gone: all #3"


def cut_end(run):
    (run / "end.json").write_text('{"state": "comp')


def remove_end(run):
    (run / "end.json").unlink()


def leave_temporary(run):
    (run / "end.json.tmp").write_text("{")


def remove_weights(run):
    next((run / "best").glob("*.safetensors")).unlink()


def flip_bit(run):
    (file,) = (run / "best").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def remove_checkpoint(run):
    shutil.rmtree(run / "best")


def remove_curve(run):
    (run / "points.jsonl").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "verdict", "found"),
    [
        (cut_end, "bad", "files that are not valid JSON: all/0-0/end.json"),
        (remove_end, "bad", "ended trials whose runs have lost run.json or end.json: all/0-0"),
        (remove_weights, "bad", "damaged or changed checkpoints: all/0-0/best"),
        (flip_bit, "bad", "damaged or changed checkpoints: all/0-0/best"),
        (
            remove_checkpoint,
            "warn",
            "ended runs without the checkpoint that the study keeps: all/0-0",
        ),
        (remove_curve, "bad", "ended runs whose curves are gone: all/0-0/points.jsonl"),
        (
            leave_temporary,
            "warn",
            "unfinished files left by a killed process: all/0-0/end.json.tmp",
        ),
    ],
)
def test_what_is_half_written(harm, verdict, found, study):
    harm(runs(study)[0])
    check = wrong(study)
    assert (check.name, check.verdict, check.found) == ("runs", verdict, found)
    if verdict == "warn" and harm is not remove_checkpoint:
        follow(check.cure)
        assert all(each.verdict == "ok" for each in of_the_study(study))


@pytest.mark.slow
def test_a_description_that_is_torn_while_its_trial_runs(study):
    execute(study, "UPDATE trials SET state = 'RUNNING' WHERE number = 0")
    folder = study.run("all", 0, 0).path
    (folder / "end.json").write_text("{")
    found = {check.name: check for check in of_the_study(study) if check.verdict != "ok"}
    assert (
        found["runs"].found
        == "files that are not valid JSON, of runs that have not ended: all/0-0/end.json"
    )
    follow(found["runs"].cure)
    follow(found["workers"].cure)  # the trial is trained again
    assert all(each.verdict == "ok" for each in of_the_study(study))


@pytest.mark.parametrize(
    ("name", "said"), [("trials.db", "not a database"), ("study.json", "it cannot be read")]
)
def test_a_storage_that_is_broken(name, said, study):
    for beside in study.path.glob(f"{name}*"):
        beside.unlink()
    missing = wrong(study)
    (study.path / name).write_text("no longer what it was " * 99)
    broken = wrong(study)
    assert {missing.name, broken.name} == {"storage"} and {missing.verdict, broken.verdict} == {
        "bad"
    }
    assert said in broken.found and broken.cure
    assert name == "study.json" or "unable to open" in missing.found


def test_a_storage_of_another_version(study):
    execute(study, "UPDATE alembic_version SET version_num = 'v0.9.0.a'")
    execute(study, "UPDATE version_info SET library_version = '0.9.0'")
    optuna = wrong(study)
    assert (optuna.name, optuna.verdict) == ("storage", "bad")
    assert f"optuna storage upgrade --storage {study.storage_url}" in optuna.cure


def test_all_studies_of_a_lab(study):
    (study.lab / "studies" / "killed").mkdir()
    checks = list(examine(study.lab))
    assert next(check for check in checks if check.name == "tracking").verdict == "ok"
    found = [check for check in checks if check.name == "storage"]
    assert [(check.verdict, check.found) for check in found] == [
        ("ok", "whole; trials: 3"), ("warn", "folders of studies that never started: killed"),
    ]  # fmt: skip
    follow(found[1].cure)
    assert [check.found for check in examine(study.lab) if check.name == "storage"] == [
        "whole; trials: 3"
    ]


def test_a_tracking_server_that_is_down(tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"http://me:secret@127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
        check = tracking_check(tmp_path, place)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert check.verdict == "bad" and "start the server" in check.cure
    assert "secret" not in check.looked_at + check.found
    assert tracking_check(tmp_path, "ftp://x").verdict == "bad"
    assert tracking_check(tmp_path).found == "will be created by the first study that is run"
