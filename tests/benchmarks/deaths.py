"""Deaths of simulated workers over the real store: how many, and that nothing was lost, doubled or left behind.

Run: python tests/benchmarks/deaths.py [N] [--first-seed S]. Studies of 80 trials are run by four workers each, by
tests/faults/simulation.py, until N workers have died; the first study that does not end as it should is named by its
seed, which repeats it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.setting import print_table, setting
from faults.simulation import World


def main(n_deaths: int, first_seed: int) -> int:
    print(setting(), flush=True)
    died, told, seed, started = 0, 0, first_seed, time.process_time()
    while died < n_deaths:
        with tempfile.TemporaryDirectory() as folder:
            world = World(seed, Path(folder))
            try:
                world.run()
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}")
                return 1
        died, told, seed = died + world.n_deaths, told + sum(world.disk.told.values()), seed + 1
    seconds = time.process_time() - started
    headings = ["deaths", "studies", "trials", "lost, doubled or left behind", "CPU a death"]
    print_table(
        headings, [[f"{died:,}", str(seed - first_seed), f"{told:,}", "0", f"{1e3 * seconds / died:.0f} ms"]]
    )
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n_deaths", nargs="?", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    chosen = parser.parse_args()
    sys.exit(main(chosen.n_deaths, chosen.first_seed))
