"""How a study describes itself in MLflow: values as params, facts of the machine as tags, a page to read."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from sweeplab.records.runs import RunState
from sweeplab.tracking.tracker import Description, Summary

# In charts a run that reached its end has one of MLflow's own colors, and these tell the others apart.
COLOR_OF_STATE = {
    RunState.PRUNED: "#b3b3b3",
    RunState.STOPPED: "#2e7d32",
    RunState.DIVERGED: "#e65100",
    RunState.FAILED: "#c62828",
}
PARAM_CHARACTERS = 6000  # MLflow cuts a longer one silently
TRIALS_ON_PAGE = 5


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


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as CSV under all the names that any of them has: MLflow shows such an artifact as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def page(study: str, description: Description, summary: Summary, links: Mapping[str, str]) -> str:
    """Write what a person reads first of a study in the UI, in Markdown.

    `links` leads from the keys of the best trials to their runs.
    """
    counts = ", ".join(f"{count} {state}" for state, count in summary.get("counts", {}).items())
    trials = summary.get("best_trials", ())[:TRIALS_ON_PAGE]
    parts = [
        f"# {study}",
        f"**{summary.get('state', 'interrupted')}**{f': runs {counts}' if counts else ''}",
        f"## Best trials\n\n{_best(trials, links)}" if trials else "",
        description.get("note", ""),
        _table([("", ""), *texts(description.get("params", {})).items()]),
        "Among the artifacts: the study file, its plan, where it ran, its best trials, and its report.",
    ]
    return "\n\n".join(filter(None, parts))


def _best(trials: Sequence[Mapping[str, Any]], links: Mapping[str, str]) -> str:
    names = list(dict.fromkeys(name for trial in trials for name in trial if name != "key"))
    rows = [
        [
            f"[{trial['key']}]({links[trial['key']]})" if trial["key"] in links else trial["key"],
            *(_short(trial.get(name, "")) for name in names),
        ]
        for trial in trials
    ]
    return _table([["trial", *names], *rows])


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; the first row is its heading."""
    lines = [f"| {' | '.join(text.replace('|', '&#124;') for text in row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
