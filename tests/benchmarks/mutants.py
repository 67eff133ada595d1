"""Mutate drawn places of the code that must not be wrong, and count how many of the mutants its tests kill.

`mutants.py [AREA ...]` works in a copy of the current commit, whose hash draws; a timeout is no kill.
"""

import os
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from setting import HERE, print_table, setting

SECONDS, DRAWN = 60, 16  # of one mutant's tests; mutants an area
KINDS = ("killed", "survived", "timeout", "incompetent")
# What changes no behaviour: an operator that does nothing, unions of types, decorators.
PASSED_OVER = ("NoOp", "BitOr", "RemoveDecorator")
# An area: the files that are mutated, and what pytest is given to notice; `-m ""` runs slow tests too.
AREAS = {
    "laws": ("laws/core.py", "laws/test_core.py"),
    "sampler": (
        "study/plan.py study/joint.py",
        "study/test_algorithms.py study/test_joint.py study/test_plan.py",
    ),
    "store": ("sweep/trials/storage.py", "sweep/test_storage.py sweep/test_store.py"),
    "claims": (
        "sweep/trials/store.py sweep/trials/sharing.py",
        "sweep/test_store.py sweep/test_runner.py sweep/test_commands.py sweep/test_promotion.py",
    ),
    "schedules": (
        "train/run.py",
        "-m '' train/test_schedule.py train/test_counting.py train/test_stack.py::test_what_shares_a_stack",
    ),
    "optimizers": (
        "train/optimizers.py",
        "-m '' train/test_optimizers.py train/test_plugin_optimizers.py",
    ),
    "accounting": ("model/accounting.py", "-m '' model/test_accounting.py"),
    "resume": (
        "train/checkpoint.py train/member.py",
        "train/test_progress.py train/test_schedule.py train/test_checkpoint.py",
    ),
    "permissions": ("permissions.py", "test_permissions.py sweep/test_reach.py"),
    "files": ("files.py", "test_files.py test_owners.py sweep/test_reach.py"),
}


def draw(files, seed):
    """Draw mutants of some files."""
    with (
        tempfile.TemporaryDirectory() as folder,
        use_db(f"{folder}/mutants.sqlite") as database,
    ):
        init([Path("../sweeplab", name) for name in files.split()], database, {})
        every = [item.mutations[0] for item in database.work_items]
    mutants = [
        mutant
        for mutant in every
        if not any(word in mutant.operator_name for word in PASSED_OVER)
    ]
    mutants.sort(
        key=lambda mutant: (str(mutant.module_path), mutant.start_pos, mutant.operator_name)
    )
    return random.Random(seed).sample(mutants, min(DRAWN, len(mutants)))


def outcome(mutant, command):
    """Return what became of a mutant, and print it where no test failed."""
    result = mutate_and_test([mutant], command, SECONDS)
    kind = "timeout" if result.output == "timeout" else str(result.test_outcome.value)
    if kind != "killed":
        lines = [
            line
            for line in str(result.diff).splitlines()
            if line[:1] in "+-" and line[1:2] not in "+-"
        ]
        print(kind, mutant.module_path, mutant.start_pos[0], *lines, sep="\n    ", flush=True)
    return kind


def main(names):
    """Mutate the areas of some names, all without one, and print a row an area."""
    print(setting())
    commit = subprocess.check_output(
        ["git", "-C", HERE, "rev-parse", "HEAD"], text=True
    ).strip()
    rows = []
    with tempfile.TemporaryDirectory() as copy:
        subprocess.run(["git", "clone", "-q", HERE.parents[1], copy], check=True)
        os.chdir(f"{copy}/tests")
        os.environ["PYTHONPATH"] = copy
        for area in names or AREAS:
            files, tests = AREAS[area]
            command = f"{sys.executable} -m pytest -q -x -n 0 -p no:cacheprovider {tests}"
            subprocess.run(shlex.split(command), check=True, stdout=subprocess.DEVNULL)
            kinds = [outcome(mutant, command) for mutant in draw(files, commit + area)]
            rows.append([area, *(str(kinds.count(kind)) for kind in KINDS)])
    print_table(["area", *KINDS], rows)


if __name__ == "__main__":
    main(sys.argv[1:])
