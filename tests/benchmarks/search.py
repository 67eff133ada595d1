"""Replay samplers on trainings that were all done before: how far the chosen values lie above each cell's best.

Run: python tests/benchmarks/search.py [repeats]. Two tables of nine cells (n_layer 1, 2, 4 by n_embd 16, 32, 64) with
four seeds at each of five or six learning rates: `unstable` (216 runs) and `stable` (180, with qk_norm and a longer
warm-up). A trial gets the loss of one of the seeds, drawn without replacement. `random` and `tpe` (Optuna's, which
models from the second trial on) search each cell alone and choose the lowest loss seen; `joint` searches all cells
together and chooses the surrogate's minimum. The columns are an anytime curve. The excess is the mean loss of the
seeds at the chosen learning rate above that at the cell's best one; the table has the mean over cells and repeats,
its standard error, and the mean of the worst cell.
"""

import csv
import functools
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process a core

import numpy as np
import optuna
from benchmarks.setting import print_table, setting
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeplab.data import DataSizes
from sweeplab.study.file.reading import study_from
from sweeplab.study.joint import JointModel
from sweeplab.study.problems import Problems
from sweeplab.study.space import spaces_of

TABLES = {"unstable": "sweep_small.csv", "stable": "sweep_stable.csv"}
TRIALS = (1, 2, 3, 4, 6, 8, 12, 16)
MOST_JOINT = 8
KINDS = {
    "random": optuna.samplers.RandomSampler,
    "tpe": functools.partial(optuna.samplers.TPESampler, n_startup_trials=1),
}

Losses = dict[tuple[int, int], dict[float, list[float]]]


def losses_of(file):
    """Return the losses of the seeds by n_layer and n_embd, and by learning rate."""
    found = defaultdict(lambda: defaultdict(list))
    with (Path(__file__).parent / "data" / file).open() as lines:
        for row in csv.DictReader(lines):
            size = int(row["n_layer"]), int(row["n_embd"])
            found[size][float(row["learning_rate"])].append(float(row["best_val_loss"]))
    return found


@dataclass
class Replay:
    """One repeat: the losses left of each cell and learning rate, in random order."""

    losses: Losses
    draws: np.random.Generator
    left: dict[tuple[tuple[int, int], float], list[float]] = field(default_factory=dict)

    def loss(self, size, rate):
        """Return the loss of one more seed."""
        if not self.left.get((size, rate)):
            self.left[size, rate] = list(self.draws.permutation(self.losses[size][rate]))
        return self.left[size, rate].pop()

    def nearest(self, rate):
        """Return the tabulated learning rate that is nearest in logs."""
        return min(
            next(iter(self.losses.values())), key=lambda known: abs(np.log(known / rate))
        )

    def excess(self, chosen):
        """Return the relative excess of the chosen learning rate of each cell, in percent."""
        mean = {
            size: {rate: np.mean(all_seeds) for rate, all_seeds in rates.items()}
            for size, rates in self.losses.items()
        }
        return np.array(
            [
                100 * (mean[size][rate] / min(mean[size].values()) - 1)
                for size, rate in chosen.items()
            ]
        )


def alone(replay, sampler, seed):
    """Search each cell alone; return the excess after each number of trials."""
    chosen = {n: {} for n in TRIALS}
    for size, rates in replay.losses.items():
        study = optuna.create_study(sampler=sampler(seed=seed + hash(size) % 2**16))
        known = sorted(rates)
        for number in range(1, max(TRIALS) + 1):
            trial = study.ask()
            asked = trial.suggest_float("learning_rate", known[0], known[-1], log=True)
            rate = replay.nearest(asked)
            trial.set_user_attr("rate", rate)
            study.tell(trial, replay.loss(size, rate))
            if number in chosen:
                chosen[number][size] = study.best_trial.user_attrs["rate"]
    return {number: replay.excess(of_cells) for number, of_cells in chosen.items()}


@dataclass
class Trials:
    """The trials of a cell in a replay, where a learning rate may come again with another seed."""

    trials: list[FrozenTrial] = field(default_factory=list)

    def ended(self):
        """Return the ended trials."""
        return self.trials

    def running(self):
        """Return no trial: one ends before the next one begins."""
        return []

    def twin(self, parameters, number):
        """Return None: every point is new."""


def joint(replay, seed, seconds, spaces, most):
    """Search all cells together, a trial of each cell after the other; return the excess after each number."""
    trials = [Trials() for _ in spaces]
    model = JointModel([*spaces.values()], lambda cell: trials[cell], seed)
    found = {}
    for number in range(most):
        for cell in replay.draws.permutation(len(spaces)):
            size = [*spaces][cell]
            began = time.process_time()
            if number == 0:
                point = model.first(int(cell), number)
            else:
                point = model.propose(int(cell), number, {})
            seconds.append(time.process_time() - began)
            point |= {"learning_rate": replay.nearest(point["learning_rate"])}
            value = replay.loss(size, point["learning_rate"])
            kinds = {name: spaces[size].parameters[name].distribution() for name in point}
            trial = create_trial(
                value=value, params=point, distributions=kinds, state=TrialState.COMPLETE
            )
            trial.number = number
            trials[cell].trials.append(trial)
        if number + 1 in TRIALS:
            best = {
                size: model.propose(cell, 99, {}, exploits=True)["learning_rate"]
                for cell, size in enumerate(spaces)
            }
            chosen = {size: replay.nearest(rate) for size, rate in best.items()}
            found[number + 1] = replay.excess(chosen)
    return found


def spaces_by_size(losses):
    """Return the search space of each cell: the tabulated learning rates."""
    (rates,) = {tuple(sorted(each)) for each in losses.values()}
    written = {
        "name": "replayed",
        "data": {"corpus": "python-docs", "tokenizer": "char"},
        "grid": {
            "n_layer": sorted({size[0] for size in losses}),
            "n_embd": sorted({size[1] for size in losses}),
        },
        "fixed": {"n_head": 2},
        "search": {"learning_rate": [*rates]},
    }
    spec = study_from(written, Problems())
    found, _ = spaces_of(spec, DataSizes(65))
    return {(each.cell.values["n_layer"], each.cell.values["n_embd"]): each for each in found}


def of_sampler(table, name, seed):
    """Return the excess after each number of trials, by cell, and the seconds of CPU of each proposal of `joint`."""
    losses, seconds = losses_of(TABLES[table]), list[float]()
    replay = Replay(losses, np.random.default_rng(seed))
    if name in KINDS:
        return alone(replay, KINDS[name], 1000 * seed), seconds
    return joint(replay, seed, seconds, spaces_by_size(losses), MOST_JOINT), seconds


def main(repeats):
    """Print the excess of each sampler by the number of trials."""
    print(setting(), end="\n\n")
    with ProcessPoolExecutor(initializer=quiet) as pool:
        samplers = {
            (table, name): [
                pool.submit(of_sampler, table, name, seed) for seed in range(repeats)
            ]
            for table in TABLES
            for name in (*KINDS, "joint")
        }
        rows, seconds = [], list[float]()
        for (table, name), jobs in samplers.items():
            results = [job.result() for job in jobs]
            seconds += [second for _, of_job in results for second in of_job if name == "joint"]
            by_number = {
                number: [excess[number] for excess, _ in results] for number in results[0][0]
            }
            rows.append([table, name, *(_in_words(by_number.get(number)) for number in TRIALS)])
        print_table(
            ["settings", "sampler", *(f"{number} trials a cell" for number in TRIALS)], rows
        )
    print(
        f"\njoint: {1000 * np.mean(seconds):.1f} ms of CPU a trial, {1000 * max(seconds):.0f} ms at most"
    )


def quiet():
    """Keep Optuna from reporting every trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _in_words(found):
    if not found:
        return ""
    means = np.array([of_cells.mean() for of_cells in found])
    worst = np.mean([of_cells.max() for of_cells in found])
    return f"{means.mean():.2f}% ± {means.std(ddof=1) / np.sqrt(len(means)):.2f}, {worst:.1f}%"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
