"""Panels of a study's own book-keeping: its forecasts, and a study too small for a law."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import plant_sweep
from report.scaling_page import write_scaling

from sweeplab.report.data import ReportData
from sweeplab.report.panels.base import PanelSpec, make_panel


@pytest.mark.slow
def test_a_study_of_one_token_count_has_the_law_of_its_sizes(tmp_path: Path, plant) -> None:
    runs, curves = plant(["complete", "complete"], layers=(1, 2, 3, 4, 6), widths=(32, 64, 128, 256))
    noise = np.random.default_rng(0).normal(0, 0.002, len(runs))
    loss = (1.5 + 40 / runs["n_params"] ** 0.4) * (1 + noise) + 0.1 * runs["trial"]
    losses = dict.fromkeys(("best_val_loss", "final_val_loss", "value"), loss)
    page = write_scaling(runs.assign(**losses), curves, tmp_path)
    _, *panels = json.loads(page.with_suffix(".json").read_text())["panels"]
    verdicts = next(each["result"] for each in panels if each["kind"] == "VerdictsPanel")
    alpha = verdicts["parameters"]["alpha"]
    assert verdicts["law"] == "power-n" and alpha["value"] == pytest.approx(0.4, abs=0.01)
    assert alpha["verdict"] == "weak"
    assert alpha["low"] < 0.4 < alpha["high"] and alpha["high"] - alpha["low"] < 0.1
    # What takes several token counts is said once, with the change of the study that would have them.
    change = "every run has 307k training tokens; grid: {max_iters: [150, 300, 600]} in the study varies it"
    assert sum(each["missing"] == change for each in panels) == 3
    text = page.read_text()
    assert text.count(f"{change[0].upper()}{change[1:]}.") == 1
    assert "law, 90% band" in text[: text.index('id="panel-2"')]


def test_families_that_lack_a_size_of_another_are_lines_too() -> None:
    parts = []
    for key, (family, depth) in enumerate(
        (("decoder", np.nan), ("encoder_decoder", 2), ("encoder_decoder", 4))
    ):
        part = plant_sweep(2, ((2, 32), (2, 64)), loss=lambda values: 3 - 0.001 * values["n_embd"], key=key)
        part["cell"] += f",family={family},n_encoder_layer={depth}"
        parts.append(part.assign(family=family, n_encoder_layer=depth))
    report = ReportData.of_study(pd.concat(parts, ignore_index=True), lambda metric: pd.DataFrame())
    panel = make_panel(PanelSpec("loss", {"x": "n_embd"}), report)
    assert not panel.missing and panel.figure().data
    depths = {line.partition("n_encoder_layer = ")[2].partition(",")[0] for line in panel.data["line"]}
    assert depths == {"none", "2", "4"}
