"""Commands to a study while it runs, and to its trials: workers read them at their next evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.options import AllowPlugins, AsJson, InCell, Lab, StudyName, argument, option, study_folder
from sweeplab.cli.printing import print_json

if TYPE_CHECKING:
    from sweeplab.lab.moving import Done


def print_done(done: Done, as_json: bool) -> None:
    """Print what a command did and how to undo it."""
    if as_json:
        trials = [{"cell": cell, "trial": number} for cell, number in done.trials]
        print_json({"done": done.what, "undo": done.undo, "trials": trials})
        return
    typer.echo(done.what)
    for command in done.undo:
        typer.echo(f"undo: {command}")


def stop(name: StudyName, lab: Lab = None, as_json: AsJson = False) -> None:
    """Stop a study's run at its workers' next evaluation.

    The runs are saved in full, so that they continue bit for bit.

    \b
    $ sweeplab study stop small
    """
    from sweeplab.sweep.control import steering

    print_done(steering.stop(study_folder(lab, name)), as_json)


def pause(name: StudyName, lab: Lab = None, as_json: AsJson = False) -> None:
    """Pause a study at its workers' next evaluation.

    Its workers free their memory, a GPU's too; the process that runs the study waits, and the time
    does not count. `resume` continues it.

    \b
    $ sweeplab study pause small
    """
    from sweeplab.sweep.control import steering

    print_done(steering.pause(study_folder(lab, name)), as_json)


def resume(
    name: StudyName, allow_plugins: AllowPlugins = False, lab: Lab = None, as_json: AsJson = False
) -> None:
    """Continue a paused study, or run one that no process runs.

    It runs from its folder in the lab, with the budget that it has there.

    \b
    $ sweeplab study resume small
    """
    from sweeplab.sweep.control import steering

    folder = study_folder(lab, name)
    if done := steering.resume(folder):
        print_done(done, as_json)
        return
    from sweeplab import open_study
    from sweeplab.cli.study.view import run_with_view

    raise typer.Exit(run_with_view(open_study(name, folder.lab, allow_plugins=allow_plugins), as_json))


def extend(
    name: StudyName,
    trials_per_cell: Annotated[str | None, option("N", "Trials of each cell, in total.")] = None,
    time: Annotated[str | None, option("TIME", "Wall time in total, such as 30m, 2h, or none.")] = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Change a study's budget, while it runs or afterwards.

    Budgets are totals, as in the study file; with a smaller one, no more trials start.

    \b
    $ sweeplab study extend small --trials-per-cell 8
    $ sweeplab study extend small --time 2h
    """
    from sweeplab.sweep.control import steering

    print_done(steering.extend(study_folder(lab, name), trials_per_cell, time), as_json)


def enqueue(
    name: StudyName,
    values: Annotated[list[str], argument("NAME=VALUE...", "Hyperparameters of its search and grid.")],
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue trials with given values, to run next.

    Values of the grid choose the cells; searched values that are not given are left to the sampler.
    Enqueued trials run in a full cell too, on top of its budget.

    \b
    $ sweeplab study enqueue small learning_rate=1e-3 n_layer=4
    """
    from sweeplab.sweep.control import steering

    print_done(steering.enqueue(study_folder(lab, name), values), as_json)


def retry(name: StudyName, lab: Lab = None, as_json: AsJson = False) -> None:
    """Retry the failed trials of a study.

    Each retry is a new trial with the same values; the failed one does not count.

    \b
    $ sweeplab study retry small
    """
    from sweeplab.sweep.control import steering

    print_done(steering.retry(study_folder(lab, name)), as_json)


def stop_trial(
    name: StudyName,
    trial: Annotated[int, argument("N", "Number of the trial.")],
    cell: InCell = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Stop a trial at its next evaluation.

    It counts as stopped, with its best value so far. An enqueued trial that has not started is
    withdrawn.

    \b
    $ sweeplab trial stop small 3 --cell n_layer=1,n_embd=32
    """
    from sweeplab.sweep.control import steering

    print_done(steering.stop_trial(study_folder(lab, name), trial, cell), as_json)
