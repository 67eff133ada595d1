"""One loss and one color on a page: what is drawn is what is fitted, named alike everywhere."""

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import plant_sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas import DataFrame
from report.scaling_page import report_of

from sweeplab.model.shape import SETTLED
from sweeplab.report.panels.base import PanelSpec, make_panel
from sweeplab.report.panels.law import lines_by
from sweeplab.report.summary import summarize

NINE = tuple((n_layer, n_embd) for n_layer in (1, 2, 3) for n_embd in (32, 48, 64))


def sized(values):
    """Return a part of the loss that falls with the size as a power does."""
    return 20 / (values["n_layer"] ** 0.5 * values["n_embd"] ** 0.8) - values["n_embd"] / 60


def planted(key, n_trials, whole, cells=NINE, name="planted"):
    runs = plant_sweep(n_trials, cells, loss=sized, noise=0.02, key=key, name=name).drop(
        columns=[*SETTLED]
    )
    return runs.assign(best_whole_val_loss=runs["best_val_loss"] * whole) if whole else runs


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 99), st.integers(2, 6), st.sampled_from([0.0, 0.97]))
def test_what_is_drawn_is_what_is_fitted_and_has_one_name(key, n_trials, whole):
    report = report_of(planted(key, n_trials, whole))
    fit = report.assessment("power-n").fit
    panels = {
        name: make_panel(PanelSpec(name, options), report) for name, options in DRAWN.items()
    }
    law, loss = panels["law"], panels["loss"]
    (_, _, _, at), *_ = lines_by(report.assessment("power-n"), "params").lines
    marks = next(trace for trace in law.figure().data if trace.mode == "markers")
    line = [float(np.exp(np.median(at(x).measure(fit.values)))) for x in marks.x]
    residuals = dict(
        zip(
            panels["residuals"].data["params"],
            panels["residuals"].data["residual"],
            strict=True,
        )
    )
    drawn = dict(zip(marks.x, 100 * np.log(np.array(marks.y) / line), strict=True))
    assert drawn == pytest.approx(residuals), (
        "marks lie off the line by the residuals of the fit"
    )
    said = summarize(report)
    assert law.y.title == f"{'whole_' * bool(whole)}val_loss (nats/token)"
    if loss.law is not None:
        assert loss.y.title == law.y.title, "the figure with the law has its loss"
    trials = panels["heat_map"].data.set_index(["cell", "trial"])["loss"]
    assert trials[said.best["cell"], said.best["trial"]] == pytest.approx(
        said.best["loss"], abs=0.1
    )
    assert panels["heat_map"].notes == ("The val_loss (nats/token) of the best trial.",)


DRAWN = {
    "loss": {"x": "n_params"},
    "heat_map": {},
    "law": {"law": "power-n", "x": "params"},
    "residuals": {"law": "power-n"},
}


@pytest.mark.slow
def test_a_study_and_a_cell_have_one_color_on_every_panel():
    names = ("zeta", "alpha", "mid")  # neither in order of the alphabet nor of their losses
    several = pd.concat(
        [planted(key, 12, 0.0, NINE[:2], name) for key, name in enumerate(names)]
    )
    for runs, known in (
        (several, set(names)),
        (planted(0, 3, 0.0), {f"n_layer={a},n_embd={b}" for a, b in NINE}),
    ):
        report = report_of(runs.reset_index(drop=True), curves(runs))
        used = {name: set() for name in known}
        for kind in (
            "optimization_history",
            "edf",
            "param_importances",
            "slice",
            "learning_curves",
        ):
            panel = make_panel(PanelSpec(kind, {}), report)
            for trace in panel.figure().data if not panel.missing else ():
                name = (
                    str(trace.name)
                    .removesuffix(" (best)")
                    .replace(", ", ",")
                    .rpartition(" of ")[2]
                )
                color = trace.line.color or trace.marker.color
                if name in known and color:
                    used[name].add(color)
        assert [each for each in used.values() if len(each) != 1] == [], used
        assert len(set.union(*used.values())) == len(known)
        sizes = runs.groupby("cell")["n_params"].first().sort_values().index
        if known == set(sizes):
            assert list(report.looks) == list(sizes), "a ramp by size"


def curves(runs):
    rows = [
        (row.study, row.cell, row.trial, row.seed, at, at * 128, "val_loss", 3.0 - at / 1000)
        for row in runs.itertuples()
        for at in (0, 100, 200)
    ]
    columns = ["study", "cell", "trial", "seed", "iteration", "train_tokens", "metric", "value"]
    return DataFrame(rows, columns=columns)
