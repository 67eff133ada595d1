"""Find what a user names: a study of the lab, or a trial of a study, such as the best by `study/choice.py`."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab import plugins
from sweeplab.data import loss_unit
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import shipped
from sweeplab.formatting import several
from sweeplab.records.folders import (
    StudyFolder,
    WorkerPlace,
    is_name,
    lab_folder,
    named_cell,
    some_of,
)
from sweeplab.records.runs import RunEnd, RunFolder, RunStart, RunState, TrialEnding

if TYPE_CHECKING:
    from sweeplab.study.choice import Choice, Ranking
    from sweeplab.study.spec import StudySpec


class StudyState(StrEnum):
    """The state of a study, by the word that every place shows.

    Queued: all its workers wait in a cluster's queue. Pausing: workers still train. Waiting: its budget is
    used up, but trials that were enqueued or resumed since wait. Of the last four, finished has all of its trials, and
    stopped has used up its time or FLOPs before.
    """

    NOT_STARTED = "not started"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    ENDING = "ending"
    INTERRUPTED = "interrupted"
    WAITING = "waiting"
    COMPLETE = "finished"
    STOPPED = "stopped at its budget"
    DIVERGED = "all diverged"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Return whether the study has ended by itself, with all that its budget allows."""
        return self in (StudyState.COMPLETE, StudyState.STOPPED, StudyState.DIVERGED)


def state_in_phase(phase: str, places: Sequence[WorkerPlace]) -> StudyState:
    """Return the state of a study that a process runs, in the phase that its commands set, with workers at places."""
    if phase == "pause":
        return StudyState.PAUSING if places else StudyState.PAUSED
    if phase == "stop":
        return StudyState.STOPPING
    if phase in ("over", "closing"):
        return StudyState.ENDING
    if places and all(place.state == "queued" for place in places):
        return StudyState.QUEUED
    return StudyState.RUNNING


def study_state(folder: StudyFolder) -> StudyState:
    """Return the state of a study, from its commands, its trials and whether a process runs it.

    Raises:
        BadInput: its storage cannot be read.
    """
    from sweeplab.lab.storage import TrialCounts, count_trials, last_start

    phase, status, is_extended = "run", "", False
    commands = last_start(folder)
    for kind, value in commands:
        if kind == "wanted":
            phase = value
        elif kind == "ended":
            phase, status = "run", value
        elif kind == "budget":
            is_extended = bool(status)
    if folder.is_run:
        return state_in_phase(phase, folder.workers)
    if status == StudyState.FAILED:
        return StudyState.FAILED
    counts, budget, limits = count_trials(folder), read_budget(folder), cell_limits(folder)
    is_over_time = budget["time"] is not None and folder.elapsed_seconds >= budget["time"]
    has_room = status == StudyState.INTERRUPTED
    if is_extended or not status:
        has_room = not is_over_time and any(
            limit is None or cell not in counts or counts[cell].counted < limit
            for cell, limit in limits.items()
        )
    if has_room and not commands and not counts:
        return StudyState.NOT_STARTED
    if has_room:
        return StudyState.INTERRUPTED
    states = sum((each.states for each in counts.values()), Counter[str]())
    if states["enqueued"] or (states[RunState.WAITING] and not is_over_time):
        return StudyState.WAITING
    n_counted = TrialCounts(states).counted
    if n_counted and states[RunState.DIVERGED] == n_counted:
        return StudyState.DIVERGED
    n_planned = sum(limit or 0 for limit in limits.values())
    if n_counted < n_planned and (is_over_time or budget.get("flops") is not None):
        return StudyState.STOPPED
    return StudyState.COMPLETE


def cell_limits(folder: StudyFolder) -> dict[str, int | None]:
    """Return how many trials the budget gives each cell, at most its points; None without a limit."""
    per_cell, limits = read_budget(folder)["trials_per_cell"], dict[str, int | None]()
    for cell in folder.read(folder.plan_file)["cells"]:
        known = [limit for limit in (cell["n_points"], per_cell) if limit is not None]
        limits[cell["cell"]] = min(known, default=None)
    return limits


def study_names(lab: Path) -> list[str]:
    """Return the names of a lab's studies."""
    names = (path.name for path in (lab / "studies").glob("*/") if is_name(path.name))
    return sorted(name for name in names if StudyFolder(lab, name).has_started)


def files_here() -> list[Path]:
    """Return the study files in this folder's `studies`, by names that a study may have."""
    return sorted(path for path in Path("studies").glob("*.yaml") if is_name(path.stem))


def find_study(lab: str | Path | None, name: str) -> StudyFolder:
    """Return a study's folder.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    folder = StudyFolder(lab_folder(lab), name)
    if is_name(name) and folder.has_started:
        return folder
    names = study_names(folder.lab)
    what = f"no study {name!r} in {folder.lab}"
    if is_file(file_of(name)):
        raise BadInput(f"{what} yet; {folder.command('run')} runs it")
    known = some_of(names) or "--lab or SWEEPLAB_LAB with another lab"
    raise BadInput(Problem(what, known, nearest(name, names)))


def latest_study(lab: Path | None) -> StudyFolder:
    """Return the study of a lab that was run last.

    Raises:
        BadInput: the lab has no study.
    """
    place = lab_folder(lab)
    folders = [StudyFolder(place, name) for name in study_names(place)]
    known = [folder for folder in folders if folder.canonical_file.exists()]
    if not known:
        raise BadInput(f"{place} has no study to look at yet; sweeplab run FILE trains one")
    # The file of a study is written as it begins to run.
    return max(known, key=lambda folder: folder.canonical_file.stat().st_mtime)


def file_of(name: str | Path) -> Path:
    """Return the study file of a path or a name; a name's file is looked for in `studies` and in this folder."""
    path, files = Path(name), [Path(name)]
    if is_name(str(name)):
        files += [Path("studies", f"{name}.yaml"), Path(f"{name}.yaml")]
    return next((file for file in files if is_file(file)), path)


def is_file(path: Path) -> bool:
    """Return whether a path is a file; it is none if a part of it is too long for a name, where pathlib raises."""
    return os.path.isfile(path)  # noqa: PTH113


def name_in(text: str) -> str:
    """Return a study's name: the name in a study file, or the text itself if it is not a file.

    Raises:
        BadInput: the file has no name.
    """
    path = Path(text)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return text
    from sweeplab.study.file.reading import said_name

    return said_name(path)


def study_source(path: str | Path, lab: Path) -> Path:
    """Return the file of a study given by file or name: its own file, or the study as the lab ran it last.

    A study that comes with the package, such as studies/small.yaml, need not be in this folder.

    Raises:
        BadInput: there is no such study; offers the nearest name.
    """
    file, name = file_of(path), str(path)
    if is_file(file):
        return file
    if is_name(name) and StudyFolder(lab, name).has_started:
        return StudyFolder(lab, name).canonical_file
    packaged = shipped("studies") / f"{file.stem}.yaml"
    if packaged.is_file() and (name == file.stem or file == Path("studies", packaged.name)):
        return packaged
    if is_name(name) and file.suffix not in (".yaml", ".yml"):
        names = sorted({*study_names(lab), *(each.stem for each in files_here())})
        what = f"{name}: no study file, and no study in {lab}"
        raise BadInput(Problem(what, some_of(names), nearest(name, names)))
    return file


def read_spec(folder: StudyFolder, allow_plugins: bool = False) -> StudySpec:
    """Return the study as it was last run; without its plugins only the names of their parts are known.

    Raises:
        BadInput: its file in the lab is missing or damaged.
    """
    from sweeplab.study.file.reading import read_study

    # Reports damage as such, not as a mistake in a study file.
    study = folder.read(folder.canonical_file)
    # Entries that older versions knew: a study that has one is still read, without it.
    study.pop("confirm", None)
    (study.get("budget") or {}).pop("repeats", None)
    track = study.get("track") or {}
    if track.get("checkpoints") == "all":
        track["checkpoints"] = "best"
    return read_study(
        folder.canonical_file, allow_plugins=allow_plugins, text=json.dumps(study, indent=1)
    )


def tracking_uri_of(folder: StudyFolder) -> str | None:
    """Return the tracking URI of the study file, if it names one."""
    # Read without a check: the checks of a spec are slow to import.
    track = folder.read(folder.canonical_file).get("track") or {}
    return track.get("uri") or None


def read_budget(folder: StudyFolder) -> dict[str, Any]:
    """Return a study's current budget, by the names of its study file.

    Raises:
        DamagedFile: the study's description is gone or damaged.
    """
    return dict(folder.read(folder.canonical_file)["budget"])


def find_metric(folder: StudyFolder) -> str:
    """Return the metric that a study minimizes: with a minus where its file maximizes it."""
    objective = folder.read(folder.canonical_file)["objective"]
    sign = "-" if objective.get("goal") == "maximize" else ""
    return f"{sign}{objective['metric']}"


def find_trial(
    study: str, places: Collection[tuple[str, int]], number: int, cell: str | None
) -> tuple[str, int]:
    """Return the cell and number of the trial with a number, among those at `places`.

    Raises:
        BadInput: there is no such cell or trial, or several cells have a trial of this number.
    """
    where = f"study {study}"
    if cell is not None:
        cell = named_cell(study, dict.fromkeys(place[0] for place in places), cell)
        places, where = [place for place in places if place[0] == cell], f"cell {cell}"
    fitting = [place for place in places if place[1] == number]
    if not fitting:
        last = max((place[1] for place in places), default=None)
        allowed = "none yet" if last is None else f"0 to {last}"
        raise BadInput(Problem(f"{where} has no trial {number}", allowed))
    if len(fitting) > 1:
        what = f"{several(len(fitting), 'cell')} of study {study} have a trial {number}; name one with --cell"
        raise BadInput(Problem(what, some_of([place[0] for place in fitting])))
    return fitting[0]


@dataclass(frozen=True)
class Trial:
    """A trial that has started, with the folders of its runs in the order of their seeds; files are read once."""

    study: StudyFolder
    cell: str
    number: int
    runs: list[RunFolder]

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of its runs."""
        return [run.seed for run in self.runs]

    @cached_property
    def start(self) -> RunStart:
        """Return the start record of its first seed's run; the other runs differ in the seed only."""
        return self.runs[0].read_start()

    @cached_property
    def ends(self) -> list[RunEnd]:
        """Return the end records of its runs that have ended."""
        return [end for end in (run.read_end() for run in self.runs) if end]

    @property
    def ending(self) -> TrialEnding | None:
        """Return how it ended, or None while it has not."""
        return self.ends[0].ending if self.ends else None

    @property
    def state(self) -> RunState:
        """Return its outcome; before its end, running or interrupted, as the study is."""
        return self.ending.outcome if self.ending else self.study.unfinished

    @property
    def value(self) -> float | None:
        """Return its value, the mean over its seeds; for a pruned trial the last value before pruning."""
        return self.ending.value if self.ending else None

    @property
    def has_value(self) -> bool:
        """Return whether it can be the best: it was trained to its end and has a finite value."""
        return bool(self.ending and self.ending.outcome.has_value) and self.value is not None

    @property
    def is_cut_short(self) -> bool:
        """Return whether its end did not follow from its own curve: pruned, stopped by a user, or not ended."""
        is_by_itself = self.ending and self.ending.outcome.has_value
        return not is_by_itself or self.ends[0].is_asked_for

    @property
    def values(self) -> dict[str, Any]:
        """Return all of its effective hyperparameters except the seed."""
        values = self.start.values.as_dict()
        del values["seed"]
        return values

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as plain data for JSON; `threads` are those of the process that trained it."""
        return {
            "study": self.study.name,
            "cell": self.cell,
            "trial": self.number,
            "outcome": self.state,
            "value": self.value,
            "seeds": self.seeds,
            "sampled": self.start.sampled,
            "values": self.values,
            "threads": self.start.threads,
            "is_cut_short": self.is_cut_short,
            "runs": [str(run.path) for run in self.runs],
        }


def loss_unit_of(folder: StudyFolder) -> str:
    """Return the unit of a study's losses."""
    return loss_unit(run.read_start().values.objective for run in islice(folder.runs(), 1))


class StudyTrials:
    """All trials of a study that have started, and the ranking of those with a value; read and ranked once."""

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        # A plug-in's hyperparameters are rows of its runs' records.
        for plugin in folder.read_if_written(folder.canonical_file).get("plugins") or ():
            plugins.add_names(plugin.get("provides", {}), plugin.get("rows", {}))
        runs: dict[tuple[str, int], list[RunFolder]] = defaultdict(list)
        for run in folder.runs():
            runs[run.cell, run.trial].append(run)
        self._by_place = {
            place: Trial(folder, *place, sorted(own, key=lambda run: run.seed))
            for place, own in runs.items()
        }
        self.all = [*self._by_place.values()]

    @cached_property
    def _ranking(self) -> Ranking:
        from sweeplab.study.choice import Tried, rank  # NumPy is slow to import

        trials = []
        for place, trial in self._by_place.items():
            if trial.value is None or not trial.has_value:
                continue
            sizes = {name: getattr(trial.start.values, name) for name in trial.start.grid}
            losses = {
                run.seed: end.valued_val_loss
                for run, end in zip(trial.runs, trial.ends, strict=False)
            }
            trials.append(Tried.of(place, trial.value, sizes, trial.start.sampled, losses))
        return rank(trials)

    def ranked(self, cell: str | None = None) -> list[Trial]:
        """Return the trials that have a value, of a cell or of all, the best first."""
        return [
            self._by_place[tried.place]
            for tried in self._ranking.order
            if cell in (None, tried.cell)
        ]

    def best_of_cells(self) -> dict[str, Trial]:
        """Return the chosen trial of each cell that has one."""
        best: dict[str, Trial] = {}
        for trial in self.ranked():
            best.setdefault(trial.cell, trial)
        return dict(sorted(best.items()))

    def choice(self, cell: str | None = None) -> Choice | None:
        """Return how the chosen trial of a cell, or of all, was chosen; None without one."""
        return self._ranking.choice(cell)

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
            BadInput: there is no such trial or cell, no trial has ended yet, or several cells have a trial of this
                number.
        """
        if number is not None:
            trials = self._by_place
            return trials[find_trial(self.folder.name, trials, number, cell)]
        name, cell = self.folder.name, self.cell_named(cell)
        ranked = self.ranked(cell)
        if not ranked:
            where = name if cell is None else f"{name} in cell {cell}"
            raise BadInput(f"no trial of study {where} has been trained to its end yet")
        return ranked[0]
