"""A disk that fills up while a study trains: training goes on, one line says so, and nothing is lost in the end.

The disk is a real one of some megabytes (tmpfs), which another file takes up and gives back.
"""

import pytest
from faults.disk import Disk, mounted
from tiny_study import expire_leases, on_report

from sweeplab.errors import StorageUnavailable
from sweeplab.records.folders import StudyFolder
from sweeplab.study.options import Pruner
from sweeplab.study.spec import Budget, Engine
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.trials.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

NO_ROOM = "No space left on device"


@pytest.fixture
def disk(tmp_path):
    with mounted(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no small disk can be mounted")
        yield disk


@pytest.fixture
def spec(tiny):
    pruner = Pruner(type="median", options={"n_startup_trials": 5})
    changes = {"budget": Budget(trials_per_cell=2), "engine": Engine(stack=2), "pruner": pruner}
    return tiny(values={"max_iters": 60}, **changes)


def open_on(disk, spec, dataset):
    folder = StudyFolder((disk.path if isinstance(disk, Disk) else disk) / "lab", spec.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder, Store.create(spec, dataset.sizes, folder.storage_url)


def found(folder, store):
    curves, trials = {}, {trial.number: trial for trial in store.trials(store.cells[0])}
    assert {trial.state.name for trial in trials.values()} == {"COMPLETE"}
    for run in folder.runs():
        trial, points = trials[run.trial], run.points()
        curve = [(each.iteration, each.val_loss, each.train_loss) for each in points]
        curves[run.trial] = (
            curve,
            str(run.read_end().state),
            trial.value,
            trial.intermediate_values,
        )
    return curves


@pytest.fixture
def expected(spec, dataset, tmp_path):
    folder, store = open_on(tmp_path, spec, dataset)
    Loop(store, dataset, folder).run()
    return found(folder, store)


@pytest.mark.slow
def test_training_goes_on_and_what_was_not_written_is_when_there_is_room(
    spec, dataset, disk, expected
):
    folder, store = open_on(disk, spec, dataset)
    said = []
    store.availability.limit, store.availability.say = 600.0, said.append

    def meanwhile(report):
        if report.iteration == 10:
            disk.fill()
        if report.iteration == 40:
            disk.free()

    on_report(store, meanwhile)
    Loop(store, dataset, folder).run()
    assert found(folder, store) == expected
    assert (
        f"does not answer: {NO_ROOM}" in said[0]
        and "answers again" in said[1]
        and len(said) == 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 10, 60])
def test_after_the_limit_the_worker_ends_with_one_line_and_nothing_is_lost(
    at, spec, dataset, disk, expected
):
    folder, store = open_on(disk, spec, dataset)
    store.availability.limit = 0.2

    def fill(report):
        if report.iteration == at:
            disk.fill()

    on_report(store, fill)
    with pytest.raises(
        StorageUnavailable, match=f"the storage of study tiny does not answer: {NO_ROOM}"
    ):
        Loop(store, dataset, folder).run()
    disk.free()
    _, again = open_on(disk, spec, dataset)
    expire_leases(store)
    Loop(again, dataset, folder).run()
    assert found(folder, again) == expected
    assert not list(folder.path.rglob("state*"))
