"""Describe a study in MLflow: its page, its tags and params, its tables and its datasets."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from sweeplab.tracking.tracker import Description, StudySummary

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

PARAM_CHARACTERS = 6000  # MLflow silently truncates a longer one
DIGEST_CHARACTERS = 16  # MLflow allows 36
TRIALS_ON_PAGE = 5


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as MLflow params."""
    return {
        name: (json.dumps(value, default=str) if isinstance(value, dict) else str(value))[:PARAM_CHARACTERS]
        for name, value in values.items()
    }


def json_text(content: Mapping[str, Any] | None) -> str:
    """Return the text of a JSON artifact; an empty text if there is no content."""
    return json.dumps(content, indent=1, default=str) if content else ""


def environment_tags(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of the environment that are shown beside a run, as tags."""
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
    """Return rows as CSV with the columns of all of them: MLflow shows such an artifact as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def datasets(data: Mapping[str, Any]) -> list[DatasetInput]:
    """Return a study's training and validation data as MLflow datasets; `data` is a DataDescription."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    found = []
    for split, context in (("train", "train"), ("val", "validation")) if data else ():
        names = (f"{split}_tokens", "tokenizer", "vocab_size", "text_digest")
        source = json.dumps({"tags": {"corpus": data["corpus"], "tokenizer": data["tokenizer"]}})
        profile = json.dumps({name: data[name] for name in names})
        digest = data["token_digest"][:DIGEST_CHARACTERS]
        dataset = Dataset(f"{data['corpus']} {split}", digest, "code", source, profile=profile)
        found.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
    return found


def page(description: Description, summary: StudySummary, links: Mapping[str, str]) -> str:
    """Return a study's description in the UI, as Markdown, results first: MLflow shows only its first lines.

    `links` maps the keys of the best trials to their runs, and `report` to the study's report.
    """
    counts = ", ".join(f"{count} {state}" for state, count in summary.get("counts", {}).items())
    trials = summary.get("best_trials", ())[:TRIALS_ON_PAGE]
    state = summary.get("state", "interrupted")
    best, metric = summary.get("best_value"), summary.get("metric", "val_loss")
    leads = (
        [f"**Best {metric} {best:.4f}**: {_in_words(trials[0], links)}"]
        if best is not None and trials
        else []
    )
    leads += [f"[Report]({links['report']})"] if "report" in links else []
    commands = " · ".join(f"`{command}`" for command in summary.get("commands", ()))
    parts = [
        "  \n".join([*leads, *([f"Next commands: {commands}"] if commands else [])]),
        f"**{state}**{f': runs {counts}' if counts else ''}",
        f"## Best trials\n\n{_best(trials, links)}" if trials else "",
        description.get("note", ""),
        _table([("", ""), *texts(description.get("params", {})).items()]),
        "Artifacts: the study file, its plan, its environment, its best trials, and its report.",
    ]
    return "\n\n".join(filter(None, parts))


def _in_words(trial: Mapping[str, Any], links: Mapping[str, str]) -> str:
    searched = (name for name in trial if name not in ("key", "value", "n_params"))
    said = ", ".join(f"{name} {_short(trial[name])}" for name in searched)
    return f"{_linked(trial['key'], links)}{f', {said}' if said else ''}"


def _linked(key: str, links: Mapping[str, str]) -> str:
    return f"[{key}]({links[key]})" if key in links else key


def _best(trials: Sequence[Mapping[str, Any]], links: Mapping[str, str]) -> str:
    names = list(dict.fromkeys(name for trial in trials for name in trial if name != "key"))
    rows = [
        [
            _linked(trial["key"], links),
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
    """Return a Markdown table; the first row is its heading."""
    lines = [f"| {' | '.join(text.replace('|', '&#124;') for text in row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
