"""A trained run as an MLflow model, for `mlflow.pyfunc.load_model` or `mlflow models serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from sweeplab.data.objectives import objective_of
from sweeplab.runs.run import Run
from sweeplab.tracking.loading import load_checkpoint
from sweeplab.tracking.models import RETURNED, TAKEN


@dataclass(frozen=True)
class ServedModel:
    """The model that MLflow calls; `run` does the work."""

    run: Run

    def predict(
        self, model_input: Any, params: Mapping[str, Any] | None = None
    ) -> list[str] | list[dict[str, Any]]:
        """Return the run's label, tags, score or text for each row, under the names of the model's signature.

        A row is a text (given alone, in a list or as a frame's first column), or in a frame the two texts to score. A
        run that predicts neither labels nor scores continues each text, with the `params` of `Run.generate`.

        Raises:
            BadInput: the tokenizer cannot encode a text, or a parameter is out of range.
        """
        kind = objective_of(self.run.values).learns
        if kind not in RETURNED:
            return [self.run.generate(text, **(params or {})) for text in _texts(model_input)]
        if kind == "scores":
            # MLflow turns a dictionary of lists into one row.
            pairs = model_input[[*TAKEN["scores"]]].explode([*TAKEN["scores"]])
            found = self.run.score(pairs.values.tolist())
        else:
            found = self.run.classify(_texts(model_input))
        return [{name: _FOUND[name](each) for name in RETURNED[kind]} for each in found]


# By a name of the signature, its value in what `Run.classify` and `Run.score` return.
_FOUND: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "label": itemgetter("label"),
    "probability": lambda found: found["probabilities"][found["label"]],
    "words": lambda found: [each["word"] for each in found["tags"]],
    "labels": lambda found: [each["label"] for each in found["tags"]],
    "score": itemgetter("score"),
}


def _texts(model_input: Any) -> list[str]:
    if hasattr(model_input, "iloc"):
        model_input = model_input.iloc[:, 0].tolist()
    return [model_input] if isinstance(model_input, str) else [str(each) for each in model_input]


def _load_pyfunc(path: str) -> ServedModel:
    return ServedModel(Run.of(load_checkpoint(Path(path), Path(path).name)))
