"""Audit pruning: train pruned trials to their end, to see what pruning cost.

They are trained outside of the study: Optuna does not see them, no budget counts them, tracking does not have them.
Their records are in `audit/` in the study's folder, in folders like those of its runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from sweeplab.data.generators import generator_key
from sweeplab.errors import BadInput
from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder, RunState
from sweeplab.study.plugins import check_imported
from sweeplab.study.spec import StudySpec

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset

AUDIT = "audit"


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


Trial = tuple[str, int]  # its cell and number


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
        from sweeplab.study.inputs import recorded_dataset  # numpy with it: slow to import

        dataset = recorded_dataset(folder, spec)
        for at, trial in enumerate(waiting, start=1):
            say(f"training trial {trial[1]} in cell {trial[0]} to its end ({at} of {len(waiting)})")
            _train(folder, spec, dataset, trial)
    return audited_trials(folder)


def audited_trials(folder: StudyFolder) -> list[Audited]:
    """Return the pruned trials that have been trained to their end."""
    files = sorted((folder.path / AUDIT).glob("*/*/run.json"))
    trials = dict.fromkeys((run.cell, run.trial) for run in (RunFolder(file.parent) for file in files))
    return [found for trial in trials if (found := _audited(folder, trial))]


def _runs(folder: StudyFolder, trial: Trial) -> list[tuple[RunFolder, RunFolder]]:
    """Return the runs of a trial, one per seed, and beside each the folder of its audit."""
    audits = folder.path / AUDIT / trial[0]
    return [(run, RunFolder(audits / run.path.name)) for run in folder.runs_of(*trial)]


def _train(folder: StudyFolder, spec: StudySpec, dataset: Dataset, trial: Trial) -> None:
    """Train every seed of a trial from its start to its end, as the study would have without its pruner."""
    from sweeplab.study.inputs import start_weights
    from sweeplab.sweep.work.trial import TrialRuns, scored
    from sweeplab.train.devices import settle_devices
    from sweeplab.train.stack import Stack

    starts = []
    for run, audit in _runs(folder, trial):
        for file in audit.path.glob("*"):
            file.unlink()  # left by an interrupted audit
        start = run.read_start()
        starts.append((audit, replace(start, values=settle_devices(start.values))))
    runs = TrialRuns(spec, dataset, starts)
    values = starts[0][1].values
    stack = Stack(values, dataset.training(values), dataset.val, len(starts))
    weights = start_weights(spec)
    for training in runs.trainings.values():
        stack.admit(training.run, start=weights(training.run.values))
    while len(stack):
        records, whole = scored(stack, stack.advance(), spec.objective.at)
        for record in records:
            runs.take_in(record, whole.get(record.key))
            runs.write_points()
            if record.state != "running":
                stack.release(record.key)
    assert runs.outcome is not None
    runs.write_ends(runs.ending(runs.outcome))


def _audited(folder: StudyFolder, trial: Trial) -> Audited | None:
    """Return the audit of a trial; None unless all of its seeds have been trained to their end."""
    runs = _runs(folder, trial)
    ends = [end for run, _ in runs if (end := run.read_end())]
    audits = [end for _, audit in runs if (end := audit.read_end())]
    is_pruned = all(end.ending.outcome is RunState.PRUNED for end in ends)  # not if it was promoted since
    if not is_pruned or not 0 < len(runs) == len(ends) <= len(audits):
        return None
    value = audits[0].value if audits[0].ending.outcome.has_value else None
    return Audited(*trial, max(end.iteration for end in ends), ends[0].value, value)
