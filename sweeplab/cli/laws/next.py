"""`sweeplab laws next`: which runs to do next."""

from __future__ import annotations

from typing import Annotated, Any

from sweeplab.cli.laws import Columns, Count, Source, Tuned, Where, names_in, read_source, say_some
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, cell_text, print_rows, say
from sweeplab.formatting import several


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
    from sweeplab.laws.next_runs import find_quantity, of_points, spent
    from sweeplab.laws.next_runs import next_runs as choose

    read = read_source(source, columns, count, lab, where, tuned)
    assessed = assess(read.points, law_for(read.points))
    asked = find_quantity(assessed, quantity)
    budget = spent(assessed.points) / 2 if flops is None else flops
    if read.studies:
        folder = find_study(lab, names_in(source)[0])
        candidates = study_candidates(folder, read.counting, assessed.points).like(assessed.points, budget)
    else:
        candidates = of_points(assessed.points, budget)
    chosen = choose(assessed, asked, candidates, budget).as_dict() | {"warnings": list(assessed.warnings)}
    return chosen, _print_runs


def _print_runs(chosen: dict[str, Any]) -> None:
    half = chosen["half_width"]
    sign = "a factor " if half["is_factor"] else "±"
    now, then = (f"{sign}{cell_text(half[when])}" for when in ("now", "then"))
    spent = f"{chosen['spent_flops']:.3g} of {chosen['budget_flops']:.3g} FLOPs"
    say(f"{chosen['quantity']}: {now} now, about {then} with {several(chosen['n_runs'], 'run')} of {spent}")
    rows = []
    for run in chosen["runs"]:
        cell = ",".join(f"{name}={value}" for name, value in run.get("cell", {}).items())
        sizes = {name: f"{run[name]:.3g}" for name in ("params", "tokens", "flops")}
        rows.append({"cell": cell or None, **sizes, "times": run["times"]})
    print_rows(rows, text=("cell",))
    say_some([f"warning: {words}" for words in chosen["warnings"]], "yellow")
