"""How a study describes itself in MLflow: values as params, facts of the machine as tags, a page to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PARAM_CHARACTERS = 6000  # MLflow cuts a longer one silently


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Write values as params: a pair that went through JSON as a list reads as the tuple it is."""
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return {
        name: (json.dumps(value, default=str) if isinstance(value, dict) else str(value))[:PARAM_CHARACTERS]
        for name, value in plain.items()
    }


def json_text(content: Mapping[str, Any] | None) -> str:
    """Write an artifact; nothing is an empty text."""
    return json.dumps(content, indent=1, default=str) if content else ""


def environment_tags(environment: Mapping[str, Any]) -> dict[str, str]:
    """Pick what a person wants to see beside a run."""
    repositories = environment.get("git", {})
    git = repositories.get("code") or repositories.get("study") or {}
    device = environment.get("device", {})
    tags = {
        "mlflow.source.name": "sweeplab",
        "mlflow.source.git.commit": git.get("commit"),
        "sweeplab.git_dirty": git.get("dirty"),
        "sweeplab.python": environment.get("python"),
        "sweeplab.torch": environment.get("packages", {}).get("torch"),
        "sweeplab.device": ", ".join(gpu["name"] for gpu in device.get("gpus", [])) or device.get("cpu"),
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def page(study: str, note: str, params: Mapping[str, str]) -> str:
    """Write what a person reads first in the UI."""
    rows = [f"| {name} | {text.replace('|', '&#124;')} |" for name, text in params.items()]
    table = "\n".join(["| | |", "|---|---|", *rows])
    where = "The nested runs are its trainings; study file, plan and environment are among the artifacts."
    return f"# {study}\n\n{note}\n\n{table}\n\n{where}"
