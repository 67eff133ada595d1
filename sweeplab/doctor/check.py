"""The result of one check, and the opened study that checks examine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from sweeplab.formatting import several_named
from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder, RunState
from sweeplab.study.space import cells
from sweeplab.study.spec import StudySpec

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from sweeplab.sweep.trials.store import Store

Verdict = Literal["ok", "warn", "bad"]
# A run's cell, trial and seed.
Place = tuple[str, int, int]


@dataclass(frozen=True)
class Check:
    """What was examined and what was found; `cure` says what to do unless the verdict is ok.

    warn: studies run anyway, or a command repairs it; bad: studies do not run, or their numbers may be wrong.
    """

    name: str
    looked_at: str
    verdict: Verdict
    found: str
    cure: str = ""


def named(what: str, names: Sequence[str]) -> str:
    """Return a finding with the first few names that it concerns."""
    return f"{what}: {several_named(names)}"


class OpenedStudy:
    """A study whose storage can be opened."""

    def __init__(self, folder: StudyFolder, allow_plugins: bool = False) -> None:
        self.folder, self._allow_plugins = folder, allow_plugins
        self.is_running = folder.unfinished is RunState.RUNNING

    @cached_property
    def spec(self) -> StudySpec:
        """Return the study as it was last run."""
        return read_spec(self.folder, self._allow_plugins)

    @cached_property
    def store(self) -> Store:
        """Return the study's trials."""
        from sweeplab.sweep.trials.store import Store  # Optuna with it: slow to import

        sizes = self.folder.data.sizes
        return Store(self.spec, cells(self.spec, sizes)[0], sizes, self.folder.storage_url)

    @cached_property
    def seeds(self) -> Mapping[str, tuple[int, ...]]:
        """Return the seeds that every trial is trained with, by cell."""
        return {each.cell.key: each.seeds for each in self.store.spaces}

    @cached_property
    def trials(self) -> Mapping[tuple[str, int], FrozenTrial]:
        """Return the trials that were or are trained in this study, by cell and number."""
        return {
            (cell.key, trial.number): trial
            for cell in self.store.cells
            for trial in self.store.trials(cell)
            if trial.state.name == "RUNNING" or "outcome" in trial.user_attrs
        }

    @cached_property
    def numbers(self) -> set[tuple[str, int]]:
        """Return the cell and number of every trial that Optuna has, whatever its state."""
        return {
            (cell.key, trial.number)
            for cell in self.store.cells
            for trial in self.store.study(cell).get_trials(deepcopy=False)
        }

    @cached_property
    def runs(self) -> Mapping[Place, RunFolder]:
        """Return the folders of all runs by cell, trial and seed, which are read from the folders' names."""
        paths = sorted((self.folder.path / "runs").glob("*/*/"))
        runs = [RunFolder(path) for path in paths if re.fullmatch("[0-9]+-[0-9]+", path.name)]
        return {(run.cell, run.trial, run.seed): run for run in runs}

    @property
    def run_again(self) -> str:
        """Return the command that continues the study as it was last run; it adds no trial to a full budget."""
        return self.folder.command("study resume", *(["--allow-plugins"] if self.spec.plugins else []))
