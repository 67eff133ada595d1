"""`sweeplab laws forecast`, `verify` and `ledger`: forecasts sealed before a run, and their scores after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.cli.completion import studies as study_names
from sweeplab.cli.laws.source import (
    Columns,
    Count,
    Delta,
    Law,
    Ledger,
    Source,
    counting_of,
    is_file,
    ledger_file,
    studies_from,
)
from sweeplab.cli.options import AsJson, Lab, argument, option
from sweeplab.cli.printing import cell_text, print_json, print_rows, say
from sweeplab.errors import BadInput
from sweeplab.formatting import several

if TYPE_CHECKING:
    from sweeplab.analysis.ledger.chain import Chain, Entry
    from sweeplab.analysis.ledger.outcomes import Outcome
    from sweeplab.analysis.ledger.sealing import Sealed
    from sweeplab.analysis.ledger.sealing import Source as Origin
    from sweeplab.analysis.ledger.targets import Counting, Place
    from sweeplab.analysis.points import Points

_MOST_SAID = 3
_TEXT = ("run", "law", "verdict", "outcome", "sealed", "interval")


def forecast(
    source: Source,
    params: Annotated[float | None, option("N", "Parameters of the future run.")] = None,
    tokens: Annotated[float | None, option("D", "Its training tokens.")] = None,
    flops: Annotated[float | None, option("C", "Its FLOPs.  [default: N D times the table's C/ND]")] = None,
    study: Annotated[
        Path | None, option("FILE", "Forecast the cells of this study file without runs.")
    ] = None,
    columns: Columns = None,
    count: Count = None,
    law: Law = "chinchilla",
    delta: Delta = "auto",
    ledger: Ledger = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Seal a law's forecast of a run, before the run exists.

    The 90% interval covers the law's uncertainty and a run's noise. Every entry holds the hash of the
    one before it: `laws verify` detects a change, and scores the runs that have ended.

    \b
    $ sweeplab laws forecast small --params 2e6 --tokens 1e8
    $ sweeplab laws forecast small --study studies/small.yaml
    """
    from sweeplab.analysis.fit.assessment import assess, find_law
    from sweeplab.analysis.ledger.sealing import seal
    from sweeplab.analysis.ledger.targets import cell_targets, point_target
    from sweeplab.records.folders import lab_folder
    from sweeplab.study.file.reading import read_study

    form, sizes = find_law(law), {"params": params, "tokens": tokens, "flops": flops}
    if study and any(sizes.values()):
        raise BadInput("--study names its cells: give it, or --params and --tokens, not both")
    points, origin, place = _read(source, counting_of(columns, count), lab)
    if study:
        targets, left_out = cell_targets(read_study(study), lab_folder(lab), origin.counting)
    else:
        targets, left_out = [point_target(points, sizes, place)], {}
    path = ledger_file(ledger, lab)
    sealed = seal(path, origin, assess(points, form, delta), lab_folder(lab), targets, left_out)
    if as_json:
        print_json(_sealed_as_dict(sealed, path))
    else:
        _print_sealed(sealed, path)


def _read(source: str, counting: Counting, lab: Path | None) -> tuple[Points, Origin, Place | None]:
    """Return the points, where they come from, and the place of a run of the same studies."""
    from sweeplab.analysis.ledger.sealing import Source as Origin
    from sweeplab.analysis.ledger.targets import Place, study_digest
    from sweeplab.analysis.points import read_points

    if is_file(source):
        points = read_points(Path(source), counting.columns, counting.conventions)
        return points, Origin((source,), True, counting), None
    studies = studies_from(source, lab)
    counting = replace(counting, conventions=studies.settled(counting.conventions))
    digests = {
        name: study_digest(spec, studies.data[name]["text_digest"]) for name, spec in studies.specs.items()
    }
    points = studies.points(counting.columns, counting.conventions)
    return points, Origin(tuple(studies.specs), False, counting), Place(digests, counting)


def _sealed_as_dict(sealed: Sealed, path: Path) -> dict[str, Any]:
    entries = [
        {"number": each.number, "sealed": each.sealed.isoformat(), "sha256": each.sha256, **each.forecast}
        for each in sealed.entries
    ]
    return {
        "ledger": str(path),
        "head": sealed.entries[-1].sha256,
        "sealed": entries,
        "left_out": dict(sealed.left_out),
        "warnings": list(sealed.warnings),
    }


def _print_sealed(sealed: Sealed, path: Path) -> None:
    print_rows([_row(entry) | _prediction(entry) for entry in sealed.entries], text=_TEXT)
    predicted = sealed.entries[0].forecast["predicted"]
    say(f"\n{predicted['level']:.0%} intervals: {predicted['method']}")
    say(f"sealed in {path}; its last entry is {sealed.entries[-1].sha256}")
    _say_some([f"left out: {what}: {why}" for what, why in sealed.left_out.items()])
    _say_some([f"warning: {warning}" for warning in sealed.warnings], "yellow")


def _say_some(lines: Sequence[str], style: str | None = None) -> None:
    """Print the first lines of what may be many, and how many more there are."""
    for line in lines[:_MOST_SAID]:
        say(line, style)
    if more := len(lines[_MOST_SAID:]):
        say(f"… and {more} more, which --json lists", style)


def verify(
    study: Annotated[
        str | None, argument("STUDY", "Only forecasts of this study, or from it.", autocompletion=study_names)
    ] = None,
    against: Annotated[Path | None, option("FILE", "The table of the forecasts, with new rows.")] = None,
    columns: Columns = None,
    count: Count = None,
    ledger: Ledger = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Check the ledger, and score forecasts whose runs have ended.

    A score is the error, whether the interval held, and the CRPS beside those of naive forecasters. A
    forecast sealed after its run started is refused; a broken hash chain exits with 2.

    \b
    $ sweeplab laws verify small
    $ sweeplab laws verify --against runs.csv
    """
    from sweeplab.analysis.ledger.chain import read_chain
    from sweeplab.analysis.ledger.outcomes import of_study, outcomes
    from sweeplab.records.folders import lab_folder

    if (columns or count) and against is None:
        raise BadInput("--columns and --count are for the table of --against FILE")
    counting = counting_of(columns, count) if columns or count else None
    chain = read_chain(ledger_file(ledger, lab))
    entries = of_study(chain.entries, study) if study else chain.entries
    found = outcomes(entries, lab_folder(lab), against, counting)
    if as_json:
        print_json(_scores_as_dict(chain, found))
    else:
        _print_scores(chain, found)


def ledger(ledger: Ledger = None, lab: Lab = None, as_json: AsJson = False) -> None:
    """List the sealed forecasts, and how often their intervals held.

    One row per forecast, with its outcome; then coverage by level over all that are scored.

    \b
    $ sweeplab laws ledger
    $ sweeplab laws ledger --json
    """
    from sweeplab.analysis.ledger.chain import read_chain
    from sweeplab.analysis.ledger.outcomes import outcomes
    from sweeplab.records.folders import lab_folder

    chain = read_chain(ledger_file(ledger, lab))
    found = outcomes(chain.entries, lab_folder(lab))
    if as_json:
        print_json(_scores_as_dict(chain, found))
    else:
        _print_outcomes(chain, found)


def _scores_as_dict(chain: Chain, found: Sequence[Outcome]) -> dict[str, Any]:
    from sweeplab.analysis.ledger.outcomes import calibrate

    return {
        "ledger": str(chain.path),
        "chain": "whole",
        "entries": len(chain.entries),
        "head": chain.head,
        "head_file": chain.has_head,
        "forecasts": [outcome.as_dict() for outcome in found],
        "calibration": asdict(calibrate(found)),
    }


def _print_scores(chain: Chain, found: Sequence[Outcome]) -> None:
    """Print the scores of the forecasts whose runs have ended, and why the others have none."""
    _print_chain(chain)
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
        for outcome in found
        if (score := outcome.score)
    ]
    if rows:
        keys = dict.fromkeys(key for row in rows for key in row)
        print_rows([{key: row.get(key) for key in keys} for row in rows], text=_TEXT)
        _print_calibration(found)
    for outcome in found:
        if outcome.why:
            style = "red" if outcome.state == "refused" else None
            say(f"{outcome.entry.number} {outcome.state}: {outcome.why}", style)


def _print_outcomes(chain: Chain, found: Sequence[Outcome]) -> None:
    """Print every forecast with its outcome, and the calibration over all."""
    _print_chain(chain)
    rows = [
        {
            "sealed": f"{outcome.entry.sealed:%Y-%m-%d %H:%M}",
            **_row(outcome.entry),
            **_prediction(outcome.entry),
            "outcome": outcome.state,
            "loss": outcome.score.outcome if outcome.score else None,
            "nats": f"{outcome.score.error_nats:+.4f}" if outcome.score else None,
            "CRPS": outcome.score.crps["law"] if outcome.score else None,
        }
        for outcome in found
    ]
    print_rows(rows, text=_TEXT)
    _print_calibration(found)


def _print_chain(chain: Chain) -> None:
    end = "" if chain.has_head else "; without its .head file, entries removed from its end go unnoticed"
    say(f"{chain.path}: {several(len(chain.entries), 'forecast')}, chain whole{end}")
    say(f"last entry: {chain.head}\n")


def _print_calibration(found: Sequence[Outcome]) -> None:
    from sweeplab.analysis.ledger.outcomes import calibrate

    calibration = calibrate(found)
    if not calibration.n:
        return
    scored = f"{several(calibration.n, 'forecast')} scored, of {several(calibration.n_runs, 'run')}"
    say(f"\n{scored} and {several(calibration.n_fits, 'fit')}; errors of one fit are correlated")
    held = [f"{each.covered} of {each.n} at {each.level:.0%}" for each in calibration.coverage]
    say(f"inside the interval: {'; '.join(held)}")
    if len(calibration.by_verdict) > 1:
        shares = [f"{each.covered} of {each.n} {verdict}" for verdict, each in calibration.by_verdict.items()]
        say("by the verdict sealed with it: " + ", ".join(shares))
    for name, skill in calibration.crps.items():
        ratio = "–" if skill.ratio is None else f"{skill.ratio:.2f}"
        say(f"mean CRPS {skill.law:.4g}, that of the {name} {skill.naive:.4g}: a ratio of {ratio}")
    say()


def _row(entry: Entry) -> dict[str, Any]:
    forecast = entry.forecast
    studies, cells = list(forecast["run"]["studies"]), forecast["run"]["cells"]
    place = ", ".join(studies or forecast["source"]["names"])
    return {
        "": entry.number,
        "run": f"{place} {cells[0]}" if cells else place,
        "law": forecast["fit"]["law"],
        "params": forecast["at"].get("params"),
        "tokens": forecast["at"].get("tokens"),
    }


def _prediction(entry: Entry) -> dict[str, Any]:
    """Return the prediction; where the law does not identify the loss there is only its interval."""
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
