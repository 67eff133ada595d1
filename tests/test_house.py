"""Data flows one way: between the package's rooms, and between the files and folders inside each of them."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sweeplab

PACKAGE = Path(sweeplab.__file__).parent
# A room imports itself and those before it.
ORDER = (
    *("version", "processes", "hyperparameters", "errors", "files", "formatting"),
    *("expressions", "permissions", "laws", "data", "model", "train", "plugins"),
    *(
        "records",
        "tracking",
        "hf",
        "study",
        "lab",
        "runs",
        "sweep",
        "doctor",
        "analysis",
        "report",
        "api",
        "cli",
        "__main__",
    ),
)
ONLY_IN = {
    "mlflow": {"tracking"},
    "wandb": {"tracking"},
    "optuna": {"study", "sweep", "doctor", "analysis"},
    "plotly": {"report", "api"},
    "typer": {"cli"},
    "rich": {"cli"},
    "torch": {"model", "train", "tracking", "hf", "study", "runs", "sweep"},
    "transformers": set(),
    "pandas": {"analysis", "report", "api", "laws"},
}
MOST_FILES, LONGEST = 22, 600


def name_of(file: Path) -> str:
    """Return a module's name inside the package, such as `train.stack`; a folder's own file has the folder's."""
    inside = str(file.relative_to(PACKAGE)).removesuffix(".py").removesuffix("__init__")
    return inside.strip("/.").replace("/", ".")


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports(name: str) -> frozenset[str]:
    """Return all that a module imports, wherever in it, as full names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def ours(name: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports."""
    for found in imports(name):
        if found.startswith("sweeplab."):
            inner = found.removeprefix("sweeplab.")
            # The package's own names, such as load_study, are the api's.
            inner = "api" if inner.startswith(("load_", "open_")) else inner
            yield inner if inner in MODULES else inner.rpartition(".")[0]


def room_of(name: str) -> str:
    """Return the room that a module is in; `sweeplab.laws` itself, which Python users import, also draws: the api."""
    return "api" if name == "laws" else name.partition(".")[0]


@pytest.mark.parametrize("name", [name for name in MODULES if name], ids=str)
def test_a_module_imports_only_what_stands_before_its_room(name: str) -> None:
    place = ORDER.index(room_of(name))
    later = {each for each in ours(name) if ORDER.index(room_of(each)) > place}
    assert not later
    libraries = {found.partition(".")[0] for found in imports(name)}
    assert not {each for each, rooms in ONLY_IN.items() if each in libraries and room_of(name) not in rooms}


FOLDERS = sorted({file.parent for file in MODULES.values()} - {PACKAGE})


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_has_no_circle_and_is_taken_in_at_once(folder: Path) -> None:
    own = name_of(folder)

    def child(name: str) -> str | None:
        """Return the file or folder of this folder that a module is in, if it is in one."""
        if name == own:
            return "__init__"
        return name.removeprefix(f"{own}.").partition(".")[0] if name.startswith(f"{own}.") else None

    graph: dict[str, set[str]] = defaultdict(set)
    for name in MODULES:
        if node := child(name):
            graph[node] |= {other for each in ours(name) if (other := child(each)) and other != node}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"{own}: {' <- '.join(error.args[1])}")
    assert len(list(folder.glob("*.py"))) <= MOST_FILES


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        (
            ["sweeplab.hyperparameters", "sweeplab.laws", "sweeplab.cli"],
            ["torch", "numpy", "optuna", "mlflow", "pandas", "plotly", "pydantic"],
        ),
        (
            ["sweeplab.laws.assessment", "sweeplab.laws.forecasts", "sweeplab.laws.design.next_runs"],
            ["torch", "optuna", "mlflow", "plotly", "pydantic", "sqlalchemy", "ruamel"],
        ),
        (["sweeplab.train.stack"], ["optuna", "mlflow", "pandas", "pydantic", "typer", "ruamel"]),
        (["sweeplab.hf.folders"], ["transformers", "optuna", "mlflow", "pandas"]),
        (
            ["sweeplab.study.plan", "sweeplab.sweep.work.supervisor"],
            ["torch", "mlflow", "pandas", "plotly"],
        ),
    ],
)
def test_heavy_libraries_come_only_where_they_are_used(modules: list[str], without: list[str]) -> None:
    """Those that may come with nothing of a list are imported by one process, one after the other."""
    lines = (f"import {each}; print('{each}', *set({without!r}) & set(sys.modules))" for each in modules)
    code = "\n".join(["import sys", *lines])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == modules


def test_no_file_is_too_long_to_read() -> None:
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "tests").rglob("*.py")]
    long = {path.name: n for path in files if (n := len(path.read_text("utf-8").splitlines())) > LONGEST}
    assert not long
