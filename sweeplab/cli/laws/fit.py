"""`sweeplab laws fit`, `compare`, `audit`, `isoflop` and `shape`: numbers with verdicts, and what speaks against."""

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
    Where,
    counting_of,
    names_in,
    read_source,
    studies_from,
)
from sweeplab.cli.options import Lab, argument, option, studies
from sweeplab.cli.printing import Answer, cell_text, print_rows, progress, say, say_warnings
from sweeplab.formatting import several, several_named
from sweeplab.records.folders import lab_folder

_MOST_NAMED = 8
_TEXT = ("quantity", "verdict", "meaning")


def fit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    law: Annotated[
        str, option("LAW", "One of chinchilla, tied, kaplan, joint, power-n, power-d or power-c.")
    ] = "chinchilla",
    delta: Delta = "auto",
    flops: Budget = None,
    at: Annotated[str | None, option("ROLE=NUMBER,…", "Also give the loss at params=…,tokens=….")] = None,
    bootstrap: Annotated[int, option("REFITS", "Number of bootstrap refits.", min=0)] = 0,
    report: Annotated[Path | None, option("PAGE.html", "Write a page of the law, with figures.")] = None,
    lab: Lab = None,
) -> Answer:
    """Fit a law to a table, with a verdict on every number.

    A number that the table does not identify is not shown; the verdict says why.

    \b
    $ sweeplab laws fit runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws fit small --law power-n --json
    $ sweeplab laws fit runs.csv --report law.html
    """
    from sweeplab.laws.assessment import assess, find_law, parse_target

    form = find_law(law)
    target = parse_target(at) if at else None
    points = read_source(source, columns, count, lab, where).points
    if report:
        from sweeplab.report.data import N_REFITS
        from sweeplab.report.writer import write_law_report

        bootstrap = bootstrap or N_REFITS
    with progress() as update:
        assessed = assess(points, form, delta, flops, target, bootstrap, say=update)
    found = assessed.as_dict()
    if report:
        write_law_report(assessed, source, report)
        found["report"] = str(report)
    return found, _print_assessment


def _print_assessment(found: dict[str, Any]) -> None:
    starts = f"{found['fit']['starts_at_the_optimum']} of {found['fit']['starts']} starts"
    say(f"{found['law']}: {found['formula']}  ({found['source']})")
    say(
        f"{several(found['n_points'], 'row')}, delta {cell_text(found['delta'])}, residuals of {found['sigma']:.2%}; "
        f"{starts} reached the optimum"
    )
    if dropped := found["dropped"]:
        say("left out: " + ", ".join(f"{count} {reason}" for reason, count in dropped.items()))
    _say_conventions(found)
    entries = found["parameters"] | found["derived"]
    print_rows([_row(name, entry) for name, entry in entries.items()], text=_TEXT)
    say()
    _say_reasons(entries)
    for sentence in found["misfit"]["sentences"]:
        if sentence not in found["warnings"]:
            say(sentence)
    say_warnings(found["warnings"])
    if "report" in found:
        say(found["report"])


def compare(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    laws: Annotated[
        str | None, option("LAW,…", "Laws, the first as the reference.  [default: all that suit the table]")
    ] = None,
    lab: Lab = None,
) -> Answer:
    """Compare laws by their forecasts of larger runs.

    Each law is fitted to the runs below several compute cuts and predicts those above. A form is flagged if its
    residuals follow a pattern; patterns that the table's design cannot reveal are named.

    \b
    $ sweeplab laws compare runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws compare small --laws chinchilla,joint --json
    """
    from sweeplab.laws.assessment import find_law
    from sweeplab.laws.misfit.comparison import compare as compare_laws

    forms = [find_law(name) for name in dict.fromkeys(names_in(laws))] if laws else None
    points = read_source(source, columns, count, lab, where).points
    with progress() as update:
        return compare_laws(points, forms, update).as_dict(), _print_comparison


def _print_comparison(found: dict[str, Any]) -> None:
    cuts = found["cuts"]
    where = ", ".join(f"{each['at']:.3g} ({each['rows_above']} above)" for each in cuts["cuts"])
    say(f"{several(found['n_points'], 'row')}; cuts in {cuts['by']}: {where or 'none'}\n")
    print_rows([_law_row(each) for each in found["laws"]], text=("law", "form"))
    say()
    for sentence in found["sentences"]:
        say(sentence)
    say_warnings(found["laws"][0]["misfit"]["doubts"])
    for name, why in found["left_out"].items():
        say(f"{name} is left out: {why}", "yellow")


def _law_row(law: dict[str, Any]) -> dict[str, Any]:
    test, lead = law["backtest"], law["lead"] or {}
    return {
        "law": law["law"],
        "back-test error": _percent(test.get("error")),
        "bias": _percent(test.get("bias"), "+.2"),
        "coverage of 90%": _percent(test.get("coverage"), ".0"),
        "lead": _percent(lead.get("value"), "+.2"),
        "by chance": _percent(lead.get("chance"), ".1"),
        "in sample": _percent(law["in_sample"]),
        "form": law["misfit"]["status"],
    }


def _percent(share: float | None, form: str = ".2") -> str | None:
    return None if share is None else f"{share:{form}%}"


def audit(
    study: Annotated[str, argument("STUDY", "A study, or several: small,other.", autocompletion=studies)],
    count: Count = None,
    lab: Lab = None,
) -> Answer:
    """Find what in a study shifts its fitted exponents.

    It checks how N and C are counted, warm-up and decay, tuning, early ends and seeds. Each finding names
    the points that it concerns, and the exponents without them or with the other count.

    \b
    $ sweeplab laws audit small
    $ sweeplab laws audit small --count params=non-embedding,flops=6nd --json
    """
    from sweeplab.analysis.audit.checks import audit as audit_runs
    from sweeplab.analysis.audit.evidence import gather

    found = studies_from(study, lab)
    conventions = found.settled(counting_of(None, count).conventions)
    evidence = gather(found.runs, found.designs, conventions)
    return audit_runs(evidence), _print_audit


def _print_audit(found: dict[str, Any]) -> None:
    say(
        f"{several(found['n_points'], 'point')}; exponents of {found['law'] or 'no law: the points allow none'}"
    )
    for each in found["findings"]:
        style = "yellow" if each["state"] == "found" else None
        say(f"\n{each['name']}: {each['state']}: {each['sentence']}", style)
        if each["points"]:
            say(f"  points: {_points(each['points'], found['n_points'])}")
        for effect in each["effects"]:
            if effect["why"]:
                say(f"  {effect['change']}: no exponents: {effect['why']}")
            for name, both in effect["exponents"].items():
                mark = ", outside of its interval" if both["differs"] else ""
                change = f"{_exponent(both['before'])} becomes {_exponent(both['after'])}{mark}"
                say(f"  {effect['change']}: {name} {change}")


def _points(names: list[str], n_points: int) -> str:
    if len(names) == n_points:
        return f"all {n_points}" if n_points > 1 else names[0]
    return several_named(names, _MOST_NAMED)


def _exponent(each: dict[str, Any]) -> str:
    if each["value"] is None:
        return str(each["verdict"])
    return f"{cell_text(each['value'])} ({cell_text(each['low'])} to {cell_text(each['high'])})"


def isoflop(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    budgets: Annotated[
        str | None,
        option(
            "N|FLOPS,…",
            "Bin the rows into N budgets, or take the rows nearest to the given ones.  "
            "[default: the budgets that rows share]",
        ),
    ] = None,
    law: Annotated[str, option("LAW", "Law of N and D for the parametric approach.")] = "chinchilla",
    flops: Budget = None,
    lab: Lab = None,
) -> Answer:
    """Find the compute-optimal size, by three approaches.

    It compares parabolas at equal compute, the envelope of training curves and a fitted law. A minimum
    counts only with rows on both sides of it.

    \b
    $ sweeplab laws isoflop runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws isoflop small --budgets 6 --json
    """
    from sweeplab.laws.compute_optimal.approaches import approaches
    from sweeplab.laws.compute_optimal.isoflop import parse_budgets

    asked = parse_budgets(budgets) if budgets else None
    points, counting, studies = read_source(source, columns, count, lab, where)
    # A file has its curves in its groups.
    curves = studies.loss_curves(lab_folder(lab), counting.conventions) if studies else None
    return approaches(points, curves, law, asked, flops).as_dict(), _print_approaches


def _print_approaches(found: dict[str, Any]) -> None:
    say(
        f"{several(found['n_points'], 'row')}; N_opt at {found['budget_flops']:.3g} FLOPs; {found['isoflop']['how']}"
    )
    _say_conventions(found)
    rows = [
        {"approach": approach} | _row(name, entry) | {"meaning": None}
        for approach, numbers in found["roads"].items()
        for name, entry in numbers.items()
    ]
    print_rows(rows, text=("approach", *_TEXT))
    if budgets := found["isoflop"]["budgets"]:
        keys = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss", "why_none")
        say()
        print_rows(budgets, text=("why_none",), keys=keys)
    say()
    for approach, numbers in found["roads"].items():
        _say_reasons(numbers, f"{approach}: ")
    for each in found["disagreements"]:
        say(each["says"])
    say_warnings(found["warnings"])


def shape(
    source: Source, columns: Columns = None, count: Count = None, where: Where = None, lab: Lab = None
) -> Answer:
    """Measure how depth and width matter at equal parameters.

    It lists the shapes that no other beats. A file needs columns n_layer and n_embd besides those of --columns.

    \b
    $ sweeplab laws shape small
    $ sweeplab laws shape runs.csv --columns params=N,loss=loss --json
    """
    from sweeplab.laws.compute_optimal.shape import shape_of

    return shape_of(read_source(source, columns, count, lab, where).points).as_dict(), _print_shape


def _print_shape(found: dict[str, Any]) -> None:
    say(f"{several(found['n_points'], 'point')} of {several(found['n_shapes'], 'shape')}")
    _say_conventions(found)
    print_rows([_row(name, entry) for name, entry in found["numbers"].items()], text=_TEXT)
    say("\nshapes that no other beats with as many tokens and no more parameters:")
    keys = ("n_layer", "n_embd", "aspect_ratio", "params", "tokens", "loss")
    print_rows(found["frontier"], text=(), keys=keys)
    say()
    _say_reasons(found["numbers"])
    say(found["says"])


def _row(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a number: its value where it is identified, its interval, and the verdict."""
    ends = {end: cell_text(entry[end]) for end in ("low", "high")}
    refits = " to ".join(map(cell_text, entry["bootstrap"])) if "bootstrap" in entry else None
    return {
        **{"quantity": name, "value": entry["value"], **ends, "bootstrap": refits},
        **{"verdict": entry["verdict"], "meaning": entry["meaning"]},
    }


def _say_conventions(found: Mapping[str, Any]) -> None:
    say("; ".join(f"{name}: {what}" for name, what in found["conventions"].items()) + "\n")


def _say_reasons(entries: Mapping[str, Mapping[str, Any]], prefix: str = "") -> None:
    """Print why numbers are not identified, one line per reason."""
    reasons: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if entry["verdict"] != "identified":
            reasons.setdefault(f"{entry['verdict']}: {entry['why']}", []).append(name)
    for reason, names in reasons.items():
        say(f"{prefix}{', '.join(names)}: {reason}")
