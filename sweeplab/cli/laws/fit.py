"""`sweeplab laws fit` and `next`: numbers with verdicts, and which runs to do next."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from sweeplab.cli.laws import (
    Columns,
    Count,
    Law,
    Source,
    Tuned,
    Where,
    names_in,
    print_numbers,
    read_source,
)
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, cell_text, print_rows, say, say_prose, say_warnings
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.sentences import Plain

_MEASURED = {
    "seeds": "spread of one seed",
    "tuning": "tuning excess of a point",
    "left": "noise of a run about the law",
}
_MINIMA = ("flops", "n_rows", "n_opt", "n_opt_low", "n_opt_high", "loss", "edge")


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
    report: Annotated[
        Path | None, option("PAGE.html", "Write a page of the law, with figures.")
    ] = None,
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
    laws = read.hyperparameters()
    answer = assessed.as_dict()
    answer |= {"isoflop": None, "hyperparameters": laws.as_dict() if laws else None}
    with suppress(BadInput):  # there are no budgets of several sizes
        curves = isoflop(
            assessed.points, assessed.budget, next(iter(assessed.tuning.doubts), None)
        )
        answer["isoflop"] = vars(curves)
    if report:
        from sweeplab.report.writer import write_law_report

        write_law_report(assessed, source, report)
        answer["report"] = str(report)
    return answer, _print_assessment


def _print_assessment(answer: Plain) -> None:
    print_numbers(answer["parameters"] | answer["derived"])
    say(f"{answer['law']}: {answer['formula']}, {several(answer['n_points'], 'row')}")
    say_warnings(answer["warnings"])
    say(f"a departure from the form: {answer['misfit']['status']}")
    say_prose(answer["holdout"]["says"])
    for name, size in answer["measured"].items():
        say(
            f"{_MEASURED[name]}: {size['value']:.2%} of the loss ({size['low']:.2%} to {size['high']:.2%})"
        )
    if answer["isoflop"]:
        say("\nby curves at equal FLOPs")
        print_rows(answer["isoflop"]["budgets"], text=("edge",), keys=_MINIMA)
        print_numbers(answer["isoflop"]["numbers"])
    if answer["hyperparameters"]:
        for name, law in answer["hyperparameters"]["searched"].items():
            say(f"\nthe best {name}")
            print_numbers(law["numbers"])
    say(
        f"\nparams: {answer['conventions'].get('params')}; --json has what else was counted and left out"
    )
    if "report" in answer:
        say(answer["report"])


def next_runs(
    source: Source,
    flops: Annotated[
        float | None,
        option("C", "FLOPs to spend on all runs.  [default: half of those spent]", min=0),
    ] = None,
    quantity: Annotated[
        str | None,
        option(
            "QUANTITY",
            "A number of `laws fit` to learn.  [default: N_opt exponent, else that of the law]",
        ),
    ] = None,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Choose the runs that tell most about a number.

    The promise is the median half width of a few refits with imagined losses of these runs. `extend STUDY --next` makes
    those of a study with half of the FLOPs spent.

    \b
    $ sweeplab laws next runs.csv --flops 1e18 --quantity beta
    $ sweeplab laws next small
    """
    from sweeplab.analysis.next_study import study_candidates
    from sweeplab.lab.listing import find_study
    from sweeplab.laws.assessment import assess, law_for
    from sweeplab.laws.next_runs import next_runs as choose

    read = read_source(source, columns, count, lab, where, tuned)
    assessed = assess(read.points, law_for(read.points))
    candidates = None
    if read.studies:
        folder = find_study(lab, names_in(source)[0])
        candidates = study_candidates(folder, read.counting, assessed.points)
    chosen = choose(assessed, candidates, quantity, flops).as_dict()
    return chosen | {"warnings": list(assessed.warnings)}, _print_runs


def _print_runs(chosen: Plain) -> None:
    half = chosen["half_width"]
    sign = "a factor " if half["is_factor"] else "±"
    now, then = (f"{sign}{cell_text(half[when])}" for when in ("now", "then"))
    spent = f"{chosen['spent_flops']:.3g} of {chosen['budget_flops']:.3g} FLOPs"
    say(
        f"{chosen['quantity']}: {now} now, about {then} with {several(chosen['n_runs'], 'run')} of {spent}"
    )
    rows = []
    for run in chosen["runs"]:
        cell = ",".join(f"{name}={value}" for name, value in run.get("cell", {}).items())
        rows.append({**run, "cell": cell or None})
    print_rows(rows, text=("cell",), keys=("cell", "params", "tokens", "flops", "times"))
    say_warnings(chosen["warnings"])
