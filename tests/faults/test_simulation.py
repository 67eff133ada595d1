"""Thousands of deaths of simulated workers: no trial is lost, told twice or left behind, and budgets are exact."""

from pathlib import Path

import pytest
from faults.simulation import Stores, World


@pytest.mark.slow
@pytest.mark.parametrize("promotes", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_study_whose_workers_die_comes_to_its_end(seed: int, promotes: bool, tmp_path: Path) -> None:
    world = World(seed, Stores(tmp_path, promotes=promotes))
    world.run()
    assert world.n_deaths > 20
