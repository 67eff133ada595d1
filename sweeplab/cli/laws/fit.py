"""`sweeplab laws fit`, `isoflop` and `shape`: numbers of a table, each with an interval and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from sweeplab.cli.laws.source import (
    Budget,
    Columns,
    Count,
    Delta,
    Source,
    counting_of,
    is_file,
    points_from,
    studies_from,
)
from sweeplab.cli.options import AsJson, Lab, option
from sweeplab.cli.printing import cell_text, print_found, print_rows, say, say_warnings


def fit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    law: Annotated[
        str, option("LAW", "One of chinchilla, tied, kaplan, joint, power-n, power-d or power-c.")
    ] = "chinchilla",
    delta: Delta = "auto",
    flops: Budget = None,
    at: Annotated[str | None, option("ROLE=NUMBER,…", "Also give the loss at params=…,tokens=….")] = None,
    bootstrap: Annotated[int, option("REFITS", "Number of refits of resampled tables.", min=0)] = 0,
    report: Annotated[Path | None, option("PAGE.html", "Write a page of the law, with figures.")] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Fit a law to a table, with a verdict on every number.

    A number that the table does not identify is not shown; the verdict says why.

    \b
    $ sweeplab laws fit runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws fit small --law power-n --json
    $ sweeplab laws fit runs.csv --report law.html
    """
    from sweeplab.analysis.fit.assessment import assess, find_law, parse_target

    form = find_law(law)
    target = parse_target(at) if at else None
    points = points_from(source, columns, lab, count)
    if report:
        from sweeplab.report.data import N_REFITS
        from sweeplab.report.writer import write_law_report

        bootstrap = bootstrap or N_REFITS
    assessed = assess(points, form, delta, flops, target, bootstrap)
    found = assessed.as_dict()
    if report:
        write_law_report(assessed, source, report)
        found["report"] = str(report)
    print_found(found, as_json, _print_assessment)


def _print_assessment(found: dict[str, Any]) -> None:
    starts = f"{found['fit']['starts_at_the_optimum']} of {found['fit']['starts']} starts"
    say(f"{found['law']}: {found['formula']}  ({found['source']})")
    say(
        f"{found['n_points']} rows, delta {cell_text(found['delta'])}, residuals of {found['sigma']:.2%}; "
        f"{starts} reached the optimum"
    )
    if dropped := found["dropped"]:
        say("left out: " + ", ".join(f"{count} {reason}" for reason, count in dropped.items()))
    _say_conventions(found)
    entries = found["parameters"] | found["derived"]
    say()
    print_rows([_row(name, entry) for name, entry in entries.items()], text=_TEXT)
    say()
    _say_reasons(entries)
    say_warnings(found["warnings"])
    if "report" in found:
        say(found["report"])


def isoflop(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    budgets: Annotated[
        str | None,
        option(
            "N|FLOPS,…",
            "Bin the rows into N budgets, or take the rows nearest to the named ones.  "
            "[default: the budgets that rows share]",
        ),
    ] = None,
    law: Annotated[str, option("LAW", "Law of the parametric approach: one of N and D.")] = "chinchilla",
    flops: Budget = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Find the compute-optimal size, by three approaches.

    Parabolas at equal compute, the envelope of training curves and a fitted law, compared. A minimum
    counts only with rows on both sides of it.

    \b
    $ sweeplab laws isoflop runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws isoflop small --budgets 6 --json
    """
    from sweeplab.analysis.compute_optimal.approaches import approaches
    from sweeplab.analysis.compute_optimal.isoflop import parse_budgets
    from sweeplab.records.folders import lab_folder

    asked = parse_budgets(budgets) if budgets else None
    if is_file(source):  # a file has its curves in its groups
        points, curves = points_from(source, columns, lab, count), None
    else:
        studies, counting = studies_from(source, lab), counting_of(columns, count)
        chosen = studies.settled(counting.conventions)
        points, curves = (
            studies.points(counting.columns, chosen),
            studies.loss_curves(lab_folder(lab), chosen),
        )
    print_found(approaches(points, curves, law, asked, flops).as_dict(), as_json, _print_approaches)


def _print_approaches(found: dict[str, Any]) -> None:
    say(f"{found['n_points']} rows; N_opt at {found['budget_flops']:.3g} FLOPs; {found['isoflop']['how']}")
    _say_conventions(found)
    say()
    rows = [
        {"approach": approach} | _row(name, entry) | {"meaning": None}
        for approach, numbers in found["roads"].items()
        for name, entry in numbers.items()
    ]
    print_rows(rows, text=("approach", *_TEXT))
    if budgets := found["isoflop"]["budgets"]:
        keys = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss", "why_none")
        say()
        print_rows([{key: each[key] for key in keys} for each in budgets], text=("why_none",))
    say()
    for approach, numbers in found["roads"].items():
        _say_reasons(numbers, f"{approach}: ")
    for each in found["disagreements"]:
        say(each["says"])
    say_warnings(found["warnings"])


def shape(
    source: Source, columns: Columns = None, count: Count = None, lab: Lab = None, as_json: AsJson = False
) -> None:
    """Measure what depth and width do at equal parameters.

    It lists the shapes that no other beats. A file needs columns n_layer and n_embd beside those of --columns.

    \b
    $ sweeplab laws shape small
    $ sweeplab laws shape runs.csv --columns params=N,loss=loss --json
    """
    from sweeplab.analysis.compute_optimal.shape import shape_of

    print_found(shape_of(points_from(source, columns, lab, count)).as_dict(), as_json, _print_shape)


def _print_shape(found: dict[str, Any]) -> None:
    say(f"{found['n_points']} points of {found['n_shapes']} shapes")
    _say_conventions(found)
    say()
    print_rows([_row(name, entry) for name, entry in found["numbers"].items()], text=_TEXT)
    say("\nshapes that no other beats with as many tokens and no more parameters:")
    keys = ("n_layer", "n_embd", "aspect_ratio", "params", "tokens", "loss")
    print_rows([{key: each[key] for key in keys} for each in found["frontier"]], text=())
    say()
    _say_reasons(found["numbers"])
    say(found["says"])


_TEXT = ("quantity", "verdict", "meaning")


def _row(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a number: its value where it is identified, its interval, and the verdict."""
    ends = {end: cell_text(entry[end]) for end in ("low", "high")}
    refits = " to ".join(map(cell_text, entry["bootstrap"])) if "bootstrap" in entry else None
    return {
        **{"quantity": name, "value": entry["value"], **ends, "bootstrap": refits},
        **{"verdict": entry["verdict"], "meaning": entry["meaning"]},
    }


def _say_conventions(found: Mapping[str, Any]) -> None:
    say("; ".join(f"{name}: {what}" for name, what in found["conventions"].items()))


def _say_reasons(entries: Mapping[str, Mapping[str, Any]], prefix: str = "") -> None:
    """Print why numbers are not identified, one line per reason."""
    reasons: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if entry["verdict"] != "identified":
            reasons.setdefault(f"{entry['verdict']}: {entry['why']}", []).append(name)
    for reason, names in reasons.items():
        say(f"{prefix}{', '.join(names)}: {reason}")
