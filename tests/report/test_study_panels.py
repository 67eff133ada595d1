"""Panels of a study's own book-keeping: its forecasts, and a study too small for a law."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis.planted_sweep import plant_sweep
from report.scaling_page import write_scaling

from sweeplab.analysis.ledger import FILE_NAME, LedgerEntry, append
from sweeplab.analysis.scoring import OPEN, REFUSED, SCORED, Outcome, score
from sweeplab.report.data import ReportData
from sweeplab.report.options import PanelSpec
from sweeplab.report.panels.base import make_panel


def forecast(study: str = "planted", loss: float = 2.0) -> dict:
    log_loss = {"mean": math.log(loss), "sd": 0.01}
    low, high = (loss * math.exp(side * 1.645 * 0.01) for side in (-1, 1))
    return {
        "version": 1,
        "source": {"names": [study], "is_file": False, "counting": None},
        "run": {"studies": {study: "digest"}, "counting": None, "cells": ["n_layer=4"], "seeds": 1},
        "at": {"params": 1e6, "tokens": 2e7, "flops": 1.2e14},
        "predicted": {"loss": loss, "low": low, "high": high, "log_loss": log_loss, "level": 0.9}
        | {"verdict": {"verdict": "identified", "reason": ""}},
        "naive": {"last point": {"log_loss": {"mean": math.log(2.2), "sd": 0.0}, "why": ""}},
        "fit": {"law": "chinchilla", "delta": "auto"},
        "data": {"digest": "x"},
    }


def outcome(number: int, reached: float | None, state: str = SCORED) -> Outcome:
    said = forecast()
    entry = LedgerEntry(number, datetime(2026, 1, number, tzinfo=UTC), "0", said, "1")
    came = None if reached is None else score(said["predicted"], said["naive"], reached)
    return Outcome(entry, state, "" if came else "its run has not started", came)


@pytest.fixture
def book(plant) -> ReportData:
    """A study with two forecasts that held, one that did not, one that is open and one that is refused."""
    material = ReportData.of_study(*plant(["complete"]))
    planted = [
        outcome(1, 2.0),
        outcome(2, 2.01),
        outcome(3, 2.2),
        outcome(4, None, OPEN),
        outcome(5, None, REFUSED),
    ]
    material.once("outcomes", lambda: planted)
    return material


def test_the_ledger_shows_every_forecast_and_what_came(book: ReportData) -> None:
    found = make_panel(PanelSpec("ledger"), book)
    assert found.data["state"].tolist() == ["held", "held", "missed", "open", "refused"]
    assert found.data["error (%)"].tolist()[:3] == pytest.approx([0, 0.4988, 9.531], abs=1e-3)
    assert found.notes[0].startswith("5 forecasts: 2 held, 1 missed, 1 open, 1 refused.")
    assert found.warnings == ("forecast 5 does not count: its run has not started",)
    names = [trace.name for trace in found.figure().data]
    assert names == ["forecast", "outcome, held", "outcome, missed"]


def test_calibration_counts_the_outcomes_inside_by_level(book: ReportData) -> None:
    found = make_panel(PanelSpec("calibration"), book)
    by_level = found.data.set_index("level")
    assert by_level.loc[0.9, "covered"] == 2 and by_level.loc[0.9, "n"] == 3
    assert (found.data["low"] <= found.data["share"]).all() and (
        found.data["share"] <= found.data["high"]
    ).all()
    assert any("times that of the last point" in note for note in found.notes)
    assert len(found.figure().data) == 2


def test_a_ledger_is_read_from_the_lab(tmp_path: Path, plant) -> None:
    runs, curves = plant(["complete"])
    none = make_panel(PanelSpec("ledger"), ReportData.of_study(runs, curves, lab=tmp_path))
    assert none.missing == "no forecast was sealed; sweeplab laws forecast seals one"
    append(tmp_path / FILE_NAME, [forecast("another")])
    other = make_panel(PanelSpec("ledger"), ReportData.of_study(runs, curves, lab=tmp_path))
    assert "no forecast of 'planted'" in other.missing
    append(tmp_path / FILE_NAME, [forecast()])
    (tmp_path / FILE_NAME).write_bytes((tmp_path / FILE_NAME).read_bytes().replace(b"another", b"anothfr"))
    broken = make_panel(PanelSpec("ledger"), ReportData.of_study(runs, curves, lab=tmp_path))
    assert "was changed" in broken.missing


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
    assert alpha["verdict"] == "weak" and "the shapes are unlike" in alpha["why"], "no cut can test them"
    assert alpha["low"] < 0.4 < alpha["high"] and alpha["high"] - alpha["low"] < 0.1
    # What takes several token counts is said once, with the change of the study that would have them.
    change = "every run has 307k training tokens; grid: {max_iters: [150, 300, 600]} in the study varies it"
    assert sum(each["missing"] == change for each in panels) == 3
    text = page.read_text()
    assert text.count(f"{change[0].upper()}{change[1:]}.") == 1
    assert "power-n, with its 90% band" in text[: text.index('id="panel-2"')]


def test_a_study_too_small_for_a_law_says_so_in_one_line(tmp_path: Path, plant) -> None:
    page = write_scaling(*plant(["complete"], layers=(1, 2), widths=(32,)), tmp_path)
    text = page.read_text()
    assert text.count("<dd>2 rows for the 3 parameters of power-n; it needs 4 or more.</dd>") == 1
    assert "with its 90% band" not in text


def test_families_that_lack_a_size_of_another_are_lines_too() -> None:
    parts = []
    for key, (family, depth) in enumerate(
        (("decoder", np.nan), ("encoder_decoder", 2), ("encoder_decoder", 4))
    ):
        part = plant_sweep(2, ((2, 32), (2, 64)), loss=lambda values: 3 - 0.001 * values["n_embd"], key=key)
        part["cell"] += f",family={family},n_encoder_layer={depth}"
        parts.append(part.assign(family=family, n_encoder_layer=depth))
    report = ReportData.of_study(pd.concat(parts, ignore_index=True), lambda metric: pd.DataFrame())
    panel = make_panel(PanelSpec("loss", {"x": "n_embd", "lines": ["n_encoder_layer", "family"]}), report)
    assert not panel.missing and panel.figure().data
    assert set(panel.data["n_encoder_layer"]) == {"none", "2", "4"}
