"""What is installed: every package of the source tree, and the dashboards that lie beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    found = {each.parent.relative_to(REPOSITORY) for each in (REPOSITORY / "sweeplab").rglob("*.py")}
    assert set(settings["packages"]) == {".".join(each.parts) for each in found} | {"sweeplab.dashboards"}
    assert settings["package-dir"] == {"sweeplab.dashboards": "dashboards"}
