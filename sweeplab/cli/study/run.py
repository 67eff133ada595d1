"""Commands that run, follow and steer a study: `run`, `watch`, `confirm`, `transfer`, `stop`, `resume` and the like."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sweeplab
from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option, study_or_trial
from sweeplab.cli.printing import (
    Answer,
    answer_of,
    cell_text,
    interval,
    print_answer,
    print_json,
    print_rows,
    say,
    say_start,
    write_line,
)
from sweeplab.cli.study.plan import plan
from sweeplab.errors import BadInput, conflict
from sweeplab.lab.listing import find_study
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.api import Study


def run(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    engine: Annotated[
        str | None,
        option(
            "TYPE",
            "Start workers by local, slurm or ray, instead of the file's engine.",
        ),
    ] = None,
    grid: options.Grid = None,
    search: options.Search = None,
    name: options.Name = None,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    dry_run: Annotated[bool, flag("Only show the plan.", "--dry-run")] = False,
    detach: Annotated[bool, flag("Run without this terminal.", "--detach")] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a study to the end of its budget, or continue it.

    Ctrl-C saves the runs; the same command continues them. Once the budget is used up, it adds nothing.

    \b
    $ sweeplab run studies/small.yaml
    $ sweeplab run studies/small.yaml --name quick -o max_iters=100
    $ sweeplab run studies/small.yaml --engine slurm -o engine.workers=32
    $ sweeplab run small --name wide --grid n_embd=32,256 --search dropout
    """
    changes = options.overrides(override, grid, search, engine)
    if dry_run:
        print_answer(
            plan(file, changes, name=name, allow_plugins=allow_plugins, lab=lab), as_json
        )
        return
    file = options.named_file(file, lab)
    study = sweeplab.load_study(
        file, lab=lab, name=name, overrides=changes, allow_plugins=allow_plugins
    )
    say_start(f"reading the data of {file}", quiet)
    from sweeplab.cli.study.view import run_with_view

    if detach:
        words = [each for each in sys.argv[1:] if each != "--detach"]
        print_answer(start_detached(study, words), as_json)
        return
    raise typer.Exit(run_with_view(study, as_json, quiet))


def start_detached(study: Study, words: Sequence[str]) -> Answer:
    """Run a study by `sweeplab` with these arguments, without this terminal."""
    from sweeplab.sweep.steering import detach

    by = detach(study.spec, study.lab, words)
    watch, stop = map(study.folder.command, ("watch", "stop"))
    answer = {"study": study.folder.name, "by": by, "watch": watch, "undo": [stop]}
    return answer, f"{by}\nwatch: {watch}\nstop: {stop}"


def confirm(
    name: options.StudyName,
    top: Annotated[int, option("K", "Configurations per cell that race.", min=1)] = 3,
    seeds: Annotated[int, option("N", "Fresh seeds of each.", min=2)] = 5,
    allow_plugins: options.AllowPlugins = False,
    quiet: options.Quiet = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Confirm the best trials with fresh seeds, on the test split.

    The best trials of each cell race on fresh seeds. The winner of each cell is trained again with other fresh
    seeds, and scored on the test split, which nothing else reads. Ctrl-C saves the runs; the same command
    continues them.

    \b
    $ sweeplab confirm small
    $ sweeplab confirm small --top 5 --seeds 8
    """
    study = sweeplab.open_study(name, lab, allow_plugins=allow_plugins)
    say_start(f"reading {name}", quiet)
    from sweeplab.cli.study.view import confirm_with_view

    raise typer.Exit(confirm_with_view(study, top, seeds, as_json, quiet))


def watch(
    name: options.MaybeStudyName = None,
    log: Annotated[
        bool,
        flag("Print events and the workers' output instead, also of an ended study.", "--log"),
    ] = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a running study as `run` does, until it ends.

    Ctrl-C leaves the study running. The exit code is that of the study's run. The log has the trials that started and
    ended, commands given to the study, and what the workers printed; --json prints its lines for programs.

    \b
    $ sweeplab watch small
    $ sweeplab watch small --log
    """
    folder = options.named_study(name, lab)
    if log or as_json:
        _print_log(folder, as_json)
        return
    say_start(f"reading {folder.name}")
    from sweeplab.cli.study.view import watch_with_view

    raise typer.Exit(watch_with_view(folder))


def _print_log(folder: StudyFolder, as_json: bool) -> None:
    from sweeplab.sweep.progress import log_lines

    try:
        for line in log_lines(folder, follow=True):
            clock = " " * 19
            if line["time"]:
                clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["time"]))
            if as_json:
                print_json(line, indent=None)
            else:
                print(f"{clock}  {line['source']}: {line['text']}")
    except KeyboardInterrupt:
        return


def transfer(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    name: options.Name = None,
    ladder: Annotated[
        float,
        option(
            "FACTOR",
            "Train learning rates up to FACTOR below and above the predicted one, in steps of 2.",
            min=1,
            max=1000,
        ),
    ] = 4.0,
    allow_plugins: options.AllowPlugins = False,
    quiet: options.Quiet = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Tune small sizes, predict the largest, and train it.

    The largest value of the size that spans most is held out and the other sizes are tuned. The values and the
    loss at each held-out size are predicted and sealed; it is trained with the predicted learning rate,
    with the best one of the largest tuned size, and with a ladder around the predicted one. Ctrl-C saves
    the runs; the same command continues them.

    \b
    $ sweeplab transfer studies/small.yaml
    $ sweeplab transfer small --ladder 8 -o parametrization=mup --name mup
    """
    file = options.named_file(file, lab)
    study = sweeplab.load_study(
        file,
        lab=lab,
        name=name,
        overrides=options.overrides(override, None, None),
        allow_plugins=allow_plugins,
    )
    say_start(f"reading the data of {file}", quiet)
    from sweeplab.analysis.predicting import transfer as transferred
    from sweeplab.cli.study.view import followed
    from sweeplab.sweep.planning import check_reach

    check_reach(study.spec, study.lab)
    again = shlex.join(["sweeplab", *sys.argv[1:]])
    done = followed(
        study.lab,
        lambda run: transferred(study.spec, study.lab, run, ladder),
        again,
        as_json,
        quiet,
    )
    answer = {"study": study.spec.name, "sizes": [size.as_dict() for size in done]}
    print_answer((answer, _print_transferred), as_json)


def _print_transferred(answer: Mapping[str, Any]) -> None:
    for size in answer["sizes"]:
        predicted, loss = (
            size["prediction"]["values"]["learning_rate"],
            size["prediction"]["loss"],
        )
        say(f"{size['large']}, {size['parametrization']} parametrization", "bold")
        rows = []
        for rung in size["losses"]:
            rate, marks = rung["learning_rate"], list[str]()
            if rate == size["predicted"]:
                marks.append("predicted")
            if rate == size["copied"]:
                marks.append(f"copied from {size['copied_from']}")
            row = {"learning_rate": cell_text(rate), "loss": cell_text(rung["loss"])}
            rows.append(row | {"above the best": _share(rung["cost"]), "": ", ".join(marks)})
        print_rows(rows, text=("",))
        ends = f" ({interval(predicted)})" if predicted["low"] is not None else ""
        say(
            f"predicted learning rate {cell_text(size['predicted'])}{ends}, {predicted['verdict']}"
        )
        if size["held"] is None:
            say(f"loss: {loss['why']}")
        else:
            seen = "holds" if size["held"] else "does not hold"
            value = f"{cell_text(loss['value'])} ({interval(loss)})"
            say(f"loss of a run: {value}, {loss['verdict']}; the interval {seen} the loss seen")
        say(f"sealed: {size['sealed']}" if size["sealed"] else f"not sealed: {size['why_not']}")


def _share(cost: float | None) -> str:
    if cost is None:
        return "diverged"
    return f"{cost:.2%}"


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
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Continue a study that is paused or that no process runs.

    It runs from its folder in the lab, with the budget stored there; failed trials do not count, and others are
    trained in their place. A pruned trial continues from its snapshot, if that was kept (track.snapshots), and is
    not pruned again.

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

    done = steering.resume(folder)
    if done:
        print_answer(answer_of(done), as_json)
        return
    from sweeplab.cli.study.view import run_with_view

    raise typer.Exit(
        run_with_view(
            sweeplab.open_study(folder.name, lab, allow_plugins=allow_plugins), as_json
        )
    )


def extend(
    name: options.StudyName,
    trials_per_cell: Annotated[
        str | None, option("N", "Trials of each cell, in total.")
    ] = None,
    time: Annotated[
        str | None, option("TIME", "Wall time in total, such as 30m, 2h, or none.")
    ] = None,
    widen: Annotated[
        str | None,
        option(
            "HYPERPARAMETER",
            "Widen the range of this one, where its best values lie at an end.",
        ),
    ] = None,
    to_next: Annotated[
        bool,
        flag(
            "Add the sizes and seeds that tell most about the law, for half the FLOPs.",
            "--next",
        ),
    ] = False,
    no_run: Annotated[
        bool, flag("Only write the change, and train nothing.", "--no-run")
    ] = False,
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

    raise typer.Exit(
        run_with_view(
            sweeplab.open_study(folder.name, lab, allow_plugins=allow_plugins), as_json
        )
    )


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
    dry_run: Annotated[
        bool, options.flag("Only say which trials would be enqueued.", "--dry-run")
    ] = False,
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

    return answer_of(steering.enqueue(find_study(lab, name), values, cell, dry_run))
