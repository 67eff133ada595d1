"""Print how large the package is, beside an earlier commit: `python tests/benchmarks/size.py [COMMIT]`.

Lines count comments, docstrings and blank lines. Without a commit only the working tree is measured.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from statistics import median

ROOT = Path(__file__).parents[2]
PACKAGE = "sweeplab"


def working_tree() -> dict[PurePosixPath, int]:
    """Return the number of lines of each of the package's files."""
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {PurePosixPath(each.relative_to(ROOT)): len(each.read_bytes().splitlines()) for each in files}


def at_commit(commit: str) -> dict[PurePosixPath, int]:
    """Return the number of lines that each of the package's files had at a commit."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout

    names = git("ls-tree", "-r", "--name-only", commit, PACKAGE).decode().splitlines()
    return {
        PurePosixPath(name): len(git("show", f"{commit}:{name}").splitlines())
        for name in names
        if name.endswith(".py")
    }


def kinds() -> Counter[str]:
    """Return how many of the working tree's lines are code, docstrings, imports, comments and blank."""
    found: Counter[str] = Counter()
    for file in (ROOT / PACKAGE).rglob("*.py"):
        text = file.read_text()
        starts = {"": "blank", "#": "comments"}
        each = [starts.get(line.strip()[:1], "code") for line in text.splitlines()]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                of = "imports"
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                of = "docstrings"
            else:
                continue
            assert node.end_lineno
            each[node.lineno - 1 : node.end_lineno] = [of] * (node.end_lineno - node.lineno + 1)
        found.update(each)
    return found


def rows(lines: dict[PurePosixPath, int]) -> Iterator[tuple[str, str]]:
    """Yield what is measured, and its value."""
    folders = Counter(str(file.parent) for file in lines)
    longest, most = max(lines, key=lambda file: lines[file]), max(folders, key=lambda folder: folders[folder])
    yield "lines", f"{sum(lines.values()):,}"
    yield "files", f"{len(lines):,}"
    yield "lines per file, median", f"{median(lines.values()):.0f}"
    yield (
        "files of under 40 lines",
        str(sum(1 for file, n in lines.items() if n < 40 and file.stem != "__init__")),
    )
    yield "longest file", f"{lines[longest]} ({longest})"
    yield "files in a folder, most", f"{folders[most]} ({most})"
    for folder in sorted(folders):
        yield (
            f"  {folder}",
            f"{folders[folder]} files, {sum(n for f, n in lines.items() if str(f.parent) == folder):,}",
        )


def main() -> None:
    """Print the figures, one row each."""
    now = dict(rows(working_tree())) | {f"lines of {of}": f"{n:,}" for of, n in kinds().most_common()}
    before = dict(rows(at_commit(sys.argv[1]))) if len(sys.argv) > 1 else {}
    for name in dict.fromkeys([*now, *before]):
        print(f"{name:<36} {now.get(name, '-'):<44} {before.get(name, '')}".rstrip())


if __name__ == "__main__":
    main()
