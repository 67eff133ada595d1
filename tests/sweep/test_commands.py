"""Commands: read by every process in one order, obeyed within an evaluation, and nothing lost by any of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from optuna.trial import TrialState
from tiny_study import claim_one, losses, on_report

from sweeplab.study.spec import Budget, Engine
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.trials.sharing import Commands
from sweeplab.tracking.models import load_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def work(opened, dataset):
    """Return a function that works on a study as one worker, and gives commands at some of the values it reports."""

    def run(spec, *at):
        """Each of `at` is a condition on a report and the command that another process gives when first it holds."""
        folder, store = opened(spec)
        reports, left = [], list(at)

        def hear(report):
            reports.append(report)
            if left and left[0][0](report):
                Commands.open(folder).add(*left.pop(0)[1])

        on_report(store, hear)
        Loop(store, dataset, folder).run()
        assert not left, "every command was given"
        return folder, store, reports

    return run


def evaluated(iteration, trial=0):
    return lambda report: (report.iteration, report.claim.number) == (iteration, trial)


def test_what_holds_follows_from_all_commands(opened, tiny):
    folder, store = opened(tiny())
    owner = Commands.open(folder)
    assert (store.poll_commands(), store.commands.state.phase) == ([], "run")
    owner.add("start", {"host": "here"})
    owner.add("wanted", "stop")
    assert claim_one(store) is None, "a study that ends begins nothing"
    owner.add("wanted", "pause")
    owner.add("budget", {"trials_per_cell": 9, "time": 60.0, "flops": None})
    owner.add("stop trial", {"cell": "all", "trial": 3})
    assert store.poll_commands() and not store.poll_commands()
    assert (store.commands.state.phase, store.budget) == (
        "pause",
        Budget(trials_per_cell=9, time=60.0),
    )
    assert claim_one(store) is None, "a study that rests begins nothing"
    owner.add("start", {"host": "there"})
    assert store.poll_commands()
    assert (store.commands.state.phase, store.budget.trials_per_cell) == ("run", 4)
    assert store.commands.state.stopped == {("all", 3)}
    owner.add("ended", "complete")
    assert [command.kind for command in Commands(store.storage.engine, store.availability).read()] == [
        "start", "wanted", "wanted", "budget", "stop trial", "start", "ended",
    ]  # fmt: skip


def test_commands_given_at_once_all_count_and_closing_comes_after_none(opened, tiny):
    folder, store = opened(tiny())
    with ThreadPoolExecutor(4) as pool:
        owners = [Commands.open(folder) for _ in range(4)]
        list(pool.map(lambda index: owners[index % 4].add("note", index), range(40)))
    commands = store.commands.read()
    assert [command.revision for command in commands] == list(range(1, 41))
    assert sorted(command.value for command in commands) == list(range(40))
    assert not store.commands.set_phase("closing", after=39), "a command came that was not read"
    assert store.commands.set_phase("closing", after=40)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["stop", "pause"])
def test_a_worker_leaves_at_its_next_evaluation_and_the_next_goes_on_to_the_same_bits(
    wanted, work, tiny
):
    engine = Engine(stack=2)
    whole, _, _ = work(tiny(name="whole", engine=engine))
    spec = tiny(name="parts", engine=engine)
    folder, store, reports = work(spec, (evaluated(0), ("wanted", wanted)))
    assert max(report.iteration for report in reports) == 10, "one evaluation after the command"
    assert {trial.state for trial in store.trials(store.cells[0])} == {TrialState.RUNNING}
    assert store.n_held() == 0
    Commands.open(folder).add("wanted", "run")
    work(spec)
    assert losses(folder) == losses(whole)


def test_a_trial_that_its_owner_stops_ends_at_its_next_evaluation_with_its_best_value(
    work, tiny
):
    stop = ("stop trial", {"cell": "all", "trial": 0})
    folder, store, _ = work(
        tiny(budget=Budget(trials_per_cell=2), seeds=[0, 1]), (evaluated(0), stop)
    )
    first, second = store.trials(store.cells[0])
    assert (first.state, first.user_attrs["outcome"]) == (TrialState.COMPLETE, "stopped")
    assert (second.user_attrs["outcome"], max(second.intermediate_values)) == ("complete", 20)
    assert (
        first.value == min(first.intermediate_values.values())
        and max(first.intermediate_values) == 10
    )
    for seed in (0, 1):
        run = folder.run("all", 0, seed)
        end = run.read_end()
        assert (end.state, end.iteration) == ("stopped", 10)
        assert end.stop_reason == "asked to stop, at iteration 10"
        load_checkpoint(run.path / "best")


@pytest.mark.slow
def test_what_a_person_asks_for_is_next_in_a_cell_of_another_shape_too(opened, dataset, tiny):
    spec = tiny(
        grid={"n_embd": [16, 24]}, budget=Budget(trials_per_cell=6), engine=Engine(stack=1)
    )
    fixed = {name: value for name, value in spec.fixed.items() if name != "n_embd"}
    spec = spec.model_copy(update={"fixed": fixed})
    folder, store = opened(spec)
    asked = {"learning_rate": 1e-3}
    claimed = []

    def enqueue(report):
        if report.iteration == 0:
            claimed.append((report.claim.cell.key, report.claim.sampled == asked))
            if len(claimed) == 2:  # as another process does
                _, other = opened(spec)
                other.study(other.cells[1]).enqueue_trial(asked)
                other.commands.add(
                    "enqueue", {"trials": [(other.cells[1].key, 0)], "values": asked}
                )

    on_report(store, enqueue)
    Loop(store, dataset, folder).run()
    assert claimed[2] == ("n_embd=24", True), "and the stack of the first shape ends for it"
    assert sum(cell == "n_embd=16" for cell, _ in claimed) == 6
