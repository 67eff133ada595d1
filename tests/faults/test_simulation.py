"""Thousands of deaths of simulated workers: no trial is lost, told twice or left behind, and budgets are exact."""

import pytest
from faults.simulation import Stores, World


@pytest.mark.slow
@pytest.mark.parametrize("promotes", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_study_whose_workers_die_comes_to_its_end(seed, promotes, tmp_path):
    world = World(seed, Stores(tmp_path, promotes=promotes))
    world.run()
    assert world.n_deaths > 20
