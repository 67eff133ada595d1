"""`sweeplab laws fit`, `compare` and `isoflop`: numbers with verdicts, and what speaks against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from sweeplab.cli.laws import (
    Budget,
    Columns,
    Count,
    Delta,
    Source,
    Tuned,
    Where,
    names_in,
    print_numbers,
    read_source,
)
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, cell_text, print_rows, progress, say, say_warnings
from sweeplab.formatting import several


def fit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    law: Annotated[
        str,
        option(
            "LAW",
            "One of auto, chinchilla, tied, kaplan, joint, power-n, power-d, power-c. auto is that of the sizes that "
            "vary, power-n where tokens follow params.",
        ),
    ] = "auto",
    delta: Delta = "auto",
    flops: Budget = None,
    at: Annotated[str | None, option("ROLE=NUMBER,…", "Also give the loss at params=…,tokens=….")] = None,
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
    flops: Budget = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Find the compute-optimal size, by isoFLOP parabolas.

    A minimum counts only with rows on both sides of it.

    \b
    $ sweeplab laws isoflop runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws isoflop small --budgets 6 --json
    """
    from sweeplab.laws.assessment import checked_budget
    from sweeplab.laws.compute_optimal.isoflop import isoflop as find_minima
    from sweeplab.laws.compute_optimal.isoflop import parse_budgets
    from sweeplab.laws.doubts import tuning_of

    asked = parse_budgets(budgets) if budgets else None
    tuning = tuning_of(read_source(source, columns, count, lab, where, tuned).points)
    points = tuning.points
    budget = checked_budget(flops, points)
    isoflops = find_minima(points, asked, budget, doubt=tuning.doubt)
    about = {"n_points": points.n, "budget_flops": budget, "conventions": points.conventions}
    return about | isoflops.as_dict(), _print_minima


def _print_minima(answer: dict[str, Any]) -> None:
    say(f"{several(answer['n_points'], 'row')}; N_opt at {answer['budget_flops']:.3g} FLOPs; {answer['how']}")
    _say_conventions(answer)
    if answer["budgets"]:
        keys = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss", "why_none")
        print_rows(answer["budgets"], text=("why_none",), keys=keys)
        say()
    print_numbers(answer["numbers"])
    say_warnings(answer["warnings"])


def _say_dropped(answer: Mapping[str, Any]) -> None:
    if answer["dropped"]:
        say("left out: " + ", ".join(f"{count} {reason}" for reason, count in answer["dropped"].items()))


def _say_conventions(answer: Mapping[str, Any]) -> None:
    say("; ".join(f"{name}: {what}" for name, what in answer["conventions"].items()) + "\n")
