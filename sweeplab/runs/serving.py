"""A trained run as MLflow serves it, by `mlflow.pyfunc.load_model` or `mlflow models serve`: texts in, texts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.runs.run import Run
from sweeplab.tracking.loading import load_checkpoint


@dataclass(frozen=True)
class TextModel:
    """What MLflow calls: `run` is the run that answers."""

    run: Run

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> list[str]:
        """Return what the run writes after each prompt: a text, several, or the first column of a frame.

        `params` are those of `Run.generate`.
        """
        prompts: Sequence[str]
        if hasattr(model_input, "iloc"):
            prompts = model_input.iloc[:, 0].tolist()
        else:
            prompts = [model_input] if isinstance(model_input, str) else list(model_input)
        return [self.run.generate(str(prompt), **(params or {})) for prompt in prompts]


def _load_pyfunc(path: str) -> TextModel:
    return TextModel(Run.of(load_checkpoint(Path(path), Path(path).name)))
