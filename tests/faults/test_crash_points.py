"""A worker that dies at each point at which something is written: the next one ends the study as if it had not.

Points are the statements and commits of the database, and every write, fsync, rename, link and removal of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from optuna.trial import TrialState

from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder
from sweeplab.study.spec import Budget, StudySpec
from sweeplab.sweep.trials.store import Store
from sweeplab.sweep.work.runner import Runner

# Of the default suite's points one in so many; the slow suite has them all.
STRIDE = 40


class Killed(BaseException):
    """Say that the process is no more."""


class Points:
    """Counts the points, and lets the process die at one of them; a dead one comes past no other."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.n, self._dies_at, self.is_dead = 0, dies_at, False

    def __call__(self, *_: object) -> None:
        self.n += 1
        self.is_dead |= self.n == self._dies_at
        if self.is_dead:
            raise Killed

    @contextmanager
    def watched(self, engine: sql.Engine) -> Iterator[None]:
        def before(function: Any) -> Any:
            def called(*given: Any, **named: Any) -> Any:
                self()
                return function(*given, **named)

            return called

        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "replace", "link", "unlink"):
                patch.setattr(os, name, before(getattr(os, name)))
            patch.setattr(RunFolder, "append", before(RunFolder.append))
            for event in ("before_cursor_execute", "commit"):
                sql.event.listen(engine, event, self)
            try:
                yield
            finally:
                for event in ("before_cursor_execute", "commit"):
                    sql.event.remove(engine, event, self)


def run(spec: StudySpec, folder: StudyFolder, store: Store, dataset: Any, points: Points) -> None:
    with points.watched(store.storage.engine):
        try:
            Runner(spec, store, dataset, folder).work()
        except Killed:
            pass
        except BaseException:
            if not points.is_dead:  # else what a thread of the dead process found
                raise
    store.storage.engine.dispose()


def content(folder: StudyFolder) -> dict[str, Any]:
    """Return what no death may change: curves to the bit, and ends."""
    found = {}
    for each in folder.runs():
        end = each.read_end()
        assert end is not None and not list(each.path.glob("state*"))
        curve = [(point.iteration, point.val_loss, point.train_loss) for point in each.points()]
        found[f"{each.cell}/{each.path.name}"] = (curve, str(end.state), end.value)
    return found


@pytest.fixture
def spec(tiny) -> StudySpec:
    return tiny(seeds=[0, 1], budget=Budget(trials_per_cell=2))


def die_at(dies_at: int, spec: StudySpec, opened, dataset: Any) -> tuple[Points, dict[str, Any]]:
    """Let a worker die at a point, and another end the study; return what came of it."""
    points = Points(dies_at)
    folder, store = opened(spec)
    run(spec, folder, store, dataset, points)
    _, after = opened(spec)
    with after.storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sweeplab_lease SET expires = 0")
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
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_points(spec: StudySpec, opened, dataset, tmp_path: Path) -> None:
    check_points(1, spec, opened, dataset, tmp_path)


def test_some_points(spec: StudySpec, opened, dataset, tmp_path: Path) -> None:
    check_points(STRIDE, spec, opened, dataset, tmp_path)


def check_points(stride: int, spec: StudySpec, opened, dataset: Any, tmp_path: Path) -> None:
    folder, store = opened(spec)
    undisturbed = Points()
    run(spec, folder, store, dataset, undisturbed)
    expected = content(folder)
    for number in range(1, undisturbed.n + 1, stride):
        (tmp_path / "lab").rename(tmp_path / f"lab before {number}")
        points, found = die_at(number, spec, opened, dataset)
        assert points.is_dead, "one worker comes past the same points each time"
        assert found == expected, f"after a death at point {number}"
