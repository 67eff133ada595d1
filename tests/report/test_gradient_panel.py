"""The panel of gradient flow, on planted norms and on a study that kept its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import GradientPoint, RunFolder, append_gradients, read_gradients
from sweeplab.report.data import ReportData
from sweeplab.report.panels.gradients import GradientFlowPanel


def test_it_shows_the_layers_of_the_best_run(plant, tmp_path: Path) -> None:
    runs, curves = plant(["complete", "complete"], layers=(1, 2), widths=(32,))
    for cell in runs["cell"].unique():
        for trial, shrinks in enumerate((0.1, 7.0)):
            folder = StudyFolder(tmp_path, "planted").run(cell, trial, 0)
            folder.path.mkdir(parents=True)
            for at in (100, 200):
                norms = {
                    f"blocks.{layer}": (shrinks ** (1 - layer) / at, 0.02 / at, 2.0) for layer in range(2)
                }
                append_gradients(folder, [GradientPoint(at, norms)])
    panel = GradientFlowPanel.of(ReportData.of_study(runs, curves, lab=tmp_path))
    assert {*zip(panel.data["cell"], panel.data["trial"], strict=True)} == {("n_layer=2,n_embd=32", 0)}
    row = panel.data[(panel.data["iteration"] == 200) & (panel.data["layer"] == "blocks.0")].iloc[0]
    assert row["gradient"] == pytest.approx(0.1 / 200)
    assert row["relative_update"] == pytest.approx(0.02 / 200 / 2)
    first, _ = panel.figure().data
    assert list(first.y) == ["blocks.0", "blocks.1"] and list(first.x) == [100, 200]
    assert first.z[0] == pytest.approx([-3.0, -3.30103], abs=1e-4)


def test_a_cut_off_line_is_left_out_and_what_is_not_finite_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    append_gradients(folder, [GradientPoint(5, {"head": (float("inf"), 1.0, 2.0)})])
    with folder.gradients_file.open("a") as file:
        file.write('{"iteration": 10, "head": [1.0, 2')
    last = GradientPoint(10, {"head": (1.0, 2.0, 3.0)})
    append_gradients(folder, [last, GradientPoint(5, {"head": (0.0, 0.0, 0.0)})])
    assert read_gradients(folder) == [GradientPoint(5, {"head": (None, 1.0, 2.0)}), last]
    assert "Infinity" not in folder.gradients_file.read_text()
