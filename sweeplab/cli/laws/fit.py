"""`sweeplab laws fit`: numbers with verdicts, and what speaks against them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from sweeplab.cli.laws import Budget, Columns, Count, Source, Tuned, Where, print_numbers, read_source
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, print_rows, progress, say, say_warnings
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
            "One of auto, chinchilla, tied, power-n, power-d, power-c. auto is that of the sizes that vary, power-n "
            "where tokens follow params.",
        ),
    ] = "auto",
    flops: Budget = None,
    at: Annotated[str | None, option("ROLE=NUMBER,…", "Also give the loss at params=…,tokens=….")] = None,
    tuned: Tuned = None,
    report: Annotated[Path | None, option("PAGE.html", "Write a page of the law, with figures.")] = None,
    lab: Lab = None,
) -> Answer:
    """Fit a law to a table, with a verdict on every number.

    A number that the table does not identify is not shown; the verdict says why. Where several sizes share a budget of
    FLOPs, the best size of each is given too.

    \b
    $ sweeplab laws fit runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws fit small --law power-n --json
    $ sweeplab laws fit runs.csv --report law.html
    """
    from sweeplab.laws.assessment import assess, law_for, parse_target
    from sweeplab.laws.isoflop import isoflop

    target = parse_target(at) if at else None
    points = read_source(source, columns, count, lab, where, tuned).points
    form = law_for(points, law)
    with progress() as update:
        assessed = assess(points, form, flops, target, say=update)
    answer = assessed.as_dict()
    answer["isoflop"] = None
    if {"params", "flops"} <= assessed.points.columns.keys():
        curves = isoflop(assessed.points, assessed.budget, assessed.tuning.doubt)
        if curves.budgets:
            answer["isoflop"] = curves.as_dict()
    if report:
        from sweeplab.report.writer import write_law_report

        write_law_report(assessed, source, report)
        answer["report"] = str(report)
    return answer, _print_assessment


def _print_assessment(answer: dict[str, Any]) -> None:
    print_numbers(answer["parameters"] | answer["derived"])
    if answer["isoflop"]:
        _print_minima(answer["isoflop"])
    say_warnings(answer["warnings"])
    for words in answer["misfit"]["sentences"]:
        say(words)
    for test in answer["holdout"]:
        say(test["says"])
    for name, size in answer["measured"].items():
        say(f"{_MEASURED[name]}: {size['value']:.2%} of the loss ({size['low']:.2%} to {size['high']:.2%})")
    for words in answer["choice"]:
        say(words)
    say(f"\n{answer['law']}: {answer['formula']}  ({answer['source']})")
    say(f"{several(answer['n_points'], 'row')} fitted")
    _say_dropped(answer)
    say("; ".join(f"{name}: {what}" for name, what in answer["conventions"].items()))
    if "report" in answer:
        say(answer["report"])


_MEASURED = {
    "seeds": "the spread of one seed",
    "tuning": "the tuning excess of a point",
    "left": "the noise of a run about the law",
}


def _print_minima(curves: Mapping[str, Any]) -> None:
    say(f"by {curves['how']}:")
    keys = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss", "why_none")
    print_rows(curves["budgets"], text=("why_none",), keys=keys)
    print_numbers(curves["numbers"])
    say_warnings(curves["warnings"])


def _say_dropped(answer: Mapping[str, Any]) -> None:
    if answer["dropped"]:
        say("left out: " + ", ".join(f"{count} {reason}" for reason, count in answer["dropped"].items()))
