"""`sweeplab study rm` and `rename`: confirmed by the user, and undone by what they print."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, StudyName, Yes
from sweeplab.errors import BadInput


def rm(name: StudyName, yes: Yes = False, lab: Lab = None, as_json: AsJson = False) -> None:
    """Move a study to the lab's trash.

    Its experiment goes to MLflow's deleted ones. Nothing is lost until you empty both.

    \b
    $ sweeplab study rm small
    """
    from sweeplab.cli.steer import print_done
    from sweeplab.lab.listing import find_study, states_in_words
    from sweeplab.lab.moving import remove_study

    folder = find_study(lab, name)
    _confirm(f"move {name} ({states_in_words(folder.states()) or 'no'} runs) to the trash?", yes)
    print_done(remove_study(folder), as_json)


def rename(
    name: StudyName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.", show_default=False)],
    yes: Yes = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Give a study another name, in the lab and in MLflow.

    Forecasts that were sealed for it keep its old name and find it no more.

    \b
    $ sweeplab study rename small first-try
    """
    from sweeplab.cli.steer import print_done
    from sweeplab.lab.listing import find_study
    from sweeplab.lab.moving import rename_study

    folder = find_study(lab, name)
    _confirm(f"rename {name} to {new}?", yes)
    print_done(rename_study(folder, new), as_json)


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{question} --yes says so where nobody can be asked")
    if not typer.confirm(question, err=True):
        raise BadInput("nothing is changed")
