"""Commands that ask something of a study while it runs: its workers read it within an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.options import AllowPlugins, AsJson, Lab, StudyName

if TYPE_CHECKING:
    from sweeplab.sweep.control.steering import Done


def print_done(done: Done, as_json: bool) -> None:
    """Print what a command did and how to take it back."""
    from sweeplab.cli.tables import print_json

    if as_json:
        trials = [{"cell": cell, "trial": number} for cell, number in done.trials]
        print_json({"done": done.what, "undo": done.undo, "trials": trials})
        return
    typer.echo(done.what)
    for command in done.undo:
        typer.echo(f"undo: {command}")


def stop(name: StudyName, lab: Lab = None, as_json: AsJson = False) -> None:
    """End a study's run at its workers' next evaluation.

    The runs are put away with all that it takes to go on to the same bits.

    \b
    $ sweeplab study stop small
    """
    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control import steering

    print_done(steering.stop(find_study(lab, name)), as_json)


def pause(name: StudyName, lab: Lab = None, as_json: AsJson = False) -> None:
    """Let a study rest at its workers' next evaluation.

    Its workers free their memory, a GPU's too; whoever runs the study waits, and the time does
    not count. Then `resume` lets it go on.

    \b
    $ sweeplab study pause small
    """
    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control import steering

    print_done(steering.pause(find_study(lab, name)), as_json)


def resume(
    name: StudyName, allow_plugins: AllowPlugins = False, lab: Lab = None, as_json: AsJson = False
) -> None:
    """Let a paused study go on, or run one that nobody runs.

    It is run from its folder in the lab, with the budget that it has there.

    \b
    $ sweeplab study resume small
    """
    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control import steering

    folder = find_study(lab, name)
    if done := steering.resume(folder):
        print_done(done, as_json)
        return
    from sweeplab import open_study
    from sweeplab.cli.live import run_with_view

    raise typer.Exit(run_with_view(open_study(name, folder.lab, allow_plugins=allow_plugins), as_json))


def extend(
    name: StudyName,
    trials_per_cell: Annotated[
        str | None,
        typer.Option(
            "--trials-per-cell", metavar="N", help="Trials of each cell, in all.", show_default=False
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="Wall time in all: such as 30m, 2h, or none.", show_default=False
        ),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Give a study another budget, while it runs or afterwards.

    Budgets are totals, as in the study file; a smaller one begins no more trials.

    \b
    $ sweeplab study extend small --trials-per-cell 8
    $ sweeplab study extend small --time 2h
    """
    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control import steering

    print_done(steering.extend(find_study(lab, name), trials_per_cell, time), as_json)


def enqueue(
    name: StudyName,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Hyperparameters of the study's search and grid.",
            show_default=False,
        ),
    ],
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Let trials of given values be tried next.

    Values of the grid say in which cells; what is searched and not given is left to the sampler.
    They are tried in a full cell too, on top of its budget.

    \b
    $ sweeplab study enqueue small learning_rate=1e-3 n_layer=4
    """
    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control import queueing

    print_done(queueing.enqueue(find_study(lab, name), values), as_json)


def retry(name: StudyName, lab: Lab = None, as_json: AsJson = False) -> None:
    """Try the failed trials of a study again.

    Each is a new trial of the same values; the failed one does not count.

    \b
    $ sweeplab study retry small
    """
    from sweeplab.lab.listing import find_study
    from sweeplab.sweep.control import queueing

    print_done(queueing.retry(find_study(lab, name)), as_json)
