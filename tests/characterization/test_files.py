"""What a study leaves behind: its folder, its runs' folders, its tables, and what MLflow has of it."""

import csv
import json
import re

import pytest
from characterization.conftest import command
from characterization.shape import Shapes

# What a file's name has of a digest or a number of its own.
_OWN = re.compile(r"[0-9a-f]{12,}|(?<=/)\d+-\d+(?=/)|(?<=worker-)\d+")


def names(folder):
    """Return the files of a folder, alike ones as one with their number."""
    found = {}
    for file in sorted(
        path for path in folder.rglob("*") if path.is_file() and not is_passing(path)
    ):
        name = _OWN.sub("*", str(file.relative_to(folder)))
        found[name] = found.get(name, 0) + 1
    return found


def is_passing(path):
    """Say whether SQLite has the file while a database is open, or a worker after its first ten seconds."""
    return path.parent.name == "system" or path.name.endswith(("-wal", "-shm", "-journal"))


def loaded(file):
    text = file.read_text()
    return (
        [json.loads(line) for line in text.splitlines()]
        if file.suffix == ".jsonl"
        else json.loads(text)
    )


@pytest.mark.slow
def test_the_labs_files(lab, golden):
    for name in ("alpha", "gamma"):
        golden.check(f"files of {name}", names(lab.studies / name))
    golden.check(
        "files of the lab",
        sorted(path.name for path in (lab.place / "lab").iterdir() if not is_passing(path)),
    )


def test_the_studys_json(lab, shapes, golden):
    for study in ("alpha", "beta"):
        for file in sorted((lab.studies / study).glob("*.json")):
            golden.check(f"{study}/{file.name}", shapes.of(loaded(file)))
    kept = (lab.studies / "alpha" / "study.yaml").read_text()
    assert kept == (lab.place / "alpha.yaml").read_text(), (
        "the study file is kept as it was written"
    )


@pytest.mark.parametrize("run", ["runs/n_layer=1/1-0", "runs/n_layer=2/2-1"])
def test_a_runs_files(run, lab, golden):
    folder = lab.studies / "alpha" / run
    shapes = Shapes(lab.place, brief=run != "runs/n_layer=1/1-0")
    for name in ("run.json", "end.json"):
        golden.check(f"{run}/{name}", shapes.of(loaded(folder / name)))
    kinds = {}
    for point in loaded(folder / "points.jsonl"):
        kinds.setdefault("points with " + " ".join(point), []).append(point["iteration"])
    golden.check(f"{run}/points.jsonl", kinds)
    for file in sorted(folder.glob("best/*.json")):
        golden.check(f"{run}/best/{file.name}", shapes.of(loaded(file)))


def test_how_the_runs_of_a_steered_study_ended(lab, golden):
    shapes = Shapes(
        lab.place, unlike=("iteration", "train_tokens", "train_flops", "stop_reason", "error")
    )
    for file in sorted((lab.studies / "beta").glob("runs/*/*/end.json")):
        golden.check(f"beta/{file.parent.name}/end.json", shapes.of(loaded(file)))


def test_tables(lab, place, tmp_path, golden):
    command(f"export alpha --output {tmp_path}/runs.csv")
    reports = [lab.studies / "alpha" / "report", lab.place / "lab" / "reports" / "alpha+gamma"]
    for file in [
        tmp_path / "runs.csv",
        *sorted(each for folder in reports for each in folder.glob("*.csv")),
    ]:
        with file.open(newline="") as lines:
            rows = list(csv.reader(lines))
        golden.check(file.name, {"rows": len(rows) - 1, "columns": " ".join(rows[0])})
    with (tmp_path / "runs.csv").open(newline="") as lines:
        told = (
            "cell",
            "trial",
            "seed",
            "state",
            "n_params",
            "train_tokens",
            "iterations",
            "weight_decay",
        )
        runs = [
            " ".join(row[name] for name in told)
            + f" {float(row['learning_rate']):.6g} {float(row['value']):.3g}"
            for row in csv.DictReader(lines)
        ]
    golden.check("runs: " + " ".join((*told, "learning_rate", "value")), runs)


def test_reports_for_programs(lab, shapes, golden):
    files = [
        *(lab.studies / "alpha" / "report").glob("*.json"),
        *(lab.place / "lab").glob("reports/*/*.json"),
    ]
    for file in sorted(files):
        report = loaded(file)
        panels = {each["title"]: _panel(each) for each in report.pop("panels")}
        golden.check(f"report {file.name}", {**shapes.of(report), "panels": panels})


def _panel(panel):
    data = panel.get("data")
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return f"{len(data)} rows: {' '.join(data[0])}"
    return sorted(data) if isinstance(data, dict) else " ".join(sorted(panel))


# MLflow's own, where nothing in this process has asked its database before.
@pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy:sqlalchemy.exc.SADeprecationWarning"
)
def test_mlflow(lab, shapes, golden):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{lab.place}/lab/mlflow.db")
    for study in ("alpha", "beta"):
        experiment = client.get_experiment_by_name(study)
        runs = client.search_runs([experiment.experiment_id])
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        nested = sorted(
            (run for run in runs if run not in parents), key=lambda run: run.info.run_name
        )
        found = {"experiment": shapes.of(dict(experiment.tags)), "runs": len(runs)}
        found |= {"parent": [_described(client, run, shapes) for run in parents]}
        golden.check(f"MLflow: {study}", found)
        if study == "alpha":
            for run in (nested[0], nested[-1]):
                golden.check(
                    f"MLflow: run {run.info.run_name}", _described(client, run, shapes)
                )
            names_of_metrics = {name for run in nested for name in run.data.metrics}
            golden.check("MLflow: metrics of all runs", sorted(names_of_metrics))
            steps = {
                name: len(client.get_metric_history(nested[0].info.run_id, name))
                for name in names_of_metrics
            }
            golden.check("MLflow: points of a run", dict(sorted(steps.items())))


def _described(client, run, shapes):
    paths = _paths(client, run.info.run_id)
    # This one of a dirty checkout.
    artifacts = [_OWN.sub("*", path) for path in paths if path != "code.diff"]
    params = {name: shapes.text(value) for name, value in sorted(run.data.params.items())}
    metrics = [
        name for name in sorted(run.data.metrics) if not name.startswith("system/")
    ]  # if it takes seconds
    return {
        "name": run.info.run_name,
        "status": run.info.status,
        "tags": {
            name: _tag(name, value, shapes) for name, value in sorted(run.data.tags.items())
        },
        "params": params if len(params) < 40 else f"{len(params)}: " + " ".join(params),
        "metrics": " ".join(metrics),
        "artifacts": artifacts,
    }


def _tag(name, value, shapes):
    if name == "mlflow.note.content":
        return [
            shapes.text(line.split("|")[1] if line.startswith("|") else line)
            for line in value.splitlines()
        ]
    ours = name.startswith("sweeplab.") and name not in (
        "sweeplab.device",
        "sweeplab.git_dirty",
    )
    is_ours = ours or name in ("mlflow.runColor", "mlflow.runName")
    return shapes.of(value, name) if is_ours else "<str>"


def _paths(client, run_id, path=None):
    found = []
    for each in client.list_artifacts(run_id, path):
        found += _paths(client, run_id, each.path) if each.is_dir else [each.path]
    return found
