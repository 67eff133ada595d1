"""Numbers with intervals and verdicts, as rows of a table.

An entry is what an estimate's or a road's `as_dict` says: value, low, high, verdict, why and meaning, and what
stands beside them: the bootstrap's interval, the value under each objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.fit.assessment import DELTAS, IDENTIFIED
from sweeplab.analysis.fit.intervals import LEVEL
from sweeplab.report.words import span, told

NONE = "–"
Entries = Mapping[str, Mapping[str, Any]]


def data_of(entries: Entries) -> DataFrame:
    """Return a row a number, with all that is known of it; null where there is none."""
    return DataFrame([_row(name, entry) for name, entry in entries.items()])


def shown_of(entries: Entries) -> DataFrame:
    """Return a row a number as a person reads it: a dash for a number that is not identified.

    What is in a cell's second line is said more quietly.
    """
    return DataFrame([_shown(name, entry) for name, entry in entries.items()]).fillna("")


def _row(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    low, high = entry.get("bootstrap") or (None, None)
    by_delta = entry.get("by_delta", {})
    return {
        "quantity": name,
        "value": entry["value"],
        "low": entry["low"],
        "high": entry["high"],
        "verdict": entry["verdict"],
        "why": entry["why"],
        "bootstrap low": low,
        "bootstrap high": high,
        **{f"delta {delta}": by_delta.get(delta) for delta in DELTAS},
        "meaning": entry["meaning"],
    }


def _shown(name: str, entry: Mapping[str, Any]) -> dict[str, str]:
    by_delta = entry.get("by_delta", {})
    return {
        "quantity": f"{name}\n{entry['meaning']}",
        "value": NONE if entry["value"] is None else told(entry["value"]),
        f"{LEVEL:.0%} interval": span(entry["low"], entry["high"]),
        "verdict": entry["verdict"] + ("" if entry["verdict"] == IDENTIFIED else f"\n{entry['why']}"),
        **({"bootstrap": span(*entry["bootstrap"])} if "bootstrap" in entry else {}),
        **{f"delta {delta}": told(value) for delta, value in by_delta.items() if value != entry["value"]},
    }
