"""Workers as jobs of a real Slurm cluster: two nodes on loopback, each of one processor."""

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

import pytest
import strangers
from postgres_server import started as database
from slurm_cluster import IS_INSTALLED, WHY_NOT, started
from sweep.engine_contract import EngineContract
from terminal import captured, wait_until

from sweeplab.lab.server import Server
from sweeplab.records.folders import StudyFolder
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines.slurm import SlurmEngine

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not IS_INSTALLED, reason=WHY_NOT),
]


@pytest.fixture(scope="module")
def cluster():
    with started(n_nodes=2) as running:
        yield running


@pytest.mark.usefixtures("cluster")
class TestSlurm(EngineContract):
    @pytest.fixture
    def make_engine(self):
        return lambda folder, resources: SlurmEngine(folder, Engine(type="slurm"), resources)


STUDY = """\
name: jobs
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 60, n_layer: 1, n_head: 2, dropout: 0.1,
        warmup_iters: 2, eval_interval: 20, eval_iters: 1, device: cpu, save_interval: 20}
grid: {n_embd: [8, 16]}
search: {learning_rate: {choices: [1e-3, 3e-3, 1e-2]}}
budget: {trials_per_cell: 3}
sampler: grid
engine: {type: slurm, workers: 2, stack: 2}
"""


@pytest.fixture(scope="module")
def server():
    with database() as running:
        yield running.url


@pytest.fixture
def run(cluster, server, tmp_path, monkeypatch):
    (tmp_path / "jobs.yaml").write_text(STUDY)
    monkeypatch.setenv("SWEEPLAB_STORAGE", server)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(*words, code=0, lab=tmp_path / "lab"):
        command = [sys.executable, "-m", "sweeplab", *words, "--lab", str(lab)]
        ended = captured(command, cwd=tmp_path, timeout=900)
        logs = "".join(log.read_text() for log in lab.glob("studies/*/worker-*.log"))
        assert ended.returncode == code, ended.stdout + ended.stderr + logs
        return ended.stdout + ended.stderr

    return run


def curves(lab):
    """Return what each run has measured, by cell and hyperparameters: which worker trained it, and when, is open."""
    found = {}
    for each in StudyFolder(lab, "jobs").runs():
        start, end = each.read_start(), each.read_end()
        points = [
            (point.iteration, point.train_loss, point.val_loss) for point in each.points()
        ]
        found[f"{start.cell} {start.sampled}"] = points, str(end.state), end.value
    return found


def test_no_shell_of_a_job_reads_a_name(run, tmp_path):
    place = strangers.hostile_place(tmp_path, STUDY)
    words = ("-o", "budget.trials_per_cell=1", "-o", "max_iters=20", "-o", "engine.workers=1")
    run("study", "run", str(place.file), *words, lab=place.lab)
    detached = run(
        "study", "run", str(place.file), *words, "--detach", "--name=e-e", lab=place.lab
    )
    assert "process " in detached
    study = StudyFolder(place.lab, "e-e")
    wait_until(lambda: any(each.read_end() for each in study.runs()))
    assert not list(tmp_path.rglob("ran"))


def test_the_same_trials_and_losses_to_the_bit_as_on_local_workers(run, tmp_path):
    ran = strangers.plant_modules(tmp_path)
    (tmp_path / "sweeplab.py").unlink()  # which `python -m` asks for
    # On fast machines 60 iterations are over before the queue is looked at again.
    long = ("-o", "max_iters=1000", "-o", "save_interval=500")
    said = run("study", "run", "jobs.yaml", *long)
    assert "workers: 2 queued" in said and "running on n1" in said
    assert "jobs: queued\n" in said and "jobs: running\n" in said
    checks = {each["name"]: each for each in json.loads(run("doctor", "jobs", "--json"))}
    assert "answers; nodes: " in checks["slurm"]["found"]
    run("study", "run", "jobs.yaml", *long, "--engine", "local", lab=tmp_path / "other")
    here, there = curves(tmp_path / "other"), curves(tmp_path / "lab")
    assert len(there) == 6 and there == here
    assert not ran.exists(), ran.read_text()


def test_a_detached_study_needs_a_storage_for_several_machines(
    run, cluster, tmp_path, monkeypatch
):
    monkeypatch.delenv("SWEEPLAB_STORAGE")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)  # another account may enter, as root's server does
        lab = Path(name) / "lab"
        server, folder = Server(lab), StudyFolder(lab, "jobs")
        more = ("-o", "budget.trials_per_cell=1", "-o", "engine.workers=1")
        try:
            words = ["study", "run", "jobs.yaml", *more]
            refused = run(*words, lab=lab, code=2)
            cure = shlex.split(refused.partition("at most: ")[2].partition(", on a machine")[0])
            assert cure == shlex.split(f"sweeplab storage start --lab {lab} --host 0.0.0.0")
            run(*cure[1:3], *cure[5:], lab=lab)
            run(*words, "--detach", lab=lab)
            wait_until(lambda: not cluster.ask("squeue", "--noheader") and not folder.is_run)
            assert folder.states() == {"complete": 2}
            assert server.stop()
            assert "the lab's storage does not answer" in run(*words, lab=lab, code=2)
        finally:
            server.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can hide a folder from a node")
def test_a_node_that_does_not_see_the_lab_is_said_and_nothing_is_left(run, cluster, tmp_path):
    hide = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none "$0" && exec "$@"',
        str(tmp_path),
    )
    cluster.ask("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=not now")
    cluster.kill_node("n2")
    cluster.start_node("n2", *hide)
    try:
        said = run("study", "run", "jobs.yaml", "-o", "engine.workers=1", code=2)
        what = f"error: n2 does not see {tmp_path / 'lab'}: several nodes need a lab"
        assert said.splitlines()[-1].startswith(what)
        assert not [*tmp_path.glob("lab/studies/*")]
    finally:
        cluster.kill_node("n2")
        cluster.start_node("n2")
        cluster.ask("scontrol", "update", "NodeName=n1", "State=RESUME")


def test_what_cannot_be_is_said_in_one_line(run, cluster, tmp_path, monkeypatch):
    def refused(*words):
        said = run("study", "run", "jobs.yaml", *words, code=2)
        assert said.startswith("error: ") and said.count("\n") == 1
        assert run("study", "run", "jobs.yaml", "--detach", *words, code=2) == said
        return said

    queue = ("squeue", "--noheader", "--states=all", "--format=%i")
    before = cluster.ask(*queue).split()

    for words, what in (
        ("engine.partition=mian", "invalid partition specified: mian"),
        ("engine.threads=64", "node configuration is not available"),
    ):
        assert f"{what}; allowed: what sinfo lists" in refused("-o", words)
    with monkeypatch.context() as patch:
        patch.setenv("SWEEPLAB_STORAGE", "postgresql://nobody@127.0.0.1:9/db")
        assert "127.0.0.1:9/db does not answer: " in refused()
    login, configuration = (
        "such as its login node, or --engine local\n",
        cluster.folder / "slurm.conf",
    )
    silent = tmp_path / "slurm.conf"
    unheard = ("SlurmctldPort=", "MessageTimeout=1\nSlurmctldPort=9#")
    silent.write_text(configuration.read_text().replace(*unheard))
    for named in (None, str(silent)):
        with monkeypatch.context() as patch:
            patch.setenv("SLURM_CONF", named) if named else patch.delenv("SLURM_CONF")
            if named or not Path("/etc/slurm/slurm.conf").exists():
                said = refused()
                assert said.startswith(
                    "error: the engine slurm: no Slurm cluster answers here: "
                )
                assert said.endswith(login)
    assert not [*tmp_path.glob("lab/studies/*")]
    with monkeypatch.context() as patch:
        patch.delenv("SWEEPLAB_STORAGE")
        run("study", "run", "jobs.yaml", "--engine", "local", "-o", "budget.trials_per_cell=1")
    assert "are in an SQLite file" in refused()
    assert {*cluster.ask(*queue).split()} <= {*before}


def test_a_detached_study_is_seen_and_stopped(run, cluster, tmp_path):
    longer = ("-o", "max_iters=20000", "-o", "patience=null", "-o", "engine.workers=1")
    said = run("study", "run", "jobs.yaml", "--detach", *longer)
    assert "process " in said and "watch jobs" in said
    folder = StudyFolder(tmp_path / "lab", "jobs")
    wait_until(lambda: any(run.points() for run in folder.runs()))
    (worker,) = json.loads(run("study", "show", "jobs", "--json"))["workers"]
    assert worker["state"] == "running" and worker["node"] in cluster.nodes
    assert f"1 running on {worker['node']}" in run("study", "show", "jobs")
    run("study", "stop", "jobs")
    wait_until(lambda: not cluster.ask("squeue", "--noheader") and not folder.is_run)
    assert all([*run.path.glob("state-*.safetensors")] for run in folder.runs())
    by_page = "import sys, sweeplab.report.live as live; print(live.give(live.find_study(None, 'jobs'), 'resume', {}))"
    resumed = captured([sys.executable, "-c", by_page], cwd=tmp_path)
    assert "jobs is run by process " in resumed.stdout, resumed.stderr
    wait_until(lambda: any(each.state == "running" for each in folder.workers))
    run("study", "stop", "jobs")
    wait_until(lambda: not cluster.ask("squeue", "--noheader") and not folder.is_run)
