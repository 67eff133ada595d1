"""Pruned trials that go on to their end: to the same bits as if never pruned, and counted once."""

import pytest
from optuna.trial import TrialState
from tiny_study import claim_one

from sweeplab.errors import BadInput
from sweeplab.lab.studies import write_study
from sweeplab.study.inputs import describe_data
from sweeplab.study.options import Pruner
from sweeplab.study.spec import Budget, Engine, Track
from sweeplab.study.values import Choices, Range
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.steering import resume_trial
from sweeplab.sweep.trials.sharing import Report
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")

VALUES = {"max_iters": 40, "save_interval": 10}
SEARCH = {"learning_rate": Choices((1e-6, 1e-2)), "weight_decay": Range(0.0, 0.1)}
# Prunes what has learned nothing by its second evaluation.
THRESHOLD = Pruner(type="threshold", options={"upper": 4.5, "n_warmup_steps": 5})


@pytest.fixture
def work(opened, dataset):
    """Return a function that works on a study, kept as running it would, as one worker."""

    def run(spec, stopping=lambda: False):
        folder, store = opened(spec)
        write_study(spec, folder, describe_data(spec, dataset))
        Loop(store, dataset, folder, stopping=stopping).run()
        return folder, store

    return run


def curves(folder):
    """Return all that a run finds, but for how long it took."""
    found = {}
    for run in folder.runs():
        names = ("iteration", "train_loss", "val_loss")
        points = [[getattr(each, name) for name in names] for each in run.points()]
        end = run.read_end()
        found[f"{run.cell}/{run.path.name}"] = points, end.state, end.value, end.train_flops
    return found


def pruned(store, cell=0):
    trials = store.trials(store.cells[cell])
    return [trial.number for trial in trials if trial.user_attrs.get("outcome") == "pruned"]


def snapshots(folder, number):
    return [
        file.name for run in folder.runs_of("all", number) for file in run.path.glob("state*")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [9, 0])
def test_a_promoted_trial_comes_to_the_bits_of_one_that_was_never_pruned(
    kept, tiny, work, tmp_path, monkeypatch
):
    spec = tiny(
        values=VALUES, search=SEARCH, seeds=[0, 1], pruner=THRESHOLD, track=Track(snapshots=kept),
        engine=Engine(stack=4),
    )  # fmt: skip
    folder, store = work(spec)
    numbers = pruned(store)
    assert 0 < len(numbers) < 4
    assert [bool(snapshots(folder, number)) for number in numbers] == [kept > 0] * len(numbers)
    admitted = []
    admit = Stack.admit
    monkeypatch.setattr(
        Stack, "admit", lambda *given: admitted.append(bool(given[2])) or admit(*given)
    )
    for number in numbers:
        done = resume_trial(folder, number)
        assert (
            f"trial {number} in cell all, pruned at iteration 10, continues to its end"
            in done.what
        )
    work(spec)
    assert admitted == [kept > 0] * 2 * len(numbers), (
        "from their snapshots, or from their start"
    )
    found = curves(folder)
    _, after = work(spec)
    assert [trial.state for trial in after.trials(after.cells[0])] == [TrialState.COMPLETE] * 4
    assert not list(folder.path.rglob("state*"))
    (tmp_path / "lab").rename(tmp_path / "before")
    unpruned, _ = work(spec.model_copy(update={"pruner": Pruner(type="none")}))
    assert found == curves(unpruned)


def test_a_promoted_trial_counts_once_and_every_process_knows_it(tiny, work, opened):
    spec = tiny(values=VALUES, search=SEARCH, pruner=THRESHOLD)
    folder, store = work(spec)
    _, other = opened(spec)
    number = pruned(store)[0]
    before = [each.tallies()[0].counted for each in (store, other)]
    assert before[0] == before[1] and not other.has_room()
    resume_trial(folder, number)
    with pytest.raises(BadInput, match="was not pruned: running"):
        resume_trial(folder, number)
    for each in (store, other):
        assert each.poll_commands()
        (tally,) = each.tallies()
        assert (tally.counted, len(tally.running())) == (
            before[0] - 1,
            1,
        ) and each.has_room()
    claim = claim_one(other)
    assert (claim.number, claim.promoted, claim.attempt) == (
        number,
        10,
        1,
    )
    assert claim_one(store) is None and claim_one(other) is None, (
        "it takes up its own place in the budget"
    )
    assert not other.report_many([Report(claim, 20, 9.0)]).behind, "which the pruner would end"
    other.finish(claim, "complete", 4.0, {"train_flops": 1.0})
    for each in (store, other):
        (tally,) = each.tallies()
        assert (tally.counted, tally.running()) == (before[0], [])
    trials = store.trials(store.cells[0])
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert (trials[number].value, trials[number].user_attrs["outcome"]) == (4.0, "complete")


def test_a_worker_that_died_while_it_took_a_promoted_trial_up_lost_nothing(tiny, work):
    spec = tiny(values=VALUES, search=SEARCH, seeds=[0, 1], pruner=THRESHOLD)
    folder, store = work(spec)
    number = pruned(store)[0]
    ends = [folder.run("all", number, seed).end_file for seed in (0, 1)]
    left = ends[1].read_bytes()
    resume_trial(folder, number)
    assert not any(end.exists() for end in ends)
    ends[1].write_bytes(left)
    _, after = work(spec)
    found = [folder.run("all", number, seed).read_end() for seed in (0, 1)]
    assert [(end.state, end.iteration) for end in found] == [("complete", 40)] * 2
    assert after.trials(after.cells[0])[number].state == TrialState.COMPLETE


def test_the_best_of_the_pruned_trials_keep_their_snapshots(tiny, work):
    spec = tiny(
        values=VALUES, pruner=Pruner(type="threshold", options={"upper": 0.1, "n_warmup_steps": 5}),
        budget=Budget(trials_per_cell=8), track=Track(snapshots=3), engine=Engine(stack=4),
    )  # fmt: skip
    folder, store = work(spec)
    trials = store.trials(store.cells[0])
    assert pruned(store) == [*range(8)]
    best = sorted(trials, key=lambda trial: trial.value)[:3]
    kept = [number for number in range(8) if snapshots(folder, number)]
    assert kept == sorted(trial.number for trial in best)
    assert all(len(snapshots(folder, number)) == 1 for number in kept)
