"""Replay samplers on trainings that were all done before: how far the chosen values lie above each cell's best.

Run: python tests/benchmarks/search.py [repeats]. Two tables of nine cells (n_layer 1, 2, 4 by n_embd 16, 32, 64) with
four seeds at each of five or six learning rates: `unstable` (216 runs) and `stable` (180, with qk_norm and a longer
warm-up). A trial gets the loss of one of the seeds, drawn without replacement. `random` and `tpe` (Optuna's, which
models from the second trial on) search each cell alone and choose the lowest loss seen; `joint` searches all cells
together and chooses the surrogate's minimum. The columns are an anytime curve. The excess is the mean loss of the
seeds at the chosen learning rate above that at the cell's best one; the table has the mean over cells and repeats,
its standard error, and the mean of the worst cell.

The second table compares a joint search that asks the trials of a cell one by one with one that asks all but the last
at once, each without the results of the others; the last trial is the surrogate's minimum. It has these two tables and
ten planted worlds of nine cells, 13 learning rates and 20 seeds, whose valleys differ in place, drift, width and skew.
"""

import csv
import functools
import itertools
import os
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process a core

import numpy as np
import optuna
from benchmarks.setting import print_table, setting
from optuna.trial import TrialState, create_trial

from sweeplab.data import DataSizes
from sweeplab.study.file.reading import study_from
from sweeplab.study.joint import JointModel
from sweeplab.study.problems import Problems
from sweeplab.study.space import spaces_of

TABLES = {"unstable": "sweep_small.csv", "stable": "sweep_stable.csv"}
WORLDS = tuple(f"planted {number}" for number in range(10))
TRIALS = (1, 2, 3, 4, 6, 8, 12, 16)
MOST_JOINT = 8
TOGETHER = (4, 6)
KINDS = {
    "random": optuna.samplers.RandomSampler,
    "tpe": functools.partial(optuna.samplers.TPESampler, n_startup_trials=1),
}


def losses_of(table):
    """Return the losses of the seeds by n_layer and n_embd, and by learning rate."""
    if table in WORLDS:
        return planted(WORLDS.index(table))
    found = defaultdict(lambda: defaultdict(list))
    with (Path(__file__).parent / "data" / TABLES[table]).open() as lines:
        for row in csv.DictReader(lines):
            size = int(row["n_layer"]), int(row["n_embd"])
            found[size][float(row["learning_rate"])].append(float(row["best_val_loss"]))
    return found


def planted(world):
    """Return losses as `losses_of` does, of a world whose log losses are a valley in the log of the learning rate."""
    draws, rates = np.random.default_rng([53, world]), np.geomspace(2e-3, 0.2, 13)
    noise = (0.002, 0.005, 0.01)[world % 3]
    place, by_depth, by_width = draws.uniform(-4.5, -3.0), *draws.uniform(-0.5, 0.1, 2)
    curvature, skew = draws.uniform(0.01, 0.06), draws.uniform(0, 0.7)
    losses = {}
    for n_layer, n_embd in itertools.product((1, 2, 4), (16, 32, 64)):
        depth, width = np.log(n_layer / 2), np.log(n_embd / 32)
        x = np.log(rates) - place - by_depth * depth - by_width * width
        mean = 0.7 - 0.05 * depth - 0.2 * width + curvature * x**2 * (1 + skew * np.tanh(x))
        seeds = np.exp(mean + noise * draws.standard_normal((20, len(rates))))
        losses[n_layer, n_embd] = dict(zip(rates.tolist(), seeds.T.tolist(), strict=True))
    return losses


@dataclass
class Replay:
    """One repeat: the losses left of each cell and learning rate, in random order."""

    losses: dict
    draws: np.random.Generator
    left: dict = field(default_factory=dict)

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

    trials: list = field(default_factory=list)
    pending: list = field(default_factory=list)

    def ended(self):
        """Return the ended trials."""
        return self.trials

    def running(self):
        """Return the trials that were asked together and have no loss yet."""
        return self.pending

    def twin(self, parameters, number):
        """Return None: every point is new."""


def joint(replay, seed, rounds, exploits=False):
    """Search all cells together; return the excess after each number of trials.

    `rounds` are the numbers of the trials that a cell asks at once; the last one is the surrogate's minimum if it
    `exploits`.
    """
    spaces = spaces_by_size(replay.losses)
    trials = [Trials() for _ in spaces]
    model = JointModel([*spaces.values()], lambda cell: trials[cell], seed)
    found = {}
    for numbers in rounds:
        is_last = exploits and numbers == rounds[-1]
        for cell in map(int, replay.draws.permutation(len(spaces))):
            size = [*spaces][cell]
            for number in numbers:
                if number and sum(len(of_cell.trials) for of_cell in trials) > 1:
                    point = model.propose(cell, number, {}, is_last)
                else:
                    point = model.first(cell, number)
                point |= {"learning_rate": replay.nearest(point["learning_rate"])}
                kinds = {name: spaces[size].parameters[name].distribution() for name in point}
                trial = create_trial(
                    params=point, distributions=kinds, state=TrialState.RUNNING
                )
                trial.number = number
                trials[cell].pending.append(trial)
            for trial in trials[cell].pending:
                trial.state = TrialState.COMPLETE
                trial.value = replay.loss(size, trial.params["learning_rate"])
            trials[cell].trials += trials[cell].pending
            trials[cell].pending = []
        if numbers[-1] + 1 in TRIALS:
            best = {
                size: model.propose(cell, 99, {}, exploits=True)["learning_rate"]
                for cell, size in enumerate(spaces)
            }
            chosen = {size: replay.nearest(rate) for size, rate in best.items()}
            found[numbers[-1] + 1] = replay.excess(chosen)
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
    """Return the excess after each number of trials, by cell."""
    replay = Replay(losses_of(table), np.random.default_rng(seed))
    if name in KINDS:
        return alone(replay, KINDS[name], 1000 * seed)
    return joint(replay, seed, [[number] for number in range(MOST_JOINT)])


def both_ways(table, n_trials, seed):
    """Return the mean excess of all cells if trials are asked one by one, and if all but the last are at once."""
    excesses = []
    for rounds in (
        [[number] for number in range(n_trials)],
        [[*range(n_trials - 1)], [n_trials - 1]],
    ):
        replay = Replay(losses_of(table), np.random.default_rng(seed))
        found = joint(replay, seed, rounds, exploits=True)
        excesses.append(found[n_trials].mean())
    return excesses


def main(repeats):
    """Print the excess of each sampler by the number of trials, and that of trials asked at once."""
    print(setting(), end="\n\n")
    with ProcessPoolExecutor(initializer=quiet) as pool:
        samplers = {
            (table, name): [
                pool.submit(of_sampler, table, name, seed) for seed in range(repeats)
            ]
            for table in TABLES
            for name in (*KINDS, "joint")
        }
        pairs = {
            (table, n_trials): [
                pool.submit(both_ways, table, n_trials, seed) for seed in range(repeats)
            ]
            for n_trials in TOGETHER
            for table in (*TABLES, *WORLDS)
        }
        rows = []
        for (table, name), jobs in samplers.items():
            results = [job.result() for job in jobs]
            by_number = {
                number: [excess[number] for excess in results] for number in results[0]
            }
            rows.append([table, name, *(_in_words(by_number.get(number)) for number in TRIALS)])
        print_table(
            ["settings", "sampler", *(f"{number} trials a cell" for number in TRIALS)], rows
        )
        print()
        results = {case: np.array([job.result() for job in pairs[case]]) for case in pairs}
    for n_trials in TOGETHER:
        together = [results[world, n_trials] for world in WORLDS]
        results["all planted", n_trials] = np.vstack(together)
    rows = []
    for (table, n_trials), of_seeds in results.items():
        more = of_seeds[:, 1] - of_seeds[:, 0]
        error = more.std(ddof=1) / np.sqrt(len(more))
        means = [f"{mean:.2f}%" for mean in of_seeds.mean(axis=0)]
        rows.append([table, str(n_trials), *means, f"{more.mean():+.3f}% ± {error:.3f}"])
    print_table(["settings", "trials a cell", "one by one", "at once", "difference"], rows)


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
