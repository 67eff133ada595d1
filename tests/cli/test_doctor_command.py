"""`sweeplab doctor` as a person and a program have it."""

import json

from cli.conftest import STUDY


def test_a_study_that_has_not_run_yet(cli, finished, folder, monkeypatch):
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
