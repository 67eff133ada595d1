"""Commands to a running study and its trials, which workers read at their next evaluation."""

from __future__ import annotations

from typing import Annotated

import typer

from sweeplab import open_study
from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option, study_or_trial
from sweeplab.cli.printing import Answer, answer_of, print_answer, say_start, write_line
from sweeplab.errors import BadInput, conflict
from sweeplab.lab.listing import find_study


def stop(name: options.StudyOrTrial, lab: options.Lab = None) -> Answer:
    """Stop a study, or one trial, at the next evaluation.

    A study's runs are saved in full, so that they continue bit for bit. A trial counts as stopped, with its best
    value so far; an enqueued one that has not started is withdrawn.

    \b
    $ sweeplab stop small
    $ sweeplab stop small/n_layer=1,n_embd=32/3
    """
    from sweeplab.sweep import steering

    folder, cell, trial = study_or_trial(name, lab)
    if trial is not None:
        return answer_of(steering.stop_trial(folder, trial, cell))
    return answer_of(steering.stop(folder))


def pause(name: options.StudyName, lab: options.Lab = None) -> Answer:
    """Pause a study at its workers' next evaluation.

    Its workers free their memory, also on GPUs. The process that runs the study waits; the pause does not
    count as time spent. `resume` continues it.

    \b
    $ sweeplab pause small
    """
    from sweeplab.sweep import steering

    return answer_of(steering.pause(find_study(lab, name)))


def resume(
    name: options.StudyOrTrial,
    failed: Annotated[bool, flag("Also train its failed trials again.", "--failed")] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Continue a study that is paused or that no process runs.

    It runs from its folder in the lab, with the budget stored there. With --failed every failed trial is enqueued
    again as a new trial with the same values, also while the study runs; the failed ones do not count. A pruned
    trial continues from its snapshot, if that was kept (track.snapshots), and is not pruned again.

    \b
    $ sweeplab resume small
    $ sweeplab resume small/n_layer=1,n_embd=32/3
    """
    folder, cell, trial = study_or_trial(name, lab)
    say_start(f"reading {folder.name}")
    from sweeplab.sweep import steering

    if trial is not None:
        print_answer(answer_of(steering.resume_trial(folder, trial, cell)), as_json)
        return

    done = steering.resume(folder, failed)
    if done:
        print_answer(answer_of(done), as_json)
        return
    from sweeplab.cli.study.view import run_with_view

    raise typer.Exit(run_with_view(open_study(folder.name, lab, allow_plugins=allow_plugins), as_json))


def extend(
    name: options.StudyName,
    trials_per_cell: Annotated[str | None, option("N", "Trials of each cell, in total.")] = None,
    time: Annotated[str | None, option("TIME", "Wall time in total, such as 30m, 2h, or none.")] = None,
    widen: Annotated[
        str | None,
        option("HYPERPARAMETER", "Widen the range of this one, where its best values lie at an end."),
    ] = None,
    to_next: Annotated[
        bool, flag("Add the sizes and seeds that tell most about the law, for half the FLOPs.", "--next")
    ] = False,
    no_run: Annotated[bool, flag("Only write the change, and train nothing.", "--no-run")] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a study more trials, time or sizes, and train them.

    Budgets are totals, as in the study file, and may change while the study runs; with a smaller one, no more trials
    start. Running the same file again keeps them; another number in the file replaces them. A wider range keeps all
    trials, which count as before, and gives each cell half as many more; a range and sizes change only while the
    study does not run.

    \b
    $ sweeplab extend small --trials-per-cell 8
    $ sweeplab extend small --widen learning_rate
    $ sweeplab extend small --next
    """
    folder = find_study(lab, name)
    say_start(f"reading {folder.name}")
    asked = {"--trials-per-cell": trials_per_cell, "--time": time, "--widen": widen}
    others = [option for option, value in asked.items() if value is not None]
    if to_next and others:
        raise BadInput(conflict("--next", others[0]))
    if to_next:
        from sweeplab.analysis.next_study import grow_by_law

        done = grow_by_law(folder)
    else:
        from sweeplab.sweep import steering

        done = steering.extend(folder, trials_per_cell, time, widen)
    if no_run or folder.is_run:
        print_answer(answer_of(done), as_json)
        return
    write_line(done.what)
    from sweeplab.cli.study.view import run_with_view

    raise typer.Exit(run_with_view(open_study(folder.name, lab, allow_plugins=allow_plugins), as_json))


def enqueue(
    name: options.StudyName,
    values: Annotated[
        list[str],
        argument(
            "NAME=VALUE...",
            "Hyperparameters of its search and grid.",
        ),
    ],
    cell: options.OneCell = None,
    lab: options.Lab = None,
) -> Answer:
    """Enqueue trials with given values, to run next.

    Values of the grid choose the cells, each of which gets a trial; --cell narrows them to one. The sampler chooses
    searched values that are not given.
    Enqueued trials also run in a full cell, on top of its budget.

    \b
    $ sweeplab enqueue small learning_rate=5e-2 n_layer=3
    """
    from sweeplab.sweep import steering

    return answer_of(steering.enqueue(find_study(lab, name), values, cell))
