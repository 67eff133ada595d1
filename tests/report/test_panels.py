import json
import re

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import plant_sweep
from pandas import concat
from report.scaling_page import report_of, write_scaling

from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import GradientPoint, RunFolder, append_gradients, read_gradients
from sweeplab.report.panels.base import PanelSpec, make_panel
from sweeplab.report.style import colors
from sweeplab.report.summary import summarize

LOSS = PanelSpec("loss", {"x": "n_params", "log": ("x", "y")})
ITERATIONS, TOKENS = (0, 100, 200, 300), 16 * 64
USUAL = ("complete", "stopped", "pruned", "diverged", "failed", "running")


def of(spec, planted, **changed):
    runs = planted.runs.assign(**changed) if changed else planted.runs
    return make_panel(spec, report_of(runs, planted.curves))


@pytest.mark.slow
def test_loss_panel_draws_what_was_planted(typed, plant):
    drawn = of(LOSS, typed(plant(USUAL)))
    assert not drawn.missing
    assert set(drawn.data["state"]) == {"complete", "stopped", "pruned"}
    best = drawn.data[drawn.data["best"]]
    assert len(best) == 6 and set(best["trial"]) == {0}
    sizes = best["cell"].str.extract(r"n_layer=(\d+),n_embd=(\d+)").astype(int)
    np.testing.assert_allclose(best["loss"], 4 - 0.1 * sizes[0] - 0.01 * sizes[1])
    assert list(dict.fromkeys(best["line"])) == ["n_embd = 32", "n_embd = 64"]
    assert any(note == "Not drawn: 6 running, 6 diverged, 6 failed." for note in drawn.notes)


@pytest.mark.slow
def test_three_dimensions_of_a_grid_have_a_line_each_combination_and_no_zigzag(plant):
    planted = plant(["complete"])
    runs = [
        planted.runs.assign(dropout=share, cell=planted.runs["cell"] + f",dropout={share}")
        for share in (0.0, 0.1, 0.2)
    ]
    report = report_of(concat(runs, ignore_index=True), planted.curves)
    drawn = make_panel(PanelSpec("loss", {"x": "n_params"}), report)
    best = drawn.data[drawn.data["best"]]
    assert not best.duplicated(["line", "x"]).any()
    assert best.groupby("line")["x"].size().tolist() == [3] * 6, "three depths a line"


@pytest.mark.slow
def test_far_worse_trials_are_left_above_the_view_and_counted(plant):
    far = of(LOSS, plant(["complete", "complete"], losses=[2.0, 90.0]))
    low, high = far.view
    assert low <= 2 < high < 90
    assert "6 trials" in far.notes[-1]
    assert len(far.data) == 12
    near = of(LOSS, plant(["complete", "complete"], losses=[2.0, 2.1]))
    assert near.view is None and not any("Above" in note for note in near.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "states", "why"),
    [
        (PanelSpec("loss", {"x": "dropout"}), ["complete"], "dropout is 0.2 in every run"),
        (LOSS, ["running"], r"no trial has ended with a best_val_loss \(6 running\)"),
        (PanelSpec("loss", {"x": "activation"}), ["complete"], "activation is not a number"),
        (PanelSpec("heat_map"), ["pruned"], "no trial has ended"),
        (PanelSpec("learning_curves", {"metric": "grad_norm"}), ["complete"], "no run has a grad_norm"),
    ],
)  # fmt: skip
def test_a_panel_without_data_says_why(spec, states, why, typed, plant):
    assert re.match(why, of(spec, typed(plant(states))).missing)


def test_heat_map_has_the_lowest_loss_of_each_pair(typed, plant):
    drawn = of(
        PanelSpec("heat_map", {"x": "n_embd"}), typed(plant(["complete", "complete", "pruned"]))
    )
    assert (drawn.x.column, drawn.y.column) == ("n_embd", "n_layer")
    assert len(drawn.data) == 6 and set(drawn.data["trial"]) == {0}
    np.testing.assert_allclose(
        drawn.data["loss"], 4 - 0.1 * drawn.data["n_layer"] - 0.01 * drawn.data["n_embd"]
    )
    (heat,) = drawn.figure().data
    assert heat.z.shape == (3, 2) and heat.z[2][1] == pytest.approx(4 - 0.4 - 0.64)


def test_learning_curves_are_the_planted_ones(typed, plant):
    drawn = of(
        PanelSpec("learning_curves"), typed(plant(["complete", "pruned", "diverged"], seeds=2))
    )
    assert len(drawn.data) == 6 * 2 * 2 * len(ITERATIONS)
    assert drawn.notes[-1] == "Not drawn: 12 diverged."
    assert drawn.winner == "n_layer=4,n_embd=64"
    first = drawn.best[drawn.best["cell"] == "n_layer=1,n_embd=32"]
    assert first["x"].tolist() == [iteration * TOKENS for iteration in ITERATIONS]
    assert first["value"].tolist()[::3] == pytest.approx([5, 4 - 0.1 - 0.32 + 0.005])
    assert len(drawn.figure().data) == 1 + 6 + 1, (
        "every run, each cell's best, and what is under the cursor"
    )
    later = drawn.data[drawn.data["x"] > 0]["value"]
    low, high = drawn.figure().layout.yaxis.range
    assert low < later.min() and later.quantile(0.95) < high < 5, (
        "the start presses nothing together"
    )


@pytest.mark.parametrize("ground", [1.0, 0.0085], ids=["light", "dark"])
@pytest.mark.parametrize("n", [1, 9, 40])
def test_colors_are_distinct_and_stand_out_from_the_ground(n, ground):
    made = np.array([re.findall(r"\d+", color) for color in colors(n)], float) / 255
    assert len(np.unique(made, axis=0)) == n
    linear = np.where(made <= 0.04045, made / 12.92, ((made + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722]
    assert ((np.maximum(light, ground) + 0.05) / (np.minimum(light, ground) + 0.05)).min() >= 3


def test_summary_says_what_there_is(typed, plant):
    summary = summarize(report_of(*typed(plant(USUAL, seeds=2))))
    words = summary.entries
    assert words["Runs"].startswith(
        "72 runs of 36 trials in 6 cells: 12 complete, 12 stopped, "
    )
    assert {*words["Cells"].split("; ")[:2]} == {"n_layer 1, 2, 4", "n_embd 32, 64"}
    assert words["Best trial"].startswith(
        "2.9650 nats/token (the mean of 2 seeds): trial 0 in cell n_layer=4"
    )
    assert summary.best["hyperparameters"] == {
        "n_layer": 4,
        "n_embd": 64,
        "learning_rate": 1e-3,
    }
    assert summarize(report_of(*plant(["running"]))).best == {}


@pytest.mark.parametrize(
    ("objective", "unit"), [("masked", "nats/token"), ("classification", "nats/label")]
)
def test_losses_have_the_unit_of_their_objective(objective, unit, plant):
    planted = plant(["complete"] * 2)
    report = report_of(planted.runs.assign(objective=objective, n_labels=3), planted.curves)
    titles = [
        make_panel(PanelSpec(*each), report).y.title
        for each in (("loss", {"x": "n_params"}), ("learning_curves",))
    ]
    assert titles == [f"val_loss ({unit})"] * 2
    assert unit in summarize(report).entries["Best trial"]


@pytest.mark.slow
def test_the_law_goes_on_to_its_forecast_on_the_figure_of_sizes(plant):
    sizes = {"layers": (1,), "widths": (32, 48, 64, 96, 128, 192, 256, 384)}
    planted = plant(["complete"], **sizes)
    n = planted.runs["n_params"]
    losses = 1.0 + 30 * n**-0.35 * np.exp(
        0.001 * np.random.default_rng(0).standard_normal(len(n))
    )
    runs = planted.runs.assign(best_val_loss=losses, final_val_loss=losses, value=losses)
    report = report_of(runs, planted.curves)
    drawn = make_panel(LOSS, report)
    last = drawn.law.iloc[-1]
    assert last["x"] == pytest.approx(2 * report.points.columns["params"].max())
    assert last["low"] < 1.0 + 30 * last["x"] ** -0.35 < last["high"]
    assert [trace.name for trace in drawn.figure().data][-1] == "forecast at 2x"
    assert make_panel(PanelSpec("loss", {"x": "n_embd"}), report).law is None


def test_a_map_needs_half_of_its_pairs_to_be_cells(plant):
    planted = plant(["complete"], widths=(32, 64, 128))
    few = (planted.runs["n_layer"] == 1) == (planted.runs["n_embd"] == 32)
    assert (
        "4 of 9 pairs"
        in of(PanelSpec("heat_map"), planted._replace(runs=planted.runs[~few])).missing
    )


@pytest.mark.slow
def test_a_study_of_one_token_count_has_the_law_of_its_sizes(tmp_path, plant):
    runs, curves = plant(
        ["complete", "complete"], layers=(1, 2, 3, 4, 6), widths=(32, 64, 128, 256)
    )
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


def test_families_that_lack_a_size_of_another_are_lines_too():
    parts = []
    for key, (family, depth) in enumerate(
        (("decoder", np.nan), ("encoder_decoder", 2), ("encoder_decoder", 4))
    ):
        part = plant_sweep(
            2, ((2, 32), (2, 64)), loss=lambda values: 3 - 0.001 * values["n_embd"], key=key
        )
        part["cell"] += f",family={family},n_encoder_layer={depth}"
        parts.append(part.assign(family=family, n_encoder_layer=depth))
    report = report_of(pd.concat(parts, ignore_index=True))
    panel = make_panel(PanelSpec("loss", {"x": "n_embd"}), report)
    assert not panel.missing and panel.figure().data
    depths = {
        line.partition("n_encoder_layer = ")[2].partition(",")[0] for line in panel.data["line"]
    }
    assert depths == {"none", "2", "4"}


def test_it_shows_the_layers_of_the_best_run(plant, tmp_path):
    runs, curves = plant(["complete", "complete"], layers=(1, 2), widths=(32,))
    for cell in runs["cell"].unique():
        for trial, shrinks in enumerate((0.1, 7.0)):
            folder = StudyFolder(tmp_path, "planted").run(cell, trial, 0)
            folder.path.mkdir(parents=True)
            for at in (100, 200):
                norms = {
                    f"blocks.{layer}": (shrinks ** (1 - layer) / at, 0.02 / at, 2.0)
                    for layer in range(2)
                }
                append_gradients(folder, [GradientPoint(at, norms)])
    panel = make_panel(PanelSpec("gradient_flow"), report_of(runs, curves, lab=tmp_path))
    assert {*zip(panel.data["cell"], panel.data["trial"], strict=True)} == {
        ("n_layer=2,n_embd=32", 0)
    }
    row = panel.data[
        (panel.data["iteration"] == 200) & (panel.data["layer"] == "blocks.0")
    ].iloc[0]
    assert row["gradient"] == pytest.approx(0.1 / 200)
    assert row["relative_update"] == pytest.approx(0.02 / 200 / 2)
    first, _ = panel.figure().data
    assert list(first.y) == ["blocks.0", "blocks.1"] and list(first.x) == [100, 200]
    assert first.z[0] == pytest.approx([-3.0, -3.30103], abs=1e-4)


def test_a_cut_off_line_is_left_out_and_what_is_not_finite_is_none(tmp_path):
    folder = RunFolder(tmp_path)
    append_gradients(folder, [GradientPoint(5, {"head": (float("inf"), 1.0, 2.0)})])
    with folder.gradients_file.open("a") as file:
        file.write('{"iteration": 10, "head": [1.0, 2')
    last = GradientPoint(10, {"head": (1.0, 2.0, 3.0)})
    append_gradients(folder, [last, GradientPoint(5, {"head": (0.0, 0.0, 0.0)})])
    assert read_gradients(folder) == [GradientPoint(5, {"head": (None, 1.0, 2.0)}), last]
    assert "Infinity" not in folder.gradients_file.read_text()
