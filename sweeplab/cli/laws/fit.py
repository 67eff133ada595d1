"""`sweeplab laws fit`: numbers with verdicts, and what speaks against them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from sweeplab.cli.laws import (
    Columns,
    Count,
    Law,
    Read,
    Source,
    Tuned,
    Where,
    print_numbers,
    read_source,
    say_some,
)
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, print_rows, say
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.sentences import Plain

_MEASURED = {
    "seeds": "spread of one seed",
    "tuning": "tuning excess of a point",
    "left": "noise of a run about the law",
}
_MINIMA = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "d_opt", "loss", "why_none")


def fit(
    source: Source,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    law: Law = "auto",
    flops: Annotated[
        float | None, option("C", "Budget to give N_opt for.  [default: the table's largest]")
    ] = None,
    tuned: Tuned = None,
    report: Annotated[Path | None, option("PAGE.html", "Write a page of the law, with figures.")] = None,
    lab: Lab = None,
) -> Answer:
    """Fit a law to a table, with a verdict on every number.

    A number that the table does not identify is not shown; the verdict says why. Where several sizes share a budget of
    FLOPs, the best size of each is given too, and where hyperparameters were searched, how the best ones follow the
    size.

    \b
    $ sweeplab laws fit runs.csv --columns params=N,tokens=D,loss=loss
    $ sweeplab laws fit small --law power-n --json
    $ sweeplab laws fit runs.csv --report law.html
    """
    from sweeplab.laws.assessment import assess, law_for
    from sweeplab.laws.isoflop import isoflop

    read = read_source(source, columns, count, lab, where, tuned)
    assessed = assess(read.points, law_for(read.points, law), flops)
    answer = assessed.as_dict() | {"isoflop": None, "hyperparameters": _searched(read)}
    with suppress(BadInput):  # there are no budgets of several sizes
        curves = isoflop(assessed.points, assessed.budget, next(iter(assessed.tuning.doubts), None))
        answer["isoflop"] = asdict(curves)
    if report:
        from sweeplab.report.writer import write_law_report

        write_law_report(assessed, source, report)
        answer["report"] = str(report)
    return answer, _print_assessment


def _searched(read: Read) -> Plain | None:
    """Return the laws of the searched values; None where nothing was searched, and no column was named."""
    from sweeplab.laws.hyperparameters.assessment import assess_hyperparameters

    try:
        return assess_hyperparameters(read.searched_runs()).as_dict()
    except BadInput:
        if read.names_searched:
            raise
        return None


def _print_assessment(answer: Plain) -> None:
    print_numbers(answer["parameters"] | answer["derived"])
    say(f"{answer['law']}: {answer['formula']}, {several(answer['n_points'], 'row')}")
    say_some([f"warning: {words}" for words in answer["warnings"]], "yellow")
    say(f"a departure from the form: {answer['misfit']['status']}")
    say_some([test["says"] for test in answer["holdout"][:1]])
    for name, size in answer["measured"].items():
        say(f"{_MEASURED[name]}: {size['value']:.2%} of the loss ({size['low']:.2%} to {size['high']:.2%})")
    if answer["isoflop"]:
        say("\nby curves at equal FLOPs")
        print_rows(answer["isoflop"]["budgets"], text=("why_none",), keys=_MINIMA)
        print_numbers(answer["isoflop"]["numbers"])
    if answer["hyperparameters"]:
        for name, law in answer["hyperparameters"]["searched"].items():
            say(f"\nthe best {name}")
            print_numbers(law["numbers"])
    say(f"\nparams: {answer['conventions'].get('params')}; --json has what else was counted and left out")
    if "report" in answer:
        say(answer["report"])
