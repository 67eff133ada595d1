"""Data flows one way: between the package's rooms, and between the files and folders inside each of them."""

from __future__ import annotations

import ast
import graphlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sweeplab

PACKAGE = Path(sweeplab.__file__).parent
# A room imports itself and those before it.
ORDER = (
    *("version", "processes", "hyperparameters", "errors", "formatting", "files"),
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
    "optuna": {"study", "lab", "sweep", "doctor", "analysis", "report"},
    "plotly": {"report", "api"},
    "typer": {"cli"},
    "mcp": {"cli"},
    "rich": {"cli"},
    "torch": {"model", "train", "tracking", "hf", "study", "runs", "sweep"},
    "transformers": set(),
    "pandas": {"analysis", "report", "api", "laws"},
}
MOST_FILES, LONGEST = 22, 600
# The files that may use private parts of libraries, one for each library: each has a public way behind its calls.
PRIVATE_PARTS = {"sweep.trials.tables", "train.private", "sweep.engines.private"}
# Names with an underscore that are public (of named tuples, of `os`), or of a class of the package in another file.
NOT_PRIVATE = {"_asdict", "_replace", "_make", "_exit", "_source_map"}


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
            ["sweeplab.laws.assessment", "sweeplab.laws.forecasts", "sweeplab.laws.next_runs"],
            ["torch", "optuna", "mlflow", "plotly", "pydantic", "sqlalchemy", "ruamel"],
        ),
        (["sweeplab.train.stack"], ["optuna", "mlflow", "pandas", "pydantic", "typer", "ruamel"]),
        (["sweeplab.hf.folders"], ["transformers", "optuna", "mlflow", "pandas"]),
        (
            ["sweeplab.study.plan", "sweeplab.sweep.supervisor"],
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


def private_parts(tree: ast.Module) -> Iterator[str]:
    """Yield the private names of other modules that a file imports or reads, with their lines."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            defined.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr not in defined | NOT_PRIVATE:
            is_own = ast.unparse(node.value) in ("self", "cls", "super()")
            names = [] if is_own else [node.attr]
        for name in names:
            parts = name.split(".")
            is_private = any(part.startswith("_") and not part.endswith("__") for part in parts)
            if is_private:
                yield f"{getattr(node, 'lineno', 0)}: {name}"


@pytest.mark.parametrize("name", [name for name in MODULES if name not in PRIVATE_PARTS], ids=str)
def test_private_parts_of_libraries_stand_in_a_file_each(name: str) -> None:
    assert not [*private_parts(ast.parse(MODULES[name].read_text(encoding="utf-8")))]


def test_private_parts_are_found_however_they_are_reached() -> None:
    code = """
from optuna.storages._rdb import models
from torch import _C
import ray._private.worker
trial._trial_id
self._own
torch.cpu._is_amx_tile_supported()
row._asdict()
"""
    lines = [int(part.partition(":")[0]) for part in private_parts(ast.parse(code))]
    assert sorted(lines) == [2, 3, 4, 5, 7]


# Names that say nothing of what a variable holds, but in a comprehension or lambda of one line.
EMPTY_NAMES = {"each", "found", "own", "said", "told", "given"}
ONE_LINE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


def empty_names(tree: ast.AST) -> Iterator[str]:
    """Yield the variables and arguments of such names; fields of a class are no variables."""
    short = [node for node in ast.walk(tree) if isinstance(node, ONE_LINE) and node.lineno == node.end_lineno]
    fields = [node.target for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    allowed = {id(inner) for node in [*short, *fields] for inner in ast.walk(node)}
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name in EMPTY_NAMES and id(node) not in allowed:
            yield f"{node.lineno}: {name}"


def conditions_of(statement: ast.stmt) -> int:
    """Return the number of conditional expressions and walruses of a statement, without those inside it."""
    count, waiting = 0, [node for node in ast.iter_child_nodes(statement) if not isinstance(node, ast.stmt)]
    while waiting:
        node = waiting.pop()
        count += isinstance(node, ast.IfExp | ast.NamedExpr)
        waiting += [inner for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.stmt)]
    return count


@pytest.mark.parametrize("name", MODULES, ids=str)
def test_variables_are_named_for_what_they_hold_and_a_statement_has_one_condition(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert not [*empty_names(tree)]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    statements = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, kinds)
    ]
    assert not [node.lineno for node in statements if conditions_of(node) > 1]


def test_a_class_has_a_name_of_its_own() -> None:
    bodies = (ast.parse(file.read_text(encoding="utf-8")).body for file in MODULES.values())
    names = Counter(node.name for body in bodies for node in body if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_no_file_is_too_long_to_read() -> None:
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "tests").rglob("*.py")]
    long = {path.name: n for path in files if (n := len(path.read_text("utf-8").splitlines())) > LONGEST}
    assert not long


@pytest.mark.slow
def test_all_processes_collect_the_same_tests_in_the_same_order() -> None:
    """Those of a run with several stop where one has other tests, such as with the time or a set in their names."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "not gpu"]
    known = {**os.environ, "PYTEST_ADDOPTS": ""}
    one, other = (
        subprocess.run(command, cwd=PACKAGE.parent, env=known | {"PYTHONHASHSEED": seed}, capture_output=True)
        for seed in ("1", "2")
    )
    collected = [[line for line in each.stdout.splitlines() if b"::" in line] for each in (one, other)]
    assert collected[0] == collected[1] and len(collected[0]) > 5000
