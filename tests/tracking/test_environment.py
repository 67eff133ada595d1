"""Where a study runs, and what of that is written down."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeplab.tracking.environment import environment, git


def in_repository(folder, *command):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", folder, *who, *command], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_git_says_commit_and_dirtiness(tmp_path):
    assert git(tmp_path) is None
    in_repository(tmp_path, "init")
    assert git(tmp_path) is None  # nothing committed
    (tmp_path / "study.yaml").write_text("a")
    in_repository(tmp_path, "add", ".")
    in_repository(tmp_path, "commit", "-m", "first")
    commit = in_repository(tmp_path, "rev-parse", "HEAD")
    assert git(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "new.yaml").write_text("b")
    assert git(tmp_path) == {"commit": commit, "dirty": True}


@pytest.mark.parametrize(
    "keys",
    [
        ("core.fsmonitor",),
        ("filter.own.clean",),
        ("filter.own.process", "filter.own.required"),
        ("filter.a=b.clean",),
        ("core.hooksPath",),
    ],
)
def test_nothing_that_git_is_configured_to_run_is_run(keys, tmp_path):
    repository, ran = tmp_path / "repository", tmp_path / "ran"
    repository.mkdir()
    in_repository(repository, "init", "--quiet")
    (repository / "study.yaml").write_text("name: a\n")
    name = next(
        (key.partition(".")[2].rpartition(".")[0] for key in keys if key.startswith("filter.")), "own"
    )
    (repository / ".gitattributes").write_text(f"*.yaml filter={name}\n")
    in_repository(repository, "add", ".")
    in_repository(repository, "commit", "--quiet", "--message", "first")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for program in (tmp_path / "program", hooks / "post-index-change"):
        program.write_text(f"#!/bin/sh\ntouch '{ran}'\ncat\n")
        program.chmod(0o755)
    values = {"core.hooksPath": str(hooks), "filter.own.required": "true"}
    for key in keys:
        in_repository(repository, "config", key, values.get(key, str(tmp_path / "program")))
    (repository / "study.yaml").write_text("name: b\n")  # as long: git has to read it
    os.utime(repository / ".gitattributes", (1, 1))  # the same still: git writes its index anew
    found = git(repository)
    assert found is not None and found["dirty"] is True
    assert not ran.exists()
    subprocess.run(["git", "-C", repository, "status"], capture_output=True, timeout=300)
    assert ran.exists(), "git itself would have run it"


def test_what_a_repository_lacks_is_not_fetched(tmp_path):
    """A clone in part fetches what it lacks when it is looked at, by a program that its configuration names."""
    repository, ran = tmp_path / "repository", tmp_path / "ran"
    repository.mkdir()
    in_repository(repository, "init", "--quiet")
    (repository / "study.yaml").write_text("name: a\n")
    in_repository(repository, "add", ".")
    in_repository(repository, "commit", "--quiet", "--message", "first")
    tree = in_repository(repository, "rev-parse", "HEAD^{tree}")
    (repository / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    (repository / ".git" / "index").unlink()
    (tmp_path / "program").write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    (tmp_path / "program").chmod(0o755)
    for key, value in {
        "protocol.ext.allow": "always",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{tmp_path / 'program'}",
        "extensions.partialClone": "origin",
    }.items():
        in_repository(repository, "config", key, value)
    found = git(repository)
    assert found is not None and found["dirty"] is None
    assert not ran.exists()
    subprocess.run(["git", "-C", repository, "status"], capture_output=True, timeout=300)
    assert ran.exists(), "git itself would have run it"


def test_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = environment(Path(__file__).parent)
    assert found["git"] == {"code": None, "study": None}
    assert found["device"]["gpus"] == []


def test_it_imports_neither_torch_nor_mlflow():
    code = "import sys; from sweeplab.tracking.environment import environment; environment(); "
    code += "import sweeplab.tracking.mlflow; print({'torch', 'mlflow', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
