"""A study's runs as one table: from tracking, through files, and what is refused."""

import json
import math
import sys

import pandas as pd
import pytest
from terminal import said

from sweeplab.analysis.table import (
    COLUMNS,
    CURVES,
    HYPERPARAMETERS,
    curves_table,
    export,
    runs_table,
)
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE, defaults
from sweeplab.model.shape import settled
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking import open_tracker

SETTLED = {"vocab_size": 65, "dtype": "float32", "compile": False}
# What says nothing of a decoder of next tokens that is evaluated on a number of targets.
UNSAID = {
    "eval_iters": 1,
    "eval_tokens": 500,
    "mask_share": 0.3,
    "relative_buckets": 8,
    "decay_share": 0.5,
}
VALUES = settled(defaults() | {"batch_size": 4, "block_size": 16} | SETTLED | UNSAID)
RUNS = {
    "n_embd=128/0/0": "complete",
    "n_embd=32/0/0": "pruned",
    "n_embd=32/0/1": "diverged",
    "n_embd=32/10/0": "failed",
    "n_embd=32/2/0": "",
}


def write(folder, key, state):
    folder.mkdir(parents=True)
    values = VALUES | {
        "n_embd": int(key.split("/")[0][7:]),
        "seed": int(key[-1]),
        "patience": None,
    }
    facts = {"n_params": 1234, "n_params_active": 1234, "n_params_non_embedding": 1000}
    cell, trial, seed = key.split("/")
    place = {"key": key, "cell": cell, "trial": int(trial), "seed": int(seed)}
    run = {**place, "values": values, "facts": facts, "started": 1e9}
    (folder / "run.json").write_text(json.dumps(run))
    with (folder / "points.jsonl").open("w") as points:
        for at in (0, 10, 20):
            line = {"iteration": at, "train_tokens": 64 * at, "wall_seconds": float(at)}
            losses = {"val_loss": 4 - at / 16} | ({"train_loss": 3 - at / 16} if at else {})
            points.write(json.dumps(line | losses) + "\n")
    end = {
        "state": state,
        "iteration": 20,
        "best_val_loss": 2.75,
        "final_val_loss": 2.75,
        "value": 2.75,
    }
    end |= {
        "train_tokens": 1280,
        "train_flops": 3e19,
        "wall_seconds": 20.5,
        "ending": {"outcome": state, "value": 2.75},
    }
    if state == "diverged":
        end["final_val_loss"] = math.nan
    if state:
        (folder / "end.json").write_text(json.dumps(end))
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        lab = tmp_path_factory.mktemp("lab")
        for study in ("small", "empty", "another"):
            tracker = open_tracker(lab, study, None)
            tracker.open({})
            for key, state in RUNS.items():
                if study != "empty":
                    cell, trial, seed = key.split("/")
                    place = StudyFolder(lab, study).run(cell, int(trial), int(seed)).path
                    tracker.ship(write(place, key, state))
        yield lab


@pytest.fixture(scope="module")
def table(lab):
    return runs_table(lab, "small")


@pytest.mark.slow
def test_a_row_a_run_in_the_order_of_people(table):
    rows = list(zip(table["cell"], table["trial"], table["seed"], table["state"], strict=True))
    assert rows == [
        ("n_embd=32", 0, 0, "pruned"),
        ("n_embd=32", 0, 1, "diverged"),
        ("n_embd=32", 2, 0, "waiting"),
        ("n_embd=32", 10, 0, "failed"),
        ("n_embd=128", 0, 0, "complete"),
    ]
    assert table["run_id"].is_unique and set(table["study"]) == {"small"}


def test_columns_types_and_values(table):
    assert set(HYPERPARAMETERS) == set(TABLE) - {"seed"}
    assert {
        name: str(dtype) for name, dtype in table.dtypes.items()
    } == COLUMNS | HYPERPARAMETERS
    by_state = table.set_index("state")
    best, waiting, diverged = (
        by_state.loc[state] for state in ("complete", "waiting", "diverged")
    )
    # What does not apply to a run is what it was given: one evaluated on one batch never had the table's 20.
    ends = {
        "iterations": 20,
        "train_flops": 3e19,
        "n_params": 1234,
        "betas": "(0.9, 0.95)",
        "value": 2.75,
    } | UNSAID
    ends |= {
        name: VALUES[name] for name in ("n_layer", "learning_rate", "batch_size", "optimizer")
    }
    assert {name: best[name] for name in ends} == ends
    assert (
        best[["n_encoder_layer", "n_decoder_layer", "mup_base_head_dim", "patience"]]
        .isna()
        .all()
    )
    assert waiting["n_params"] == 1234 and waiting["train_tokens"] is pd.NA
    losses = ["best_val_loss", "final_val_loss", "value"]
    assert (
        waiting[losses].isna().all()
        and diverged[losses].isna().all()
        and diverged["iterations"] == 20
    )


def test_a_study_without_runs_and_no_study(lab, tmp_path):
    StudyFolder(lab, "empty").canonical_file.write_text("{}")
    assert runs_table(lab, "empty").empty
    assert list(runs_table(lab, "empty").columns) == [*COLUMNS, *HYPERPARAMETERS]
    assert list(curves_table(lab, "empty").columns) == list(CURVES)
    with pytest.raises(BadInput, match="study smal has not been run in"):
        runs_table(lab, "smal")
    with pytest.raises(BadInput, match="study small has not been run in"):
        runs_table(tmp_path, "small")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_gives_the_same_table_again(suffix, table, tmp_path):
    path = tmp_path / f"runs{suffix}"
    path.write_text("what was there before")
    export(table, path)
    assert list(tmp_path.iterdir()) == [path]
    read = pd.read_csv if suffix == ".csv" else pd.read_parquet
    pd.testing.assert_frame_equal(read(path).astype(table.dtypes), table)


def test_what_cannot_be_exported(table, tmp_path):
    with pytest.raises(BadInput, match=r"suffix '.xlsx'; allowed: .csv or .parquet"):
        export(table, tmp_path / "runs.xlsx")
    with pytest.raises(BadInput, match="cannot be written"):
        export(table, tmp_path / "missing" / "runs.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_records_are_read_without_mlflow_and_without_a_database(lab, table):
    program = """
import sys
from pathlib import Path
from sweeplab.analysis.table import curves_table, runs_table
lab = Path(sys.argv[1])
print(len(runs_table(lab, "small")), len(curves_table(lab, "small")))
assert not {"mlflow", "sqlalchemy", "optuna", "torch"} & sys.modules.keys()
"""
    (lab / "mlflow.db").rename(lab / "elsewhere.db")
    try:
        found = said([sys.executable, "-c", program, str(lab)])
    finally:
        (lab / "elsewhere.db").rename(lab / "mlflow.db")
    assert [*map(int, found.split())] == [len(table), len(RUNS) * 5]


def test_the_first_record_of_a_repeated_iteration_counts(tmp_path):
    folder = write(
        StudyFolder(tmp_path, "small").run("n_embd=32", 0, 0).path, "n_embd=32/0/0", "complete"
    )
    again = {
        "iteration": 10,
        "train_tokens": 640,
        "wall_seconds": 99.0,
        "train_loss": 9.0,
        "val_loss": 9.0,
    }
    with (folder / "points.jsonl").open("a") as points:
        points.write(json.dumps(again) + "\n")
    curves = curves_table(tmp_path, "small", ["val_loss", "train_loss"])
    assert list(zip(curves["metric"], curves["iteration"], curves["value"], strict=True)) == [
        ("val_loss", 0, 4.0), ("val_loss", 10, 3.375), ("val_loss", 20, 2.75),
        ("train_loss", 10, 2.375), ("train_loss", 20, 1.75),
    ]  # fmt: skip
