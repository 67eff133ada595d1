"""Data flows one way: between the package's rooms, and between the files and folders inside each of them."""

import ast
import graphlib
import re
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest
from terminal import said

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
# Tables of libraries' databases: statements that name them use private parts.
TABLES = {
    "optuna": "trials studies trial_params trial_values trial_intermediate_values trial_user_attributes version_info",
    "mlflow": "experiments experiment_tags runs tags metrics params latest_metrics",
}
# Names with an underscore that are public (of named tuples, of `os`), or of a class of the package in another file.
NOT_PRIVATE = {"_asdict", "_replace", "_make", "_exit", "_read_from"}


def name_of(file):
    """Return a module's name inside the package, such as `train.stack`; a folder's own file has the folder's."""
    inside = str(file.relative_to(PACKAGE)).removesuffix(".py").removesuffix("__init__")
    return inside.strip("/.").replace("/", ".")


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree_of(name):
    """Return the syntax of a module."""
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imports(name):
    """Return all that a module imports, wherever in it, as full names."""
    found = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def ours(name):
    """Yield the modules of the package that a module imports."""
    for found in imports(name):
        if found.startswith("sweeplab."):
            inner = found.removeprefix("sweeplab.")
            # The package's own names, such as load_study, are the api's.
            inner = "api" if inner.startswith(("load_", "open_")) else inner
            yield inner if inner in MODULES else inner.rpartition(".")[0]


def room_of(name):
    """Return the room that a module is in; `sweeplab.laws` itself, which Python users import, also draws: the api."""
    return "api" if name == "laws" else name.partition(".")[0]


def test_a_module_imports_only_what_stands_before_its_room():
    wrong = []
    for name in filter(None, MODULES):
        room = room_of(name)
        later = {each for each in ours(name) if ORDER.index(room_of(each)) > ORDER.index(room)}
        libraries = {full.partition(".")[0] for full in imports(name)} & ONLY_IN.keys()
        elsewhere = {library for library in libraries if room not in ONLY_IN[library]}
        wrong += [f"{name} imports {each}" for each in sorted(later | elsewhere)]
    assert not wrong


def circle_of(folder):
    """Return the files and folders of a folder that import each other in a circle."""
    own = name_of(folder)

    def child(name):
        """Return the file or folder of this folder that a module is in, if it is in one."""
        if name == own:
            return "__init__"
        return (
            name.removeprefix(f"{own}.").partition(".")[0]
            if name.startswith(f"{own}.")
            else None
        )

    graph = defaultdict(set)
    for name in MODULES:
        if node := child(name):
            graph[node] |= {
                other for each in ours(name) if (other := child(each)) and other != node
            }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return f"{own}: {' <- '.join(error.args[1])}"
    return ""


FOLDERS = sorted({file.parent for file in MODULES.values()} - {PACKAGE})


def test_a_folder_has_no_circle_and_is_taken_in_at_once():
    assert not [circle for folder in FOLDERS if (circle := circle_of(folder))]
    assert not [
        name_of(folder) for folder in FOLDERS if len(list(folder.glob("*.py"))) > MOST_FILES
    ]


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        (
            ["sweeplab.hyperparameters", "sweeplab.laws", "sweeplab.cli"],
            ["torch", "numpy", "optuna", "mlflow", "pandas", "plotly", "pydantic"],
        ),
        (
            ["sweeplab.laws.assessment", "sweeplab.laws.next_runs"],
            ["torch", "optuna", "mlflow", "plotly", "pydantic", "sqlalchemy", "ruamel"],
        ),
        (
            ["sweeplab.train.stack"],
            ["optuna", "mlflow", "pandas", "pydantic", "typer", "ruamel"],
        ),
        (["sweeplab.hf.folders"], ["transformers", "optuna", "mlflow", "pandas"]),
        (
            ["sweeplab.study.plan", "sweeplab.sweep.supervisor"],
            ["torch", "mlflow", "pandas", "plotly"],
        ),
    ],
)
def test_heavy_libraries_come_only_where_they_are_used(modules, without):
    """Those that may come with nothing of a list are imported by one process, one after the other."""
    lines = (
        f"import {each}; print('{each}', *set({without!r}) & set(sys.modules))"
        for each in modules
    )
    code = "\n".join(["import sys", *lines])
    assert said([sys.executable, "-c", code]).split() == modules


def private_names(tree):
    """Yield the private names of other modules that a file imports or reads, with what stands before them."""
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            defined.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr not in defined | NOT_PRIVATE:
            before = ast.unparse(node.value)
            names = [] if before in ("self", "cls", "super()") else [f"{before}.{node.attr}"]
        for name in names:
            last = name.rpartition(".")[2] if isinstance(node, ast.Attribute) else name
            if any(
                part.startswith("_") and not part.endswith("__") for part in last.split(".")
            ):
                yield name


def private_parts(tree):
    """Return the private parts that a file uses, library by library: names, and tables in statements."""
    parts = defaultdict(set)
    for name in private_names(tree):
        parts[name.partition(".")[0]].add(name)
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for statement in filter(lambda value: isinstance(value, str), statements):
        tables = set(re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+)", statement))
        for library, names in TABLES.items():
            parts[library] |= tables & set(names.split())
    return {library: names for library, names in parts.items() if names}


def test_private_parts_of_a_library_stand_in_one_file():
    files = defaultdict(set)
    for name in MODULES:
        for library in private_parts(tree_of(name)):
            files[library].add(name)
    assert files.keys() <= {"mlflow", "optuna", "torch"}, dict(files)
    assert not {library: found for library, found in files.items() if len(found) > 1}


def test_private_parts_are_found_however_they_are_reached():
    code = """
from optuna.storages._rdb import models
import ray._private.worker
trial._trial_id
self._own
torch.cpu._is_amx_tile_supported()
row._asdict()
text("SELECT study_name FROM studies")
"""
    assert private_parts(ast.parse(code)) == {
        "optuna": {"optuna.storages._rdb.models", "studies"},
        "ray": {"ray._private.worker"},
        "trial": {"trial._trial_id"},
        "torch": {"torch.cpu._is_amx_tile_supported"},
    }


# Names that say nothing of what a variable holds, but in a comprehension or lambda of a line or so.
EMPTY_NAMES = {"each", "found", "own", "said", "told", "given"}
SHORT = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


def empty_names(tree):
    """Yield the variables and arguments of such names; fields of a class are no variables."""
    short = [
        node
        for node in ast.walk(tree)
        if isinstance(node, SHORT) and len(ast.unparse(node)) <= 110
    ]
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


def test_variables_are_named_for_what_they_hold():
    assert not [f"{name}:{line}" for name in MODULES for line in empty_names(tree_of(name))]


def test_a_class_has_a_name_of_its_own():
    nodes = (node for name in MODULES for node in tree_of(name).body)
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_no_file_is_too_long_to_read():
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "tests").rglob("*.py")]
    long = {
        path.name: n
        for path in files
        if (n := len(path.read_text("utf-8").splitlines())) > LONGEST
    }
    assert not long
