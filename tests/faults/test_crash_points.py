"""A process that dies at each point at which something is written: the next one ends the study as if it had not.

Points are the statements and commits of databases, and every write, fsync, rename, link and removal of a file. A file
that was not fsynced is cut in half by the death. A worker is swept with its snapshots and checkpoints, a supervisor
with what it ships to MLflow.
"""

import importlib
import itertools
import multiprocessing
import os
import shutil
import stat
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sql
from optuna.trial import TrialState
from tiny_study import expire_leases
from tracked import Tracked

from sweeplab.lab.studies import write_study
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder
from sweeplab.study.inputs import describe_data
from sweeplab.study.spec import Budget
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.supervisor import run_study
from sweeplab.train.checkpoint import read_checkpoint

# A worker dies at one point in 5, a supervisor, which takes seconds, at one in 40; SWEEPLAB_TEST_STRIDE=1 has all.
STRIDE, SUPERVISORS_STRIDE = (
    int(os.environ.get("SWEEPLAB_TEST_STRIDE", each)) for each in (5, 40)
)
# A supervisor comes past more than so many.
FEWEST_POINTS = 100


class Killed(BaseException):
    """Say that the process is no more."""


def raise_killed():
    raise Killed


class Points:
    """Counts the points, and lets the process die at one of them; a dead one comes past no other."""

    def __init__(self, dies_at=None, die=raise_killed):
        self.n, self._dies_at, self._die, self.is_dead = 0, dies_at, die, False

    def __call__(self, *_):
        self.n += 1
        self.is_dead |= self.n == self._dies_at
        if self.is_dead:
            self._die()

    @contextmanager
    def watched(self, engine):
        sync = os.fsync

        def before(function):
            def called(*given, **named):
                if function is sync and self.n + 1 == self._dies_at:
                    cut(given[0])
                self()
                return function(*given, **named)

            return called

        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "replace", "link", "unlink"):
                patch.setattr(os, name, before(getattr(os, name)))
            for kind, name in (
                (RunFolder, "append"),
                (Path, "write_text"),
                (Path, "write_bytes"),
            ):
                patch.setattr(kind, name, before(getattr(kind, name)))
            events = {"before_cursor_execute": self._execute, "commit": self}
            for event, hear in events.items():
                sql.event.listen(engine, event, hear)
            try:
                yield
            finally:
                for event, hear in events.items():
                    sql.event.remove(engine, event, hear)

    def _execute(self, *said):
        """Come past a statement that writes: a death before one that reads leaves what a death after it does."""
        if said[2].lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE"):
            self()


def cut(descriptor):
    """Cut a file in half, as a death may that nothing of it was fsynced before."""
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode):
        os.ftruncate(descriptor, about.st_size // 2)


def run(spec, folder, store, dataset, points):
    with points.watched(store.storage.engine):
        try:
            Loop(store, dataset, folder).run()
        except Killed:
            pass
        except BaseException:
            if not points.is_dead:  # else what a thread of the dead process found
                raise
    store.storage.engine.dispose()


def content(folder):
    """Return what no death may change: curves to the bit, and ends."""
    found = {}
    for each in folder.runs():
        end = each.read_end()
        assert end is not None and not list(each.path.glob("state*"))
        weights, facts = read_checkpoint(each.path / "best", "model")
        assert [*each.path.rglob("*.tmp")] == [] and facts["val_loss"] == end.best_val_loss
        total = {name: float(weight.double().sum()) for name, weight in weights.items()}
        curve = [(point.iteration, point.val_loss, point.train_loss) for point in each.points()]
        found[f"{each.cell}/{each.path.name}"] = (curve, str(end.state), end.value, total)
    return found


@pytest.fixture
def spec(tiny):
    return tiny(seeds=[0, 1], budget=Budget(trials_per_cell=2))


def die_at(dies_at, spec, opened, dataset):
    """Let a worker die at a point, and another end the study; return what came of it."""
    points = Points(dies_at)
    folder, store = opened(spec)
    run(spec, folder, store, dataset, points)
    _, after = opened(spec)
    expire_leases(after)
    run(spec, folder, after, dataset, Points())
    _, last = opened(spec)
    trials = last.trials(last.cells[0])
    assert {trial.state for trial in trials} == {TrialState.COMPLETE} and len(trials) == 2
    ends = [folder.run("all", trial.number, 0).read_end() for trial in trials]
    assert [trial.value for trial in trials] == [end and end.value for end in ends]
    for trial in trials:
        curves = [folder.run("all", trial.number, seed).points() for seed in (0, 1)]
        means = {
            one.iteration: (one.val_loss + other.val_loss) / 2
            for one, other in zip(*curves, strict=True)
            if one.val_loss is not None and other.val_loss is not None
        }
        assert trial.intermediate_values == means
    last.storage.engine.dispose()
    return points, content(folder)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_points(spec, opened, dataset, tmp_path):
    folder, store = opened(spec)
    undisturbed = Points()
    run(spec, folder, store, dataset, undisturbed)
    expected = content(folder)
    for number in range(1, undisturbed.n + 1, STRIDE):
        (tmp_path / "lab").rename(tmp_path / f"lab before {number}")
        points, found = die_at(number, spec, opened, dataset)
        assert points.is_dead, "one worker comes past the same points each time"
        assert found == expected, f"after a death at point {number}"


# ------------------------------------------------------------------ the supervisor

CHILD = multiprocessing.get_context("fork")


def in_child(call):
    """Return what a call returns in a process of its own; None where that died."""
    mine, its = CHILD.Pipe(duplex=False)
    process = CHILD.Process(target=lambda: its.send(call()))
    process.start()
    its.close()
    with mine:
        try:
            found = mine.recv()
        except EOFError:
            found = None
    process.join()
    return found


def supervise(spec, lab, dies_at=None):
    """Run a study, and die at a point; return how it ended where it has fewer."""
    points = Points(dies_at, die=lambda: os._exit(1))
    with points.watched(sql.Engine):
        return run_study(spec, lab).status


def shipped(spec, lab):
    """Return what no death of a supervisor may change: what MLflow has of each run, and what the study's files say."""
    folder, tracked = StudyFolder(lab, spec.name), Tracked(lab, spec.name)
    folder.check_whole()
    runs = tracked.runs()
    found = {f"{run.cell}/{run.trial}/{run.seed}": (run.state, run.metrics) for run in runs}
    assert len(found) == len(runs), "no run twice"
    for name in ("val_loss", "train_loss"):
        found[name] = sorted(
            (
                run.trial,
                run.seed,
                [(each.step, each.value) for each in tracked.points(run.run_id, name)],
            )
            for run in runs
        )
    assert all((run.path / "shipped").exists() for run in folder.runs())
    assert not [*folder.path.rglob("*.tmp")]
    return found


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_points_of_a_supervisor(spec, opened, dataset, tmp_path):
    """Let the supervisor of a study whose trials are trained die at one point after the other."""
    with warnings.catch_warnings(action="ignore"):
        # Once, and not in every child.
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
    folder, store = opened(spec)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_study(spec, folder, describe_data(spec, dataset))
    Loop(store, dataset, folder).run()
    store.storage.engine.dispose()
    lab, trained = tmp_path / "lab", tmp_path / "trained"
    shutil.copytree(lab, trained)
    # It makes MLflow's tables, once for all.
    assert in_child(lambda: supervise(spec, lab)) == "complete"
    expected = in_child(lambda: shipped(spec, lab))
    assert len(expected) == 4 + 2
    for number in itertools.count(1 + SUPERVISORS_STRIDE // 2, SUPERVISORS_STRIDE):
        shutil.rmtree(lab)
        shutil.copytree(trained, lab)
        first = in_child(lambda number=number: supervise(spec, lab, number))
        if first is None:
            assert in_child(lambda: supervise(spec, lab)) == "complete"
        assert in_child(lambda: shipped(spec, lab)) == expected, (
            f"after a death at point {number}"
        )
        if first is not None:
            assert number > FEWEST_POINTS
            return
