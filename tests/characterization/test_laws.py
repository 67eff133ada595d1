"""What `sweeplab laws` says of a table: its numbers too, which are the same everywhere but for rounding."""

import json

import numpy as np
import pytest
from characterization.conftest import command
from characterization.shape import Shapes
from characterization.test_commands import described
from law_tables import write_rows, write_table

COLUMNS = "--columns params=N,tokens=D,loss=val"
LINES = (
    f"laws fit runs.csv {COLUMNS} --tuned each --count params=total --json",
    f"laws fit runs.csv {COLUMNS} --law tied --flops 1e20 --json",
    f"laws fit runs.csv {COLUMNS} --law power-c --report page.html --json",
    f"laws fit ray.csv {COLUMNS} --law power-n --json",
    f"laws next runs.csv {COLUMNS} --quantity beta --json",
    f"laws predict runs.csv {COLUMNS} --at params=2e8,tokens=4e9 --seal --tuned each --count params=total --json",
    "laws verify --json",
    "laws verify --against later.csv --json",
)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Work in an empty folder with a good table, and one that tells nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPLAB_LAB", raising=False)
    sizes = np.geomspace(1e6, 1e8, 5)
    write_table("runs.csv", sizes, (2, 10, 50, 200))
    runs = np.loadtxt("runs.csv", delimiter=",", skiprows=1)
    later = 1.8 + 480 / 2e8**0.35 + 2085 / 4e9**0.37
    write_rows("later.csv", np.r_[runs, [[2e8, 4e9, later]]])
    write_rows("ray.csv", np.c_[sizes, 20 * sizes, runs[2::4, 2]])
    return tmp_path


@pytest.mark.slow
def test_what_laws_say(tables, golden):
    # Which pattern is the strongest of several equal ones follows from rounding, which follows from threads.
    shapes = Shapes(tables, floats=True, unlike=("strongest",))
    for line in LINES:
        golden.check(line, described(command(line), shapes))
    ledger = [shapes.of(each) for each in _lines(tables / "lab" / "ledger.jsonl")]
    golden.check("ledger.jsonl", ledger)


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
