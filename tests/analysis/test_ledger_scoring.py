"""What counts of sealed forecasts, and how many held."""

import math
from datetime import UTC, datetime

import pytest

from sweeplab.analysis.ledger import LedgerEntry
from sweeplab.analysis.sealing import LATE, OPEN, REPEATED, SCORED, Outcome, outcomes
from sweeplab.errors import BadInput


def forecast(at=1e6, study="small", loss=2.0, **more):
    return {
        "version": 1,
        "source": {
            "names": [study],
            "is_file": False,
            "counting": {"conventions": {}, "columns": {}},
        },
        "run": {"studies": {study: "digest"}, "counting": {"conventions": {}, "columns": {}}},
        "at": {"params": at, "tokens": 2e7},
        "predicted": {"loss": loss, "low": 0.98 * loss, "high": 1.02 * loss},
        "fit": {"law": "chinchilla"},
        "data": {"n_points": 9},
        **more,
    }


def entry(number, said=None, outcome=None):
    scored = {}
    if outcome:
        scored = {"number": outcome[0], "source": "runs.csv", "score": {"outcome": outcome[1]}}
    return LedgerEntry(number, datetime.now(UTC), "", str(number), said or {}, scored)


def test_the_first_forecast_of_a_run_counts_and_so_does_its_first_outcome(tmp_path):
    ledger = [
        entry(1, forecast()),
        entry(2, outcome=(1, 2.03)),
        entry(3, outcome=(1, 2.0)),
        entry(4, forecast(1e6 * (1 + 1e-8), loss=2.03)),
        entry(5, forecast(2e6, late="its run small/0 started")),
        entry(6, forecast(1e6, "other")),
        entry(7, forecast(2e6)),
    ]
    found = outcomes(ledger, tmp_path)
    assert [each.state for each in found] == [SCORED, REPEATED, LATE, OPEN, REPEATED]
    assert (found[0].loss, found[0].is_held) == (2.03, True)
    assert found[0].as_dict()["error"] == pytest.approx(math.log(1.015))
    assert [each.entry.number for each in found if "other" in each.names] == [6]


def test_a_forecast_of_another_version_is_refused(tmp_path):
    with pytest.raises(BadInput, match="line 1 of the ledger is a forecast of another version"):
        outcomes([entry(1, forecast(version=2))], tmp_path)


def test_without_an_outcome_nothing_is_held():
    assert Outcome(entry(1, forecast(loss=2.0)), OPEN).is_held is None
