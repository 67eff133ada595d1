"""A study's best model in the registry of an MLflow server that serves the artifacts too, as a team has it."""

import mlflow
import pytest
from mlflow import MlflowClient

import sweeplab
from sweeplab.errors import BadInput
from sweeplab.lab.studies import publish

STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 60, n_layer: 1, n_embd: 16, n_head: 2, dropout: 0.0,
        warmup_iters: 2, eval_interval: 20, eval_iters: 2, patience: null, device: cpu}
search: {learning_rate: [1e-2, 0.5]}  # the second is tried first
budget: {trials_per_cell: 1}
sampler: grid
engine: {workers: 1}
"""


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*type hint is inferred as AnyType:UserWarning"
)  # MLflow's own, on import
def test_a_model_is_published_on_a_server_and_a_better_one_after_it(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    (tmp_path / "tiny.yaml").write_text(STUDY)
    lab = tmp_path / "lab"
    study = sweeplab.load_study(tmp_path / "tiny.yaml", lab=lab)
    study.run()
    first, again = publish(study.folder), publish(study.folder)
    assert (first.version, first.is_new, again.version, again.is_new) == ("1", True, "1", False)
    assert (first.uri, first.place) == ("models:/tiny@best", server)
    study.extend(trials_per_cell=2)
    result = study.run()
    trained = sweeplab.load_run(result.best.run_id, lab=lab)
    text = trained.generate("import ", max_new_tokens=9)
    second = publish(study.folder)
    assert (second.version, second.is_new, second.run_id) == ("2", True, result.best.run_id)
    assert second.run_id != first.run_id

    model = mlflow.pyfunc.load_model(second.uri)
    assert model.predict(["import ", "import "], params={"max_new_tokens": 9}) == [text, text]
    assert sweeplab.load_run("tiny", lab=lab).generate("import ", max_new_tokens=9) == text
    client = MlflowClient(server)
    version = client.get_model_version_by_alias("tiny", "best")
    assert (version.status, version.run_id) == ("READY", result.best.run_id)
    assert version.source.startswith("models:/m-")
    logged = client.get_logged_model(version.source.removeprefix("models:/"))
    assert (logged.source_run_id, str(logged.status)) == (version.run_id, "READY")
    assert not list(lab.glob("mlflow.db*")), "all of it is at the server"

    with pytest.raises(BadInput, match="no cell 'al'"):
        publish(study.folder, "al")
