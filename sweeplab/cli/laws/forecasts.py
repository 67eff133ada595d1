"""`sweeplab laws forecast`, `verify`, `ledger` and `next`: forecasts sealed before a run, and which runs to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.analysis.ledger import FILE_NAME, Chain, read_chain
from sweeplab.cli.laws import (
    Columns,
    Count,
    Law,
    Source,
    Tuned,
    Where,
    counting_of,
    is_file,
    names_in,
    read_source,
)
from sweeplab.cli.options import Lab, argument, option, studies
from sweeplab.cli.printing import Answer, cell_text, interval, print_rows, say, say_warnings
from sweeplab.errors import BadInput, conflict
from sweeplab.formatting import several
from sweeplab.records.folders import lab_folder

if TYPE_CHECKING:
    from sweeplab.analysis.scoring import Outcome


Ledger = Annotated[Path | None, option("FILE", "File of sealed forecasts.  [default: LAB/ledger.jsonl]")]
_MOST_SAID = 3
_UNSCORED: dict[str, Any] = {"outcome": None, "error_nats": None, "crps": {"law": None}}
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
    law: Law = "auto",
    tuned: Tuned = None,
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
    from sweeplab.analysis import sealing
    from sweeplab.laws.assessment import assess, law_for
    from sweeplab.study.file.reading import read_study

    sizes = {"params": params, "tokens": tokens, "flops": flops}
    named = {"--study": study, "--targets": many} | {f"--{name}": size for name, size in sizes.items()}
    options = [name for name, value in named.items() if value]
    if len(options) > 1 and not sizes.keys() >= {name.removeprefix("--") for name in options}:
        raise BadInput(conflict(options[0], options[1]))
    points, counting, read = read_source(source, columns, count, lab, where, tuned)
    form, place = law_for(points, law), None
    if read:
        text = {name: data["text_digest"] for name, data in read.data.items()}
        digests = {name: sealing.study_digest(spec, text[name]) for name, spec in read.specs.items()}
        place = sealing.Place(digests, counting)
    if study:
        # --columns and --where name columns of the file, which a study does not have.
        counted = counting if read else replace(counting, columns={}, where="")
        asked, left_out = sealing.cell_targets(read_study(study), lab_folder(lab), counted)
    elif many:
        asked, left_out = sealing.file_targets(points, many, place), {}
    else:
        asked, left_out = [sealing.point_target(points, sizes, place)], {}
    path = _file(ledger, lab)
    origin = sealing.PointSource(tuple(read.specs) if read else (source,), not read, counting)
    sealed = sealing.seal(path, origin, assess(points, form), lab_folder(lab), asked, left_out)
    entries = [
        {"number": entry.number, "sealed": entry.sealed.isoformat(), "sha256": entry.sha256, **entry.forecast}
        for entry in sealed.entries
    ]
    answer = {"ledger": str(path), "head": sealed.entries[-1].sha256, "sealed": entries}
    return answer | {"left_out": sealed.left_out, "warnings": sealed.warnings}, _print_sealed


def _print_sealed(sealed: dict[str, Any]) -> None:
    print_rows([_row(entry, entry) | _prediction(entry) for entry in sealed["sealed"]], text=_TEXT)
    predicted = sealed["sealed"][0]["predicted"]
    say(f"\n{predicted['level']:.0%} intervals: {predicted['method']}")
    say(f"sealed in {sealed['ledger']}; its last entry is {sealed['head']}")
    say(
        "publish this digest before the run starts, in git for example: otherwise the seal proves nothing to others"
    )
    _say_some([f"left out: {what}: {why}" for what, why in sealed["left_out"].items()])
    _say_some([f"warning: {warning}" for warning in sealed["warnings"]], "yellow")


def _file(ledger: Path | None, lab: Path | None) -> Path:
    return (ledger or lab_folder(lab) / FILE_NAME).expanduser().absolute()


def _say_some(lines: Sequence[str], style: str | None = None) -> None:
    for line in lines[:_MOST_SAID]:
        say(line, style)
    if len(lines) > _MOST_SAID:
        say(f"… and {len(lines) - _MOST_SAID} more, which --json lists", style)


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
    """Check the ledger, and score forecasts whose runs ended.

    A score is the error, whether the interval held, and the CRPS next to that of naive forecasters. The first
    score is recorded in the ledger and counts; later ones, of other rows, count as attempts. A forecast sealed
    after its run started is refused; a broken hash chain ends with exit code 2.

    \b
    $ sweeplab laws verify small
    $ sweeplab laws verify --against runs.csv
    """
    from sweeplab.analysis.scoring import of_study, outcomes, record

    if (columns or count) and against is None:
        raise BadInput("--columns and --count are for the table of --against FILE")
    counting = counting_of(columns, count) if columns or count else None
    chain = read_chain(_file(ledger, lab))
    entries = of_study(chain.forecasts, study) if study else chain.forecasts
    scored = outcomes(entries, lab_folder(lab), against, counting, chain.scores)
    if record(chain.path, scored):
        chain = read_chain(chain.path)
        scored = outcomes(entries, lab_folder(lab), against, counting, chain.scores)
    return _scored(chain, scored), _print_scores


def ledger(ledger: Ledger = None, lab: Lab = None) -> Answer:
    """List sealed forecasts, and how often they held.

    It prints one row per forecast with its outcome, then the coverage at each level over all scored forecasts.

    \b
    $ sweeplab laws ledger
    $ sweeplab laws ledger --json
    """
    from sweeplab.analysis.scoring import outcomes

    chain = read_chain(_file(ledger, lab))
    return _scored(chain, outcomes(chain.forecasts, lab_folder(lab), recorded=chain.scores)), _print_outcomes


def _scored(chain: Chain, scored: Sequence[Outcome]) -> dict[str, Any]:
    from sweeplab.analysis.scoring import calibrate

    return {
        "ledger": str(chain.path),
        "chain": "whole",
        "entries": len(chain.entries),
        "n_forecasts": len(chain.forecasts),
        "head": chain.head,
        "head_file": chain.has_head,
        "forecasts": [outcome.as_dict() for outcome in scored],
        "calibration": asdict(calibrate(scored)),
    }


def _print_scores(answer: dict[str, Any]) -> None:
    _print_chain(answer)
    rows = [
        {
            **_row(forecast, forecast["forecast"]),
            "loss": score["outcome"],
            "interval": interval(forecast["forecast"]["predicted"]),
            "held": ("no", "yes")[score["covered"]],
            "error": _signed(score["error_log"], ".2%"),
            "nats": _signed(score["error_nats"], ".4f"),
            **{f"CRPS {name}": crps for name, crps in score["crps"].items()},
        }
        for forecast in answer["forecasts"]
        for score in filter(None, [forecast["score"]])
    ]
    if rows:
        print_rows(rows, text=_TEXT)
        _print_calibration(answer["calibration"])
    for forecast in answer["forecasts"]:
        if forecast["why"]:
            style = {"refused": "red"}.get(forecast["state"])
            say(f"{forecast['number']} {forecast['state']}: {forecast['why']}", style)


def _print_outcomes(answer: dict[str, Any]) -> None:
    _print_chain(answer)
    rows = [
        {
            "sealed": f"{datetime.fromisoformat(forecast['sealed']):%Y-%m-%d %H:%M}",
            **_row(forecast, forecast["forecast"]),
            **_prediction(forecast["forecast"]),
            "outcome": forecast["state"],
            "loss": score["outcome"],
            "nats": _signed(score["error_nats"], ".4f"),
            "CRPS": score["crps"]["law"],
        }
        for forecast in answer["forecasts"]
        for score in [forecast["score"] or _UNSCORED]
    ]
    print_rows(rows, text=_TEXT)
    _print_calibration(answer["calibration"])


def _print_chain(answer: dict[str, Any]) -> None:
    end = "" if answer["head_file"] else "; without its .head file, entries removed from its end go unnoticed"
    say(f"{answer['ledger']}: {several(answer['n_forecasts'], 'forecast')}, hash chain intact{end}")
    say(f"last entry: {answer['head']}\n")


def _print_calibration(calibration: dict[str, Any]) -> None:
    if not calibration["n"]:
        return
    counts = {noun: several(calibration[f"n_{noun}s"], noun) for noun in ("forecast", "fit")}
    say(
        f"\n{counts['forecast']} scored, of {several(calibration['n'], 'run')} and {counts['fit']}; "
        "the first forecast of a run counts; errors of one fit are correlated"
    )
    held = [f"{_share(counted)} at {counted['level']:.0%}" for counted in calibration["coverage"]]
    say(f"inside the interval: {'; '.join(held)}")
    verdicts = calibration["by_verdict"]
    if len(verdicts) > 1:
        shares = [f"{_share(counted)} {verdict}" for verdict, counted in verdicts.items()]
        say("by the verdict sealed with it: " + ", ".join(shares))
    for name, counted in calibration["crps"].items():
        ratio = "–" if counted["ratio"] is None else f"{counted['ratio']:.2f}"
        say(f"mean CRPS {counted['law']:.4g} against {counted['naive']:.4g} of the {name}: ratio {ratio}")
    say()


def _share(counted: dict[str, Any]) -> str:
    return f"{counted['covered']} of {counted['n']}"


def _row(entry: dict[str, Any], forecast: dict[str, Any]) -> dict[str, Any]:
    studies, cells = list(forecast["run"]["studies"]), forecast["run"]["cells"]
    place = ", ".join(studies or forecast["source"]["names"])
    row = {"": entry["number"], "run": " ".join([place, *cells[:1]]), "law": forecast["fit"]["law"]}
    return row | {size: forecast["at"].get(size) for size in ("params", "tokens")}


def _prediction(forecast: dict[str, Any]) -> dict[str, Any]:
    return {
        "predicted": forecast["predicted"]["loss"],
        "interval": interval(forecast["predicted"]),
        "verdict": forecast["predicted"]["verdict"]["verdict"],
        "form": forecast["fit"].get("form", {}).get("status"),  # older forecasts lack it
    }


def _signed(number: float | None, form: str) -> str | None:
    if number is None:
        return None
    return f"{number:+{form}}"


def next_runs(
    source: Source,
    flops: Annotated[
        float | None, option("C", "FLOPs to spend on all runs.  [default: half of those spent]", min=0)
    ] = None,
    quantity: Annotated[
        str | None,
        option(
            "QUANTITY", "A number of `laws fit` to learn.  [default: N_opt exponent, else that of the law]"
        ),
    ] = None,
    law: Law = "auto",
    output: Annotated[Path | None, option("FILE", "Write the chosen runs as a study file.")] = None,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Choose the runs that tell most about a number.

    The promise is the median half width of a few refits with imagined losses of these runs.

    \b
    $ sweeplab laws next runs.csv --flops 1e18 --quantity beta
    $ sweeplab laws next scaling --output next.yaml
    """
    from sweeplab.analysis.next_study import next_study_text, study_candidates
    from sweeplab.files import write_whole
    from sweeplab.laws.assessment import assess, law_for
    from sweeplab.laws.next_runs import find_quantity, of_points, spent
    from sweeplab.laws.next_runs import next_runs as choose

    if output and is_file(source):
        raise BadInput("--output writes a study file, but a table's runs belong to no study")
    points, counting, _ = read_source(source, columns, count, lab, where, tuned)
    assessed = assess(points, law_for(points, law))
    asked = find_quantity(assessed, quantity)
    budget = spent(assessed.points) / 2 if flops is None else flops
    spec = None
    if is_file(source):
        candidates = of_points(assessed.points, budget)
    else:
        spec, cells = study_candidates(lab, names_in(source), counting, assessed.points)
        candidates = cells.like(assessed.points, budget)
    chosen = choose(assessed, asked, candidates, budget).as_dict() | {"warnings": list(assessed.warnings)}
    if output and spec:
        why = f"Chosen by `laws next` to learn {chosen['quantity']}; next: sweeplab laws fit {source},{spec.name}"
        cells_run = [run["cell"] for run in chosen["runs"]]
        text = next_study_text(spec, cells_run, [run["times"] for run in chosen["runs"]], why)
        try:
            write_whole(output, text.encode())
        except OSError as error:
            raise BadInput(f"{output}: cannot be written: {error.strerror or error}") from error
        chosen["study_file"] = str(output)
    return chosen, _print_runs


def _print_runs(chosen: dict[str, Any]) -> None:
    half = chosen["half_width"]
    sign = "a factor " if half["is_factor"] else "±"
    now, then = (f"{sign}{cell_text(half[when])}" for when in ("now", "then"))
    say(f"{chosen['quantity']}: {now} now, about {then} with {several(chosen['n_runs'], 'run')} of")
    say(f"{chosen['spent_flops']:.3g} of {chosen['budget_flops']:.3g} FLOPs\n")
    rows = [
        {
            "cell": ",".join(f"{name}={value}" for name, value in run.get("cell", {}).items()) or None,
            **{name: f"{run[name]:.3g}" for name in ("params", "tokens", "tokens_per_param")},
            "times": run["times"],
            "FLOPs": f"{run['flops']:.3g}",
        }
        for run in chosen["runs"]
    ]
    print_rows(rows, text=("cell",))
    say_warnings(chosen["warnings"])
    if "study_file" in chosen:
        file = chosen["study_file"]
        say(f"written to {file}; sweeplab run {file} trains them")
