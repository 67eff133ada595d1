"""Every block of studies/OWN.md runs as it stands, in one folder, from top to bottom."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import sweeplab

PAGE = Path(sweeplab.__file__).parents[1] / "studies" / "OWN.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LONGEST = 20


@pytest.mark.slow
@pytest.mark.usefixtures("forgets_plugins", "workers_here")
def test_every_block_runs(cli, folder: Path, monkeypatch, capfd) -> None:
    page, names = PAGE.read_text(encoding="utf-8"), dict[str, Any]()
    blocks = BLOCK.findall(page)
    assert len(blocks) >= 8 and page.count("```") == 2 * len(blocks)
    for kind, text in blocks:
        first, lines = text.partition("\n")[0], [line for line in text.splitlines() if line.strip()]
        assert len(lines) <= LONGEST, first
        name = re.fullmatch(r"# (\w+\.\w+)", first)
        if name:
            (folder / name[1]).write_text(text)
        elif kind == "sh":
            for line in lines:
                said = cli(*shlex.split(line)[1:])
                assert said.code == 0, (line, said.err)
        else:
            assert kind == "python"
            exec(compile(text, str(PAGE), "exec"), names)
    assert names["result"].status == "complete" and 0 <= names["sums"].trials()["best_hits"].max() <= 1
    assert len(set(names["mine"].trials()["n_params"])) == 2
    assert names["again"].spec.sampler.options == {"n_startup_trials": 2}
    assert all(run.logged_folder.is_dir() for run in names["again"].folder.runs())
