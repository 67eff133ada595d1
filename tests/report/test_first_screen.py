"""What a reader sees first of each page: the headline of a study, the differences of several, and the best trial."""

import json
from html import escape

import pandas as pd
import pytest
from analysis.planted_sweep import CELLS, plant_sweep
from report.scaling_page import report_of

from sweeplab.api import Study
from sweeplab.report.headline import read_facts
from sweeplab.report.panels.base import make_panel, read_dashboard
from sweeplab.report.summary import SUMMARIES
from sweeplab.study.values import Range
from sweeplab.sweep import steering


def first_screen(page, *tables):
    report = report_of(pd.concat(tables, ignore_index=True))
    asked = read_dashboard(page=page).panels
    wanted = {"verdicts", "choices", "differences"}
    return SUMMARIES[page](
        report, [make_panel(each, report) for each in asked if each.panel in wanted]
    )


def test_a_comparison_says_what_differs_and_what_stands_behind_each_side():
    ours, theirs = (
        plant_sweep(12, CELLS[:5], 2),
        plant_sweep(20, CELLS[:5], 2, name="other", shift=0.3, key=1),
    )
    said = first_screen("compare", ours, theirs.assign(dtype="bfloat16"))
    behind = said.entries
    assert "trials per cell: 12; 2 seeds" in behind["planted"]
    assert "trials per cell: 20; 2 seeds" in behind["other"]
    assert said.answers[0].startswith("The best trial of planted has ")
    assert said.answers[1].startswith("other against planted: different, +0.")


@pytest.mark.slow
def test_every_place_opens_with_the_same_five_lines(tiny, tmp_path):
    study = Study(tiny(), tmp_path / "lab")
    ended = study.run(progress=False)
    assert ended.report.name == "sweep.html", "the page of a study of one cell"
    said = study.show()
    assert (
        said.state == "finished: 4 of 4 trials"
        and said.law == "none: one size; three or more are needed"
    )
    assert said.best.startswith(f"val_loss {study.best.loss:#.3g} (one seed)   learning_rate=")
    for page in ("scaling", "sweep"):
        file = study.report(page)
        assert escape(str(said), quote=False) in file.read_text("utf-8").replace("&#39;", "'")
        assert (
            json.loads(file.with_suffix(".json").read_text("utf-8"))["headline"]
            == said.as_dict()
        )
    assert read_facts(study.folder).done == 1
    steering.extend(study.folder, 8, None)
    said = study.show()
    assert read_facts(study.folder).done == 0, "its trials wait"
    assert said.state == "interrupted: 4 of 8 trials" and "sweeplab resume tiny" in said.next

    wild = Study(
        tiny(name="wild", search={"learning_rate": Range(1e5, 1e6, log=True)}), tmp_path / "lab"
    )
    wild.run(progress=False)
    said = wild.show()
    assert said.state.startswith(
        "finished: 4 of 4 trials, all diverged; lowest learning_rate tried "
    )
    assert (said.best, said.law) == ("none", "none")
    assert said.next.startswith(
        "sweeplab run wild --name wild-2 --search learning_rate=1e-4..1e-2"
    )
