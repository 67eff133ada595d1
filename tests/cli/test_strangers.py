"""Study files, labs and folders of somebody else: through every command, nothing that only they name is reached."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import strangers
from cli.conftest import STUDY
from cli.reference import leaves
from typer.main import get_command

import sweeplab.cli
from sweeplab.records.folders import StudyFolder

# Runs commands, one a line as JSON, in one process, and prints how each ended; a server is closed at once, and little
# is measured.
CODE = """\
import contextlib, io, json, os, sys, traceback
asked = os.open("asked.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(event, values):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(asked, f"{values}\\n".encode())
sys.addaudithook(note)
from sweeplab.cli import main
from sweeplab.sweep import choosing
from sweeplab.tracking import pages
choosing.ALL_SECONDS = 0.0
choosing.FEWEST_ROUNDS = 1
pages.PagesServer.wait_until_ready = lambda self: sys.exit(0)
for line in sys.stdin:
    sys.argv = ["sweeplab", *json.loads(line)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            code = traceback.print_exc()
    print(json.dumps([code, out.getvalue()]), flush=True)
"""
# The words of every command, about the study NAME of a lab, its FILE, and the FOLDER of an imported run.
COMMANDS = """\
init new --output init.yaml --force|plan FILE|plan FILE --bench -o optimizer=muon -o engine.stack=1
run FILE --quiet
run FILE --dry-run|run FILE --detach --name apart|plan NAME|run NAME --quiet
watch NAME|watch NAME --log|stop NAME|pause NAME|resume NAME
extend NAME --trials-per-cell 3 --no-run|enqueue NAME learning_rate=1e-3|resume NAME --failed
confirm NAME --top 1 --seeds 2|show NAME|show NAME --trial 0 --cell n_embd=8
best NAME|laws predict NAME --at n_embd=16|publish NAME
transfer NAME --quiet|export NAME --output runs.csv|diff NAME NAME
list|rename NAME newer --yes
rm NAME --yes|rm NAME --undo|doctor NAME --repair|stop NAME/n_embd=8/0
resume NAME/n_embd=8/0|note NAME text|storage backup|storage stop|report NAME
report NAME --page sweep|diff NAME NAME --page|laws fit NAME
laws predict NAME --at params=1e5,tokens=1e6 --seal|laws verify NAME
laws next NAME|plan FILE --layers|trace NAME|trace NAME --prompt a --page attention.html
plan FILE --coordinates|export-hf NAME exported --force
import-hf FOLDER --name hf --force|hyperparameters|generate NAME|predict NAME text
evaluate NAME|data FILE|hyperparameters --schema|ui NAME|ui|doctor|doctor NAME|doctor FILE|storage start
"""
WITHOUT_LAB = ("init", "hyperparameters", "data")
# Until Ctrl-C, or the end of the input: a page and tools, which read a study as `show` does.
SERVES = ("dashboard", "mcp")


def commands(name: str, file: str | Path, folder: str | Path, lab: str | Path) -> Iterator[list[str]]:
    """Yield the arguments of every command."""
    for line in COMMANDS.replace("\n", "|").strip("|").split("|"):
        meant = {"NAME": name, "FILE": str(file), "FOLDER": str(folder)}
        words = [meant.get(word, word) for word in line.split()]
        yield words if line.startswith(WITHOUT_LAB) else [*words, "--lab", str(lab)]


def carried_out(words: Iterator[list[str]], folder: Path, **environment: str) -> dict[str, tuple[int, str]]:
    """Run commands in a folder; return how each ended and what it said."""
    lines = list(words)
    given = "".join(f"{json.dumps(each)}\n" for each in lines)
    known = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_TRACKING_"))
    }
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        input=given,
        cwd=folder,
        env=known | environment,
        capture_output=True,
        text=True,
    )
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    assert len(said) == len(lines), ended.stderr
    for each, (code, text) in zip(lines, said, strict=True):
        assert "Traceback" not in text and code in (0, 1, 2, 130), (each, text)
    return {" ".join(each): (code, text) for each, (code, text) in zip(lines, said, strict=True)}


def test_every_command_is_tried() -> None:
    known = {" ".join(names[1:]) for names, _ in leaves(get_command(sweeplab.cli.app))} - {*SERVES}
    tried = [" ".join(words) for words in commands("NAME", "FILE", "FOLDER", "lab")]
    assert {name for name in known if not any(f"{each} ".startswith(f"{name} ") for each in tried)} == set()


# ------------------------------------------------------------------ addresses


class Listener:
    """A port on loopback that keeps what it is sent by anybody, and answers nobody."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.at = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(5)
                    sent = b""
                    with suppress(OSError):
                        sent = connection.recv(65536)
                    self.heard.append(sent)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user who has credentials of every kind, each of which goes to any address."""
    home = tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("hidden")
    for name, text in ((".netrc", "default login me password hidden\n"), (".pgpass", "*:*:*:*:hidden\n")):
        (home / name).write_text(text)
        (home / name).chmod(0o600)
    words = {"PGPASSWORD": "hidden", "MLFLOW_TRACKING_TOKEN": "hidden", "RAY_AUTH_TOKEN": "hidden"}
    return {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "RAY_AUTH_MODE": "token", **words}


def foreign(finished, folder: Path, kind: str, at: str) -> Path:
    """Return a copy of a lab and of its study file that name an address."""
    lab, file = folder / "lab", folder / "tiny.yaml"
    shutil.copytree(finished.lab, lab)
    study = StudyFolder(lab, "tiny")
    document = json.loads(study.canonical_file.read_text())
    text = STUDY.replace("trials_per_cell: 2", "trials_per_cell: 3")
    document["budget"]["trials_per_cell"] = 3
    match kind:
        case "http" | "postgresql" | "mysql":
            uri = f"{kind}://{at}" + ("" if kind == "http" else "/db")
            document["track"]["uri"] = uri
            text += f"track: {{uri: '{uri}'}}\n"
        case "ray":
            document["engine"] |= {"type": "ray", "address": at}
            text = text.replace("engine: {workers: 1}", f"engine: {{type: ray, address: '{at}'}}")
        case "auto":
            document["engine"]["type"] = "ray"
            text = text.replace("engine: {workers: 1}", "engine: {type: ray}")
            (folder / "ray").mkdir()
            (folder / "ray" / "known").write_text(at)
            current = folder / "ray" / "ray_current_cluster"
            current.symlink_to("known")
            if strangers.IS_ANOTHER:
                current.unlink()
                current.write_text(at)
                os.chown(current, strangers.UID, strangers.UID)
        case "wandb":
            document["fixed"]["wandb_project"] = "theirs"
            text = text.replace("fixed: {", "fixed: {wandb_project: theirs, ")
            for place in (folder, lab, study.path):
                (place / "wandb").mkdir()
                (place / "wandb" / "settings").write_text(f"[default]\nbase_url = http://{at}\n")
        case "storage":
            study.storage_file.write_text(f"postgresql+psycopg://{at}/db?options=-csearch_path%3D%22x%22")
        case "service":
            study.storage_file.write_text("lab:x")
            host, _, port = at.partition(":")
            lines = [
                "[sweeplab]",
                f"host={host}",
                f"port={port}",
                "user=sweeplab",
                "password=known",
                "dbname=postgres",
            ]
            (lab / "postgres" / "data").mkdir(parents=True)
            (lab / "postgres" / "service.conf").write_text("\n".join(lines))
        case "artifacts":
            with closing(sqlite3.connect(lab / "mlflow.db")) as connection:
                connection.execute("UPDATE runs SET artifact_uri = ?", [f"http://{at}/a"])
                connection.execute("UPDATE experiments SET artifact_location = ?", [f"http://{at}/a"])
                connection.commit()
    study.canonical_file.write_text(json.dumps(document))
    file.write_text(text)
    return lab


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["http", "postgresql", "ray", "auto", "wandb", "storage", "service", "artifacts"]
)
def test_no_command_contacts_an_address_that_only_a_file_names(
    kind: str, finished, listener: Listener, home: dict[str, str], tmp_path: Path
) -> None:
    """Not one byte, whatever names it: a study file, the lab's copy of it, its storage, its MLflow."""
    lab = foreign(finished, tmp_path, kind, listener.at)
    (tmp_path / "hf").mkdir()
    known = {"RAY_TMPDIR": str(tmp_path), "WANDB_API_KEY": "0" * 40}
    said = carried_out(commands("tiny", "tiny.yaml", "hf", lab), tmp_path, **home, **known)
    assert listener.heard == []
    # Nor is the name of a host looked up.
    assert listener.at.rpartition(":")[2] not in (tmp_path / "asked.txt").read_text()
    if kind == "auto":
        code, text = said[f"run tiny.yaml --quiet --lab {lab}"]
        assert code == 2 and "no cluster of yours is known here" in text and "ray start --head" in text
    if kind == "wandb":
        code, text = said[f"run tiny.yaml --quiet --lab {lab}"]
        assert code == 2 and "wandb_project names https://api.wandb.ai, which you have not" in text
        assert (
            "WANDB_API_KEY and" in text
            and "-o wandb_project=PROJECT for a run, or WANDB_MODE=offline" in text
        )
    if kind in ("http", "postgresql", "ray"):
        assert listener.at in said[f"plan tiny.yaml --lab {lab}"][1]
        code, text = said[f"run tiny.yaml --quiet --lab {lab}"]
        assert code == 2 and listener.at in text and "which you have not: it was not contacted" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "variable"),
    [("http", "MLFLOW_TRACKING_URI"), ("storage", "SWEEPLAB_STORAGE"), ("ray", "RAY_ADDRESS")],
)
def test_an_address_that_the_environment_names_is_contacted(
    kind: str, variable: str, finished, listener: Listener, home: dict[str, str], tmp_path: Path
) -> None:
    """So the listener hears: the test above can fail."""
    lab = foreign(finished, tmp_path, kind, listener.at)
    address = {
        "http": f"http://{listener.at}",
        "storage": f"postgresql://{listener.at}/db",
        "ray": listener.at,
    }[kind]
    command = {"http": "doctor", "storage": "study list", "ray": "doctor"}[kind]
    words = [*command.split(), *(["tiny"] if command == "doctor" else []), "--lab", str(lab)]
    program = [sys.executable, "-m", "sweeplab", *words]
    with subprocess.Popen(program, cwd=tmp_path, env=os.environ | home | {variable: address}) as process:
        while not listener.heard and process.poll() is None:
            time.sleep(0.1)
        process.kill()  # Ray asks for minutes
    assert listener.heard


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # of MLflow
def test_nothing_is_sent_where_a_database_beside_the_file_says(
    finished, listener: Listener, home: dict[str, str], tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    MlflowClient(uri).create_experiment("tiny", f"http://{listener.at}/x")
    (tmp_path / "tiny.yaml").write_text(f"{finished.file.read_text()}track: {{uri: '{uri}'}}\n")
    program = [sys.executable, "-m", "sweeplab", "study", "run", "tiny.yaml", "--quiet"]
    settings = os.environ | home | {"MLFLOW_TRACKING_TOKEN": "hidden"}
    ended = subprocess.run(program, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert listener.heard == [] and ended.returncode == 2 and "leads out of" in ended.stderr, ended


# ------------------------------------------------------------------ files


def test_a_storage_is_no_file_elsewhere(cli, finished, tmp_path: Path) -> None:
    """What a lab names as the storage of a study is a PostgreSQL: a file would be opened to be written."""
    lab, other = tmp_path / "lab", tmp_path / "other.db"
    shutil.copytree(finished.lab, lab)
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE own (n)")
    before = other.read_bytes()
    folder = StudyFolder(lab, "tiny")
    for plant in (
        lambda: folder.storage_file.write_text(f"sqlite:///{other}"),
        lambda: (folder.storage_file.unlink(), folder.database.unlink(), folder.database.symlink_to(other)),
    ):
        plant()
        for words in (
            ("study", "list"),
            ("study", "show", "tiny"),
            ("study", "resume", "tiny"),
            ("watch", "tiny", "--log"),
        ):
            said = cli(*words, "--lab", lab)
            assert said.code == 2 and said.err.startswith("error: ") and said.err.count("\n") == 1
        assert other.read_bytes() == before and not list(tmp_path.glob("other.db-*"))


def test_the_lab_s_tracking_is_a_file_of_the_lab(cli, finished, tmp_path: Path) -> None:
    """A link in its place leads MLflow, which writes its tables, to another file; so does an address in a study."""
    lab, other = tmp_path / "lab", tmp_path / "other.db"
    shutil.copytree(finished.lab, lab)
    shutil.move(lab / "mlflow.db", other)
    before = other.read_bytes()
    (lab / "mlflow.db").symlink_to(other)
    assert cli("export", "tiny", "--lab", lab).code == 0, "the records are read, and MLflow is not opened"
    for words in ("ui tiny", "study publish tiny"):
        said = cli(*words.split(), "--lab", lab)
        assert said.code == 2 and f"{lab}/mlflow.db leads out of {lab}" in said.err
    (lab / "mlflow.db").unlink()
    file = StudyFolder(lab, "tiny").canonical_file
    document = json.loads(file.read_text())
    document["track"]["uri"] = f"sqlite:///{other}"
    file.write_text(json.dumps(document))
    assert cli("export", "tiny", "--lab", lab).code == 0
    for words in ("ui tiny", "study publish tiny", "study rm tiny --yes"):
        said = cli(*words.split(), "--lab", lab)
        assert said.code == 2 and f"track.uri names sqlite:///{other}, which you have not" in said.err
    assert other.read_bytes() == before


# ------------------------------------------------------------------ names


@pytest.mark.slow
def test_no_command_takes_a_name_for_a_program(finished, tmp_path: Path) -> None:
    file, lab = strangers.hostile_place(tmp_path, STUDY.replace("name: tiny", "name: named"))
    shutil.copytree(finished.lab, lab)
    other = tmp_path / f"{strangers.HOSTILE}hf"
    other.mkdir()
    words = commands("tiny", file, other, lab)
    said = carried_out(words, tmp_path, HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path / "state"))
    assert not list(tmp_path.rglob("ran"))
    assert said[f"run {file} --quiet --lab {lab}"] == (0, "")
    assert len([*StudyFolder(lab, "named").runs()]) == 4
