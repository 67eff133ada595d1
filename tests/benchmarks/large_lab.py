"""Time commands on a large lab: `list`, `show` and `--help` with 50 studies of 400 runs, `export` of 20,000.

Run: python tests/benchmarks/large_lab.py [studies] [runs of each] [folder]. One study of one trial really runs; its
folder and its rows in Optuna's storage are then copied under other names.
"""

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from benchmarks.setting import print_table, setting

PROGRAM = [sys.executable, "-c", "from sweeplab.cli import main; main()"]
STUDY = """\
name: first
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, n_embd: 16, eval_interval: 5, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""
REPEATS = 7


def run_one(folder: Path) -> Path:
    """Run the study and return its lab."""
    (folder / "first.yaml").write_text(STUDY)
    lab = folder / "lab"
    command = [*PROGRAM, "study", "run", str(folder / "first.yaml"), "--lab", str(lab), "--quiet"]
    subprocess.run(command, check=True)
    return lab


def copy_rows(
    connection: sqlite3.Connection, table: str, key: str, old: object, new: object, **changed: object
) -> None:
    """Add the rows of `table` whose `key` is `old` again, as those of `new`, with numbers of their own."""
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    own = {name for _, name, kind, _, _, primary in columns if primary and kind == "INTEGER" and name != key}
    names = [column[1] for column in columns if column[1] not in own]
    values = [f":{name}" if name in {key, *changed} else f'"{name}"' for name in names]
    quoted = ", ".join(f'"{name}"' for name in names)
    text = f'INSERT INTO {table} ({quoted}) SELECT {", ".join(values)} FROM {table} WHERE "{key}" = :old'
    connection.execute(text, {"old": old, key: new, **changed})


def add_trials(study: Path, name: str, n_runs: int) -> None:
    """Give a copied study its name and `n_runs` trials, in its folders and its storage."""
    for file in ("study.json", "plan.json"):
        content = json.loads((study / file).read_text())
        (study / file).write_text(json.dumps(content | {"name": name}))
    template = study / "runs" / "all" / "0-0"
    described = json.loads((template / "run.json").read_text())
    with closing(sqlite3.connect(study / "trials.db")) as connection, connection:
        connection.execute("UPDATE studies SET study_name = ?", (f"{name}/all",))
        for number in range(1, n_runs):
            copy_rows(connection, "trials", "trial_id", 1, number + 1, number=number)
            for table in ("params", "values", "user_attributes", "system_attributes", "intermediate_values"):
                copy_rows(connection, f"trial_{table}", "trial_id", 1, number + 1)
            folder = template.with_name(f"{number}-0")
            shutil.copytree(template, folder, ignore=shutil.ignore_patterns("best"))
            key = f"all/{number}/0"
            (folder / "run.json").write_text(json.dumps(described | {"key": key, "trial": number}))


def seconds(*words: str) -> float:
    """Return the median time of a command, each in a process of its own."""
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run([*PROGRAM, *words], check=True, capture_output=True)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    n_studies, n_each = (int(each) for each in (sys.argv[1:3] or (50, 400)))
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as made:
        lab = run_one(Path(made))
        first = lab / "studies" / "first"
        for at in range(n_studies - 1):
            copied = shutil.copytree(first, first.with_name(f"study-{at:02}"))
            add_trials(copied, copied.name, n_each)
        whole = shutil.copytree(first, Path(made) / "whole" / "studies" / "first")
        add_trials(whole, "first", n_studies * n_each)
        add_trials(first, "first", n_each)
        listed = json.loads(
            subprocess.run(
                [*PROGRAM, "study", "list", "--json", "--lab", str(lab)], capture_output=True, check=True
            ).stdout
        )
        assert [each["trials"] for each in listed] == [n_each] * n_studies, "the lab is what it should be"
        table = str(Path(made) / "runs.csv")
        commands = (
            ("--help",),
            ("study", "list", "--lab", str(lab)),
            ("study", "show", "first", "--lab", str(lab)),
            ("study", "show", "first", "--trial", "3", "--lab", str(lab)),
            ("study", "export", "first", "--output", table, "--lab", str(whole.parents[1])),
        )
        rows = [
            (" ".join(words[:4] if words[0] == "study" else words), f"{seconds(*words):.2f} s")
            for words in commands
        ]
        with Path(table).open() as file:
            assert sum(1 for _ in file) == n_studies * n_each + 1, "every run is exported"
    print(setting())
    print_table(("command", "median"), rows)


if __name__ == "__main__":
    main()
