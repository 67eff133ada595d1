"""Data flows one way: a module imports only what stands above it in the house."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sweeplab

PACKAGE = Path(sweeplab.__file__).parent
ANYONE = {"errors", "files", "formatting", "hyperparameters"}
# What each room may import besides itself and what anyone may.
MAY_IMPORT = {
    "data": set(),
    "model": {"data"},
    "train": {"data", "model"},
    "plugins": {"data", "model", "train"},
    "tracking": {"data", "model", "train"},
    "study": {"data", "model", "train", "tracking", "plugins"},
    "hf": {"data", "model", "train", "tracking"},
    "analysis": {"data", "train", "study", "tracking"},
    "report": {"analysis", "data", "study"},
    "api": {"study", "tracking", "analysis", "report"},
    "cli": {"study", "tracking", "analysis", "report", "api", "data", "model", "train", "hf"},
}
ONLY_IN = {
    "mlflow": {"tracking"},
    "wandb": {"tracking"},
    "optuna": {"study", "analysis"},
    "plotly": {"report"},
    "typer": {"cli"},
    "rich": {"cli"},
    "torch": {"model", "train", "study", "tracking", "hf"},
    "transformers": set(),
    "pandas": {"analysis", "report", "api"},
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room not in {"__init__", *ANYONE}:
            found.append((room, path))
    return found


@pytest.mark.parametrize(("room", "path"), modules(), ids=lambda each: str(getattr(each, "name", each)))
def test_imports_only_what_stands_above_it(room: str, path: Path) -> None:
    found = imports(path)
    ours = {name.split(".")[1] for name in found if name.startswith("sweeplab.")}
    # The package's own names, such as load_study, are the api's.
    ours = {"api" if name.startswith(("load_", "open_")) else name for name in ours}
    allowed = MAY_IMPORT[room] | {room} | ANYONE
    assert ours <= allowed, f"{path.name} imports {sorted(ours - allowed)}"
    for library, rooms in ONLY_IN.items():
        if any(name.split(".")[0] == library for name in found):
            assert room in rooms, f"{path.name} imports {library}"


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("sweeplab.hyperparameters", ["torch", "numpy", "optuna", "mlflow", "pydantic"]),
        ("sweeplab.train.stack", ["optuna", "mlflow", "pandas", "pydantic", "typer", "ruamel"]),
        ("sweeplab.cli", ["torch", "numpy", "optuna", "mlflow", "pandas", "plotly", "pydantic"]),
        ("sweeplab.hf.exporting", ["transformers", "optuna", "mlflow", "pandas"]),
        ("sweeplab.hf.importing", ["transformers", "optuna", "mlflow", "pandas"]),
        ("sweeplab.study.plan", ["torch", "mlflow", "pandas", "plotly"]),
        ("sweeplab.sweep.work.supervisor", ["torch", "mlflow", "pandas", "plotly"]),
    ],
)
def test_heavy_libraries_come_only_where_they_are_used(module: str, without: list[str]) -> None:
    code = f"import sys, {module}; print(*sorted(set({without!r}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_no_file_is_longer_than_400_lines() -> None:
    root = PACKAGE.parent
    files = [*PACKAGE.rglob("*.py"), *(root / "tests").rglob("*.py")]
    long = {path.name: n for path in files if (n := len(path.read_text("utf-8").splitlines())) > 400}
    assert not long
