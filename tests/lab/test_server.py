"""A PostgreSQL server of the lab's own: real programs, a real crash, a real certificate."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import strangers
from terminal import PROGRAM, said

from sweeplab.doctor import examine
from sweeplab.errors import BadInput
from sweeplab.lab import server as servers
from sweeplab.lab.server import Server, program_folders
from sweeplab.records.folders import StudyFolder, service_url

psycopg = pytest.importorskip(
    "psycopg", reason="psycopg, of the extra postgres, is not installed"
)
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(
        not [*program_folders()], reason="PostgreSQL's programs are not installed"
    ),
]
STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, n_embd: 8, dropout: 0.0,
        warmup_iters: 2, eval_interval: 10, eval_iters: 1, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 3}
sampler: random
engine: {workers: 1}
"""


@pytest.fixture
def lab():
    """Make a lab that root's other account may enter too; stop its server."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        lab = Path(name) / "lab"
        yield lab
        with suppress(BadInput):
            Server(lab).stop()


@pytest.fixture
def run(lab, monkeypatch):
    for name in ("SWEEPLAB_STORAGE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    (lab.parent / "tiny.yaml").write_text(STUDY)

    def run(*words, code=0):
        command = [*PROGRAM, *words, "--lab", str(lab)]
        return said(command, code, cwd=lab.parent, timeout=200)

    return run


def server_found(lab):
    """Return what the doctor finds of the lab's server."""
    return next(check.found for check in examine(lab) if check.name == "server")


def postmaster(lab):
    return psutil.Process(int((Server(lab).data / "postmaster.pid").read_text().split()[0]))


def test_a_study_uses_the_server_of_its_lab_and_is_restored_from_a_backup(run, lab):
    assert "is running now" in run("storage", "start")
    assert "was running already" in run("storage", "start")
    password = service_url(Server(lab).service).password
    run("study", "run", "tiny.yaml")
    folder = StudyFolder(lab, "tiny")
    assert folder.is_on_own_server and not folder.database.exists()
    restore = json.loads(run("storage", "backup", "--output", str(lab / "all.dump"), "--json"))[
        "restore"
    ]
    assert (lab / "all.dump").stat().st_mode & 0o077 == 0
    run("study", "extend", "tiny", "--trials-per-cell", "4", "--no-run")
    run("study", "resume", "tiny")
    counted = json.loads(run("study", "list", "--json"))
    assert counted[0]["done"] == 4
    subprocess.run(restore, shell=True, check=True, capture_output=True)
    assert json.loads(run("study", "list", "--json"))[0]["done"] == 3

    # Its password is in one file, which its owner alone reads.
    holding = [
        file
        for file in lab.rglob("*")
        if file.is_file() and password and password.encode() in file.read_bytes()
    ]
    assert holding == [Server(lab).service] and holding[0].stat().st_mode & 0o077 == 0
    assert not any(
        password in " ".join(each.info["cmdline"] or ())
        for each in psutil.process_iter(["cmdline"])
    )

    # Whoever reaches its port needs it.
    address = service_url(Server(lab).service)
    connect = f"psycopg.connect(host={address.host!r}, port={address.port}, user={address.username!r})"
    refused = strangers.python(f"import psycopg; {connect}")
    assert refused.returncode and "no password supplied" in refused.stderr

    # Stopped, it is missed in one line, and the doctor knows how to start it.
    assert "has stopped" in run("storage", "stop") and not Server(lab).is_running
    assert "was not running" in run("storage", "stop")
    said = run("study", "resume", "tiny", code=2)
    assert said.count("\n") == 1 and "sweeplab storage start" in said
    cures = {
        each["name"]: each["cure"]
        for each in json.loads(run("doctor", "tiny", "--json", code=1))
    }
    assert cures["storage"].startswith("sweeplab storage start")


def test_no_shell_reads_the_lab_s_path(lab):
    server = Server(lab.parent / "a b'\"`touch ran`$(touch ran);touch ran;&touch ran|#-x")
    try:
        assert server.start() and server.is_running and server.check()
        server.backup(lab.parent / "all.dump")
        assert server.stop() and server.start()
    finally:
        server.stop()
    assert not list(lab.parent.rglob("ran"))


def test_data_of_somebody_else_are_not_started(run, lab, monkeypatch):
    """Their settings and functions can run programs; and the address beside them may be anybody's."""
    run("storage", "start")
    run("storage", "stop")
    lab.rename(lab.parent / "moved")
    (lab.parent / "moved").rename(lab)
    run("storage", "start")  # the user's own, wherever it is
    run("storage", "stop")
    monkeypatch.setenv("XDG_STATE_HOME", str(lab.parent / "other"))
    for words in ("start", "backup"):
        said = run("storage", words, code=2)
        assert (
            "which you have not started: it was not contacted" in said and said.count("\n") == 1
        )
    assert not Server(lab).is_running and "which you have not started" in server_found(lab)
    run("storage", "start", "--allow-data")
    assert "is up" in server_found(lab)
    run("storage", "stop")


def test_a_record_without_data_neither_names_a_host_nor_opens_a_port(lab):
    (lab / "postgres").mkdir(parents=True)
    record = {"host": "h", "boot": "b", "space": "s", "port": 5, "listen": "0.0.0.0"}
    (lab / "postgres" / "started.json").write_text(json.dumps(record))
    assert Server(lab).listens_on == "127.0.0.1"
    (lab / "postgres" / "data").mkdir()
    assert Server(lab).listens_on == "0.0.0.0"


@pytest.mark.parametrize("name", ["log", "server.crt", "new.key"])
def test_nothing_is_written_through_a_link_in_its_folder(name, lab):
    victim = lab.parent / "victim"
    victim.write_text("mine")
    (lab / "postgres").mkdir(parents=True)
    (lab / "postgres" / name).symlink_to(victim)
    with pytest.raises(BadInput, match=f"{name} is a link to "):
        Server(lab).start()
    (lab / "postgres" / name).unlink()
    os.mkfifo(lab / "postgres" / name)
    with pytest.raises(BadInput, match=f"{name}: is no file"):
        Server(lab).start()
    assert victim.read_text() == "mine" and not (lab / "postgres" / "data").exists()


@pytest.mark.parametrize("content", ["[]", "3", "{", '{"listen": "x.example", "port": 5}'])
def test_a_damaged_record_of_its_start_is_said_in_one_line(content, run, lab):
    (lab / "postgres" / "data").mkdir(parents=True)
    (lab / "postgres" / "started.json").write_text(content)
    (lab / "postgres" / "data" / "postmaster.pid").write_text("1\n")
    assert (
        run("storage", "start", code=2).count("\n") == 1
    )  # the data are somebody else's, which is said first
    said = run("storage", "stop", code=2)
    assert said.count("\n") == 1 and "started.json" in said


def test_a_crash_of_the_machine_is_recovered_from(run, lab):
    run("storage", "start")
    url = (
        service_url(Server(lab).service)
        .set(drivername="postgresql")
        .render_as_string(hide_password=False)
    )
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    head = postmaster(lab)
    processes = [head, *head.children(recursive=True)]
    for each in processes:
        each.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=120)
    assert "does not answer" in server_found(lab)
    # The machine has another boot now, and the number of the server's process is another's.
    pid_file, started = Server(lab).data / "postmaster.pid", Server(lab).path / "started.json"
    pid_file.write_text(pid_file.read_text().replace(str(head.pid), str(os.getppid()), 1))
    started.write_text(json.dumps(json.loads(started.read_text()) | {"boot": "another"}))
    assert "is running now" in run("storage", "start")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1000,)


def test_beyond_loopback_there_is_tls_and_the_certificate_is_checked(run, lab):
    run("storage", "start", "--host", "0.0.0.0")
    url = service_url(Server(lab).service)
    assert url.host != "0.0.0.0" and url.query["sslmode"] == "verify-ca"
    given = {
        "host": "127.0.0.1",
        "port": url.port,
        "user": url.username,
        "password": url.password,
    }
    certificate = str(url.query["sslrootcert"])
    with psycopg.connect(
        **given, dbname="postgres", sslmode="verify-ca", sslrootcert=certificate
    ) as connection:
        (version,) = connection.execute(
            "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        ).fetchone()
        assert version.startswith("TLS")
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(**given, dbname="postgres", sslmode="disable")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(**given | {"password": "guessed"}, dbname="postgres", sslmode="require")
    said = run("storage", "start", "--host", "127.0.0.1", code=2)
    assert said.count("\n") == 1 and "sweeplab storage stop" in said


def test_what_keeps_it_from_starting_is_said_in_one_line(run, lab, monkeypatch):
    for host in ("nohost.example", "192.0.2.250", "a" * 70):
        said = run("storage", "start", "--host", host, code=2)
        assert (
            f'"{host}"' in said
            and "does not start: could not" in said
            and said.count("\n") == 1
        )
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        said = run("storage", "start", "--host", "127.0.0.2", "--port", str(port), code=2)
        assert said.count("\n") == 1 and "Address already in use" in said
        assert Server(lab).listens_on == "127.0.0.1", "what failed is not kept"
    run("storage", "start")
    # As the machine sees it that has the same lab on a shared disk.
    started = Server(lab).path / "started.json"
    known = json.loads(started.read_text())
    started.write_text(json.dumps(known | {"host": "node7"}))
    for verb in ("start", "stop"):
        said = run("storage", verb, code=2)
        assert (
            said.startswith("error: the lab's storage runs on node7") and said.count("\n") == 1
        )
    started.write_text(json.dumps(known))
    run("storage", "stop")
    if os.getuid() == 0:
        closed = lab.parent / "closed"
        closed.mkdir(mode=0o700)
        with pytest.raises(BadInput, match="does not run as root"):
            Server(closed / "lab").start()
    monkeypatch.setattr(servers, "program_folders", lambda: iter(()))
    with pytest.raises(BadInput, match="PostgreSQL is not installed: apt install postgresql"):
        Server(lab.parent / "third").start()


@pytest.mark.parametrize("folder", [*program_folders()], ids=str)
def test_all_programs_that_are_found_serve_a_lab(folder, lab, monkeypatch):
    monkeypatch.setattr(servers, "program_folders", lambda: iter([folder]))
    server = Server(lab)
    if os.getuid() == 0 and any(
        not each.stat().st_mode & stat.S_IXOTH for each in folder.resolve().parents
    ):
        with pytest.raises(BadInput, match="does not run as root"):
            server.start()
        return
    assert server.start() and server.check()
    assert server.backup(lab / "all.dump") and server.stop()


def test_a_study_that_runs_keeps_its_server(run, lab):
    run("storage", "start")
    words = [
        sys.executable,
        "-m",
        "sweeplab",
        "study",
        "run",
        "tiny.yaml",
        "-o",
        "max_iters=30000",
    ]
    folder = StudyFolder(lab, "tiny")
    with subprocess.Popen(
        [*words, "--lab", lab], cwd=lab.parent, stderr=subprocess.DEVNULL
    ) as study:
        while not any(folder.runs()):
            assert study.poll() is None
            time.sleep(0.1)
        assert "sweeplab stop tiny" in run("storage", "stop", code=2)
        study.send_signal(signal.SIGINT)
    run("storage", "stop")
