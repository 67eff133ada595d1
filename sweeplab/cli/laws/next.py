"""`sweeplab laws next`: the runs that make a number certain for few FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.analysis.design import Rules
from sweeplab.cli.laws.source import Columns, Count, Source, is_file, points_from
from sweeplab.cli.options import AsJson, Lab
from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from sweeplab.analysis.design.candidates import Candidates
    from sweeplab.analysis.points import Points
    from sweeplab.study.spec import StudySpec


def next_(
    source: Source,
    flops: Annotated[
        float, typer.Option(metavar="C", help="FLOPs to spend on all runs.", show_default=False)
    ],
    quantity: Annotated[
        str,
        typer.Option(
            metavar="QUANTITY",
            help="What to learn: exponent (of N_opt), loss-at, or any number of `laws fit`.",
        ),
    ] = "exponent",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE=NUMBER,…", help="Where loss-at is: params=…,tokens=….", show_default=False
        ),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME=FROM:TO:COUNT,…",
            help="Runs to choose from: params with tokens or ratio; n_embd, max_iters … of a study.",
            show_default=False,
        ),
    ] = None,
    most_runs: Annotated[
        int, typer.Option(metavar="RUNS", min=1, help="Choose at most so many.")
    ] = Rules.most_runs,
    most_each: Annotated[
        int, typer.Option(metavar="TIMES", min=1, help="Run a candidate at most so often, with other seeds.")
    ] = Rules.most_each,
    most_share: Annotated[
        float, typer.Option(metavar="SHARE", help="Have at most this share of the runs at the corners.")
    ] = Rules.most_share,
    misfit: Annotated[
        float, typer.Option(metavar="SHARE", min=0, help="Allow for a law that is so far wrong.")
    ] = Rules.misfit,
    law: Annotated[str, typer.Option("--law", metavar="LAW", help="A law as of `laws fit`.")] = "chinchilla",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write a study's runs as a study file.", show_default=False
        ),
    ] = None,
    columns: Columns = None,
    count: Count = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Choose the runs that tell most about a number.

    Beside them stands what they, and a grid of equal cost, would do to the interval.

    \b
    $ sweeplab laws next runs.csv --flops 1e18 --quantity beta
    $ sweeplab laws next scaling --flops 1e16 --output next.yaml
    """
    from sweeplab.analysis.design.candidates import next_study_text
    from sweeplab.analysis.design.next_runs import find_quantity, next_runs
    from sweeplab.analysis.fit.assessment import find_law, parse_target
    from sweeplab.analysis.fit.fitting import fit
    from sweeplab.cli.laws.show_next import print_next
    from sweeplab.cli.tables import print_json
    from sweeplab.files import write_whole

    if output and is_file(source):
        raise BadInput("--output writes a study file; a table's runs belong to no study")
    form, target = find_law(law), parse_target(at) if at else None
    rules = Rules(flops, most_runs, most_each, most_share, misfit=misfit)
    points = points_from(source, columns, lab, count)
    spec, choice = _candidates(source, points, candidates, flops, columns, count, lab)
    found = fit(points, form)
    chosen = next_runs(found, find_quantity(found, points, quantity, target), choice, rules)
    said = chosen.as_dict()
    if output and spec:
        runs = said["runs"]
        why = (
            f"Chosen by `laws next` to tell {said['quantity']}; then: sweeplab laws fit {source},{spec.name}"
        )
        cells, times = [run["cell"] for run in runs], [run["times"] for run in runs]
        text = next_study_text(spec, cells, times, why)
        try:
            write_whole(output, text.encode())
        except OSError as error:
            raise BadInput(f"{output}: cannot be written: {error.strerror or error}") from error
        said["study_file"] = str(output)
    if as_json:
        print_json(said)
    else:
        print_next(said)


def _candidates(
    source: str,
    points: Points,
    asked: str | None,
    flops: float,
    columns: str | None,
    count: str | None,
    lab: Path | None,
) -> tuple[StudySpec | None, Candidates]:
    """Return what there is to choose from; with the study that it is of, if it is one."""
    from sweeplab.analysis.columns import parse_columns
    from sweeplab.analysis.conventions import parse_conventions
    from sweeplab.analysis.design.candidates import of_axes, of_file, of_points, parse_axes, study_candidates

    a_file = asked is not None and is_file(asked)
    axes = parse_axes(asked) if asked and not a_file else None
    if is_file(source):
        if asked and a_file:
            return None, of_file(points, Path(asked))
        return None, of_axes(points, axes) if axes else of_points(points, flops)
    if a_file:
        raise BadInput("--candidates of a study are NAME=FROM:TO:COUNT,…, and no file")
    names = [name.strip() for name in source.split(",")]
    roles = parse_columns(columns) if columns else None
    spec, found = study_candidates(lab, names, axes, roles, parse_conventions(count) if count else None)
    return spec, found if axes else found.like(points, flops)
