"""A trained run as an MLflow model. Models that were logged name this module, so it stays where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.data.objectives import objective_of
from sweeplab.runs.run import Run
from sweeplab.tracking.models import RETURNED, WRITTEN, load_checkpoint


@dataclass(frozen=True)
class ServedModel:
    """A trained run as the model that MLflow calls, for `mlflow.pyfunc.load_model` or `mlflow models serve`."""

    run: Run

    def predict(
        self, model_input: Any, params: Mapping[str, Any] | None = None
    ) -> list[str] | list[dict[str, Any]]:
        """Return the run's text for each row, or its label, under the names of the model's signature.

        A row is a text: given alone, in a list or as a frame's first column. A run that predicts something else than
        text, such as labels, returns what `Run.predict` does; others continue each text, with the `params` of
        `Run.generate`.

        Raises:
            BadInput: the tokenizer cannot encode a text, or a parameter is out of range.
        """
        if hasattr(model_input, "iloc"):
            model_input = model_input.iloc[:, 0]
        if isinstance(model_input, str):
            model_input = [model_input]
        texts = [str(text) for text in model_input]
        kind = objective_of(self.run.values).learns
        if kind in WRITTEN:
            return [self.run.generate(text, **(params or {})) for text in texts]
        return [
            {name: row[name] for name in RETURNED.get(kind, row)}
            for row in self.run.predict(texts)
        ]


def _load_pyfunc(path: str) -> ServedModel:
    return ServedModel(Run.of(load_checkpoint(Path(path), Path(path).name)))
