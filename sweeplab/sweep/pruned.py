"""Audit pruning: train pruned trials to their end, to see what pruning cost.

They are trained outside of the study: Optuna does not see them, no budget counts them, tracking does not have them.
Their records are in `audit/` in the study's folder, in folders like those of its runs. The study loop trains them as
trials that wait to be continued, in a storage that lasts as long as the audit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from sweeplab.data.generators import generator_key
from sweeplab.errors import BadInput
from sweeplab.files import database_url
from sweeplab.lab.events import Event, TrialClaimed
from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import Inside, RunEnd, RunState
from sweeplab.study.file.reading import check_imported
from sweeplab.study.spec import Budget, Pruner, Sampler, StudySpec

AUDIT = "audit"
Trial = tuple[str, int]  # its cell and number


@dataclass(frozen=True)
class Audited:
    """A pruned trial that was trained to its end; values are means over its seeds.

    It was pruned at `iteration` with `value_then`; `value` is None where a seed diverged later.
    """

    cell: str
    trial: int
    iteration: int
    value_then: float | None
    value: float | None


class _AuditFolder(StudyFolder):
    """The folder of a study, in which the audited runs take the place of its own."""

    _runs = Inside(AUDIT)


def audit_pruning(
    folder: StudyFolder, n: int, say: Callable[[str], None] = lambda text: None, allow_plugins: bool = False
) -> list[Audited]:
    """Train up to `n` of a study's pruned trials to their end; return all trials audited so far, now or earlier.

    The study's seed and the trials' names determine the choice: a larger `n` includes the trials of a smaller one.
    `say` gets a line about each trial before it is trained.

    Raises:
        BadInput: no trial was pruned, the data have changed, the study has plugins that may not be imported, or
            another process audits the study.
    """
    spec = read_spec(folder, allow_plugins)
    check_imported(spec)
    ends = ((run, run.read_end()) for run in folder.runs())
    pruned = {(run.cell, run.trial) for run, end in ends if end and end.ending.outcome is RunState.PRUNED}
    keys = {trial: generator_key(spec.first_seed, f"{AUDIT}/{trial[0]}/{trial[1]}") for trial in pruned}
    chosen = sorted(keys, key=keys.__getitem__)[:n]
    if not chosen:
        raise BadInput(f"study {folder.name} has no pruned trial whose pruning could be audited")
    try:
        lock = FileLock(folder.path / "audit.lock", blocking=False).acquire()
    except Timeout:
        raise BadInput(f"the pruning of study {folder.name} is being audited by another process") from None
    with lock:
        waiting = [trial for trial in chosen if not _audited(folder, trial)]
        if waiting:
            _train(folder, spec, waiting, say)
    return audited_trials(folder)


def audited_trials(folder: StudyFolder) -> list[Audited]:
    """Return the pruned trials that have been trained to their end."""
    trials = dict.fromkeys((run.cell, run.trial) for run in _AuditFolder(folder.lab, folder.name).runs())
    audited = [_audited(folder, trial) for trial in trials]
    return [trial for trial in audited if trial]


def _train(folder: StudyFolder, spec: StudySpec, trials: list[Trial], say: Callable[[str], None]) -> None:
    """Train trials as the study would have without its pruner; an interrupted audit goes on from its snapshots."""
    from sweeplab.study.inputs import recorded_dataset  # numpy with it: slow to import
    from sweeplab.study.space import cells
    from sweeplab.sweep.loop import Loop
    from sweeplab.sweep.trials.store import Store

    dataset, sizes = recorded_dataset(folder, spec), folder.data.sizes
    audits, of_grid = _AuditFolder(folder.lab, folder.name), cells(spec, sizes)[0]
    keys = {cell.key for cell in of_grid}
    trials = sorted(trial for trial in trials if trial[0] in keys)  # a cell may have left the grid
    unpruned = {
        "pruner": Pruner(type="none"),
        "sampler": Sampler(type="random"),
        "budget": Budget(flops=1.0),  # the trials that wait use it up: there are no new ones
        "track": spec.track.model_copy(update={"checkpoints": "none"}),
    }
    spec, begun = spec.model_copy(update=unpruned), set[Trial]()

    def tell(event: Event) -> None:
        if isinstance(event, TrialClaimed) and event.place not in begun:
            begun.add(event.place)
            nth = f"{len(begun)} of {len(trials)}"
            say(f"training trial {event.trial} in cell {event.cell} to its end ({nth})")

    with tempfile.TemporaryDirectory() as place:
        store = Store.create(spec, of_grid, sizes, database_url(Path(place) / "trials.db"))
        spaces = {space.cell.key: space for space in store.spaces}
        with store.storage.transaction() as connection:
            for cell, number in trials:
                run, *_ = folder.runs_of(cell, number)
                space = spaces[cell]
                store.reopening.restore(connection, space, store.study_id(space.cell), run.read_start())
                for audit in audits.runs_of(cell, number):
                    end = audit.read_end()
                    if end and end.ending.outcome is RunState.FAILED:
                        audit.end_file.unlink()
        Loop(spec, store, dataset, audits, tell).run()


def _audited(folder: StudyFolder, trial: Trial) -> Audited | None:
    def ends_in(there: StudyFolder) -> list[RunEnd]:
        ends = [run.read_end() for run in there.runs_of(*trial)]
        return [end for end in ends if end]

    ends, audits = ends_in(folder), ends_in(_AuditFolder(folder.lab, folder.name))
    is_pruned = all(end.ending.outcome is RunState.PRUNED for end in ends)  # not if it was promoted since
    if not is_pruned or not 0 < len([*folder.runs_of(*trial)]) == len(ends) <= len(audits):
        return None
    last = audits[0].ending
    if last.outcome is RunState.FAILED:
        return None
    value = last.value if last.outcome.has_value else None
    return Audited(*trial, max(end.iteration for end in ends), ends[0].value, value)
