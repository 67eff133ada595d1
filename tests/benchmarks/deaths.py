"""Kill simulated workers over the real store, and check that no trial was lost, doubled or left behind.

Run: python tests/benchmarks/deaths.py [N] [--first-seed S] [--processes P]. tests/faults/simulation.py runs studies of
16 trials with four workers each until N workers have died. A worker dies after 8, 12 or 25 statements on average; in
every second study all pruned trials are promoted at the end. A study that does not end as it should is named by its
seed, which repeats it.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.setting import print_table, setting
from faults.simulation import Stores, World

MEAN_LIVES = (8, 12, 25)
TRIALS_PER_CELL = 8
MEMORY = Path("/dev/shm")


@cache
def stores(folder, promotes):
    """Return this process's stores."""
    place = Path(folder, f"{os.getpid()}-{promotes}")
    place.mkdir()
    return Stores(place, trials_per_cell=TRIALS_PER_CELL, promotes=promotes)


def simulate(folder, seed):
    """Return how many workers died in a study, its trials, its CPU seconds, and what went wrong."""
    made, started, error = stores(folder, seed % 2 == 1), time.process_time(), ""
    world = World(seed, made, MEAN_LIVES[seed % len(MEAN_LIVES)])
    try:
        world.run()
    except Exception as raised:
        error = f"seed {seed}: {type(raised).__name__}: {raised}"
    return world.n_deaths, sum(world.disk.told.values()), time.process_time() - started, error


def main(n_deaths, first_seed, n_processes):
    print(setting(), flush=True)
    died, told, n_studies, seconds, wrong = 0, 0, 0, 0.0, list[str]()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        multiprocessing.Pool(n_processes) as pool,
    ):
        while died < n_deaths:
            seeds = range(first_seed + n_studies, first_seed + n_studies + 16 * n_processes)
            for deaths, trials, took, error in pool.imap_unordered(partial(simulate, folder), seeds):
                died, told, n_studies, seconds = died + deaths, told + trials, n_studies + 1, seconds + took
                if error:
                    wrong.append(error)
                    print(error, flush=True)
    headings = ["deaths", "studies", "trials told", "studies not as they should be"]
    headings += ["CPU a death", "deaths a CPU minute", "minutes"]
    row = [f"{died:,}", f"{n_studies:,}", f"{told:,}", str(len(wrong)), f"{1e3 * seconds / died:.1f} ms"]
    print_table(headings, [[*row, f"{60 * died / seconds:,.0f}", f"{(time.monotonic() - began) / 60:.1f}"]])
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n_deaths", nargs="?", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    sys.exit(main(chosen.n_deaths, chosen.first_seed, chosen.processes))
