"""Study files, labs and folders of somebody else: through every command, nothing that only they name is reached."""

import json
import os
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress

import pytest
import strangers
from cli.conftest import STUDY, carried_out
from cli.reference import leaves
from terminal import wait_until
from typer.main import get_command

import sweeplab.cli
from sweeplab.records.folders import StudyFolder

# The words of every command, about the study NAME of a lab, its FILE, and the FOLDER of an imported run.
COMMANDS = """\
init new --output init.yaml --force|plan FILE|plan FILE --bench -o optimizer=muon -o engine.stack=1
run FILE --quiet
run FILE --dry-run|run FILE --detach --name apart|plan NAME|run NAME --quiet
watch NAME|watch NAME --log|stop NAME|pause NAME|resume NAME
extend NAME --trials-per-cell 3 --no-run|enqueue NAME learning_rate=1e-3
confirm NAME --top 1 --seeds 2|show NAME|show NAME --trial 0 --cell n_embd=8
best NAME|laws predict NAME --at n_embd=16|publish NAME
transfer NAME --quiet|export NAME --output runs.csv|diff NAME NAME
list|rename NAME newer --yes
rm NAME --yes|doctor NAME --repair|stop NAME/n_embd=8/0
resume NAME/n_embd=8/0|note NAME text|storage backup|storage stop|report NAME
report NAME --page sweep|diff NAME NAME --page|laws fit NAME
laws predict NAME --at params=1e5,tokens=1e6 --seal|laws verify NAME
laws next NAME|plan FILE --layers|trace NAME --prompt a --page attention.html
plan FILE --coordinates|export-hf NAME exported --force
import-hf FOLDER --name hf --force|hyperparameters|generate NAME|predict NAME text
evaluate NAME|data FILE|hyperparameters --schema|ui NAME|ui|doctor|doctor NAME|doctor FILE|storage start
"""
WITHOUT_LAB = ("init", "hyperparameters", "data")
# Until Ctrl-C, or the end of the input: a page and tools, which read a study as `show` does.
SERVES = ("dashboard", "mcp")
PROGRAM = [sys.executable, "-m", "sweeplab"]


def commands(name, file, folder, lab):
    """Return the words of every command, as a shell reads them."""
    meant, found = {"NAME": name, "FILE": str(file), "FOLDER": str(folder)}, []
    for line in COMMANDS.replace("\n", "|").strip("|").split("|"):
        words = [meant.get(word, word) for word in line.split()]
        found.append(
            shlex.join(words if line.startswith(WITHOUT_LAB) else [*words, "--lab", str(lab)])
        )
    return found


def test_every_command_is_tried():
    known = {" ".join(names[1:]) for names, _ in leaves(get_command(sweeplab.cli.app))} - {
        *SERVES
    }
    tried = commands("NAME", "FILE", "FOLDER", "lab")
    assert {
        name for name in known if not any(f"{each} ".startswith(f"{name} ") for each in tried)
    } == set()


# ------------------------------------------------------------------ addresses


class Listener:
    """A port on loopback that keeps what it is sent by anybody, and answers nobody."""

    def __init__(self):
        self.heard = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.at = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        with suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                with connection:
                    connection.settimeout(5)
                    sent = b""
                    with suppress(OSError):
                        sent = connection.recv(65536)
                    self.heard.append(sent)


@pytest.fixture
def listener():
    listener = Listener()
    yield listener
    listener.socket.shutdown(socket.SHUT_RDWR)
    listener.socket.close()


@pytest.fixture
def home(tmp_path):
    """Return the environment of a user who has credentials of every kind, each of which goes to any address."""
    home = tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("hidden")
    for name, text in (
        (".netrc", "default login me password hidden\n"),
        (".pgpass", "*:*:*:*:hidden\n"),
    ):
        (home / name).write_text(text)
        (home / name).chmod(0o600)
    words = dict.fromkeys(("PGPASSWORD", "MLFLOW_TRACKING_TOKEN", "RAY_AUTH_TOKEN"), "hidden")
    return {
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "RAY_AUTH_MODE": "token",
        **words,
    }


def foreign(finished, folder, kind, at):
    """Return a copy of a lab and of its study file that name an address."""
    lab = shutil.copytree(finished.lab, folder / "lab")
    study = StudyFolder(lab, "tiny")
    document = json.loads(study.canonical_file.read_text())
    text = STUDY.replace("trials_per_cell: 2", "trials_per_cell: 3")
    document["budget"]["trials_per_cell"] = 3
    engine = "engine: {workers: 1}"
    match kind:
        case "http" | "postgresql":
            uri = f"{kind}://{at}/db"
            document["track"]["uri"] = uri
            text += f"track: {{uri: '{uri}'}}\n"
        case "ray":
            document["engine"] |= {"type": "ray", "address": at}
            text = text.replace(engine, f"engine: {{type: ray, address: '{at}'}}")
        case "auto":
            document["engine"]["type"] = "ray"
            text = text.replace(engine, "engine: {type: ray}")
            current = folder / "ray" / "ray_current_cluster"
            current.parent.mkdir()
            if strangers.IS_ANOTHER:
                current.write_text(at)
                os.chown(current, strangers.UID, strangers.UID)
            else:
                (folder / "ray" / "known").write_text(at)
                current.symlink_to("known")
        case "wandb":
            document["fixed"]["wandb_project"] = "theirs"
            text = text.replace("fixed: {", "fixed: {wandb_project: theirs, ")
            for place in (folder, lab, study.path):
                (place / "wandb").mkdir()
                (place / "wandb" / "settings").write_text(
                    f"[default]\nbase_url = http://{at}\n"
                )
        case "storage":
            study.storage_file.write_text(
                f"postgresql+psycopg://{at}/db?options=-csearch_path%3D%22x%22"
            )
        case "service":
            study.storage_file.write_text("lab:x")
            host, _, port = at.partition(":")
            (lab / "postgres" / "data").mkdir(parents=True)
            lines = [
                "[sweeplab]",
                f"host={host}",
                f"port={port}",
                "user=sweeplab",
                "password=known",
            ]
            (lab / "postgres" / "service.conf").write_text(
                "\n".join([*lines, "dbname=postgres"])
            )
        case "artifacts":
            with closing(sqlite3.connect(lab / "mlflow.db")) as connection:
                connection.execute("UPDATE runs SET artifact_uri = ?", [f"http://{at}/a"])
                connection.execute(
                    "UPDATE experiments SET artifact_location = ?", [f"http://{at}/a"]
                )
                connection.commit()
    study.canonical_file.write_text(json.dumps(document))
    (folder / "tiny.yaml").write_text(text)
    return lab


# What names an address, and what `run` says of it.
NAMED = {
    **dict.fromkeys(("http", "postgresql", "ray"), "which you have not: it was not contacted"),
    "auto": "no cluster of yours is known here",
    "wandb": "wandb_project names https://api.wandb.ai, which you have not",
    **dict.fromkeys(("storage", "service", "artifacts"), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMED)
def test_no_command_contacts_an_address_that_only_a_file_names(
    kind, finished, listener, home, tmp_path
):
    """Not one byte, whatever names it: a study file, the lab's copy of it, its storage, its MLflow."""
    lab = foreign(finished, tmp_path, kind, listener.at)
    (tmp_path / "hf").mkdir()
    known = {"RAY_TMPDIR": str(tmp_path), "WANDB_API_KEY": "0" * 40}
    said = carried_out(commands("tiny", "tiny.yaml", "hf", lab), tmp_path, **home, **known)
    assert listener.heard == []
    # Nor is the name of a host looked up.
    assert listener.at.rpartition(":")[2] not in (tmp_path / "asked.txt").read_text()
    code, text = said[f"run tiny.yaml --quiet --lab {lab}"]
    if NAMED[kind]:
        assert code == 2 and NAMED[kind] in text
    if kind in ("http", "postgresql", "ray"):
        assert listener.at in text and listener.at in said[f"plan tiny.yaml --lab {lab}"][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "variable", "address", "command"),
    [
        ("http", "MLFLOW_TRACKING_URI", "http://{}/db", "doctor tiny"),
        ("storage", "SWEEPLAB_STORAGE", "postgresql://{}/db", "list"),
        ("ray", "RAY_ADDRESS", "{}", "doctor tiny"),
    ],
)
def test_an_address_that_the_environment_names_is_contacted(
    kind, variable, address, command, finished, listener, home, tmp_path
):
    """So the listener hears: the test above can fail."""
    lab = foreign(finished, tmp_path, kind, listener.at)
    settings = os.environ | home | {variable: address.format(listener.at)}
    program = [*PROGRAM, *command.split(), "--lab", lab]
    with subprocess.Popen(program, cwd=tmp_path, env=settings) as process:
        wait_until(lambda: listener.heard or process.poll() is not None)
        process.kill()  # Ray asks for minutes
    assert listener.heard


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # of MLflow
def test_nothing_is_sent_where_a_database_beside_the_file_says(
    finished, listener, home, tmp_path
):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    MlflowClient(uri).create_experiment("tiny", f"http://{listener.at}/x")
    (tmp_path / "tiny.yaml").write_text(f"{STUDY}track: {{uri: '{uri}'}}\n")
    known = home | {"MLFLOW_TRACKING_TOKEN": "hidden"}
    ((code, text),) = carried_out(["run tiny.yaml --quiet"], tmp_path, **known).values()
    assert listener.heard == [] and code == 2 and "leads out of" in text


# ------------------------------------------------------------------ files


def test_a_storage_is_no_file_elsewhere(cli, lab, tmp_path):
    """What a lab names as the storage of a study is a PostgreSQL: a file would be opened to be written."""
    other, study = tmp_path / "other.db", StudyFolder(lab, "tiny")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE own (n)")
    before = other.read_bytes()

    def is_refused():
        for words in ("list", "show tiny", "resume tiny", "watch tiny --log"):
            said = cli(*words.split())
            assert (
                said.code == 2 and said.err.startswith("error: ") and said.err.count("\n") == 1
            )
        assert other.read_bytes() == before and not [*tmp_path.glob("other.db-*")]

    study.storage_file.write_text(f"sqlite:///{other}")
    is_refused()
    study.storage_file.unlink()
    study.database.unlink()
    study.database.symlink_to(other)
    is_refused()


def test_the_lab_s_tracking_is_a_file_of_the_lab(cli, lab, tmp_path):
    """A link in its place leads MLflow, which writes its tables, to another file; so does an address in a study."""
    other = tmp_path / "other.db"
    shutil.move(lab / "mlflow.db", other)
    before = other.read_bytes()

    def is_refused(why):
        assert cli("export", "tiny").code == 0, "the records are read, and MLflow is not opened"
        for words in ("ui tiny", "publish tiny"):
            said = cli(*words.split())
            assert said.code == 2 and why in said.err
        assert other.read_bytes() == before

    (lab / "mlflow.db").symlink_to(other)
    is_refused(f"{lab}/mlflow.db leads out of {lab}")
    (lab / "mlflow.db").unlink()
    file = StudyFolder(lab, "tiny").canonical_file
    document = json.loads(file.read_text())
    document["track"]["uri"] = f"sqlite:///{other}"
    file.write_text(json.dumps(document))
    is_refused(f"track.uri names sqlite:///{other}, which you have not")
    assert cli("rm", "tiny", "--yes").code == 2


# ------------------------------------------------------------------ names


@pytest.mark.slow
def test_no_command_takes_a_name_for_a_program(finished, tmp_path):
    file, lab = strangers.hostile_place(tmp_path, STUDY.replace("name: tiny", "name: named"))
    shutil.copytree(finished.lab, lab)
    other = tmp_path / f"{strangers.HOSTILE}hf"
    other.mkdir()
    words = commands("tiny", file, other, lab)
    said = carried_out(
        words, tmp_path, HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path / "state")
    )
    assert not [*tmp_path.rglob("ran")]
    assert said[shlex.join(["run", str(file), "--quiet", "--lab", str(lab)])] == (0, "")
    assert len([*StudyFolder(lab, "named").runs()]) == 4
