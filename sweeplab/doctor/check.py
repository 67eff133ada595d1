"""One check's result, and a study as the checks of it see it."""

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
    """What was looked at and what was found there; `cure` says what to do unless it is ok.

    warn: a study runs, or a command mends it; bad: it does not, or its numbers may be wrong.
    """

    name: str
    looked_at: str
    verdict: Verdict
    found: str
    cure: str = ""


def named(what: str, names: Sequence[str]) -> str:
    """Write what was found, and the first few names of it."""
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
        """Return the trials that were trained here, or are, by cell and number."""
        return {
            (cell.key, trial.number): trial
            for cell in self.store.cells
            for trial in self.store.trials(cell)
            if trial.state.name == "RUNNING" or "outcome" in trial.user_attrs
        }

    @cached_property
    def numbers(self) -> set[tuple[str, int]]:
        """Return the cells and numbers of all trials that Optuna has, whatever became of them."""
        return {
            (cell.key, trial.number)
            for cell in self.store.cells
            for trial in self.store.study(cell).get_trials(deepcopy=False)
        }

    @cached_property
    def runs(self) -> Mapping[Place, RunFolder]:
        """Return the folders of all runs by cell, trial and seed, as their names say."""
        paths = sorted((self.folder.path / "runs").glob("*/*/"))
        runs = [RunFolder(path) for path in paths if re.fullmatch("[0-9]+-[0-9]+", path.name)]
        return {(run.cell, run.trial, run.seed): run for run in runs}

    @property
    def run_again(self) -> str:
        """Return the command that goes on with the study as it was last run; it adds no trial to a full budget."""
        return self.folder.command("study resume", *(["--allow-plugins"] if self.spec.plugins else []))
