"""The command line as a user has it, and one study that has been run to its end."""

import json
import os
import pickle
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock
from terminal import Played, captured, play

from sweeplab.cli import main

STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, warmup_iters: 2,
        dropout: 0.0, eval_interval: 10, eval_iters: 1, grad_clip: null, device: cpu}
grid: {n_embd: [8, 16]}
search:
  learning_rate: {min: 3e-4, max: 1e-2, log: true}
budget: {trials_per_cell: 2}
engine: {workers: 1}
"""


# Runs commands, one a line as JSON, in one process, and prints how each ended; a server is closed at once, and little
# is measured. Addresses that are asked for stand in asked.txt.
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
choosing.SECONDS = 0.1
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


def carried_out(commands, folder, before=(), **environment):
    """Run commands in a process in a folder, started by the words `before`; return how each ended and what it said."""
    given = "".join(f"{json.dumps(shlex.split(each))}\n" for each in commands)
    foreign = ("RAY_", "MLFLOW_TRACKING_")
    known = {
        name: value for name, value in os.environ.items() if not name.startswith(foreign)
    } | environment
    program = [*before, sys.executable, "-c", CODE]
    ended = captured(program, input=given, cwd=folder, env=known)
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    assert len(said) == len(commands), ended.stderr
    for each, (code, text) in zip(commands, said, strict=True):
        assert "Traceback" not in text and code in (0, 1, 2, 130), (each, text)
    return {each: (code, text) for each, (code, text) in zip(commands, said, strict=True)}


def contents(folder):
    """Return every file with the time when it was written, but for locks and what SQLite has beside a database."""
    passing = (".lock", ".db-shm", ".db-wal")
    files = (
        file for file in folder.rglob("*") if file.suffix not in passing and file.is_file()
    )
    return {file: file.stat().st_mtime_ns for file in files}


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder, where nothing says where the lab is."""
    monkeypatch.chdir(tmp_path)
    for name in ("SWEEPLAB_LAB", "MLFLOW_TRACKING_URI", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cli(monkeypatch, capfd):
    """Return a function that runs one command in this process and returns what it said."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sweeplab", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture
def json_of(cli):
    """Return a function that runs one command and returns what it says to programs."""

    def run(words, *more):
        return json.loads(cli(*words.split(), *more, "--json").out)

    return run


@dataclass(frozen=True)
class Finished:
    """A study of four trials in two cells, run in a terminal of 30 lines. Not to be added to."""

    file: Path
    lab: Path
    played: Played


@pytest.fixture(scope="session")
def finished(shared_folder, tmp_path_factory):
    """Return a study that has been run to its end: once for all processes of the suite, each of which has a copy.

    Commands that look whether a study runs hold its lock for an instant, so processes cannot share one folder.
    """
    made, place = shared_folder / "finished", tmp_path_factory.mktemp("finished")
    with FileLock(f"{made}.lock"):
        if not made.exists():
            (place / "tiny.yaml").write_text(STUDY)
            played = play(["study", "run", "tiny.yaml", "--lab", str(place / "lab")], place)
            (place / "played.pickle").write_bytes(pickle.dumps(played))
            shutil.copytree(place, made)
        else:
            shutil.copytree(made, place, dirs_exist_ok=True)
    return Finished(
        place / "tiny.yaml", place / "lab", pickle.loads((made / "played.pickle").read_bytes())
    )


@pytest.fixture
def lab(finished, folder):
    """Return a copy of the finished study's lab, where commands find it by themselves."""
    return shutil.copytree(finished.lab, folder / "lab")
