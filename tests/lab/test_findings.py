"""What limited the best trials: said where it was planted, and not said of flat noise or of what cannot change."""

import json
import math

import numpy as np
import pytest

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.lab.findings import find_limits, trend, widened
from sweeplab.lab.listing import StudyTrials
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunEnd, RunStart, RunState, TrialEnding

LOW, HIGH = 1e-3, 1e-1
RATES = [LOW * (HIGH / LOW) ** (at / 7) for at in range(8)]
RANGE = {"learning_rate": {"min": LOW, "max": HIGH, "log": True}}
DROPOUT = {"dropout": {"min": 0.0, "max": 0.5}}


def rising(rate):
    """Return a loss that falls with the learning rate, up to its highest value."""
    return 3 - 0.2 * math.log10(rate / LOW)


def valley(rate):
    return 2 + (math.log10(rate) + 2) ** 2


def plant(lab, losses, cells=("all",), search=RANGE, sampled=RATES, baseline=9.0, states=()):
    """Write a study's records, in each cell a trial for each sampled value; return what is found."""
    folder = StudyFolder(lab, "planted")
    folder.path.mkdir(parents=True, exist_ok=True)
    study = {
        "search": search,
        "fixed": {},
        "grid": {},
        "objective": {"metric": "val_loss", "at": "best"},
    }
    folder.canonical_file.write_text(json.dumps(study))
    folder.baselines_file.write_text(json.dumps({cell: {"loss": baseline} for cell in cells}))
    (name,), values = search, Hyperparameters(max_iters=1000)
    for cell in cells:
        for number, value in enumerate(sampled):
            state = RunState(states[number] if number < len(states) else "complete")
            loss, run = float(losses(value)), folder.run(cell, number, 0)
            place = {"key": f"{cell}/{number}/0", "cell": cell, "trial": number, "seed": 0}
            run.write_start(
                RunStart(**place, values=values, sampled={name: value}, started=0.0)
            )
            ending = TrialEnding(state, loss, {0: state})
            run.write_end(RunEnd(state=state, value=loss, best_val_loss=loss, ending=ending))
    return find_limits(StudyTrials(folder))


@pytest.mark.parametrize(
    "cells", [("all",), ("n_layer=1", "n_layer=2")], ids=["one cell", "two cells"]
)
def test_a_best_value_at_the_end_of_its_range_is_said(tmp_path, cells):
    (finding,) = plant(tmp_path, rising, cells)
    assert (finding.kind, finding.name, finding.cells) == (
        "end of range",
        "learning_rate",
        cells,
    )
    assert "upper end of its range (1e-3 to 0.1)" in finding.what
    assert finding.change.startswith(
        "raise search.learning_rate.max to 1: sweeplab extend planted --widen"
    )
    (lower,) = plant(tmp_path / "other", lambda rate: -rising(rate), cells)
    assert lower.change.startswith("lower search.learning_rate.min to 1e-4: ")
    (among_pruned,) = plant(tmp_path / "pruned", rising, cells, states=("pruned",) * 6)
    assert among_pruned.kind == "end of range", "also those that were pruned tell the trend"


@pytest.mark.parametrize(
    ("losses", "planted"),
    [
        (valley, {}),
        # The best by luck: others do not fall towards it.
        (lambda rate: 2.0 - 0.1 * (rate == RATES[-1]), {}),
        # Beyond the best, trials diverge.
        (rising, {"states": ("complete",) * 6 + ("diverged",) * 2}),
        (lambda share: 3 - share, {"search": DROPOUT, "sampled": np.linspace(0, 0.45, 8)}),
        (lambda share: 3 + share, {"search": DROPOUT, "sampled": np.linspace(0, 0.5, 8)}),
        (rising, {"sampled": RATES[-2:]}),  # two trials are no trend
    ],
    ids=["a valley", "luck", "diverged beyond", "short of the end", "a bound of the table", "too few"],
)  # fmt: skip
def test_no_other_best_value_is_called_the_end_of_its_range(tmp_path, losses, planted):
    assert plant(tmp_path, losses, **planted) == []


def test_chance_makes_few_trends():
    random = np.random.default_rng(3)
    for n_cells, n_trials in ((1, 6), (1, 20), (9, 4)):
        trends = [
            trend([random.standard_normal((n_trials, 2)).tolist() for _ in range(n_cells)])
            for _ in range(600)
        ]
        assert np.mean(np.array(trends) <= -2.2) < 0.03


def test_a_loss_above_that_of_n_grams_in_every_cell_is_said_and_in_some_cells_is_not(tmp_path):
    (finding,) = plant(tmp_path, valley, ("small", "large"), baseline=1.5)
    assert finding.kind == "above n-grams" and finding.limit == 1.5
    assert "raise max_iters" in finding.in_words()
    folder = StudyFolder(tmp_path, "planted")
    folder.baselines_file.write_text(
        json.dumps({"small": {"loss": 1.5}, "large": {"loss": 9.0}})
    )
    assert find_limits(StudyTrials(folder)) == []


@pytest.mark.parametrize(
    ("name", "entry", "end", "to"),
    [
        ("learning_rate", {"min": 1e-4, "max": 1e-2, "log": True}, "max", 0.1),
        ("learning_rate", {"min": 1e-3, "max": 2e-3, "log": True}, "min", 3.3e-4),
        ("dropout", {"min": 0.0, "max": 0.8}, "max", 0.9),  # below 1, which the table excludes
        ("weight_decay", {"min": 0.1, "max": 0.3}, "min", 0.0),
        ("warmup_iters", {"min": 10, "max": 100}, "max", 140),
    ],
)
def test_a_widened_range_grows_on_its_own_scale_within_the_bounds_of_the_table(
    name, entry, end, to
):
    assert widened(name, entry, end) == pytest.approx(to, rel=0.05)
