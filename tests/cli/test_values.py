"""The expected value beside the one seen, as a person sees them."""

import pytest
from cli.conftest import STUDY


@pytest.mark.slow
def test_a_study_gives_the_expected_value(cli, json_of, folder, workers_here):
    (folder / "tiny.yaml").write_text(STUDY.replace("trials_per_cell: 2", "trials_per_cell: 4"))
    assert cli("run", "tiny.yaml").code == 0
    best, shown = json_of("best tiny"), json_of("show tiny")
    choice = best["choice"]
    assert choice == shown["best"]["choice"] and choice["value"] == best["value"]
    assert choice["expected"]["low"] < choice["expected"]["value"] < choice["expected"]["high"]
    assert f"{choice['expected']['value']:.4f}" in cli("best", "tiny").out
    assert shown["best"]["key"].startswith(f"{best['cell']}/{best['trial']}/")
