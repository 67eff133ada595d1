"""Print how large the package is, room by room, beside its ceilings, an earlier commit and Optuna.

`python tests/benchmarks/size.py [COMMIT]`. Size is counted in code tokens: the names, operators, numbers and strings of
Python's tokenizer, so that comments, docstrings' lengths, blank lines and longer lines count for nothing. A longer line
is no smaller program; a test does not count what a person reads.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
KINDS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
CEILINGS = {
    "top files": 14_500,
    "analysis": 19_300,
    "cli": 24_300,
    "cli/laws": 3_500,
    "data": 27_500,
    "doctor": 7_000,
    "hf": 10_500,
    "lab": 14_100,
    "laws": 32_200,
    "model": 19_500,
    "records": 6_000,
    "report": 31_600,
    "runs": 6_300,
    "study": 32_500,
    "sweep": 44_000,
    "tracking": 11_700,
    "train": 16_900,
    "all": 318_000,
    "files": 190,
    "tests": 290_000,
}
Texts = Mapping[PurePosixPath, str]


def tokens(text):
    """Return the number of code tokens of a file."""
    return sum(
        token.type in KINDS for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def read_folder(folder):
    """Return the text of each Python file below a folder, by its path from there."""
    files = sorted(folder.rglob("*.py"))
    return {PurePosixPath(file.relative_to(folder)): file.read_text("utf-8") for file in files}


def read_commit(commit, folder):
    """Return the text that each Python file below a folder had at a commit."""

    def git(*words):
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, check=True).stdout.decode()

    names = git("ls-tree", "-r", "--name-only", commit, folder).splitlines()
    python = [name for name in names if name.endswith(".py")]
    return {
        PurePosixPath(name).relative_to(folder): git("show", f"{commit}:{name}")
        for name in python
    }


def rooms(package, tests):
    """Return the tokens of each room, of the whole and of the tests, and the number of files."""
    counts = Counter()
    for file, text in package.items():
        counts[file.parts[0] if file.parts[1:] else "top files"] += tokens(text)
    counts["all"] = counts.total()
    counts["cli/laws"] = sum(
        tokens(text) for file, text in package.items() if file.parts[:2] == ("cli", "laws")
    )
    counts["files"] = len(package)
    counts["tests"] = sum(map(tokens, tests.values()))
    return counts


def readability(texts):
    """Return how much a reader finds in a line, and in a function."""
    lines = n_tokens = 0
    lengths = []
    for text in texts:
        lines += len(text.splitlines())
        n_tokens += tokens(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                lengths.append(node.end_lineno - node.lineno + 1)
    return {
        "code tokens": f"{n_tokens:,}",
        "lines": f"{lines:,}",
        "code tokens a line": f"{n_tokens / lines:.2f}",
        "lines a function, mean": f"{sum(lengths) / len(lengths):.1f}",
    }


def constants(texts):
    """Return the names at module level whose values have a number."""
    found = []
    for statement in (line for text in texts for line in ast.parse(text).body):
        match statement:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target, value=value):
                literals = (getattr(each, "value", None) for each in ast.walk(value or target))
                if any(type(each) in (int, float) for each in literals):
                    found += [
                        each.id for each in ast.walk(target) if isinstance(each, ast.Name)
                    ]
    return found


def main():
    """Print both tables, and the constants of the laws."""
    package, tests = read_folder(ROOT / "sweeplab"), read_folder(ROOT / "tests")
    now, before = rooms(package, tests), Counter[str]()
    commit = "".join(sys.argv[1:])
    if commit:
        before = rooms(read_commit(commit, "sweeplab"), read_commit(commit, "tests"))
    print(f"{'code tokens':<24}{'now':>10}{commit:>12}{'ceiling':>10}{'over':>9}")
    for name in {**CEILINGS, **now}:
        over = max(0, now[name] - CEILINGS.get(name, 0))
        earlier = f"{before[name]:,}" if commit else ""
        print(f"{name:<24}{now[name]:>10,}{earlier:>12}{CEILINGS.get(name, 0):>10,}{over:>9,}")
    spec = find_spec("optuna")
    assert spec is not None and spec.origin is not None
    optuna = readability(read_folder(Path(spec.origin).parent).values())
    laws = [text for file, text in package.items() if file.parts[0] == "laws"]
    print(f"\nnumeric constants of laws (asked: under 80): {len(constants(laws))}")
    print(f"\n{'':<24}{'here':>10}{'Optuna ' + version('optuna'):>16}")
    for name, figure in readability(package.values()).items():
        print(f"{name:<24}{figure:>10}{optuna[name]:>16}")


if __name__ == "__main__":
    main()
