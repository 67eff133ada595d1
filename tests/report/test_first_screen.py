"""What a reader sees first of each page: what was asked, the answer with its uncertainty, the best trial."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import CELLS, plant_sweep
from lab.test_findings import plant, valley
from pandas import DataFrame

import sweeplab
from sweeplab.analysis.studies import Studies
from sweeplab.api import Study, report_data
from sweeplab.formatting import sentence
from sweeplab.laws.forms import LAWS, Law, parameters_of
from sweeplab.records.folders import StudyFolder
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import make_panel, read_dashboard
from sweeplab.report.summary import SUMMARIES, Summary, _law_in_words
from sweeplab.study.search import Range
from sweeplab.study.spec import StudySpec
from sweeplab.sweep import steering


def first_screen(page: str, *tables: DataFrame, report: ReportData | None = None) -> Summary:
    report = report or ReportData.of_study(pd.concat(tables, ignore_index=True), DataFrame())
    asked = read_dashboard(page=page).panels
    wanted = {"verdicts", "choices", "differences"}
    return SUMMARIES[page](report, [make_panel(each, report) for each in asked if each.panel in wanted])


@pytest.mark.slow
def test_a_sweeps_page_opens_with_what_mattered_and_good_values() -> None:
    said = first_screen("sweep", plant_sweep(40, CELLS[:3]))
    lowest, mattered, good, ranked, *_ = said.answers
    assert re.match(
        r"The best trial has a loss of \d\.\d{4} nats/token with n_layer \d, n_embd \d+, ", lowest
    )
    assert said.asked.startswith(
        "Which hyperparameters matter (activation, dropout, learning_rate and weight_decay) in each of 3 cells"
    )
    assert re.match(r"Share of the importance: learning_rate \d+%", mattered)
    assert "activation" in mattered.split("; not distinguishable from chance: ")[1]
    low, high = map(float, re.search(r"learning_rate (\S+) to (\S*\d)", good).groups())
    assert low < 10**-2.5 < high < 30 * low, "the best rate that was planted, in less than half of its range"
    assert "whether by more than chance is undecided" in ranked, "of one seed"
    few = first_screen("sweep", plant_sweep(3, CELLS[:1])).answers
    assert few[1].endswith("matter is open: that takes 10 trials or more, and there are 3.")


def test_a_scaling_page_says_where_the_loss_goes_and_what_of_a_law_is_known() -> None:
    runs = plant_sweep(
        4, ((1, 32), (2, 64), (4, 96)), loss=lambda values: 3 - values["n_layer"] / 10, noise=0
    )
    said = first_screen("scaling", runs)
    assert said.asked.startswith(
        "How does the loss depend on n_embd and n_layer? Compared: 3 cells, each by its best trial"
    )
    n_params = sorted(runs["n_params"].unique())
    lowest = runs.groupby("n_params")["best_val_loss"].min()
    assert said.answers[0] == (
        f"From {n_params[0]:,} to {n_params[-1]:,} parameters the best trial's loss on the evaluation targets goes "
        f"from {lowest.iloc[0]:.4f} to {lowest.iloc[-1]:.4f}."
    )


@pytest.mark.parametrize(
    ("n_layer", "n_embd", "says"),
    [
        (0.9, 0.8, "n_embd helps most"),
        (0.8, 0.9, "n_layer helps most"),
        (1.02, 1.01, "Larger is not better here"),
    ],
)
def test_what_each_size_does_is_said_first(n_layer: float, n_embd: float, says: str) -> None:
    def loss(values) -> float:
        wanted = 3 * n_layer ** np.log2(values["n_layer"]) * n_embd ** np.log2(values["n_embd"] / 32)
        return (wanted - 3 + 0.2 * values["n_layer"] + 0.005 * values["n_embd"]) / 0.3

    cells = [(a, b) for a in (1, 2, 4) for b in (32, 64)]
    first, *_ = first_screen("scaling", plant_sweep(2, cells, loss=loss, noise=0)).answers
    assert first.startswith(f"{says}: a doubling multiplies the loss on the evaluation targets by ")
    assert f"{n_layer:.3f} for n_layer" in first and f"{n_embd:.3f} for n_embd" in first


def test_a_comparison_says_what_differs_and_what_stands_behind_each_side() -> None:
    ours, theirs = (
        plant_sweep(12, CELLS[:5], 2),
        plant_sweep(20, CELLS[:5], 2, name="other", shift=0.3, key=1),
    )
    said = first_screen("compare", ours, theirs.assign(dtype="bfloat16"))
    behind = dict(said.entries)
    assert "12 trials per cell, 2 seeds" in behind["planted"]
    assert "20 trials per cell, 2 seeds" in behind["other"]
    assert behind["Set differently"] == "dtype float32 / bfloat16 (planted / other)"
    assert said.answers[0].startswith("planted has the lowest loss: ")
    assert said.answers[1].startswith("other against planted: different, +0.")


def test_a_comparison_knows_how_the_files_differ(tmp_path: Path) -> None:
    text = "name: {}\ndata: {{corpus: python-docs, tokenizer: char}}\n"
    text += "search: {{learning_rate: {{min: 1e-4, max: {}}}}}\n"
    specs = {}
    for name, rate in (("a", "1e-2"), ("b", "1e-1")):
        (tmp_path / f"{name}.yaml").write_text(
            text.format(name, rate) + f"budget: {{trials_per_cell: {len(name)}}}\n"
        )
        specs[name] = sweeplab.load_study(tmp_path / f"{name}.yaml").spec
    runs = pd.concat([plant_sweep(3, CELLS[:1], name=name) for name in specs], ignore_index=True)
    report = ReportData.of_study(runs, DataFrame(), Studies(runs, specs, {name: {} for name in specs}))
    assert (
        dict(first_screen("compare", report=report).entries)["Set differently"]
        == "search.learning_rate.max 0.01 / 0.1 (a / b)"
    )


@pytest.mark.parametrize("page", ["scaling", "sweep"])
def test_what_limited_the_best_trials_is_on_the_first_screen(page: str, tmp_path: Path) -> None:
    findings = plant(tmp_path, valley, baseline=1.5, patience=5)
    runs = plant_sweep(3, CELLS[:1])
    report = ReportData.of_study(runs, DataFrame(), Studies(runs, {}, {}), tmp_path)
    told = [text for name, text in SUMMARIES[page](report, []).entries if name == "To change"]
    assert told == [" ".join(sentence(finding.in_words()) for finding in findings)] and len(findings) == 2


@pytest.mark.parametrize(("sizes", "page"), [([9], "sweep"), ([9, 9], "sweep"), ([9, 16], "scaling")])
def test_a_study_of_one_size_ends_with_the_page_of_its_trials(sizes, page: str, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path, "study")
    folder.plan_file.parent.mkdir(parents=True)
    cells = [{"n_params": size, "train_tokens": 100} for size in sizes]
    folder.plan_file.write_text(json.dumps({"cells": cells}))
    assert folder.main_page == page


@pytest.mark.slow
def test_a_page_opens_with_the_state_of_its_study(tiny: Callable[..., StudySpec], tmp_path: Path) -> None:
    def answers(study: Study, page: str) -> Summary:
        said = SUMMARIES[page](report_data(study.lab, [study.folder.name]), [])
        texts = [*said.answers, *(text for _, text in said.entries)]
        assert not [
            text for text in texts if "no limits" in text or "cannot be told" in text or " yet" in text
        ]
        names = [name for name, _ in said.entries]
        assert len(names) == len(set(names)), "no name stands twice"
        return said

    study = Study(tiny(), tmp_path / "lab")
    ended = study.run(progress=False)
    assert ended.report.name == "sweep.html", "the page of a study of one cell"
    said = answers(study, "sweep")
    assert said.answers[0].startswith("The best trial has a loss of ") and "study confirm tiny" in said.then
    said = answers(study, "scaling")
    assert said.answers == [
        "There is one cell, so no size is compared: its trials are on the page of the sweep."
    ]
    assert "report sweep tiny" in said.then
    steering.extend(study.folder, 8, None)
    said = answers(study, "sweep")
    assert said.answers[0] == "Interrupted: 4 of 8 trials have ended, in 1 of 1 cell."
    assert "study resume tiny" in said.then

    wild = Study(tiny(name="wild", search={"learning_rate": Range(1e5, 1e6, log=True)}), tmp_path / "lab")
    wild.run(progress=False)
    for page in ("scaling", "sweep"):
        said = answers(wild, page)
        assert said.answers[0].startswith("All 4 runs diverged, learning_rate ")
        assert "study run wild" in said.then and "--search learning_rate" in said.then


@pytest.mark.parametrize("value", [None, 0.5])
@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_every_law_is_put_into_words_whether_or_not_its_exponents_are_identified(law: Law, value) -> None:
    number = {"value": value, "low": 0.1, "high": 0.9, "verdict": "weak"}
    names = [quantity.name for quantity in parameters_of(law, dict.fromkeys(law.columns, 0.0))]
    fitted = {
        "law": law.name,
        "formula": law.formula,
        "parameters": dict.fromkeys(names, number),
        "derived": {},
    }
    first = law.powers[0][0]
    assert _law_in_words(fitted | {"n_points": 9}).startswith(
        f"No exponent is identified by these 9 points yet: in the law {law.name}, {law.formula}, {first} is between"
        if value is None
        else f"The law {law.name}, {law.formula}: weak: {first} 0.5 (0.1 to 0.9)"
    )
