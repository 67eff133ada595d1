"""Thousands of deaths of simulated workers: no trial is lost, told twice or left behind, and budgets are exact."""

from pathlib import Path

import pytest
from faults.simulation import Stores, World

SEEDS = [(seed, promotes) for promotes in (False, True) for seed in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "promotes"), [SEEDS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in SEEDS[1:])]
)
def test_a_study_whose_workers_die_comes_to_its_end(seed: int, promotes: bool, tmp_path: Path) -> None:
    world = World(seed, Stores(tmp_path, promotes=promotes))
    world.run()
    assert world.n_deaths > 20
