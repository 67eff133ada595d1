"""A run as a model of MLflow's: what `mlflow.pyfunc.load_model` makes of its folder."""

import mlflow
import pandas as pd
import pytest
from mlflow.models import Model
from trained import run_in

from sweeplab.runs.run import Run
from sweeplab.tracking.models import load_checkpoint, write_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*type hint is inferred as AnyType:UserWarning"
)  # MLflow's own, on import


def served(place, kind, **values):
    """Return a run, the same as MLflow serves it, and its signature."""
    run = Run.of(load_checkpoint(run_in(place / "run", kind=kind, **values)))
    (place / "model").mkdir()
    write_model(place / "model", place / "run", run.values)
    return (
        run,
        mlflow.pyfunc.load_model(str(place / "model")),
        Model.load(place / "model").signature,
    )


@pytest.mark.slow
def test_a_classifier_returns_labels(tmp_path):
    run, model, signature = served(
        tmp_path, "labels", family="encoder", n_labels=3, labels=("bad", "good")
    )
    texts = ["a b", "some more words"]
    found = model.predict(texts)
    expected = [
        {"label": each["label"], "probability": max(each["probabilities"].values())}
        for each in run.predict(texts)
    ]
    assert found == expected == model.predict(pd.DataFrame({"any name": texts}))
    assert signature.outputs.input_names() == [*found[0]]
    (alone,) = model.predict(texts[0])
    assert alone["probability"] == pytest.approx(found[0]["probability"])
    assert {*run.predict(texts)[0]["probabilities"]} == {"bad", "good", "2"}
    assert run.predict([]) == []
    assert signature.params is None, "there is nothing to draw"


def test_what_finds_targets_or_spans_writes_text(tmp_path):
    for kind, family, prompt in (
        ("pairs", "decoder", "a b"),
        ("text", "encoder_decoder", "a [MASK] b"),
    ):
        (tmp_path / family).mkdir()
        run, model, signature = served(tmp_path / family, kind, family=family)
        assert model.predict([prompt], params={"max_new_tokens": 3}) == [
            run.generate(prompt, max_new_tokens=3)
        ]
        assert "max_new_tokens" in {each.name for each in signature.params}
