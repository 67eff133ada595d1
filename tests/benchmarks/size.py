"""Print how large the package is, beside an earlier commit: `python tests/benchmarks/size.py [COMMIT]`.

Lines count comments, docstrings and blank lines. Without a commit only the working tree is measured.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from statistics import median

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = "sweeplab", "tests"
BUDGET = {"lines": 48_000, "files": 220, "lines of tests": 38_000}
EXPRESSIONS = {"conditional expressions": ast.IfExp, "walrus": ast.NamedExpr}

Texts = Mapping[PurePosixPath, str]


def working_tree(folder: str) -> Texts:
    """Return the text of each Python file of a folder."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return {PurePosixPath(file.relative_to(ROOT)): file.read_text("utf-8") for file in files}


def at_commit(commit: str, folder: str) -> Texts:
    """Return the text that each Python file of a folder had at a commit."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, check=True
        ).stdout.decode()

    names = git("ls-tree", "-r", "--name-only", commit, folder).splitlines()
    return {PurePosixPath(name): git("show", f"{commit}:{name}") for name in names if name.endswith(".py")}


def kinds(texts: Texts) -> Counter[str]:
    """Return how many lines are code, docstrings, imports, comments and blank."""
    counts: Counter[str] = Counter()
    for text in texts.values():
        starts = {"": "blank", "#": "comments"}
        lines = [starts.get(line.strip()[:1], "code") for line in text.splitlines()]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                kind = "imports"
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                kind = "docstrings"
            else:
                continue
            assert node.end_lineno
            lines[node.lineno - 1 : node.end_lineno] = [kind] * (node.end_lineno - node.lineno + 1)
        counts.update(lines)
    return counts


def rows(package: Texts, tests: Texts) -> Iterator[tuple[str, str]]:
    """Yield what is measured, and its value."""
    lines = {file: len(text.splitlines()) for file, text in package.items()}
    total = sum(lines.values())
    folders = Counter(str(file.parent) for file in lines)
    longest, most = max(lines, key=lambda file: lines[file]), max(folders, key=lambda folder: folders[folder])
    yield "lines", f"{total:,}"
    yield "files", f"{len(lines):,}"
    yield "lines of tests", f"{sum(len(text.splitlines()) for text in tests.values()):,}"
    nodes = Counter(type(node) for text in package.values() for node in ast.walk(ast.parse(text)))
    for name, kind in EXPRESSIONS.items():
        yield f"{name} per 1,000 lines", f"{1000 * nodes[kind] / total:.1f}"
    bodies = (ast.parse(text).body for text in package.values())
    classes = Counter(node.name for body in bodies for node in body if isinstance(node, ast.ClassDef))
    yield "names that several classes have", str(sum(count > 1 for count in classes.values()))
    yield "lines per file, median", f"{median(lines.values()):.0f}"
    yield (
        "files of under 40 lines",
        str(sum(1 for file, n in lines.items() if n < 40 and file.stem != "__init__")),
    )
    yield "longest file", f"{lines[longest]} ({longest})"
    yield "files in a folder, most", f"{folders[most]} ({most})"
    for kind, n in kinds(package).most_common():
        yield f"lines of {kind}", f"{n:,}"
    for folder in sorted(folders):
        n = sum(n for file, n in lines.items() if str(file.parent) == folder)
        yield f"  {folder}", f"{folders[folder]} files, {n:,}"


def main() -> None:
    """Print the figures, one row each, with those of the commit and the budget."""
    now = dict(rows(working_tree(PACKAGE), working_tree(TESTS)))
    before: dict[str, str] = {}
    if len(sys.argv) > 1:
        before = dict(rows(at_commit(sys.argv[1], PACKAGE), at_commit(sys.argv[1], TESTS)))
    print(f"{'':<40} {'now':<44} {sys.argv[1] if before else '':<44} budget".rstrip())
    for name in dict.fromkeys([*now, *before]):
        budget = f"{BUDGET[name]:,}" if name in BUDGET else ""
        print(f"{name:<40} {now.get(name, '-'):<44} {before.get(name, ''):<44} {budget}".rstrip())


if __name__ == "__main__":
    main()
