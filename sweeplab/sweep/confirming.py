"""Confirm a study: race its best configurations on fresh seeds, and score the winners of the race on the test split.

The best trial of a search owes part of its loss to luck. The study NAME.race trains the best trials of each cell on
two fresh seeds each; NAME.race2 trains those still in the race on the remaining seeds (as in iterated racing:
López-Ibáñez et al., "The irace package", 2016, with t-tests). NAME.confirm trains each cell's winner on yet other
seeds, so that its reported losses took part in no selection, and scores it on the test split, unused until then. All
three are ordinary studies: workers train them, the same command continues them, tracking shows them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import CONFIRMING, StudyTrials, Trial, read_spec, read_trials
from sweeplab.records.confirmed import Confirmed, Found, Losses, record_look, write_confirmed
from sweeplab.records.folders import StudyFolder
from sweeplab.runs.inspecting import scored
from sweeplab.study.file.check import study_from
from sweeplab.study.inputs import recorded_dataset
from sweeplab.study.problems import Problems, SourceMap
from sweeplab.study.search import Derived
from sweeplab.study.space import cells
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.planning import check_reach
from sweeplab.tracking.loading import load_checkpoint

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset

FIRST_SEEDS = 2
# One-sided significance level of each comparison with a cell's leader.
RACE_LEVEL = 0.05


class Interrupted(Exception):  # noqa: N818 - no failure: the same command continues
    """A study of the confirmation did not come to its end; `status` is how it ended."""

    def __init__(self, name: str, status: str) -> None:
        super().__init__(f"study {name} is {status}")
        self.status = status


def confirm(
    folder: StudyFolder, spec: StudySpec, top: int, n_seeds: int, run: Callable[[StudySpec], str]
) -> list[Confirmed]:
    """Race the best `top` configurations of each cell on up to `n_seeds` fresh seeds; confirm the winners on as many.

    `run` runs a study to its end, or continues it, and returns its status.

    Raises:
        BadInput: no trial of the study has a value, or another kind of study has the name of one of these.
        Interrupted: one of the studies did not come to its end.
    """
    racing = _best_of_cells(folder, top)
    check_reach(spec, folder.lab)
    if not racing:
        raise BadInput(f"no trial of study {folder.name} has a value yet: there is nothing to confirm")
    trials = {(trial.cell, trial.number): trial for trials in racing for trial in trials}
    first, last = max(spec.seed_numbers) + 1, CONFIRMING[-1]
    _check_seeds(folder, {CONFIRMING[1]: n_seeds - FIRST_SEEDS, last: n_seeds})

    def train(places: Sequence[Found], seeds: Sequence[int], suffix: str) -> dict[Found, Trial]:
        derived = _derived(spec, f"{folder.name}.{suffix}", [trials[place] for place in places], seeds)
        status = run(derived)
        if status != "complete":
            raise Interrupted(derived.name, status)
        there = StudyFolder(folder.lab, derived.name)
        trained = {trial.cell: trial for trial in read_trials(there)}
        keys = [cell.key for cell in cells(derived, there.data.sizes)[0]]
        return {place: trained[key] for place, key in zip(places, keys, strict=True)}

    def losses(places: Sequence[Found], seeds: Sequence[int]) -> dict[Found, Losses]:
        suffix = CONFIRMING[0] if seeds[0] == first else CONFIRMING[1]
        return {place: _validation(trial) for place, trial in train(places, seeds, suffix).items()}

    of_cells = [[(trial.cell, trial.number) for trial in best] for best in racing]
    raced, winners = race(of_cells, range(first, first + n_seeds), losses)
    final = train(winners, range(first + n_seeds, first + 2 * n_seeds), last)
    dataset, confirmed = recorded_dataset(folder, spec), list[Confirmed]()
    for place, trial in trials.items():
        validation, test = dict[int, float](), dict[int, float]()
        if place in winners:
            validation, test = _validation(final[place]), _test(final[place], dataset, spec)
        # A trial stopped by a person has no loss on the whole split.
        known = _validation(trial)
        searched = _mean(known) if known or trial.value is None else trial.value
        confirmed.append(Confirmed(*place, searched, place in winners, raced[place], validation, test))
    look = record_look(folder, dataset.text_digest, confirmed)
    confirmed = [replace(configuration, look=look) for configuration in confirmed]
    write_confirmed(folder, confirmed)
    return confirmed


def race(
    racing: Sequence[Sequence[Found]],
    seeds: Sequence[int],
    train: Callable[[Sequence[Found], Sequence[int]], dict[Found, Losses]],
) -> tuple[dict[Found, Losses], list[Found]]:
    """Race the configurations of each cell against each other; return all their losses, and each cell's winner.

    `train` returns the losses of configurations on some seeds. It is called with FIRST_SEEDS for all configurations,
    then with the other seeds for those still in the race; a configuration that is alone in its cell is not trained.
    """
    raced: dict[Found, Losses] = {place: {} for cell in racing for place in cell}
    for of_round in (seeds[:FIRST_SEEDS], seeds[FIRST_SEEDS:]):
        still = [place for cell in racing if len(cell) > 1 for place in cell]
        if still and of_round:
            for place, losses in train(still, of_round).items():
                raced[place] = raced[place] | losses if losses else {}
            kept = in_race([{place: raced[place] for place in cell} for cell in racing])
            racing = [[place for place in cell if place in kept] for cell in racing]
    return raced, [min(cell, key=lambda place: _mean(raced[place])) for cell in racing]


def in_race(cells: Sequence[Mapping[Found, Losses]]) -> set[Found]:
    """Return the configurations that stay in the race: not significantly worse than the leader of their cell.

    All configurations of a cell have losses on the same seeds. The residual variance, after the means of configurations
    and seeds are subtracted, is pooled over all cells; a configuration whose losses are missing has diverged.
    """
    from scipy.special import stdtrit

    known = [{place: losses for place, losses in cell.items() if losses} for cell in cells]
    squares = freedom = 0.0
    for cell in known:
        table = np.array([[losses[seed] for seed in sorted(losses)] for losses in cell.values()])
        if min(table.shape) > 1:
            rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
            squares += float((rest**2).sum())
            freedom += (table.shape[0] - 1) * (table.shape[1] - 1)
    kept: set[Found] = set()
    for whole, cell in zip(cells, known, strict=True):
        means = {place: _mean(losses) for place, losses in cell.items()}
        reach = math.inf
        if freedom:
            n_seeds = max(map(len, cell.values()), default=1)
            reach = -float(stdtrit(freedom, RACE_LEVEL)) * math.sqrt(2 * squares / freedom / n_seeds)
        kept |= {place for place, mean in means.items() if mean <= min(means.values()) + reach} or set(whole)
    return kept


def _best_of_cells(folder: StudyFolder, top: int) -> list[list[Trial]]:
    by_cell: dict[str, list[Trial]] = {}
    for trial in itertools.chain(*StudyTrials(folder).by_task()):
        by_cell.setdefault(trial.cell, []).append(trial)
    order = [cell["cell"] for cell in folder.read(folder.plan_file)["cells"]]
    return [by_cell[cell][:top] for cell in order if cell in by_cell]


def _check_seeds(folder: StudyFolder, wanted: Mapping[str, int]) -> None:
    studies = {StudyFolder(folder.lab, f"{folder.name}.{suffix}"): n for suffix, n in wanted.items()}
    begun = {study: n for study, n in studies.items() if study.canonical_file.exists()}
    others = [study for study, n in begun.items() if len(read_spec(study).seeds) != n]
    if others:
        cure = " and ".join(study.command("rm") for study in others)
        what = f"study {folder.name} was confirmed with other numbers of seeds"
        raise BadInput(Problem(what, f"the same, or {cure}"))


def _derived(spec: StudySpec, name: str, trials: Sequence[Trial], seeds: Sequence[int]) -> StudySpec:
    of_cell = {cell.key: cell.values for cell in cells(spec, None)[0]}
    written = spec.as_written()
    for part in ("confirm", "warm_start", "notify", "first_trial"):
        written.pop(part, None)
    follows = {name for name, entry in spec.search.items() if isinstance(entry, Derived)}
    changes = {
        "name": name,
        "grid": {},
        "search": {name: entry for name, entry in written["search"].items() if name in follows},
        "cells": [{**of_cell[trial.cell], **trial.start.sampled} for trial in trials],
        "seeds": list(seeds),
        "budget": {"trials_per_cell": 1},
        "sampler": "random",
        "pruner": "none",
        "track": {**written["track"], "checkpoints": {"best": "best", "final": "last"}[spec.objective.at]},
    }
    return study_from(written | changes, Problems(SourceMap()))


def _validation(trial: Trial) -> Losses:
    ends = {run.seed: run.read_end() for run in trial.runs}
    losses = {seed: end.whole_val_loss for seed, end in ends.items() if end}
    known = {seed: loss for seed, loss in losses.items() if loss is not None}
    return known if len(known) == len(trial.runs) else {}


def _test(trial: Trial, dataset: Dataset, spec: StudySpec) -> Losses:
    losses: Losses = {}
    for run in trial.runs if trial.has_value else ():
        measures = run.read_test()
        if measures is None:  # each is scored once
            checkpoint = run.checkpoint()
            assert checkpoint is not None  # the study keeps them
            model = load_checkpoint(checkpoint, run.path.name)
            measures = scored(model, dataset, "test", whole=True, spec=spec)
            run.write_test(measures)
        losses[run.seed] = measures["test_loss"]
    return losses


def _mean(losses: Losses) -> float:
    # Infinity where a seed diverged.
    return sum(losses.values()) / len(losses) if losses else math.inf
