"""`sweeplab laws compare`: what it prints, what it gives to programs, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

COLUMNS = ("--columns", "params=N,tokens=D,loss=val")


def write(path: Path, sizes, tokens_per_param) -> Path:
    n = np.repeat(sizes, len(tokens_per_param))
    d = n * np.tile(tokens_per_param, len(sizes))
    loss = (1.8 + 480 / n**0.35 + 2085 / d**0.37) * np.exp(np.random.default_rng(3).normal(0, 0.003, len(n)))
    np.savetxt(path, np.c_[n, d, loss], delimiter=",", header="N,D,val", comments="")
    return path


@pytest.fixture
def good(folder: Path) -> Path:
    return write(folder / "good.csv", np.geomspace(1e6, 1e8, 6), (2, 6, 20, 60, 200))


def test_a_good_table(cli, good: Path) -> None:
    said = cli("laws", "compare", good, *COLUMNS, "--laws", "chinchilla,kaplan")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith("30 rows; cuts in flops: ")
    rows = {line.split()[0]: line for line in lines[3:5]}
    assert rows["chinchilla"].rstrip().endswith("not seen") and rows["kaplan"].rstrip().endswith("flagged")
    assert "chinchilla is off by " in said.out and "kaplan does not fit: " in said.out


@pytest.mark.slow
def test_one_ray(cli, folder: Path) -> None:
    ray = write(folder / "ray.csv", np.geomspace(1e6, 1e9, 12), (20,))
    said = cli("laws", "compare", ray, *COLUMNS, "--laws", "chinchilla")
    assert said.code == 0
    assert "this design cannot show a misfit: all rows lie near one ray" in said.out
