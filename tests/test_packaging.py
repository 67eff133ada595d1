"""What is installed: every package of the source tree, the dashboards beside it, and needs without known holes."""

from __future__ import annotations

import csv
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
NOT_INSTALLED = ("rivals",)  # extras that the tests do without
# In which version each known hole of a package that is needed here was closed. CI asks PyPI for the newest, too.
ADVISORIES = [
    *csv.DictReader((REPOSITORY / "tests" / "advisories.csv").read_text(encoding="utf-8").splitlines())
]


def requirements() -> list[Requirement]:
    """Return what is needed to build, to run and to test, as pyproject.toml says it."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"]
    texts = [*settings["build-system"]["requires"], *settings["project"]["dependencies"]]
    return [
        Requirement(text)
        for text in (*texts, *(text for name in extras if name not in NOT_INSTALLED for text in extras[name]))
    ]


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda row: f"{row['package']} {row['id']}")
def test_no_version_with_a_known_hole_is_admitted(advisory: dict[str, str]) -> None:
    named = [each for each in requirements() if canonicalize_name(each.name) == advisory["package"]]
    assert named, "nothing needs the package"
    for each in named:
        floors = [one.version for one in each.specifier if one.operator == ">="]
        assert len(floors) == 1, f"{each} has no floor"
        at_least = Requirement(f"{each.name}>={advisory['fixed']}").specifier
        assert at_least.contains(floors[0]), f"{each} admits {advisory['id']}"


@pytest.mark.parametrize("requirement", {str(each): each for each in requirements()}.values(), ids=str)
def test_what_is_installed_is_admitted(requirement: Requirement) -> None:
    assert requirement.specifier.contains(version(requirement.name), prereleases=True)


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    found = {each.parent.relative_to(REPOSITORY) for each in (REPOSITORY / "sweeplab").rglob("*.py")}
    assert set(settings["packages"]) == {".".join(each.parts) for each in found} | {"sweeplab.dashboards"}
    assert settings["package-dir"] == {"sweeplab.dashboards": "dashboards"}
