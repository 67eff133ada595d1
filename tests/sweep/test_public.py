"""Without private parts of libraries a study takes longer and comes to the same trials, bits and records."""

import optuna
import pytest
from mlflow import MlflowClient

from sweeplab.errors import BadInput
from sweeplab.lab import storage, tables
from sweeplab.lab.storage import count_trials, rename_studies
from sweeplab.lab.tables import why_public
from sweeplab.processes import VARIABLE
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunState
from sweeplab.study.options import Pruner, Sampler
from sweeplab.study.spec import Budget
from sweeplab.study.values import Range
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.trials.public import PublicStorage, open_storage
from sweeplab.sweep.trials.storage import TrialStorage
from sweeplab.sweep.trials.store import Store
from sweeplab.tracking import open_tracker
from sweeplab.tracking.connection import tracking_uri

pytestmark = pytest.mark.usefixtures("one_thread")

SEARCH = {"learning_rate": Range(1e-4, 1e-1, log=True), "weight_decay": Range(0.0, 0.1)}
HALVING = Pruner(type="asha", options={"min_resource": 10, "reduction_factor": 2})


def result_of(spec, dataset, lab):
    """Work on a study that is stopped twice, ship it, and return what it came to."""
    folder = StudyFolder(lab, spec.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    for n_steps in (7, 31, None):
        left = iter(range(n_steps or 1_000_000))
        store = Store.create(spec, dataset.sizes, folder.storage_url)
        Loop(store, dataset, folder, stopping=lambda left=left: next(left, None) is None).run()
    tracker = open_tracker(lab, spec.name)
    tracker.open({})
    runs = [*folder.runs()]
    assert all(tracker.ship(run.path) for run in runs)
    client = MlflowClient(tracking_uri(lab))
    shipped = client.search_runs([each.experiment_id for each in client.search_experiments()])
    trials = [trial for cell in store.cells for trial in store.trials(cell)]
    counts = count_trials(folder)
    return {
        "storage": type(store.storage),
        "trials": [
            (each.number, each.state, each.params, each.value, each.intermediate_values)
            for each in trials
        ],
        "outcomes": [each.user_attrs["outcome"] for each in trials],
        "losses": {
            run.read_start().key: [point.val_loss for point in run.points()] for run in runs
        },
        "weights": {run.read_start().key: run.read_end().best_val_loss for run in runs},
        "counts": {cell: each.states for cell, each in counts.items()},
        "shipped": sorted(
            (run.data.tags.get("mlflow.runName", ""), run.data.metrics.get("val_loss", 0.0))
            for run in shipped
        ),
    }


@pytest.mark.slow
def test_a_study_comes_to_the_same_without_private_parts(tiny, dataset, tmp_path, monkeypatch):
    changes = {
        "sampler": Sampler(type="tpe", options={"n_startup_trials": 3}),
        "pruner": HALVING,
    }
    changes |= {"budget": Budget(trials_per_cell=6), "grid": {"n_embd": [16, 32]}}
    spec = tiny(search=SEARCH, seeds=[0, 1], **changes)
    results = {}
    for way in ("", "1"):
        monkeypatch.setenv(VARIABLE, way)
        results[way] = result_of(spec, dataset, tmp_path / f"lab{way}")
    assert (results[""].pop("storage"), results["1"].pop("storage")) == (
        TrialStorage,
        PublicStorage,
    )
    assert results[""] == results["1"]
    assert {*results["1"]["outcomes"]} == {"complete", "pruned"}
    assert len(results["1"]["trials"]) == 12 and len(results["1"]["shipped"]) >= 24


def test_tables_of_another_optuna_are_left_alone(tmp_path, monkeypatch):
    assert why_public() == ""
    monkeypatch.setitem(tables.CONTENT, "study", "study_id key value_json")
    tables.unlike.cache_clear()
    assert why_public() == "Optuna has other columns in: study_system_attributes"
    opened = open_storage(f"sqlite:///{tmp_path}/trials.db")
    assert isinstance(opened, PublicStorage)
    tables.unlike.cache_clear()
    with pytest.raises(BadInput, match="cannot reopen"):
        opened.reopen(1)


@pytest.mark.parametrize("is_unlike", [False, True])
def test_studies_are_counted_and_renamed_whatever_the_tables(
    is_unlike, opened, tiny, monkeypatch
):
    folder, store = opened(tiny())
    claims = store.claim_many(2)
    store.finish(claims[0], RunState.COMPLETE, 2.5, {"train_flops": 1.0, "wall_seconds": 1.0})
    if is_unlike:
        monkeypatch.setattr(
            storage, "counts", lambda void: "SELECT state FROM trials_of_another_version"
        )
    counted = count_trials(folder)
    assert counted["all"].states == {"complete": 1, "waiting": 1}
    rename_studies(folder.storage_url, "tiny/", "renamed/")
    rename_studies(folder.storage_url, "tiny/", "renamed/")  # what an interrupted one has left
    assert optuna.get_all_study_names(folder.storage_url) == ["renamed/all"]
    assert count_trials(folder) == counted
