"""What a reader sees first of each page: what was asked, the answer with its uncertainty, the best trial."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from analysis.planted_sweep import CELLS, plant_sweep
from lab.test_findings import plant, valley
from pandas import DataFrame

import sweeplab
from sweeplab.analysis.studies import Studies
from sweeplab.formatting import sentence
from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import make_panel, read_dashboard
from sweeplab.report.summary import SUMMARIES, Summary


def first_screen(page: str, *tables: DataFrame, report: ReportData | None = None) -> Summary:
    report = report or ReportData.of_study(pd.concat(tables, ignore_index=True), DataFrame())
    asked = read_dashboard(page=page).panels
    wanted = {"verdicts", "choices", "differences"}
    return SUMMARIES[page](report, [make_panel(each, report) for each in asked if each.panel in wanted])


@pytest.mark.slow
def test_a_sweeps_page_opens_with_what_mattered_and_good_values() -> None:
    said = first_screen("sweep", plant_sweep(40, CELLS[:3]))
    mattered, good, ranked, *_ = said.answers
    assert said.asked.startswith(
        "Which hyperparameters matter (activation, dropout, learning_rate and weight_decay) in each of 3 cells"
    )
    assert re.match(r"Share of the importance: learning_rate \d+% \(\d+% to \d+%\)", mattered)
    assert "activation" in mattered.split("; not distinguishable from chance: ")[1]
    low, high = map(float, re.search(r"learning_rate (\S+) to (\S*\d)", good).groups())
    assert low < 10**-2.5 < high < 30 * low, "the best rate that was planted, in less than half of its range"
    assert "cannot be told" in ranked, "of one seed"
    few = first_screen("sweep", plant_sweep(3, CELLS[:1])).answers
    assert few[0] == "Importances need 10 trials or more; there are 3."


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
        f"From {n_params[0]:,} to {n_params[-1]:,} parameters the best trial's loss goes from "
        f"{lowest.iloc[0]:.4f} to {lowest.iloc[-1]:.4f}."
    )


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
    assert said.answers[0].startswith("other against planted: different, +0.")


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
    assert told == [sentence(finding.in_words()) for finding in findings] and len(told) == 2
