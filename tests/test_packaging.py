"""What is installed: every package of the source tree, with the dashboards and studies that lie beside it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from sweeplab.version import VERSION

REPOSITORY = Path(__file__).parents[1]
BESIDE = {"sweeplab.dashboards": "dashboards", "sweeplab.studies": "studies"}


def test_every_package_is_installed() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    settings = project["tool"]["setuptools"]
    folders = {path.parent.relative_to(REPOSITORY) for path in (REPOSITORY / "sweeplab").rglob("*.py")}
    assert set(settings["packages"]) == {".".join(folder.parts) for folder in folders} | BESIDE.keys()
    assert settings["package-dir"] == BESIDE
    assert project["project"]["version"] == VERSION


@pytest.mark.slow
def test_a_wheel_runs_the_first_study_in_an_empty_folder(tmp_path: Path) -> None:
    source, empty, environment = tmp_path / "source", tmp_path / "empty", tmp_path / "environment"
    subprocess.run(["git", "clone", "-q", "--depth=1", REPOSITORY.as_uri(), source], check=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("sweeplab-*.whl")
    venv.create(environment)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "dependencies.pth").write_text(
        sysconfig.get_path("purelib")
    )  # does not follow links to the repository
    command = environment / "bin" / "sweeplab"
    subprocess.run([*pip, "--python", command.with_name("python"), "install", "--no-deps", wheel], check=True)
    empty.mkdir()
    shorter = [
        "-o",
        "max_iters=20",
        "-o",
        "pruner=none",
        "-o",
        "budget.trials_per_cell=1",
        "-o",
        "grid.n_embd=[16]",
    ]
    run = subprocess.run(
        [command, "study", "run", "studies/small.yaml", *shorter],
        cwd=empty,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert (empty / "lab/studies/small/report/scaling.html").is_file()
