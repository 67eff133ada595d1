"""`sweeplab trial`: one trial of a study."""

from __future__ import annotations

from typing import Annotated

import typer

from sweeplab.cli.app import command_group
from sweeplab.cli.options import AsJson, InCell, Lab, StudyName

app = command_group("Steer one trial of a study.")


@app.callback()
def _trial() -> None:
    """Steer one trial of a study."""


@app.command()
def stop(
    name: StudyName,
    trial: Annotated[int, typer.Argument(metavar="N", help="Number of the trial.", show_default=False)],
    cell: InCell = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """End a trial at its next evaluation.

    It counts as stopped, with its best value so far. One that was asked for and has not begun is
    withdrawn.

    \b
    $ sweeplab trial stop small 3 --cell n_layer=1,n_embd=32
    """
    from sweeplab.cli.steer import print_done
    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control import queueing

    print_done(queueing.stop_trial(find_study(lab, name), trial, cell), as_json)
