"""Confirm a study: race its best configurations on fresh seeds, and score the winners of the race on the test split.

The best trial of a search owes part of its loss to luck. The study NAME.race trains the best trials of each cell on
fresh seeds. NAME.confirm trains each cell's winner on yet other seeds, so that its reported losses took part in no
selection, and scores it on the test split, unused until then. Both are ordinary studies: workers train them, the same
command continues them, tracking shows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import StudyTrials, Trial, read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import Confirmed, Found, Losses, write_confirmed
from sweeplab.runs.inspecting import scored
from sweeplab.study.file.reading import study_from
from sweeplab.study.inputs import recorded_dataset
from sweeplab.study.problems import Problems
from sweeplab.study.space import spaces_of
from sweeplab.study.spec import StudySpec
from sweeplab.study.values import Derived
from sweeplab.sweep.planning import check_reach
from sweeplab.tracking.models import load_checkpoint

CONFIRMING = RACE, CONFIRM = ("race", "confirm")


class Interrupted(Exception):  # noqa: N818 - no failure: the same command continues
    """A study of the confirmation did not come to its end; `status` is how it ended."""

    def __init__(self, name: str, status: str) -> None:
        super().__init__(f"study {name} is {status}")
        self.status = status


def confirm(
    folder: StudyFolder,
    spec: StudySpec,
    top: int,
    n_seeds: int,
    run: Callable[[StudySpec], str],
) -> list[Confirmed]:
    """Race the best `top` configurations of each cell on `n_seeds` fresh seeds; confirm the winners on as many others.

    `run` runs a study to its end, or continues it, and returns its status.

    Raises:
        BadInput: no trial of the study has a value, or another kind of study has the name of one of these.
        Interrupted: one of the studies did not come to its end.
    """
    study = StudyTrials(folder)
    by_cell = dict[str, list[Found]]()
    trials: dict[Found, Trial] = {}
    for space in spaces_of(spec, folder.data.sizes)[0]:
        cell = space.cell.key
        best = {(cell, trial.number): trial for trial in study.ranked(cell)[:top]}
        by_cell[cell] = [*best]
        trials |= best
    check_reach(spec, folder.lab)
    if not trials:
        raise BadInput(
            f"no trial of study {folder.name} has a value yet: there is nothing to confirm"
        )
    _check_seeds(folder, n_seeds)

    def train(places: Sequence[Found], offset: int, suffix: str) -> dict[Found, Trial]:
        first = max(spec.seed_numbers) + 1 + offset
        seeds = range(first, first + n_seeds)
        derived = _derived(
            spec, f"{folder.name}.{suffix}", [trials[place] for place in places], seeds
        )
        status = run(derived)
        if status != "complete":
            raise Interrupted(derived.name, status)
        there = StudyFolder(folder.lab, derived.name)
        trained = {trial.cell: trial for trial in StudyTrials(there).all}
        keys = [space.cell.key for space in spaces_of(derived, there.data.sizes)[0]]
        return {place: trained[key] for place, key in zip(places, keys, strict=True)}

    raced: dict[Found, Losses] = {place: {} for place in trials}
    # One that is alone in its cell is not raced.
    rivals = [place for places in by_cell.values() if len(places) > 1 for place in places]
    if rivals:
        raced |= {place: _validation(trial) for place, trial in train(rivals, 0, RACE).items()}
    winners = [
        min(places, key=lambda place: _mean(raced[place]))
        for places in by_cell.values()
        if places
    ]
    final = train(winners, n_seeds, CONFIRM)
    dataset = recorded_dataset(folder, spec)
    confirmed = list[Confirmed]()
    for place, trial in trials.items():
        validation, test = dict[int, float](), dict[int, float]()
        if place in winners:
            validation = _validation(final[place])
            for ended in final[place].runs if final[place].has_value else ():
                measures = ended.read_test()
                if measures is None:  # each is scored once
                    checkpoint = ended.checkpoint()
                    assert checkpoint is not None  # the study keeps them
                    model = load_checkpoint(checkpoint, ended.path.name)
                    measures = scored(model, dataset, "test", whole=True, spec=spec)
                    ended.write_test(measures)
                test[ended.seed] = measures["test_loss"]
        # A trial stopped by a person has no loss on the whole split.
        known = _validation(trial)
        searched = _mean(known) if known or trial.value is None else trial.value
        confirmed.append(
            Confirmed(*place, searched, place in winners, raced[place], validation, test)
        )
    write_confirmed(folder, confirmed)
    return confirmed


def _check_seeds(folder: StudyFolder, n_seeds: int) -> None:
    studies = [StudyFolder(folder.lab, f"{folder.name}.{suffix}") for suffix in CONFIRMING]
    begun = [study for study in studies if study.canonical_file.exists()]
    others = [study for study in begun if len(read_spec(study).seeds) != n_seeds]
    if others:
        cure = " and ".join(study.command("rm") for study in others)
        what = f"study {folder.name} was confirmed with other numbers of seeds"
        raise BadInput(Problem(what, f"the same, or {cure}"))


def _derived(
    spec: StudySpec, name: str, trials: Sequence[Trial], seeds: Sequence[int]
) -> StudySpec:
    of_cell = {each.cell.key: each.cell.values for each in spaces_of(spec, None)[0]}
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
        "track": {
            **written["track"],
            "checkpoints": "last" if spec.objective.at == "final" else "best",
        },
    }
    return study_from(written | changes, Problems())


def _validation(trial: Trial) -> Losses:
    """Return the losses of a trial's seeds on the whole split; none if one lacks it."""
    losses: Losses = {}
    for run in trial.runs:
        end = run.read_end()
        if end is None or end.whole_val_loss is None:
            return {}
        losses[run.seed] = end.whole_val_loss
    return losses


def _mean(losses: Losses) -> float:
    # Infinity where a seed diverged.
    return sum(losses.values()) / len(losses) if losses else math.inf
