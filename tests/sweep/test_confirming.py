"""Confirming a study: who races, on which seeds, what is scored, and that it goes on where it was interrupted."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from sweeplab.expressions import Expression
from sweeplab.lab.listing import StudyTrials
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import read_confirmed
from sweeplab.runs.inspecting import scored
from sweeplab.study.spec import Budget
from sweeplab.study.values import Derived, Range
from sweeplab.sweep.confirming import Interrupted, _mean, confirm
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.supervisor import write_study
from sweeplab.sweep.trials.store import Store
from sweeplab.tracking.models import load_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def train(spec, dataset, lab):
    """Run a study to its end in this process, as one worker, and return its status."""
    plan, _, _ = make_plan(spec, lab)
    folder = StudyFolder(lab, spec.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.plan_file.write_text(json.dumps(plan.as_dict()))
    write_study(spec, folder, plan.data)
    store = Store.create(spec, plan.data.sizes, folder.storage_url)
    Loop(store, dataset, folder).run()
    return "complete"


@pytest.fixture
def trained(tmp_path, dataset):
    """Return a function that runs a study in the test's lab; `ran` are the studies that it ran."""
    ran = []

    def run(spec):
        ran.append(spec)
        return train(spec, dataset, tmp_path / "lab")

    run.ran = ran
    return run


@pytest.fixture(scope="module")
def made(tiny, dataset, tmp_path_factory):
    """Return the lab and the study of one that was run: two cells, in which three learning rates were tried."""
    search = {"learning_rate": Range(1e-3, 1e-2, log=True)}
    search["warmup_iters"] = Derived(Expression("max_iters // 10"))
    fixed, budget = {"n_embd": 16, "warmup_iters": 2}, Budget(trials_per_cell=3)
    spec = tiny(name="s", grid={"n_embd": [8, 16]}, search=search, budget=budget, seeds=[0, 4])
    spec = spec.model_copy(
        update={"fixed": {k: v for k, v in spec.fixed.items() if k not in fixed}}
    )
    lab = tmp_path_factory.mktemp("made") / "lab"
    torch.set_num_threads(1)
    train(spec, dataset, lab)
    return lab, spec


@pytest.fixture
def searched(made, tmp_path):
    """Return a copy of the study in the test's lab."""
    lab, spec = made
    return StudyFolder(Path(shutil.copytree(lab, tmp_path / "lab")), "s"), spec


@pytest.mark.slow
def test_the_best_of_each_cell_race_on_fresh_seeds_and_the_winner_is_scored_on_others(
    searched, trained, dataset
):
    folder, spec = searched
    found = confirm(folder, spec, 2, 3, trained)
    trials = sorted(StudyTrials(folder).all, key=lambda trial: trial.value)
    ranked = {
        cell: [t for t in trials if t.cell == cell][:2] for cell in ("n_embd=8", "n_embd=16")
    }
    expected = [(t.cell, t.number) for best in ranked.values() for t in best]
    assert [(each.cell, each.trial) for each in found] == expected
    race_spec, final = trained.ran
    assert (race_spec.name, final.name) == ("s.race", "s.confirm")
    assert (race_spec.seeds, final.seeds) == ([5, 6, 7], [8, 9, 10])
    assert all(each.race.keys() == {5, 6, 7} for each in found)
    winners = [each for each in found if each.won]
    assert [each.cell for each in winners] == ["n_embd=8", "n_embd=16"]
    for each in winners:
        assert each.race and each.validation.keys() == each.test.keys() == {8, 9, 10}
        assert each.validation != each.test
        assert sum(each.race.values()) == min(
            sum(of.race.values()) for of in found if of.cell == each.cell
        )
    # The trials there have the values of those that were found, and their losses are of the whole splits.
    of_confirm = StudyFolder(folder.lab, "s.confirm")
    there = sorted(StudyTrials(of_confirm).all, key=lambda t: t.values["n_embd"])
    for trial, each in zip(there, winners, strict=True):
        origin = next(t for t in ranked[each.cell] if t.number == each.trial)
        assert trial.values == origin.values
        run = next(run for run in trial.runs if run.seed == 8)
        assert each.validation[8] == run.read_end().best_whole_val_loss
        loaded = load_checkpoint(run.checkpoint(), "run")
        assert each.test[8] == scored(loaded, dataset, "test", whole=True)["test_loss"]
    assert read_confirmed(folder) == found
    again = confirm(folder, spec, 2, 3, trained)
    assert again == found


@pytest.mark.slow
def test_an_interruption_is_said_and_the_next_time_goes_on(searched, trained):
    folder, spec = searched
    statuses = iter(["interrupted"])
    with pytest.raises(Interrupted, match=r"study s\.race is interrupted") as raised:
        confirm(folder, spec, 2, 2, lambda derived: next(statuses))
    assert raised.value.status == "interrupted" and read_confirmed(folder) == []
    assert confirm(folder, spec, 2, 2, trained)


@pytest.mark.slow
def test_one_configuration_of_each_cell_needs_no_race(searched, trained):
    folder, spec = searched
    found = confirm(folder, spec, 1, 2, trained)
    assert [each.name for each in trained.ran] == ["s.confirm"]
    assert all(each.won and not each.race for each in found)


def test_what_diverged_on_a_fresh_seed_never_wins():
    assert _mean({}) > _mean({5: 99.0, 6: 99.0})
