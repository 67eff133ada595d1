"""A study whose trials all fail, or whose workers all die, ends, and says why."""

import pytest

from sweeplab import load_study
from sweeplab.errors import BadInput
from sweeplab.study.plan import WorkerResources
from sweeplab.study.spec import Engine, Track
from sweeplab.sweep.engines import LocalEngine
from sweeplab.sweep.supervisor import WorkerPool, run_study

PLUGIN = """\
from sweeplab.plugins import metric


@metric("broken")
def broken(model, batches, record):
    raise RuntimeError(f"no such table at {record.iteration}")
"""
STUDY = """\
name: alike
plugins: [broken.py]
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, dropout: 0.0,
        eval_interval: 10, eval_iters: 1, device: cpu}
grid: {n_embd: [8, 12, 16, 20, 24, 28]}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
objective: {metric: broken}
budget: {trials_per_cell: 20}
sampler: random
engine: {workers: 1, stack: 1}
"""


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
@pytest.mark.usefixtures("forgets_plugins")
def test_a_study_whose_trials_all_fail_ends(tmp_path):
    (tmp_path / "broken.py").write_text(PLUGIN)
    (tmp_path / "alike.yaml").write_text(STUDY)
    result = load_study(tmp_path / "alike.yaml", lab=tmp_path / "lab", allow_plugins=True).run()
    assert result.status == "failed"
    assert result.folder.states() == {"failed": 6 * 3}, "a cell gives up after three"
    assert "failed: RuntimeError: no such table at 0" in result.errors[0]


@pytest.mark.slow
def test_a_worker_that_is_killed_again_and_again_is_given_up(tiny, opened):
    folder, store = opened(tiny())
    engine = LocalEngine(folder, Engine(), [WorkerResources(threads=1)])
    pool = WorkerPool(engine, store, lambda event: None)
    store.commands.add("start", {})
    store.commands.read()
    pool.start(pool.uninformed())
    while len(pool):
        engine.kill()
        pool.listen(stopping=False)
    assert (
        "5 workers in a row died the same way; worker 0 ended with code -9: "
        in pool.failures[0]
    )


@pytest.mark.slow
def test_without_tracking_no_trial_begins(tiny, tmp_path, monkeypatch):
    """A port that nobody listens on refuses it at once."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(BadInput, match="set another track"):
        run_study(tiny(track=Track(uri="http://127.0.0.1:9")), tmp_path / "lab")
    assert not [*(tmp_path / "lab" / "studies").iterdir()], (
        "a study that is refused leaves nothing"
    )
