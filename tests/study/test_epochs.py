"""Epochs as a unit of how long runs train: max_iters follows from the data."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny_study import FIXED

from sweeplab.data.task import DataSizes
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.search import Range
from sweeplab.study.space import Space, cells
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.trials.store import Store
from sweeplab.sweep.work.runner import Runner

SIZES = DataSizes(65, train_tokens=10_000)
WITHOUT = {name: value for name, value in FIXED.items() if name != "max_iters"}


def written(**parts) -> dict:
    return {"name": "e", "data": {"corpus": "python-docs", "tokenizer": "char"}, **parts}


def resolved(sampled: dict | None = None, sizes: DataSizes | int = SIZES, **parts) -> Hyperparameters:
    spec = read_plain(written(**parts))
    return Space(spec, cells(spec, sizes)[0][-1], sizes).resolve(sampled or {}, 0)


def test_an_epoch_has_as_many_sequences_as_the_training_split() -> None:
    fixed = {"block_size": 16, "batch_size": 4}
    assert resolved(fixed=fixed | {"epochs": 3}).max_iters == math.ceil(3 * 10_000 / 64)
    assert resolved(fixed=fixed | {"epochs": 3, "data_limit": 2_000}).max_iters == math.ceil(3 * 2_000 / 64)
    pairs = DataSizes(65, train_tokens=10_000, train_pairs=101)
    assert resolved(fixed=fixed | {"epochs": 2}, sizes=pairs).max_iters == math.ceil(202 / 4)
    assert resolved(fixed=fixed | {"epochs": 1e-6}).max_iters == 1
    assert resolved(fixed=fixed).epochs is None


def test_epochs_are_cells_and_are_searched_and_others_follow_from_them() -> None:
    search = {"warmup_iters": {"expr": "max_iters // 10"}}
    last = resolved(fixed={"block_size": 10, "batch_size": 10}, grid={"epochs": [1, 2]}, search=search)
    assert (last.max_iters, last.warmup_iters) == (200, 20)
    searched = {"epochs": {"min": 1, "max": 4}, **search}
    found = resolved({"epochs": 1.5}, fixed={"block_size": 10, "batch_size": 10}, search=searched)
    assert (found.max_iters, found.warmup_iters) == (150, 15)


def test_rules_of_max_iters_hold_for_what_follows() -> None:
    parts = {"fixed": {"block_size": 10, "batch_size": 10}, "grid": {"epochs": [1, 5]}}
    spec = read_plain(written(**parts, constraints=["max_iters <= 200"]))
    assert [cell.key for cell in cells(spec, SIZES)[0]] == ["epochs=1.0"]
    assert len(cells(spec, None)[0]) == 2, "before the data are read nothing is known of it"


@pytest.mark.parametrize(
    "parts",
    [
        {"fixed": {"epochs": 3, "max_iters": 5}},
        {"fixed": {"max_iters": 5}, "search": {"epochs": {"min": 1, "max": 2}}},
        {"fixed": {"epochs": 5}, "cells": [{}, {"max_iters": 7}]},
    ],
)
def test_one_of_the_two_says_how_long(parts: dict) -> None:
    with pytest.raises(
        BadInput, match="max_iters and epochs both set how long runs train; allowed: only one of"
    ):
        read_plain(written(**parts))
    assert read_plain(written(fixed={"epochs": None, "max_iters": 5})).fixed["max_iters"] == 5


def test_the_command_line_takes_one_in_place_of_the_other(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\ndata: {corpus: python-docs, tokenizer: char}\npreset: nanogpt-char\nfixed: {epochs: 2}\n"
    )
    assert "max_iters" not in read_study(file).fixed, "not the preset's either"
    fixed = read_study(file, ["max_iters=70"]).fixed
    assert (fixed["max_iters"], fixed.get("epochs")) == (70, None)
    assert read_study(file, ["epochs=4"]).fixed["epochs"] == 4


@pytest.mark.usefixtures("one_thread")
def test_a_run_trains_so_long_and_says_so(tiny, opened, dataset, tmp_path: Path) -> None:
    share = 25 * 64 / len(dataset.train)
    spec = tiny(search={"epochs": Range(share / 5, share)})
    spec = spec.model_copy(update={"fixed": WITHOUT})
    (cell,) = make_plan(spec, tmp_path / "lab")[0].cells
    assert cell.max_iters is None and cell.train_tokens < 26 * 64
    spec = spec.model_copy(update={"search": {}, "fixed": WITHOUT | {"epochs": share}})
    plan, found, _ = make_plan(spec, tmp_path / "lab")
    assert (plan.cells[0].max_iters, plan.cells[0].epochs) == (25, share)
    folder = StudyFolder(tmp_path / "lab", spec.name)
    store = Store.create(spec, found, plan.data.sizes, folder.storage_url)
    Runner(spec, store, dataset, folder).work()
    (run,) = folder.runs()
    assert run.read_end().iteration == 25
    assert (run.read_start().values.max_iters, run.read_start().values.epochs) == (25, share)
