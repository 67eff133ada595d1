"""The worker's loop on a real store: trials end as they should, and a killed one goes on to the same bits."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from optuna.trial import TrialState
from references.serial_loop import windows
from tiny_study import claim_one, losses, on_report
from torch.nn.functional import cross_entropy

from sweeplab.data.batches import limited
from sweeplab.data.objectives import make_objective
from sweeplab.records.runs import CurvePoint, RunEnd, RunState, TrialEnding
from sweeplab.runs import open_run
from sweeplab.study.options import Pruner
from sweeplab.study.spec import Budget, Engine, ObjectiveSpec
from sweeplab.study.values import Choices, Range
from sweeplab.sweep.loop import Loop
from sweeplab.train.run import METRICS
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")


def outcomes(folder):
    return {run.read_start().key: run.read_end() for run in folder.runs()}


def loss_of(loaded, dataset):
    """Return the mean loss of a checkpoint's model on the evaluations of its run."""
    objective = make_objective(dataset.val, loaded.values)
    batches = [windows(each) for each in objective.evaluation(loaded.values.evaluated_tokens)]
    losses = [
        cross_entropy(loaded.model.logits(batch[:, :-1]).mT, batch[:, 1:]).item()
        for batch in batches
    ]
    return sum(losses) / len(losses)


def test_a_checkpoint_has_the_loss_of_the_curve(tiny, work, dataset):
    folder, _, _ = work(tiny(budget=Budget(trials_per_cell=1), values={"max_iters": 25}))
    (run,) = folder.runs()
    curve = {
        each.iteration: each.val_loss for each in run.points() if each.val_loss is not None
    }
    loaded = open_run("tiny/all/0-0", folder.lab)
    loss = curve[loaded.facts["iteration"]]
    assert loaded.facts["val_loss"] == loss == min(curve.values())
    assert loss_of(loaded, dataset) == pytest.approx(loss, abs=1e-6)


def test_a_trial_is_valued_and_pruned_on_the_mean_of_its_seeds(tiny, work):
    folder, store, _ = work(tiny(seeds=[0, 5], budget=Budget(trials_per_cell=2)))
    found = outcomes(folder)
    curves = losses(folder)
    for trial in store.trials(store.cells[0]):
        pair = [dict(curves[f"all/{trial.number}/{seed}"]) for seed in (0, 5)]
        means = {
            iteration: (pair[0][iteration] + pair[1][iteration]) / 2
            for iteration in (0, 10, 20)
        }
        assert trial.intermediate_values == pytest.approx(means)
        assert trial.value == pytest.approx(min(means.values()))
        assert found[f"all/{trial.number}/0"].value == trial.value
        valued = [found[f"all/{trial.number}/{seed}"].valued_val_loss for seed in (0, 5)]
        assert tuple(valued) in zip(*(each.values() for each in pair), strict=True), (
            "of one iteration"
        )
        assert sum(valued) / 2 == pytest.approx(trial.value)


def test_pruned_trials_are_told_and_leave_their_place(tiny, work):
    pruner = Pruner(type="threshold", options={"upper": 4.5, "n_warmup_steps": 5})
    search = {"learning_rate": Choices((1e-6, 1e-2)), "weight_decay": Range(0.0, 0.1)}
    folder, store, _ = work(
        tiny(pruner=pruner, search=search, budget=Budget(trials_per_cell=6))
    )
    states = Counter(outcome.state for outcome in outcomes(folder).values())
    assert set(states) == {"pruned", "complete"}
    for trial in store.trials(store.cells[0]):
        slow = trial.params["learning_rate"] < 1e-5
        assert trial.state == (TrialState.PRUNED if slow else TrialState.COMPLETE)
        assert max(trial.intermediate_values) == (10 if slow else 20)


def test_a_diverging_seed_makes_its_trial_diverged_and_spares_the_others(tiny, work):
    search = {"learning_rate": Choices((1e-3, 1e6)), "weight_decay": Range(0.0, 0.1)}
    folder, store, _ = work(
        tiny(
            search=search,
            values={"grad_clip": None},
            budget=Budget(trials_per_cell=6),
            seeds=[1, 2],
        )
    )
    for trial in store.trials(store.cells[0]):
        bad = trial.params["learning_rate"] > 1
        assert trial.user_attrs["outcome"] == ("diverged" if bad else "complete")
        assert trial.state == (TrialState.PRUNED if bad else TrialState.COMPLETE)
    n_bad = sum(trial.params["learning_rate"] > 1 for trial in store.trials(store.cells[0]))
    found = outcomes(folder).values()
    assert 0 < n_bad < 6
    states = Counter(outcome.state for outcome in found)
    assert states == {"diverged": 2 * n_bad, "complete": 2 * (6 - n_bad)}
    # What a seed did is written down before its neighbor ends their trial.
    assert {outcome.iteration for outcome in found if outcome.state == "diverged"} == {10}
    assert all(outcome.train_flops > 0 for outcome in found)


def test_an_error_fails_the_trial_that_raised_it_with_its_traceback(tiny, work, monkeypatch):
    real = Stack.step

    def step(self):
        if any(member.run.values.learning_rate > 5e-3 for member in self._members):
            raise RuntimeError("no such kernel")
        real(self)

    monkeypatch.setattr(Stack, "step", step)
    search = {"learning_rate": Choices((1e-3, 1e-2))}
    folder, store, _ = work(
        tiny(search=search, engine=Engine(stack=4), budget=Budget(trials_per_cell=3))
    )
    for trial in store.trials(store.cells[0]):
        bad = trial.params["learning_rate"] > 5e-3
        assert trial.state == (TrialState.FAIL if bad else TrialState.COMPLETE)
        outcome = outcomes(folder)[f"all/{trial.number}/0"]
        assert ("no such kernel" in (outcome.error or "")) == bad
        assert ("Traceback" in (outcome.error or "")) == bad


def test_the_end_of_a_trial_that_its_metric_failed_is_told_by_the_next_worker(
    tiny, opened, dataset, monkeypatch
):
    def broken(*_):
        raise RuntimeError("no such table")

    monkeypatch.setitem(METRICS, "broken", broken)
    spec = tiny(objective=ObjectiveSpec(metric="broken"), budget=Budget(trials_per_cell=1))
    folder, store = opened(spec)
    monkeypatch.setattr(store, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Loop(store, dataset, folder).run()
    assert folder.run("all", 0, 0).read_end().state == "failed"
    _, again = opened(spec)
    Loop(again, dataset, folder, stopping=lambda: len(again.trials(again.cells[0])) > 9).run()
    assert [trial.state for trial in again.trials(again.cells[0])] == [TrialState.FAIL] * 4, (
        "and three more"
    )


def test_an_end_that_a_stopped_worker_wrote_when_it_woke_up_is_told_as_it_stands(
    tiny, opened, dataset
):
    spec = tiny(seeds=[0, 1], budget=Budget(trials_per_cell=1))
    folder, store = opened(spec)

    def end_beside(report):
        """Write the end of the first seed's run, as the worker that held the trial before may."""
        if report.iteration == 10:
            ending = TrialEnding(
                RunState.PRUNED, 3.25, {0: RunState.PRUNED, 1: RunState.PRUNED}
            )
            end = RunEnd(state=RunState.PRUNED, value=3.25, iteration=10, ending=ending)
            folder.run("all", 0, 0).write_end(end)

    on_report(store, end_beside)
    Loop(store, dataset, folder).run()
    (trial,) = store.trials(store.cells[0])
    ends = [run.read_end() for run in folder.runs()]
    assert (trial.state, trial.user_attrs["outcome"]) == (TrialState.PRUNED, "pruned")
    assert [(end.state, end.value) for end in ends] == [("pruned", 3.25)] * 2


@pytest.mark.slow
def test_with_a_damaged_snapshot_it_goes_on_from_the_one_before_to_the_same_losses(tiny, work):
    values = {"max_iters": 40}
    whole, _, _ = work(tiny(name="whole", values=values, budget=Budget(trials_per_cell=1)))
    spec = tiny(name="parts", values=values, budget=Budget(trials_per_cell=1))
    left = iter(range(27))
    folder, _, _ = work(spec, lambda: next(left, None) is None)
    (run,) = folder.runs()
    kept = sorted(run.path.glob("state-*"), key=lambda file: int(file.name.split("-")[1]))
    content = bytearray(kept[-1].read_bytes())
    content[100] ^= 1
    kept[-1].write_bytes(content)
    _, _, reports = work(spec)
    assert losses(folder) == losses(whole)
    trained = [report.iteration for report in reports]
    assert 0 < trained[0] < 40 and len(kept) == 2, "not from the start again"
    assert not list(run.path.glob("state*"))


@pytest.mark.parametrize(("n_died", "outcome"), [(9, "complete"), (10, "failed")])
def test_a_trial_that_kills_ten_workers_is_given_up(n_died, outcome, tiny, opened, dataset):
    spec = tiny(budget=Budget(trials_per_cell=1))
    folder, store = opened(spec)
    for _ in range(n_died):  # one worker after the other takes it up and dies
        _, worker = opened(spec)
        assert claim_one(worker).number == 0
        with store.storage.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE sweeplab_lease SET owner = 'elsewhere|1|0|x', expires = 0"
            )
    Loop(store, dataset, folder).run()
    end = folder.run("all", 0, 0).read_end()
    assert end.ending.outcome == outcome
    assert ("10 workers in turn died" in (end.error or "")) == (outcome == "failed")


def test_a_run_folder_survives_a_torn_line(tiny, work):
    folder, _, _ = work(tiny(budget=Budget(trials_per_cell=1)))
    (run,) = folder.runs()
    before = run.points()
    path = run.path / "points.jsonl"
    path.write_bytes(path.read_bytes() + b'{"iteration": 20, "val_')
    known = {"wall_seconds": 1.0, "train_tokens": 64}
    again = CurvePoint(iteration=20, val_loss=9.9, **known)
    run.append([again, CurvePoint(iteration=30, val_loss=float("nan"), **known)])
    assert run.points() == [*before, CurvePoint(iteration=30, val_loss=None, **known)]
    assert (
        json.loads(path.read_bytes().splitlines()[-1])
        == {"iteration": 30, "val_loss": None} | known
    )


@pytest.mark.slow
def test_a_run_learns_from_the_part_that_data_limit_leaves(tiny, opened, dataset):
    found = []
    part = replace(dataset, train=limited(dataset.train, 5_000))
    for name, limit, data in (
        ("limited", 5_000, dataset),
        ("part", None, part),
        ("all", None, dataset),
    ):
        folder, store = opened(tiny(name=name, values={"data_limit": limit}))
        Loop(store, data, folder).run()
        found.append(losses(folder))
    assert found[0] == found[1] != found[2]
