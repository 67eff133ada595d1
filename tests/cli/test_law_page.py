"""`sweeplab laws fit --report`: the page of a table that belongs to no study."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

COLUMNS = ("--columns", "params=N,tokens=D,loss=val")


@pytest.fixture
def table(folder: Path) -> Path:
    n = np.repeat(np.geomspace(1e6, 1e8, 4), 3)
    d = n * np.tile((5, 20, 80), 4)
    loss = (1.8 + 480 / n**0.35 + 2085 / d**0.37) * np.exp(np.random.default_rng(1).normal(0, 0.003, 12))
    np.savetxt(folder / "runs.csv", np.c_[n, d, loss], delimiter=",", header="N,D,val", comments="")
    return folder / "runs.csv"


@pytest.mark.slow
def test_a_page_is_written_beside_what_is_printed(cli, table: Path) -> None:
    page = table.with_name("law.html")
    said = cli("laws", "fit", table, *COLUMNS, "--report", page)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == str(page)
    text = page.read_text(encoding="utf-8")
    assert "tied: estimates and verdicts" not in text and "chinchilla: estimates and verdicts" in text
    assert "runs.csv" in text and "Learning curves" not in text
    as_json = json.loads(cli("laws", "fit", table, *COLUMNS, "--law", "tied", "--report", page, "--json").out)
    assert as_json["report"] == str(page) and as_json["bootstrap"]["refits"] > 0
    assert "tied: estimates and verdicts" in page.read_text(encoding="utf-8")
