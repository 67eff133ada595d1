"""Sealed forecasts and their scores, as a person and as a program reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.cli.tables import cell_text, console, print_rows
from sweeplab.cli.words import counted

if TYPE_CHECKING:
    from sweeplab.analysis.ledger.chain import Chain, Entry
    from sweeplab.analysis.ledger.outcomes import Outcome
    from sweeplab.analysis.ledger.sealing import Sealed

_MOST_SAID = 3
_TEXT = ("run", "law", "verdict", "outcome", "sealed", "interval")


def sealed_as_dict(sealed: Sealed, path: Path) -> dict[str, Any]:
    """Return what was sealed as plain values."""
    return {
        "ledger": str(path),
        "head": sealed.entries[-1].sha256,
        "sealed": [
            {
                "number": entry.number,
                "sealed": entry.sealed.isoformat(),
                "sha256": entry.sha256,
                **entry.forecast,
            }
            for entry in sealed.entries
        ],
        "left_out": dict(sealed.left_out),
        "warnings": list(sealed.warnings),
    }


def print_sealed(sealed: Sealed, path: Path) -> None:
    """Print what was sealed, a row a forecast, and what was left out."""
    print_rows([_row(entry) | _ends(entry) for entry in sealed.entries], text=_TEXT)
    first = sealed.entries[0].forecast
    _say(f"\n{first['predicted']['level']:.0%} intervals: {first['predicted']['method']}")
    _say(f"sealed in {path}; its last entry is {sealed.entries[-1].sha256}")
    _say_some([f"left out: {what}: {why}" for what, why in sealed.left_out.items()])
    _say_some([f"warning: {warning}" for warning in sealed.warnings], "yellow")


def _say_some(lines: Sequence[str], style: str | None = None) -> None:
    """Print the first lines of what may be many, and how many more there are."""
    for line in lines[:_MOST_SAID]:
        _say(line, style)
    if more := len(lines[_MOST_SAID:]):
        _say(f"… and {more} more, which --json lists", style)


def scores_as_dict(chain: Chain, found: Sequence[Outcome]) -> dict[str, Any]:
    """Return outcomes and calibration as plain values."""
    from sweeplab.analysis.ledger.outcomes import calibrate

    return {
        "ledger": str(chain.path),
        "chain": "whole",
        "entries": len(chain.entries),
        "head": chain.head,
        "head_file": chain.has_head,
        "forecasts": [outcome.as_dict() for outcome in found],
        "calibration": calibrate(found).as_dict(),
    }


def print_scores(chain: Chain, found: Sequence[Outcome]) -> None:
    """Print the scores of the forecasts whose runs have ended, and why the others have none."""
    _print_chain(chain)
    scored = [(outcome, outcome.score) for outcome in found if outcome.score]
    if scored:
        rows = [
            {
                **_row(outcome.entry),
                "loss": score.outcome,
                "interval": _interval(outcome.entry),
                "held": "yes" if score.covered else "no",
                "error": f"{score.error_log:+.2%}",
                "nats": f"{score.error_nats:+.4f}",
                **{f"CRPS {name}": crps for name, crps in score.crps.items()},
            }
            for outcome, score in scored
        ]
        keys = dict.fromkeys(key for row in rows for key in row)
        print_rows([{key: row.get(key) for key in keys} for row in rows], text=_TEXT)
        _print_calibration(found)
    for outcome in found:
        if outcome.why:
            number = outcome.entry.number
            _say(f"{number} {outcome.state}: {outcome.why}", "red" if outcome.state == "refused" else None)


def print_ledger(chain: Chain, found: Sequence[Outcome]) -> None:
    """Print every forecast with what came of it, and the calibration over all."""
    _print_chain(chain)
    print_rows(
        [
            {
                "sealed": f"{outcome.entry.sealed:%Y-%m-%d %H:%M}",
                **_row(outcome.entry),
                **_ends(outcome.entry),
                "outcome": outcome.state,
                "loss": outcome.score.outcome if outcome.score else None,
                "nats": f"{outcome.score.error_nats:+.4f}" if outcome.score else None,
                "CRPS": outcome.score.crps["law"] if outcome.score else None,
            }
            for outcome in found
        ],
        text=_TEXT,
    )
    _print_calibration(found)


def _print_chain(chain: Chain) -> None:
    end = "" if chain.has_head else "; without its .head file, entries removed from its end do not show"
    _say(f"{chain.path}: {counted(len(chain.entries), 'forecast')}, chain whole{end}")
    _say(f"last entry: {chain.head}\n")


def _print_calibration(found: Sequence[Outcome]) -> None:
    from sweeplab.analysis.ledger.outcomes import calibrate

    calibration = calibrate(found)
    if not calibration.n:
        return
    _say(
        f"\n{counted(calibration.n, 'forecast')} scored, of {counted(calibration.n_runs, 'run')} "
        f"and {counted(calibration.n_fits, 'fit')}; those of one fit err together"
    )
    _say(
        "inside of the interval: "
        + "; ".join(f"{each.covered} of {each.n} at {each.level:.0%}" for each in calibration.coverage)
    )
    if len(calibration.by_verdict) > 1:
        shares = [f"{each.covered} of {each.n} {verdict}" for verdict, each in calibration.by_verdict.items()]
        _say("by the verdict that was sealed with it: " + ", ".join(shares))
    for name, skill in calibration.skill.items():
        ratio = "–" if skill.ratio is None else f"{skill.ratio:.2f}"
        _say(f"mean CRPS {skill.law:.4g}, that of the {name} {skill.naive:.4g}: a ratio of {ratio}")
    _say("")


def _row(entry: Entry) -> dict[str, Any]:
    said = entry.forecast
    studies, cells = list(said["run"]["studies"]), said["run"]["cells"]
    place = ", ".join(studies or said["source"]["names"])
    return {
        "": entry.number,
        "run": f"{place} {cells[0]}" if cells else place,
        "law": said["fit"]["law"],
        "params": said["at"].get("params"),
        "tokens": said["at"].get("tokens"),
    }


def _ends(entry: Entry) -> dict[str, Any]:
    """Return the prediction; no number stands where the law does not identify the loss, only its interval."""
    predicted = entry.forecast["predicted"]
    verdict = predicted["verdict"]["verdict"]
    return {
        "predicted": None if verdict == "not identified" else predicted["loss"],
        "interval": _interval(entry),
        "verdict": verdict,
    }


def _interval(entry: Entry) -> str:
    predicted = entry.forecast["predicted"]
    return f"{cell_text(predicted['low'])} to {cell_text(predicted['high'])}"


def _say(text: str, style: str | None = None) -> None:
    console().print(text, style=style, markup=False, soft_wrap=True)
