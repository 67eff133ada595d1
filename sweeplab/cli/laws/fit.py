"""`sweeplab laws fit`, `compare`, `isoflop`, `shape` and `audit`: numbers with verdicts, and what speaks against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from sweeplab.cli.laws import (
    NUMBER_TEXT,
    Budget,
    Columns,
    Count,
    Delta,
    Source,
    Tuned,
    Where,
    counting_of,
    is_file,
    names_in,
    number_row,
    print_numbers,
    read_source,
    say_reasons,
    studies_from,
)
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, cell_text, print_rows, progress, say, say_warnings, with_interval
from sweeplab.formatting import listed, several, several_named
from sweeplab.records.folders import lab_folder


def fit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    law: Annotated[
        str,
        option(
            "LAW",
            "One of auto, chinchilla, tied, kaplan, joint, power-n, power-d, power-c, or of n_embd and n_layer: shape, "
            "width-depth, shape-d, width-depth-d. auto is the law of the sizes that vary, power-n where tokens follow "
            "params, and one of the shape where it predicts larger runs better.",
        ),
    ] = "auto",
    delta: Delta = "auto",
    flops: Budget = None,
    at: Annotated[
        str | None, option("ROLE=NUMBER,…", "Also give the loss at params=…,tokens=…,n_layer=…,n_embd=….")
    ] = None,
    tuned: Tuned = None,
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
    from sweeplab.laws.assessment import assess, law_for, parse_target

    target = parse_target(at) if at else None
    points = read_source(source, columns, count, lab, where, tuned).points
    form = law_for(points, law)
    if report:
        from sweeplab.report.data import N_REFITS
        from sweeplab.report.writer import write_law_report

        bootstrap = bootstrap or N_REFITS
    with progress() as update:
        assessed = assess(points, form, delta, flops, target, bootstrap, say=update)
    assessment = assessed.as_dict()
    if report:
        write_law_report(assessed, source, report)
        assessment["report"] = str(report)
    return assessment, _print_assessment


def _print_assessment(assessment: dict[str, Any]) -> None:
    fitted = assessment["fit"]
    starts = f"{fitted['starts_at_the_optimum']} of {several(fitted['starts'], 'start')}"
    say(f"{assessment['law']}: {assessment['formula']}  ({assessment['source']})")
    say(
        f"{several(assessment['n_points'], 'row')}, delta {cell_text(assessment['delta'])}, "
        f"residuals of {assessment['sigma']:.2%}; {starts} reached the optimum"
    )
    _say_dropped(assessment)
    _say_conventions(assessment)
    for sentence in assessment["choice"]:
        say(sentence)
    print_numbers(assessment["parameters"] | assessment["derived"])
    for sentence in assessment["misfit"]["sentences"]:
        if sentence not in assessment["warnings"]:
            say(sentence)
    say_warnings(assessment["warnings"])
    if "report" in assessment:
        say(assessment["report"])


def compare(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    laws: Annotated[
        str | None,
        option(
            "LAW,…",
            "Laws, the first as the reference.  [default: the one that laws fit takes, and all that suit its rows]",
        ),
    ] = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Compare laws by their forecasts of larger runs.

    Each law is fitted to the runs below several compute cuts and predicts those above. A form is flagged if its
    residuals follow a pattern; patterns that the table's design cannot reveal are named.

    \b
    $ sweeplab laws compare runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws compare small --laws chinchilla,joint --json
    """
    from sweeplab.laws.assessment import find_law, law_for
    from sweeplab.laws.backtest import compare as compare_laws
    from sweeplab.laws.choosing import compared

    forms = [find_law(name) for name in dict.fromkeys(names_in(laws))] if laws else []
    points = read_source(source, columns, count, lab, where, tuned).points
    if forms:
        points, forms = compared(points, forms[0], forms[1:])
    else:
        points, forms = compared(points, law_for(points))
    with progress() as update:
        return compare_laws(points, forms, update).as_dict(), _print_comparison


def _print_comparison(comparison: dict[str, Any]) -> None:
    cuts = comparison["cuts"]
    where = ", ".join(f"{each['at']:.3g} ({each['rows_above']} above)" for each in cuts["cuts"])
    say(f"{several(comparison['n_points'], 'row')}; cuts in {cuts['by']}: {where or 'none'}")
    _say_dropped(comparison)
    say()
    rows = [
        {
            "law": law["law"],
            "back-test error": _percent(law["backtest"].get("error")),
            "bias": _percent(law["backtest"].get("bias"), "+.2"),
            "coverage of 90%": _percent(law["backtest"].get("coverage"), ".0"),
            "lead": _percent(lead.get("value"), "+.2"),
            "by chance": _percent(lead.get("chance"), ".1"),
            "in sample": _percent(law["in_sample"]),
            "form": law["misfit"]["status"],
        }
        for law in comparison["laws"]
        for lead in [law["lead"] or {}]
    ]
    print_rows(rows, text=("law", "form"))
    say()
    for sentence in comparison["sentences"]:
        say(sentence)
    say_warnings(comparison["warnings"])
    for name, why in comparison["left_out"].items():
        say(f"{name} is left out: {why}", "yellow")


def _percent(share: float | None, form: str = ".2") -> str | None:
    if share is None:
        return None
    return f"{share:{form}%}"


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
    tuned: Tuned = None,
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
    points, counting, studies = read_source(source, columns, count, lab, where, tuned)
    # A file has its curves in its groups.
    curves = studies.loss_curves(lab_folder(lab), counting.conventions) if studies else None
    return approaches(points, curves, law, asked, flops).as_dict(), _print_approaches


def _print_approaches(answer: dict[str, Any]) -> None:
    say(
        f"{several(answer['n_points'], 'row')}; N_opt at {answer['budget_flops']:.3g} FLOPs; {answer['isoflop']['how']}"
    )
    _say_conventions(answer)
    rows = [
        {"approach": approach} | number_row(name, entry) | {"meaning": None}
        for approach, numbers in answer["roads"].items()
        for name, entry in numbers.items()
    ]
    print_rows(rows, text=("approach", *NUMBER_TEXT))
    if answer["isoflop"]["budgets"]:
        keys = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss", "why_none")
        say()
        print_rows(answer["isoflop"]["budgets"], text=("why_none",), keys=keys)
    say()
    for approach, numbers in answer["roads"].items():
        say_reasons(numbers, f"{approach}: ")
    for disagreement in answer["disagreements"]:
        say(disagreement["says"])
    say_warnings(answer["warnings"])


def shape(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    params: Annotated[
        float | None,
        option("N", "Size to give the best shape for.  [default: the middle of the table's]", min=1),
    ] = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Find the best depth and width at a size.

    It fits the law of n_layer and n_embd that predicts larger runs best, and lists the shapes that no other
    beats. Columns n_layer and n_embd of a file may have other names, which --columns gives.

    \b
    $ sweeplab laws shape small --params 1e6
    $ sweeplab laws shape runs.csv --columns params=N,n_layer=depth,n_embd=width
    """
    from sweeplab.laws.shapes import shapes_of

    points = read_source(source, columns, count, lab, where, tuned).points
    with progress() as update:
        return shapes_of(points, params, update).as_dict(), _print_shape


def _print_shape(answer: dict[str, Any]) -> None:
    if answer["law"]:
        _print_assessment(answer)
    else:
        say(f"{several(answer['n_points'], 'point')} of {several(answer['n_shapes'], 'shape')}")
        _say_conventions(answer)
    say("\nshapes that no other beats with as many tokens and no more parameters:")
    keys = ("n_layer", "n_embd", "aspect_ratio", "params", "tokens", "loss")
    print_rows(answer["frontier"], text=(), keys=keys)
    say()
    for sentence in answer["says"]:
        say(sentence)


def _say_dropped(answer: Mapping[str, Any]) -> None:
    if answer["dropped"]:
        say("left out: " + ", ".join(f"{count} {reason}" for reason, count in answer["dropped"].items()))


def _say_conventions(answer: Mapping[str, Any]) -> None:
    say("; ".join(f"{name}: {what}" for name, what in answer["conventions"].items()) + "\n")


def audit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Find what keeps a law's numbers from being identified.

    It splits the residual into seeds, shape, tuning, tokens and epochs, and the form's bend, each with its
    cheapest cure. Of a study it also checks settings that shift the exponents.

    \b
    $ sweeplab laws audit small
    $ sweeplab laws audit runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws audit small --count params=non-embedding,flops=6nd --json
    """
    from sweeplab.analysis.audit import audit as audit_study
    from sweeplab.analysis.audit import audit_file, gather

    counting = counting_of(columns, count, where, tuned)
    if is_file(source):
        return audit_file(Path(source), counting), _print_audit
    studied = studies_from(source, lab).only(counting.where)
    settled = studied.settled(counting.conventions)
    evidence = gather(studied.runs, studied.designs, settled, counting.tuned)
    return audit_study(evidence, studied, counting), _print_audit


def _print_audit(audited: dict[str, Any]) -> None:
    say(f"{several(audited['n_points'], 'point')}; {audited['law'] or 'no law'}")
    say(audited["sentence"], "bold")
    if audited["fitted"] not in ("", audited["law"]):
        say(
            f"laws fit takes {audited['fitted']}, which says what shapes do: a number that it identifies needs no cure"
        )
    if audited["causes"]:
        say()
        print_rows([_cause_row(cause) for cause in audited["causes"]], text=("cause", "cure"))
        say()
    for cause in audited["causes"]:
        if cause["cure"] and cause["cure"]["command"]:
            say(f"{cause['name']}: {cause['cure']['command']}")
    for cause in audited["causes"]:
        if cause["why"]:
            say(f"{cause['name']} cannot be split: {cause['why']}")
    _print_settings(audited)


def _cause_row(cause: Mapping[str, Any]) -> dict[str, Any]:
    from sweeplab.analysis.cures import time_of

    cure = cause["cure"]
    row = {"cause": cause["name"], **{name: _percent(cause[name], ".0") for name in ("share", "low", "high")}}
    row |= {"of the loss": _percent(cause["size"]) if cause["share"] is not None else None}
    if cure is None:
        return row | dict.fromkeys(("", "cure", "takes", "half width then"))
    then = cell_text(cure["half_width"])
    return row | {"": cause["state"], "cure": cure["words"], "takes": time_of(cure), "half width then": then}


def _print_settings(audited: dict[str, Any]) -> None:
    clear = [each["name"] for each in audited["findings"] if each["state"] == "clear"]
    for finding in audited["findings"]:
        if finding["name"] in clear:
            continue
        style, points, where = {"found": "yellow"}.get(finding["state"]), finding["points"], ""
        if points and len(points) == audited["n_points"] > 1:
            where = " (all points)"
        elif points:
            where = f" ({several_named(points, 8)})"
        say(f"\n{finding['name']}: {finding['state']}: {finding['sentence']}{where}", style)
        for effect in finding["effects"]:
            for name, both in effect["exponents"].items():
                if both["before"]["value"] is both["after"]["value"] is None:
                    continue
                mark = ", outside of its interval" if both["differs"] else ""
                change = f"{_exponent(both['before'])} becomes {_exponent(both['after'])}{mark}"
                say(f"  {effect['change']}: {name} {change}")
    if clear:
        say(f"\nsettings that are clear: {listed(clear)}")


def _exponent(exponent: dict[str, Any]) -> str:
    if exponent["value"] is None:
        return str(exponent["verdict"])
    return with_interval(exponent)
