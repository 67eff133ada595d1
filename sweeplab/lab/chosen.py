"""The trials of a study in the order of `study/choice.py`, and the chosen ones of its cells and tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from sweeplab.data.task import task_of
from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import Trial, pick_trial, read_trials, tasks_may_differ
from sweeplab.records.cells import named_cell, some_of
from sweeplab.records.folders import StudyFolder
from sweeplab.study.choice import Choice, Ranking, Tried, rank


class StudyTrials:
    """All trials of a study that have started, and the ranking of those with a value; read and ranked once."""

    def __init__(self, folder: StudyFolder, trials: Iterable[Trial] | None = None) -> None:
        self.folder = folder
        self.all = read_trials(folder) if trials is None else [*trials]

    @cached_property
    def _rankings(self) -> list[Ranking]:
        by_task: dict[str, list[Trial]] = defaultdict(list)
        differ = self.folder.plan_file.exists() and tasks_may_differ(self.folder)
        for trial in self.all:
            if trial.has_value:
                by_task[task_of(trial.start.values) if differ else ""].append(trial)
        rankings = [rank([_tried(trial) for trial in of_task]) for of_task in by_task.values()]
        return sorted(rankings, key=lambda ranking: ranking.order[0].value)

    @cached_property
    def _by_place(self) -> dict[tuple[str, int], Trial]:
        return {(trial.cell, trial.number): trial for trial in self.all}

    def by_task(self, cell: str | None = None) -> list[list[Trial]]:
        """Return the trials that have a value, of a cell or of all, the best first, in one list per task."""
        tasks = ([tried for tried in each.order if cell in (None, tried.cell)] for each in self._rankings)
        return [[self._by_place[tried.place] for tried in of_task] for of_task in tasks if of_task]

    def best_of_cells(self) -> dict[str, Trial]:
        """Return the chosen trial of each cell that has one."""
        best: dict[str, Trial] = {}
        for trial in (trial for of_task in self.by_task() for trial in of_task):
            best.setdefault(trial.cell, trial)
        return dict(sorted(best.items()))

    def choice(self, cell: str | None = None) -> Choice | None:
        """Return how the chosen trial of a cell, or of all, was chosen; None without one, or if tasks differ."""
        choices = [choice for each in self._rankings if (choice := each.choice(cell))]
        if len(choices) == 1:
            return choices[0]
        return None

    def cell_named(self, text: str | None) -> str | None:
        """Return the cell with trials that a text names; None, for all cells, stays None.

        Raises:
            BadInput: there is none, or there are several.
        """
        if text is None:
            return None
        return named_cell(self.folder.name, sorted({trial.cell for trial in self.all}), text)

    def find(self, cell: str | None = None, number: int | None = None) -> Trial:
        """Return the chosen trial of a cell or of all; with `number` that trial, however it ended.

        Raises:
            BadInput: there is no such trial or cell, no trial has ended yet, several cells have a trial of this number,
                or the trials learn different tasks.
        """
        if number is not None:
            return pick_trial(self.folder, self.all, number, cell)
        name, cell = self.folder.name, self.cell_named(cell)
        by_task = self.by_task(cell)
        if not by_task:
            where = name if cell is None else f"{name} in cell {cell}"
            raise BadInput(f"no trial of study {where} has been trained to its end yet")
        if len(by_task) > 1:
            what = f"the cells of study {name} learn different tasks: no trial is best of all; name a cell"
            raise BadInput(Problem(what, some_of(sorted({trial.cell for trial in self.all}))))
        return by_task[0][0]


def _tried(trial: Trial) -> Tried:
    value, values = trial.value, trial.start.values
    assert value is not None  # it has one
    sizes = {name: getattr(values, name) for name in trial.start.grid}
    losses = {seed: end.valued_val_loss for seed, end in zip(trial.seeds, trial.ends, strict=False)}
    return Tried.of((trial.cell, trial.number), value, sizes, trial.start.sampled, losses)


def find_best(folder: StudyFolder, cell: str | None = None, number: int | None = None) -> Trial:
    """Return the trial that `StudyTrials.find` finds."""
    return StudyTrials(folder).find(cell, number)
