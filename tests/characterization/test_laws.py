"""What `sweeplab laws` says of a table: its numbers too, which are the same everywhere but for rounding."""

import json

import numpy as np
import pytest
from characterization.conftest import command
from characterization.shape import Shapes
from characterization.test_commands import described

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
    sizes, ratios = np.geomspace(1e6, 1e8, 5), np.array((2, 10, 50, 200))
    n, d = np.repeat(sizes, 4), np.repeat(sizes, 4) * np.tile(ratios, 5)
    loss = (1.8 + 480 / n**0.35 + 2085 / d**0.37) * np.exp(
        np.random.default_rng(3).normal(0, 0.003, 20)
    )
    _write("runs.csv", "N,D,val", n, d, loss)
    later = 1.8 + 480 / 2e8**0.35 + 2085 / 4e9**0.37
    _write("later.csv", "N,D,val", np.r_[n, 2e8], np.r_[d, 4e9], np.r_[loss, later])
    _write("ray.csv", "N,D,val", sizes, 20 * sizes, loss[2::4])
    return tmp_path


def _write(name, header, *columns):
    np.savetxt(name, np.c_[columns], delimiter=",", header=header, comments="")


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
