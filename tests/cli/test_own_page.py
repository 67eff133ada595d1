"""Every block of studies/OWN.md and AGENTS.md runs as it stands, each page in one folder, from top to bottom."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import sweeplab

STUDIES = Path(sweeplab.__file__).parents[1] / "studies"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LONGEST = 20


@pytest.mark.slow
@pytest.mark.usefixtures("forgets_plugins", "workers_here")
def test_every_block_runs(cli, folder):
    page, names = (STUDIES / "OWN.md").read_text(encoding="utf-8"), {}
    blocks = BLOCK.findall(page)
    assert len(blocks) >= 8 and page.count("```") == 2 * len(blocks)
    for kind, text in blocks:
        lines = [line for line in text.splitlines() if line.strip()]
        assert len(lines) <= LONGEST and kind in ("sh", "python", "yaml"), lines[0]
        if name := re.fullmatch(r"# (\w+\.\w+)", lines[0]):
            (folder / name[1]).write_text(text)
        elif kind == "sh":
            for line in lines:
                said = cli(*shlex.split(line)[1:])
                assert said.code == 0, (line, said.err)
        else:
            exec(compile(text, "OWN.md", "exec"), names)
    assert (
        names["result"].status == "complete"
        and 0 <= names["sums"].trials()["best_hits"].max() <= 1
    )
    assert len({*names["mine"].trials()["n_params"]}) == 2
    assert [*names["stepped"].trials()["state"]] == ["complete"] * 6
    again = names["again"]
    assert again.spec.sampler.options == {"n_startup_trials": 2} and names["done"].errors == []
    assert names["norms"]


def held(content, place):
    """Tell whether JSON has a key at a place such as cells[].cell."""
    first, _, rest = place.partition(".")
    name = first.removesuffix("[]")
    if not isinstance(content, dict) or name not in content:
        return False
    inner = content[name] if first != name else [content[name]]
    return bool(inner) and (not rest or all(held(each, rest) for each in inner))


@pytest.mark.slow
def test_every_block_for_agents_runs_and_returns_what_it_says(cli, folder):
    page = (STUDIES / "AGENTS.md").read_text(encoding="utf-8")
    shutil.copy(STUDIES / "runs.csv", folder)
    (_, file), (_, commands) = BLOCK.findall(page)
    (folder / "first.yaml").write_text(file)
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    keys = {
        command: re.findall(r"`([\w.[\]]+)`", text.partition("; ")[0]) for command, text in rows
    }
    assert len(keys) == 8 and all(keys.values())
    for line in commands.splitlines():
        _, *words = shlex.split(line)
        said = cli(*words)
        assert said.code == 0, (line, said.err)
        word = words[1] if words[0] in ("study", "laws") else words[0]
        if "--json" in words and word in keys:
            assert not [key for key in keys.pop(word) if not held(json.loads(said.out), key)], (
                line
            )
    assert not keys
