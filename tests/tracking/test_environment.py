"""Where a study runs, and what of that is written down."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import captured, said

from sweeplab.tracking.environment import DIFF_BYTES, changes, environment, git


def in_repository(folder, *command):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = captured(["git", "-C", folder, *who, *command], check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """Return a repository of one file."""
    folder = tmp_path / "repository"
    folder.mkdir()
    in_repository(folder, "init", "--quiet")
    (folder / "study.yaml").write_text("name: a\n")
    in_repository(folder, "add", ".")
    in_repository(folder, "commit", "--quiet", "--message", "first")
    return folder


@pytest.fixture
def program(tmp_path):
    """Return a program that says that it was run, in the file `ran` beside it."""
    file = tmp_path / "program"
    file.write_text(f"#!/bin/sh\ntouch '{tmp_path / 'ran'}'\ncat\n")
    file.chmod(0o755)
    return file


def test_changes_are_a_patch_that_git_applies(repository):
    assert "study.diff" not in changes(repository)
    (repository / "new.yaml").write_text("not tracked")
    (repository / "study.yaml").write_bytes(b"name: b\n\xff \n\n")
    patch = changes(repository)["study.diff"]
    assert "-name: a\n+name: b\n" in patch and "new.yaml" not in patch
    (repository / "study.yaml").write_text("name: c\n \n")
    patch = changes(repository)["study.diff"]
    in_repository(repository, "checkout", "--quiet", "study.yaml")
    subprocess.run(["git", "-C", repository, "apply"], input=patch.encode(), check=True)
    assert (repository / "study.yaml").read_text() == "name: c\n \n"
    (repository / "study.yaml").write_text("a" * DIFF_BYTES)
    assert "study.diff" not in changes(repository)


def assert_only_git_itself_runs_it(repository, program, dirty):
    ran = program.with_name("ran")
    assert git(repository)["dirty"] is dirty
    changes(repository)
    assert not ran.exists()
    for command in ("status", "diff"):
        subprocess.run(["git", "-C", repository, command], capture_output=True, timeout=300)
    assert ran.exists(), "git itself would have run it"


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
        ("diff.external",),
        ("diff.own.command",),
        ("diff.own.textconv",),
    ],
)
def test_nothing_that_git_is_configured_to_run_is_run(keys, repository, program, tmp_path):
    filters = [
        key.partition(".")[2].rpartition(".")[0] for key in keys if key.startswith("filter.")
    ]
    (repository / ".gitattributes").write_text(
        f"*.yaml filter={[*filters, 'own'][0]} diff=own\n"
    )
    in_repository(repository, "add", ".")
    in_repository(repository, "commit", "--quiet", "--message", "second")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(program)
    values = {"core.hooksPath": str(hooks), "filter.own.required": "true"}
    for key in keys:
        in_repository(repository, "config", key, values.get(key, str(program)))
    (repository / "study.yaml").write_text("name: b\n")  # as long: git has to read it
    os.utime(repository / ".gitattributes", (1, 1))  # the same still: git writes its index anew
    assert_only_git_itself_runs_it(repository, program, dirty=True)


def test_what_a_repository_lacks_is_not_fetched(repository, program):
    """A clone in part fetches what it lacks when it is looked at, by a program that its configuration names."""
    program.write_text(program.read_text().removesuffix("cat\n"))  # it is heard to the end
    tree = in_repository(repository, "rev-parse", "HEAD^{tree}")
    (repository / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    (repository / ".git" / "index").unlink()
    for key, value in {
        "protocol.ext.allow": "always",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{program}",
        "extensions.partialClone": "origin",
    }.items():
        in_repository(repository, "config", key, value)
    assert_only_git_itself_runs_it(repository, program, dirty=None)


def test_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = environment(Path(__file__).parent)
    assert found["git"] == {"code": None, "study": None}
    assert found["device"]["gpus"] == []


def test_it_imports_neither_torch_nor_mlflow():
    code = "import sys; from sweeplab.tracking.environment import environment; environment(); "
    code += "import sweeplab.tracking.mlflow; print({'torch', 'mlflow', 'pandas'} & set(sys.modules))"
    assert said([sys.executable, "-c", code]).strip() == "set()"
