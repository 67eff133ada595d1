"""`sweeplab laws next`: the runs that narrow a number's interval most for their FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.cli.laws.source import Columns, Count, Law, Source, Tuned, Where, is_file, names_in, read_source
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, cell_text, print_rows, say, say_warnings
from sweeplab.errors import BadInput
from sweeplab.formatting import several
from sweeplab.laws.rules import Rules

if TYPE_CHECKING:
    from sweeplab.analysis.studies import Counting
    from sweeplab.laws.next_runs import Candidates
    from sweeplab.laws.points import Points
    from sweeplab.study.spec import StudySpec
_WHEN = {
    "now": "of the table as it is",
    "after": "with these runs",
    "grid_of_equal_cost": "with a grid of equal cost",
}


def next_runs(
    source: Source,
    flops: Annotated[float, option("C", "FLOPs to spend on all runs.")],
    quantity: Annotated[
        str | None,
        option(
            "QUANTITY",
            "What to learn: exponent (of N_opt), loss-at, or any number of `laws fit`.  "
            "[default: exponent, else that of the law]",
        ),
    ] = None,
    at: Annotated[str | None, option("ROLE=NUMBER,…", "Point of loss-at: params=…,tokens=….")] = None,
    candidates: Annotated[
        str | None,
        option(
            "FILE|NAME=FROM:TO:COUNT,…",
            "Runs to choose from: params with tokens or ratio; for a study n_embd, max_iters, ….",
        ),
    ] = None,
    most_runs: Annotated[int, option("RUNS", "Most runs to choose.", min=1)] = Rules.most_runs,
    most_each: Annotated[int, option("TIMES", "Most seeds per candidate.", min=1)] = Rules.most_each,
    most_share: Annotated[float, option("SHARE", "Largest share of runs at the corners.")] = Rules.most_share,
    misfit: Annotated[float, option("SHARE", "Allow for this relative law error.", min=0)] = Rules.misfit,
    law: Law = "auto",
    output: Annotated[Path | None, option("FILE", "Write the chosen runs as a study file.")] = None,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    tuned: Tuned = None,
    lab: Lab = None,
) -> Answer:
    """Choose the runs that tell most about a number.

    It shows how they would narrow its interval, next to a grid of equal cost.

    \b
    $ sweeplab laws next runs.csv --flops 1e18 --quantity beta
    $ sweeplab laws next scaling --flops 1e16 --output next.yaml
    """
    from sweeplab.analysis.cures import next_study_text
    from sweeplab.files import write_whole
    from sweeplab.laws.assessment import law_for, parse_target
    from sweeplab.laws.choosing import along_family
    from sweeplab.laws.doubts import doubts, tuning_of
    from sweeplab.laws.fitting import fit
    from sweeplab.laws.next_runs import find_quantity
    from sweeplab.laws.next_runs import next_runs as choose

    if output and is_file(source):
        raise BadInput("--output writes a study file, but a table's runs belong to no study")
    target = parse_target(at) if at else None
    rules = Rules(flops, most_runs, most_each, most_share, misfit=misfit)
    points, counting, _ = read_source(source, columns, count, lab, where, tuned)
    form = law_for(points, law, of_sizes=True)
    if "params" in form.columns:
        points = along_family(points)
    spec, choice = _candidates(source, points, candidates, flops, counting, lab)
    tuning = tuning_of(points)
    fitted = fit(tuning.points, form)
    chosen = choose(fitted, find_quantity(fitted, points, quantity, target), choice, rules).as_dict()
    of_tuning = tuning.warnings(f"{chosen['quantity']} is weak at best, however many runs there are")
    chosen["warnings"] = [*doubts(points, fitted).sentences, *of_tuning, *chosen["warnings"]]
    if output and spec:
        why = f"Chosen by `laws next` to learn {chosen['quantity']}; next: sweeplab laws fit {source},{spec.name}"
        cells, times = [run["cell"] for run in chosen["runs"]], [run["times"] for run in chosen["runs"]]
        text = next_study_text(spec, cells, times, why)
        try:
            write_whole(output, text.encode())
        except OSError as error:
            raise BadInput(f"{output}: cannot be written: {error.strerror or error}") from error
        chosen["study_file"] = str(output)
    return chosen, _print_runs


def _candidates(
    source: str, points: Points, asked: str | None, flops: float, counting: Counting, lab: Path | None
) -> tuple[StudySpec | None, Candidates]:
    from sweeplab.analysis.cures import study_candidates
    from sweeplab.laws.next_runs import of_axes, of_file, of_points, parse_axes

    file = Path(asked) if asked and is_file(asked) else None
    axes = parse_axes(asked) if asked and not file else None
    if is_file(source):
        if file:
            return None, of_file(points, file)
        return None, of_axes(points, axes) if axes else of_points(points, flops)
    if file:
        raise BadInput("--candidates of a study are NAME=FROM:TO:COUNT,…, not a file")
    spec, candidates = study_candidates(lab, names_in(source), axes, counting)
    return spec, candidates if axes else candidates.like(points, flops)


def _print_runs(chosen: dict[str, Any]) -> None:
    spent, budget = chosen["spent_flops"], chosen["budget_flops"]
    say(f"{chosen['quantity']}: {chosen['meaning']}")
    say(f"{several(chosen['n_runs'], 'run')} for {spent:.3g} of {budget:.3g} FLOPs\n")
    repeated = chosen["n_runs"] > len(chosen["runs"])
    rows = [
        {
            "cell": ",".join(f"{name}={value}" for name, value in run.get("cell", {}).items()) or None,
            **{name: f"{run[name]:.3g}" for name in ("params", "tokens", "tokens_per_param")},
            "times": run["times"] if repeated else None,
            "FLOPs": f"{run['flops']:.3g}",
            "of the budget": f"{run['share_of_budget']:.1%}",
            "of the information": f"{run['share_of_information']:.1%}",
        }
        for run in chosen["runs"]
    ]
    print_rows(rows, text=("cell",))
    say()
    sign = "a factor " if chosen["width"]["is_factor"] else "±"
    for name, when in _WHEN.items():
        at_fit, *ends = (chosen["width"][name][end] for end in ("at_fit", "low", "high"))
        width = "too wide for any number"
        if at_fit is not None:
            over = " to ".join(map(cell_text, ends))
            width = f"{sign}{cell_text(at_fit)} ({over} over the fits that the table allows)"
        say(f"{chosen['level']:.0%} interval {when}: {width}")
    if (flops := chosen["grid_flops_for_the_same"]) is not None:
        say(f"a grid would take {flops:.3g} FLOPs for the same, {flops / spent:.2g} times as many")
    say_warnings(chosen["warnings"])
    if file := chosen.get("study_file"):
        say(f"written to {file}; sweeplab study run {file} trains them")
