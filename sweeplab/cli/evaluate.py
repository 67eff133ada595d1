"""`sweeplab evaluate`: a trained run on its validation split."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeplab.cli.options import AsJson, Lab, Run, whole_numbers
from sweeplab.errors import BadInput, Problem

STRETCHES = 4  # of a block_size's positions, over which the table takes the mean


def evaluate(
    run: Run,
    lengths: Annotated[
        str, typer.Option(metavar="N,…", help="Lengths of the sequences, as multiples of block_size.")
    ] = "1,2,4",
    study: Annotated[
        str | None,
        typer.Option(
            "--study",
            metavar="NAME",
            help="The study whose validation split is read.  [default: the run's own]",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="PAGE.html",
            help="Draw the loss by position as a page too.",
            show_default=False,
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a trained run, also on longer sequences.

    Losses are told by position too. Longer sequences are for models whose positions have no end, as rotary,
    alibi, relative, sinusoidal and none have. A run that kept its best checkpoint is evaluated with those weights.

    \b
    $ sweeplab evaluate small --lengths 1,2,4 --report positions.html
    """
    from sweeplab.cli.tables import print_json
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs.evaluating import evaluated

    found = evaluated(run, lab_folder(lab), _times(lengths), study)
    if report:
        from sweeplab.report.models import write_evaluation

        write_evaluation(found, report)
    if as_json:
        print_json(found | ({"report": str(report)} if report else {}))
        return
    _print(found)
    if report:
        typer.echo(f"\n{report} written")


def _times(text: str) -> list[int]:
    found = whole_numbers(text)
    if not found or found[-1] > 64:
        raise BadInput(Problem(f"--lengths {text}", "whole numbers from 1 to 64, such as 1,2,4"))
    return found


def _print(found: dict[str, Any]) -> None:
    from sweeplab.cli.tables import print_rows

    print_rows([{"measure": name, "value": value} for name, value in found["measures"].items()], ["measure"])
    if rows := [
        {name: row[name] for name in row if name != "by_position"} for row in found["length_extrapolation"]
    ]:
        print()
        print_rows(rows, [])
        print("\nmean loss by position")
        print_rows(_stretches(found), ["positions"])
    for each in found["left_out"]:
        print(f"\nnothing at {each['times']} times block_size: {each['why']}")


def _stretches(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row a stretch of positions, with the mean loss of each length there."""
    width = max(1, found["block_size"] // STRETCHES)
    lines = {f"{row['times']}x": row["by_position"] for row in found["length_extrapolation"]}
    known = (at for line in lines.values() for at, loss in enumerate(line) if math.isfinite(loss))
    longest = 1 + max(known, default=0)
    return [
        {"positions": f"{start}–{min(start + width, longest) - 1}"}
        | {name: _mean(line[start : start + width]) for name, line in lines.items()}
        for start in range(0, longest, width)
    ]


def _mean(losses: list[float]) -> float | None:
    known = [loss for loss in losses if math.isfinite(loss)]
    return sum(known) / len(known) if known else None
