"""`sweeplab doctor` as a person and a program have it."""

import json
from pathlib import Path

from cli.conftest import STUDY


def test_something_bad_and_its_cure(cli, lab: Path) -> None:
    end = next(lab.glob("studies/tiny/runs/*/0-0/end.json"))
    end.write_text("{")
    said = cli("doctor", "tiny")
    assert said.code == 1
    lines = said.out.splitlines()
    (at,) = (number for number, line in enumerate(lines) if "end.json" in line)
    assert lines[at].startswith("bad   runs") and lines[at + 1].startswith("      → restore from a copy")
    checks = json.loads(cli("doctor", "tiny", "--json").out)
    assert [check["name"] for check in checks if check["verdict"] == "bad"] == ["runs"]


def test_a_study_that_has_not_run_yet(cli, finished, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(folder))  # without sbatch
    (folder / "jobs.yaml").write_text(
        f"{STUDY.replace('tiny', 'jobs').partition('engine')[0]}engine: {{type: slurm}}\n"
    )
    for name in ("jobs.yaml", "jobs"):
        said = cli("doctor", name, "--json")
        checks = {check["name"]: check for check in json.loads(said.out)}
        assert said.code == 1 and "there is no sbatch here" in checks["slurm"]["found"]
        assert not (folder / "lab").exists() and "storage" not in checks
    (folder / "jobs.yaml").write_text(STUDY.replace("tiny", "jobs"))
    said = cli("doctor", "jobs.yaml", "--lab", finished.lab)
    assert said.code == 0 and "devices" in said.out
    (folder / "jobs.yaml").write_text("name: jobs\nengine: moon\n")
    assert cli("doctor", "jobs.yaml").code == 2
