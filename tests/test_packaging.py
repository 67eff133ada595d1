"""What is installed: every package of the source tree, with the dashboards and studies that lie beside it.

What it needs has no known vulnerabilities.
"""

import csv
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from terminal import captured

from sweeplab.version import VERSION

REPOSITORY = Path(__file__).parents[1]
BESIDE = {"sweeplab.dashboards": "dashboards", "sweeplab.studies": "studies"}
NOT_INSTALLED = ("rivals",)  # extras that the tests do without
# In which version each known hole of a package that is needed here was closed, and for one that a floor admits the
# name without which it is not reached. No database of advisories could be asked when this was written: the rows come
# from audits, by pip-audit and OSV, that public repositories keep (until October 2026), and from changelogs. Sources
# differ (CVE-2026-33866 is closed by 3.11.1, or by none), and an advisory may be missing: the weekly workflow asks
# PyPI. Advisories that no version is said to close (CVE-2026-4538 of torch) have no row.
ADVISORIES = [
    *csv.DictReader(
        (REPOSITORY / "tests" / "advisories.csv").read_text(encoding="utf-8").splitlines()
    )
]


def requirements():
    """Return what is needed to build, to run and to test, as pyproject.toml says it."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"]
    texts = [*settings["build-system"]["requires"], *settings["project"]["dependencies"]]
    return [
        Requirement(text)
        for text in (
            *texts,
            *(text for name in extras if name not in NOT_INSTALLED for text in extras[name]),
        )
    ]


def is_admitted(advisory):
    """Return whether a version with this hole may be installed, and what it concerns is used."""
    named = [
        each for each in requirements() if canonicalize_name(each.name) == advisory["package"]
    ]
    assert named, f"nothing needs {advisory['package']}"
    if name := advisory["only_in"]:
        sources = [file.read_text("utf-8") for file in (REPOSITORY / "sweeplab").rglob("*.py")]
        return any(name in source for source in sources)
    fixed = Requirement(f"{advisory['package']}>={advisory['fixed']}").specifier
    floors = [[one.version for one in each.specifier if one.operator == ">="] for each in named]
    return not all(len(floor) == 1 and fixed.contains(floor[0]) for floor in floors)


def test_no_version_with_a_known_hole_is_admitted():
    assert not [f"{row['package']} {row['id']}" for row in ADVISORIES if is_admitted(row)]


def test_what_is_installed_is_admitted():
    here = {canonicalize_name(each.name): each.version for each in distributions()}
    installed = {
        each: here[name]
        for each in requirements()
        if (name := canonicalize_name(each.name)) in here
    }
    assert len(installed) > 30
    assert not [
        f"{each}: {found}"
        for each, found in installed.items()
        if not each.specifier.contains(found, True)
    ]


def test_every_package_is_installed():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    settings = project["tool"]["setuptools"]
    folders = {
        path.parent.relative_to(REPOSITORY) for path in (REPOSITORY / "sweeplab").rglob("*.py")
    }
    assert (
        set(settings["packages"])
        == {".".join(folder.parts) for folder in folders} | BESIDE.keys()
    )
    assert settings["package-dir"] == BESIDE
    assert project["project"]["version"] == VERSION


@pytest.mark.slow
def test_a_wheel_runs_the_first_study_in_an_empty_folder(tmp_path):
    source, empty, environment = (
        tmp_path / "source",
        tmp_path / "empty",
        tmp_path / "environment",
    )
    subprocess.run(["git", "clone", "-q", "--depth=1", REPOSITORY.as_uri(), source], check=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True
    )
    (wheel,) = tmp_path.glob("sweeplab-*.whl")
    venv.create(environment)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "dependencies.pth").write_text(
        sysconfig.get_path("purelib")
    )  # does not follow links to the repository
    command = environment / "bin" / "sweeplab"
    subprocess.run(
        [*pip, "--python", command.with_name("python"), "install", "--no-deps", wheel],
        check=True,
    )
    empty.mkdir()
    shorter = ["max_iters=20", "pruner=none", "budget.trials_per_cell=1", "grid.n_embd=[24]"]
    run = captured(
        [
            command,
            "study",
            "run",
            "studies/small.yaml",
            *(f"--override={each}" for each in shorter),
        ],
        cwd=empty,
    )
    assert run.returncode == 0, run.stderr
    assert (empty / "lab/studies/small/report/scaling.html").is_file()
