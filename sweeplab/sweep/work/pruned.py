"""Train pruned trials to their end after all, to see what pruning cost.

They are trained outside of the study: Optuna hears nothing of them, no budget counts them, tracking does not have
them. What they leave stands in `audit/` in the study's folder, in folders like those of its runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from sweeplab.data.generators import generator_key
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.listing import read_spec
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurvePoint, RunEnd, RunFolder, RunState, TrialEnding
from sweeplab.study.plugins import check_imported
from sweeplab.sweep.work.curves import SeedCurves
from sweeplab.train.counting import train_flops, train_tokens
from sweeplab.train.metrics import worth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweeplab.data.dataset import Dataset
    from sweeplab.study.spec import StudySpec
    from sweeplab.train.stack import Record

AUDIT = "audit"


@dataclass(frozen=True)
class Audited:
    """A pruned trial that was trained to its end; values are means over its seeds, in nats a token.

    It was pruned at `iteration` with `value_then`; `value` is None where a seed diverged later.
    """

    cell: str
    trial: int
    iteration: int
    value_then: float | None
    value: float | None


Trial = tuple[str, int]


def audit_pruning(
    folder: StudyFolder,
    n: int,
    tell: Callable[[str], None] = lambda text: None,
    allow_plugins: bool = False,
) -> list[Audited]:
    """Train up to `n` of a study's pruned trials to their end and return all that have been, now or before.

    Which ones follows from the study's seed and the trials' names: more trials begin with the same ones.
    `tell` hears of each trial before it is trained.

    Raises:
        BadInput: no trial was pruned, the data have changed, the study has plugins that may not be imported, or
            another process audits the study.
    """
    spec = read_spec(folder, allow_plugins)
    check_imported(spec)
    chosen = _chosen(folder, spec)[:n]
    if not chosen:
        raise BadInput(f"study {folder.name} has no pruned trial whose pruning could be audited")
    with _only_one(folder):
        waiting = [trial for trial in chosen if not _is_done(folder, trial)]
        from sweeplab.study.datasets import recorded_dataset  # numpy with it: slow to import

        dataset = recorded_dataset(folder, spec)
        for at, trial in enumerate(waiting, start=1):
            tell(f"training trial {trial[1]} of {trial[0]} to its end ({at} of {len(waiting)})")
            _train(folder, spec, dataset, trial)
    return audited_trials(folder)


def audited_trials(folder: StudyFolder) -> list[Audited]:
    """Return the pruned trials that have been trained to their end."""
    files = sorted((folder.path / AUDIT).glob("*/*/run.json"))
    trials = dict.fromkeys((run.cell, run.trial) for run in (RunFolder(file.parent) for file in files))
    return [_audited(folder, trial) for trial in trials if _is_done(folder, trial)]


def _chosen(folder: StudyFolder, spec: StudySpec) -> list[Trial]:
    """Return the pruned trials in the order in which they are audited."""
    trials: dict[Trial, None] = {}
    for run in folder.runs():
        end = run.read_end()
        if end and end.ending.outcome is RunState.PRUNED:
            trials[run.cell, run.trial] = None
    return sorted(trials, key=lambda trial: generator_key(spec.first_seed, f"{AUDIT}/{trial[0]}/{trial[1]}"))


def _runs(folder: StudyFolder, trial: Trial) -> list[tuple[RunFolder, RunFolder]]:
    """Return the runs of a trial, a seed each, and beside each the folder of its audit."""
    cell, number = trial
    runs = folder.runs_of(cell, number)
    return [(run, RunFolder(folder.path / AUDIT / cell / run.path.name)) for run in runs]


def _is_done(folder: StudyFolder, trial: Trial) -> bool:
    runs = _runs(folder, trial)
    return bool(runs) and all(audit.read_end() for _, audit in runs)


def _train(folder: StudyFolder, spec: StudySpec, dataset: Dataset, trial: Trial) -> None:
    """Train every seed of a trial from its start to its end, as the study would have without its pruner."""
    from sweeplab.study.starting import start_weights
    from sweeplab.train.devices import settle_devices
    from sweeplab.train.run import Run
    from sweeplab.train.stack import Stack

    audits: dict[str, RunFolder] = {}
    runs = []
    for run, audit in _runs(folder, trial):
        start = run.read_start()
        values = Hyperparameters.of(settle_devices(start.values))
        runs.append(Run(start.key, values))
        audits[start.key] = audit
        # What an interrupted audit has left is of no use.
        for file in audit.path.glob("*"):
            file.unlink()
        audit.write_start(replace(start, values=values))
    stack = Stack(runs[0].values, dataset.train, dataset.val, len(runs))
    weights = start_weights(spec)
    for each in runs:
        stack.admit(each, start=weights)
    metric, shared = spec.objective.metric, runs[0].values
    curves = SeedCurves(range(len(runs)), lambda loss, iteration: worth(metric, loss, iteration, shared))
    seeds = {each.key: seed for seed, each in enumerate(runs)}
    last: dict[str, Record] = {}
    while len(stack):
        for record in stack.advance():
            audits[record.key].append([_point(record, shared)])
            if record.state != "diverged":
                ended = record.state != "running"
                curves.add(seeds[record.key], record.iteration, record.val_loss, ended)
            if record.state != "running":
                last[record.key] = record
                stack.release(record.key)
    states = {audits[key].seed: RunState(record.state) for key, record in last.items()}
    is_diverged = RunState.DIVERGED in states.values()
    value = None if is_diverged else curves.value(spec.objective.at)
    is_complete = RunState.COMPLETE in states.values()
    ended_as = RunState.COMPLETE if is_complete else RunState.STOPPED
    ending = TrialEnding(RunState.DIVERGED if is_diverged else ended_as, value, states)
    for key, audit in audits.items():
        point = _point(last[key], shared)
        audit.write_end(
            RunEnd(
                state=states[audit.seed],
                ended=time.time(),
                iteration=point.iteration,
                best_val_loss=last[key].best[0],
                final_val_loss=point.val_loss,
                train_tokens=point.train_tokens,
                train_flops=float(train_flops(shared, point.iteration)),
                wall_seconds=point.wall_seconds,
                value=value,
                ending=ending,
            )
        )


def _point(record: Record, values: Mapping[str, Any]) -> CurvePoint:
    return CurvePoint(
        iteration=record.iteration,
        wall_seconds=record.wall_seconds,
        eval_seconds=record.eval_seconds,
        val_loss=record.val_loss,
        train_tokens=train_tokens(values, record.iteration),
    )


def _audited(folder: StudyFolder, trial: Trial) -> Audited:
    runs = _runs(folder, trial)
    ends = [end for run, _ in runs if (end := run.read_end())]
    audit = runs[0][1].read_end()
    return Audited(
        *trial,
        iteration=max(end.iteration for end in ends),
        value_then=ends[0].value,
        value=audit.value if audit else None,
    )


@contextmanager
def _only_one(folder: StudyFolder) -> Iterator[None]:
    lock = FileLock(folder.path / "audit.lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise BadInput(f"the pruning of study {folder.name} is being audited by another process") from None
    with lock:
        yield
