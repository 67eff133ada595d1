"""`sweeplab laws forecast`, `verify` and `ledger`: forecasts sealed before a run, and their scores after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.analysis.ledger.chain import FILE_NAME, Chain, read_chain
from sweeplab.cli.laws.source import Columns, Count, Delta, Law, Source, Where, counting_of, read_source
from sweeplab.cli.options import Lab, argument, option, studies
from sweeplab.cli.printing import Answer, cell_text, print_rows, say
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.records.folders import lab_folder

if TYPE_CHECKING:
    from sweeplab.analysis.ledger.outcomes import Outcome

Ledger = Annotated[Path | None, option("FILE", "File of sealed forecasts.  [default: LAB/ledger.jsonl]")]
_MOST_SAID = 3
_ERRORS = "errors of one fit are correlated"
_PUBLISH = "publish this digest before the run starts, in git for example: otherwise the seal proves nothing to others"
_TEXT = ("run", "law", "verdict", "form", "outcome", "sealed", "interval")


def forecast(
    source: Source,
    params: Annotated[float | None, option("N", "Parameters of the future run.")] = None,
    tokens: Annotated[float | None, option("D", "Its training tokens.")] = None,
    flops: Annotated[float | None, option("C", "Its FLOPs.  [default: N*D times the table's C/ND]")] = None,
    study: Annotated[
        Path | None, option("FILE", "Forecast the cells of this study file, before it has runs.")
    ] = None,
    many: Annotated[
        Path | None,
        option("FILE", "Forecast each row of this table: columns params, tokens, flops.", "--targets"),
    ] = None,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    law: Law = "chinchilla",
    delta: Delta = "auto",
    ledger: Ledger = None,
    lab: Lab = None,
) -> Answer:
    """Seal a law's forecast of a run, before the run exists.

    The 90% interval covers the law's uncertainty, a run's noise and the error of the law's form in the
    back-test. Every entry holds the hash of the one before it, by which `laws verify` detects changes; it also
    scores the runs that have ended.

    \b
    $ sweeplab laws forecast small --params 2e6 --tokens 1e8
    $ sweeplab laws forecast small --study studies/small.yaml
    $ sweeplab laws forecast runs.csv --targets larger.csv
    """
    from sweeplab.analysis.ledger import sealing, targets
    from sweeplab.laws.assessment import assess, find_law
    from sweeplab.study.file.reading import read_study

    form, sizes = find_law(law), {"params": params, "tokens": tokens, "flops": flops}
    if sum(map(bool, (study, many, any(sizes.values())))) > 1:
        raise BadInput("--study, --targets and --params with --tokens each name runs: give one of them")
    points, counting, read = read_source(source, columns, count, lab, where)
    place = None
    if read:
        text = {name: data["text_digest"] for name, data in read.data.items()}
        digests = {name: targets.study_digest(spec, text[name]) for name, spec in read.specs.items()}
        place = targets.Place(digests, counting)
    if study:
        # --columns and --where name columns of the file, which a study does not have.
        own = counting if read else replace(counting, columns={}, where="")
        asked, left_out = targets.cell_targets(read_study(study), lab_folder(lab), own)
    elif many:
        asked, left_out = targets.file_targets(points, many, place), {}
    else:
        asked, left_out = [targets.point_target(points, sizes, place)], {}
    path = _file(ledger, lab)
    origin = sealing.Source(tuple(read.specs) if read else (source,), not read, counting)
    sealed = sealing.seal(path, origin, assess(points, form, delta), lab_folder(lab), asked, left_out)
    entries = [
        {"number": each.number, "sealed": each.sealed.isoformat(), "sha256": each.sha256, **each.forecast}
        for each in sealed.entries
    ]
    found = {"ledger": str(path), "head": sealed.entries[-1].sha256, "sealed": entries}
    return found | {"left_out": sealed.left_out, "warnings": sealed.warnings}, _print_sealed


def _print_sealed(found: dict[str, Any]) -> None:
    print_rows([_row(each, each) | _prediction(each) for each in found["sealed"]], text=_TEXT)
    predicted = found["sealed"][0]["predicted"]
    say(f"\n{predicted['level']:.0%} intervals: {predicted['method']}")
    say(f"sealed in {found['ledger']}; its last entry is {found['head']}")
    say(_PUBLISH)
    _say_some([f"left out: {what}: {why}" for what, why in found["left_out"].items()])
    _say_some([f"warning: {warning}" for warning in found["warnings"]], "yellow")


def _file(given: Path | None, lab: Path | None) -> Path:
    return (given or lab_folder(lab) / FILE_NAME).expanduser().absolute()


def _say_some(lines: Sequence[str], style: str | None = None) -> None:
    """Print the first lines, and how many more there are."""
    for line in lines[:_MOST_SAID]:
        say(line, style)
    if more := len(lines[_MOST_SAID:]):
        say(f"… and {more} more, which --json lists", style)


def verify(
    study: Annotated[
        str | None, argument("STUDY", "Only forecasts for this study or from it.", autocompletion=studies)
    ] = None,
    against: Annotated[Path | None, option("FILE", "The forecasts' table, with new rows added.")] = None,
    columns: Columns = None,
    count: Count = None,
    ledger: Ledger = None,
    lab: Lab = None,
) -> Answer:
    """Check the ledger, and score forecasts whose runs have ended.

    A score is the error, whether the interval held, and the CRPS next to that of naive forecasters. The first
    score is recorded in the ledger and counts; later ones, of other rows, count as attempts. A forecast sealed
    after its run started is refused; a broken hash chain ends with exit code 2.

    \b
    $ sweeplab laws verify small
    $ sweeplab laws verify --against runs.csv
    """
    from sweeplab.analysis.ledger.outcomes import of_study, outcomes, record

    if (columns or count) and against is None:
        raise BadInput("--columns and --count are for the table of --against FILE")
    counting = counting_of(columns, count) if columns or count else None
    chain = read_chain(_file(ledger, lab))
    entries = of_study(chain.forecasts, study) if study else chain.forecasts
    found = outcomes(entries, lab_folder(lab), against, counting, chain.scores)
    if record(chain.path, found):
        chain = read_chain(chain.path)
        found = outcomes(entries, lab_folder(lab), against, counting, chain.scores)
    return _scored(chain, found), _print_scores


def ledger(ledger: Ledger = None, lab: Lab = None) -> Answer:
    """List the sealed forecasts, and how often their intervals held.

    It prints one row per forecast with its outcome, then the coverage at each level over all scored forecasts.

    \b
    $ sweeplab laws ledger
    $ sweeplab laws ledger --json
    """
    from sweeplab.analysis.ledger.outcomes import outcomes

    chain = read_chain(_file(ledger, lab))
    return _scored(chain, outcomes(chain.forecasts, lab_folder(lab), recorded=chain.scores)), _print_outcomes


def _scored(chain: Chain, found: Sequence[Outcome]) -> dict[str, Any]:
    from sweeplab.analysis.ledger.outcomes import calibrate

    return {
        "ledger": str(chain.path),
        "chain": "whole",
        "entries": len(chain.entries),
        "n_forecasts": len(chain.forecasts),
        "head": chain.head,
        "head_file": chain.has_head,
        "forecasts": [outcome.as_dict() for outcome in found],
        "calibration": asdict(calibrate(found)),
    }


def _print_scores(found: dict[str, Any]) -> None:
    _print_chain(found)
    rows = [
        {
            **_row(each, each["forecast"]),
            "loss": score["outcome"],
            "interval": _interval(each["forecast"]),
            "held": "yes" if score["covered"] else "no",
            "error": _signed(score["error_log"], ".2%"),
            "nats": _signed(score["error_nats"], ".4f"),
            **{f"CRPS {name}": crps for name, crps in score["crps"].items()},
        }
        for each in found["forecasts"]
        if (score := each["score"])
    ]
    if rows:
        print_rows(rows, text=_TEXT)
        _print_calibration(found["calibration"])
    for each in found["forecasts"]:
        if each["why"]:
            style = "red" if each["state"] == "refused" else None
            say(f"{each['number']} {each['state']}: {each['why']}", style)


def _print_outcomes(found: dict[str, Any]) -> None:
    _print_chain(found)
    rows = [
        {
            "sealed": f"{datetime.fromisoformat(each['sealed']):%Y-%m-%d %H:%M}",
            **_row(each, each["forecast"]),
            **_prediction(each["forecast"]),
            "outcome": each["state"],
            "loss": each["score"]["outcome"] if each["score"] else None,
            "nats": _signed(each["score"]["error_nats"], ".4f") if each["score"] else None,
            "CRPS": each["score"]["crps"]["law"] if each["score"] else None,
        }
        for each in found["forecasts"]
    ]
    print_rows(rows, text=_TEXT)
    _print_calibration(found["calibration"])


def _print_chain(found: dict[str, Any]) -> None:
    end = "" if found["head_file"] else "; without its .head file, entries removed from its end go unnoticed"
    say(f"{found['ledger']}: {several(found['n_forecasts'], 'forecast')}, hash chain intact{end}")
    say(f"last entry: {found['head']}\n")


def _print_calibration(found: dict[str, Any]) -> None:
    if not found["n"]:
        return
    scored = f"{several(found['n_forecasts'], 'forecast')} scored, of {several(found['n'], 'run')}"
    say(f"\n{scored} and {several(found['n_fits'], 'fit')}; the first forecast of a run counts; {_ERRORS}")
    held = [f"{each['covered']} of {each['n']} at {each['level']:.0%}" for each in found["coverage"]]
    say(f"inside the interval: {'; '.join(held)}")
    if len(verdicts := found["by_verdict"]) > 1:
        shares = [f"{each['covered']} of {each['n']} {verdict}" for verdict, each in verdicts.items()]
        say("by the verdict sealed with it: " + ", ".join(shares))
    for name, each in found["crps"].items():
        ratio = "–" if each["ratio"] is None else f"{each['ratio']:.2f}"
        say(f"mean CRPS {each['law']:.4g} against {each['naive']:.4g} of the {name}: ratio {ratio}")
    say()


def _row(entry: dict[str, Any], forecast: dict[str, Any]) -> dict[str, Any]:
    studies, cells = list(forecast["run"]["studies"]), forecast["run"]["cells"]
    place = ", ".join(studies or forecast["source"]["names"])
    return {
        "": entry["number"],
        "run": f"{place} {cells[0]}" if cells else place,
        "law": forecast["fit"]["law"],
        "params": forecast["at"].get("params"),
        "tokens": forecast["at"].get("tokens"),
    }


def _prediction(forecast: dict[str, Any]) -> dict[str, Any]:
    """Return the prediction, which is only an interval where the law does not identify the loss."""
    return {
        "predicted": forecast["predicted"]["loss"],
        "interval": _interval(forecast),
        "verdict": forecast["predicted"]["verdict"]["verdict"],
        "form": forecast["fit"].get("form", {}).get("status"),  # older forecasts lack it
    }


def _signed(number: float | None, form: str) -> str | None:
    return None if number is None else f"{number:+{form}}"


def _interval(forecast: dict[str, Any]) -> str:
    return " to ".join(cell_text(forecast["predicted"][end]) for end in ("low", "high"))
