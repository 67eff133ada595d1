"""A study whose trials are stored in PostgreSQL: a real server on loopback, with a data folder of its own."""

import json
import subprocess
import sys
import time

import pytest
import sqlalchemy
from postgres_server import IS_INSTALLED, started
from terminal import said

from sweeplab.records.folders import StudyFolder

PROGRAM = [sys.executable, "-c", "from sweeplab.cli import main; main()"]
STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, dropout: 0.0,
        warmup_iters: 2, eval_interval: 10, eval_iters: 1, grad_clip: null, device: cpu}
grid: {n_embd: [8, 16]}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 5}
pruner: {type: median, n_startup_trials: 2}
engine: {workers: 2}
"""
ONE_WORKER = ("-o", "engine.workers=1")  # where nothing rests on there being more
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(
        not IS_INSTALLED, reason="PostgreSQL's programs or psycopg are not installed"
    ),
]


@pytest.fixture(scope="module")
def running():
    with started() as server:
        yield server


@pytest.fixture
def server(running):
    return running.url


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    (tmp_path / "tiny.yaml").write_text(STUDY)
    monkeypatch.setenv("SWEEPLAB_STORAGE", server)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(*words, code=0):
        command = [*PROGRAM, *words, "--lab", str(tmp_path / "lab")]
        return said(command, code, cwd=tmp_path, timeout=200)

    return run


def test_a_study_is_run_steered_and_looked_at(run, tmp_path, monkeypatch):
    run("study", "run", "tiny.yaml")
    folder = StudyFolder(tmp_path / "lab", "tiny")
    assert not folder.database.exists() and folder.storage_file.stat().st_mode & 0o077 == 0
    monkeypatch.delenv("SWEEPLAB_STORAGE")  # from here on the study knows
    (row,) = json.loads(run("study", "list", "--json"))
    assert (row["done"], sum(row["states"].values())) == (10, 10)
    run("study", "enqueue", "tiny", "learning_rate=1e-3", "n_embd=8")
    shown = json.loads(run("study", "show", "tiny", "--json"))
    assert [cell["enqueued"] for cell in shown["cells"]] == [1, 0]
    run("study", "extend", "tiny", "--trials-per-cell", "6", "--no-run")
    run("study", "resume", "tiny")
    shown = json.loads(run("study", "show", "tiny", "--json"))
    assert [cell["trials"] for cell in shown["cells"]] == [6, 6]
    said = json.loads(run("doctor", "tiny", "--json"))
    assert {each["name"]: each["verdict"] for each in said}["storage"] == "ok"
    run("study", "rename", "tiny", "small", "--yes")
    run("study", "resume", "small")
    (row,) = json.loads(run("study", "list", "--json"))
    assert (row["name"], row["done"]) == ("small", 12)


STORED = (
    "SELECT trial_id, state FROM trials",
    "SELECT trial_id, value FROM trial_values",
    "SELECT trial_id, step, intermediate_value FROM trial_intermediate_values",
    "SELECT trial_id, value_json FROM trial_user_attributes WHERE key = 'outcome'",
)


def stored(engine):
    with engine.connect() as connection:
        return [sorted(connection.execute(sqlalchemy.text(each)).all()) for each in STORED]


def test_a_damaged_storage_is_repaired(run, server, tmp_path):
    run(
        "study",
        "run",
        "tiny.yaml",
        "-o",
        "budget.trials_per_cell=2",
        "-o",
        "pruner=none",
        *ONE_WORKER,
    )
    engine = sqlalchemy.create_engine(StudyFolder(tmp_path / "lab", "tiny").storage_url)
    before = stored(engine)
    untold, changed = (trial_id for trial_id, _ in before[0][:2])
    with engine.begin() as connection:
        for statement in (
            f"UPDATE trials SET state = 'RUNNING', datetime_complete = NULL WHERE trial_id = {untold}",
            f"DELETE FROM trial_values WHERE trial_id = {untold}",
            f"DELETE FROM trial_user_attributes WHERE key = 'outcome' AND trial_id = {untold}",
            f"DELETE FROM trial_intermediate_values WHERE step = 20 AND trial_id = {untold}",
            f"UPDATE trial_values SET value = value + 1 WHERE trial_id = {changed}",
        ):
            assert connection.exec_driver_sql(statement).rowcount == 1
    run("doctor", "tiny", "--repair")
    assert stored(engine) == before
    engine.dispose()


def test_a_study_outlives_restarts_of_its_database(run, running, tmp_path):
    more = (
        "-o",
        "fixed.max_iters=300",
        "-o",
        "grid.n_embd=[8]",
        "-o",
        "budget.trials_per_cell=20",
    )
    words = [*PROGRAM, "study", "run", "tiny.yaml", *more, "--lab", str(tmp_path / "lab")]
    folder = StudyFolder(tmp_path / "lab", "tiny")
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as study:
        for n_ended in (2, 8):
            while sum(run.read_end() is not None for run in folder.runs()) < n_ended:
                assert study.poll() is None
                time.sleep(0.1)
            running.restart()
        said = study.stdout.read().decode()
    assert study.returncode == 0, said
    assert "the storage of study tiny answers again" in said and "Traceback" not in said
    (row,) = json.loads(run("study", "list", "--json"))
    assert (row["done"], sum(row["states"].values())) == (20, 20)
    verdicts = {
        each["name"]: each["verdict"] for each in json.loads(run("doctor", "tiny", "--json"))
    }
    assert (verdicts["storage"], verdicts["runs"], verdicts["agreement"]) == ("ok", "ok", "ok")
