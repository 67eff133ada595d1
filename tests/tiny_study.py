"""A study small enough to train in a second, built as the reader would."""

import pytest

from sweeplab.data.dataset import prepare
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import study_from
from sweeplab.study.options import Pruner, Sampler
from sweeplab.study.problems import Problems
from sweeplab.study.spec import Budget, DataSpec, StudySpec
from sweeplab.study.values import Range
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.trials.store import Store

FIXED = {
    "n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 16, "batch_size": 4, "max_iters": 20, "dropout": 0.0,
    "eval_interval": 10, "eval_iters": 2, "warmup_iters": 2, "log_interval": 5, "save_interval": 10, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="session")
def tiny():
    """Return a typed study of one-second runs, with changes; no trial waits for what another one finds."""

    def make(**changed):
        given = {
            "name": "tiny",
            "data": DataSpec(corpus="python-docs", tokenizer="char"),
            "fixed": FIXED | changed.pop("values", {}),
            "search": {"learning_rate": Range(3e-4, 1e-2, log=True)},
            "budget": Budget(trials_per_cell=4),
            "sampler": Sampler(type="random"),
            "pruner": Pruner(type="none"),
        }
        return StudySpec(**given | changed)

    return make


@pytest.fixture(scope="session")
def dataset():
    return prepare("python-docs", "char")


@pytest.fixture
def opened(tmp_path, dataset):
    """Return a function that opens a study's folder and a store of its own on it, as each worker does."""

    def open_store(spec):
        folder = StudyFolder(tmp_path / "lab", spec.name)
        folder.path.mkdir(parents=True, exist_ok=True)
        return folder, Store.create(spec, dataset.sizes, folder.storage_url)

    return open_store


@pytest.fixture
def work(opened, dataset):
    """Return a function that works on a study as one worker and returns what it told and reported."""

    def run(spec, stopping=lambda: False):
        folder, store = opened(spec)
        heard = []
        on_report(store, heard.append)
        Loop(store, dataset, folder, heard.append, stopping).run()
        return folder, store, heard

    return run


def on_report(store, hear):
    """Let a function hear every value that a worker reports, once the storage has it."""
    report = store.report_many

    def report_many(reports):
        verdicts = report(reports)
        for each in reports:
            hear(each)
        return verdicts

    store.report_many = report_many


def claim_one(store, fits=lambda cell: True):
    """Claim one trial; None if there is none."""
    return next(iter(store.claim_many(1, fits)), None)


def finish_all(store, value=lambda claim: 2.0):
    """Claim all trials that there are, one after the other, and end each."""
    claims = []
    while claim := claim_one(store):
        claims.append(claim)
        assert len(claims) < 500, "there is no end"
        store.finish(claim, "complete", value(claim), {})
    return claims


def expire_leases(store):
    """Let all leases run out, as if their workers had been silent for long."""
    with store.storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE sweeplab_lease SET expires = 0")


def losses(folder):
    """Return the losses of each run's evaluations."""
    return {
        run.read_start().key: [(point.iteration, point.val_loss) for point in run.points()]
        for run in folder.runs()
    }


@pytest.fixture
def planned(tiny, tmp_path):
    """Return a function that plans the tiny study with changes."""
    return lambda **changed: make_plan(tiny(**changed), tmp_path / "lab")[0]


def problem_of(call):
    """Return the only problem of what is refused, which is one line."""
    with pytest.raises(BadInput) as refused:
        call()
    (problem,) = map(str, refused.value.problems)
    assert "\n" not in problem
    return problem


def study_of_parts(**parts):
    """Return a study of characters of python-docs, with further keys of a study file."""
    data = {"corpus": "python-docs", "tokenizer": "char"}
    return study_from({"name": "a", "data": data, **parts}, Problems())
