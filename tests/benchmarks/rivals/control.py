"""What a trial costs besides its training: the product's store, plain Optuna and Rustuna, each on an SQLite file.

Run: python tests/benchmarks/rivals/control.py [rounds] (pip install -e '.[test,rivals]'). One process asks for trials
of four searched values, reports ten times and tells, after 100 and 1,000 trials that have ended. Rustuna has no
pruners, so it is given no reports. Turn about; medians of CPU and wall milliseconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

import optuna
import rustuna
from benchmarks.setting import print_table, setting
from benchmarks.store import N_REPORTS, SEARCH, STACK, fill, opened, study, train_stack

SIZES, N_TIMED = (100, 1000), 3
Train = Callable[[], int]


def product(url: str, sampler: str, size: int) -> Train:
    """Return what trains a stack of trials of a study that has so many."""
    store = opened(url, study(sampler, "none"))
    fill(store, size)
    return lambda: train_stack(store)


def suggested(trial: optuna.Trial | rustuna.Trial) -> float:
    """Suggest all searched values; return the value that the trial comes to."""
    for name, each in SEARCH.items():
        suggest = trial.suggest_int if isinstance(each.min, int) else trial.suggest_float
        found = suggest(name, each.min, each.max, log=each.log)
    return 4.0 - found


def plain_optuna(url: str, sampler: str, size: int) -> Train:
    """Return the same of plain Optuna, one trial at a time."""
    samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    own = optuna.create_study(storage=url, sampler=samplers["random"](seed=0))
    memory = optuna.create_study(sampler=own.sampler)
    memory.optimize(suggested, size)
    own.add_trials(memory.trials)
    own.sampler = samplers[sampler](seed=0)

    def train() -> int:
        for _ in range(STACK):
            trial = own.ask()
            value = suggested(trial)
            for each in range(1, N_REPORTS + 1):
                trial.report(value, 10 * each)
            own.tell(trial, value)
        return STACK

    return train


def plain_rustuna(url: str, sampler: str, size: int) -> Train:
    """Return the same of Rustuna, without reports."""
    samplers = {"random": rustuna.samplers.RandomSampler, "tpe": rustuna.samplers.TPESampler}
    storage = rustuna.storages.SQLite3Storage(url.removeprefix("sqlite:///"))

    def train(kind: str, n_trials: int) -> int:
        own = rustuna.create_study(
            study_name="own", storage=storage, sampler=samplers[kind](seed=0), load_if_exists=True
        )
        for _ in range(n_trials):
            trial = own.ask()
            own.tell(trial.number, suggested(trial))
        return n_trials

    train("random", size)
    return lambda: train(sampler, STACK)


WAYS = {"sweeplab, in stacks of 8": product, "Optuna": plain_optuna, "Rustuna, no reports": plain_rustuna}


def main(n_rounds: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(setting(), f"rustuna {version('rustuna')}", flush=True)
    rows = []
    for sampler in ("random", "tpe"):
        for size in SIZES:
            took: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
            for _ in range(n_rounds):
                for name, way in WAYS.items():
                    with tempfile.TemporaryDirectory() as place:
                        train = way(f"sqlite:///{place}/{name.split(',')[0]}.db", sampler, size)
                        train()
                        for _ in range(N_TIMED):
                            wall, cpu = time.perf_counter(), time.process_time()
                            n = train()
                            took[name].append(
                                ((time.process_time() - cpu) / n, (time.perf_counter() - wall) / n)
                            )
            for name, each in took.items():
                cpu, wall = (1e3 * median(column) for column in zip(*each, strict=True))
                rows.append([sampler, f"{size:,}", name, f"{cpu:.1f} ms", f"{wall:.1f} ms"])
    print_table(["sampler", "after trials", "way", "CPU a trial", "wall"], rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
