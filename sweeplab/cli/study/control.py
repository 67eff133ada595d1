"""Commands to a running study and its trials, which workers read at their next evaluation; `repair` and `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sweeplab import open_study
from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option
from sweeplab.cli.printing import Answer, answer_of, console, print_answer, print_json, say, say_start
from sweeplab.lab.listing import file_of, find_study, name_in
from sweeplab.records.folders import StudyFolder, lab_folder

Trial = Annotated[int, argument("N", "Number of the trial.")]


def stop(name: options.StudyName, lab: options.Lab = None) -> Answer:
    """Stop a study's run at its workers' next evaluation.

    The runs are saved in full, so that they continue bit for bit.

    \b
    $ sweeplab study stop small
    """
    from sweeplab.sweep import steering

    return answer_of(steering.stop(find_study(lab, name)))


def pause(name: options.StudyName, lab: options.Lab = None) -> Answer:
    """Pause a study at its workers' next evaluation.

    Its workers free their memory, also on GPUs. The process that runs the study waits; the pause does not
    count as time spent. `resume` continues it.

    \b
    $ sweeplab study pause small
    """
    from sweeplab.sweep import steering

    return answer_of(steering.pause(find_study(lab, name)))


def resume(
    name: options.StudyName,
    failed: Annotated[bool, flag("Also train its failed trials again.", "--failed")] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Continue a paused study, or run one that no process runs.

    It runs from its folder in the lab, with the budget stored there. With --failed every failed trial is enqueued
    again as a new trial with the same values, also while the study runs; the failed ones do not count.

    \b
    $ sweeplab study resume small
    $ sweeplab study resume small --failed
    """
    folder = find_study(lab, name)
    say_start(f"reading {name}")
    from sweeplab.sweep import steering

    done = steering.resume(folder, failed)
    if done:
        print_answer(answer_of(done), as_json)
        return
    from sweeplab.cli.study.view import run_with_view

    raise typer.Exit(run_with_view(open_study(name, lab, allow_plugins=allow_plugins), as_json))


def extend(
    name: options.StudyName,
    trials_per_cell: Annotated[str | None, option("N", "Trials of each cell, in total.")] = None,
    time: Annotated[str | None, option("TIME", "Wall time in total, such as 30m, 2h, or none.")] = None,
    widen: Annotated[
        str | None,
        option("HYPERPARAMETER", "Widen the range of this one, where its best values lie at an end."),
    ] = None,
    lab: options.Lab = None,
) -> Answer:
    """Change a study's budget, or widen a range that it searches.

    Budgets are totals, as in the study file, and may change while the study runs; with a smaller one, no more trials
    start. Running the same file again keeps them; another number in the file replaces them. A wider range keeps all
    trials, which count as before; the study must not be running.

    \b
    $ sweeplab study extend small --trials-per-cell 8
    $ sweeplab study extend small --widen learning_rate --trials-per-cell 8
    $ sweeplab study extend small --time 2h
    """
    from sweeplab.sweep import steering

    return answer_of(steering.extend(find_study(lab, name), trials_per_cell, time, widen))


def enqueue(
    name: options.StudyName,
    values: Annotated[
        list[str],
        argument("NAME=VALUE...", "Hyperparameters of its search and grid.", autocompletion=options.enqueued),
    ],
    lab: options.Lab = None,
) -> Answer:
    """Enqueue trials with given values, to run next.

    Values of the grid choose the cells; the sampler chooses searched values that are not given.
    Enqueued trials also run in a full cell, on top of its budget.

    \b
    $ sweeplab study enqueue small learning_rate=5e-2 n_layer=3
    """
    from sweeplab.sweep import steering

    return answer_of(steering.enqueue(find_study(lab, name), values))


def repair(
    name: options.StudyName,
    dry_run: Annotated[bool, flag("Only print what would be done.", "--dry-run")] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Make a study's storage, folders and MLflow agree.

    It repairs what `doctor` finds, and leaves alone what a worker holds. It can be run again, and while the
    study runs.

    \b
    $ sweeplab study repair small --dry-run
    $ sweeplab study repair small
    """
    from sweeplab.doctor.findings import FAULTS
    from sweeplab.doctor.repair import repair_study
    from sweeplab.lab.moving import finish_renaming

    folder = find_study(lab, name)
    lines = [f"renamed to {name}"] if not dry_run and finish_renaming(folder) else []
    repaired = repair_study(folder, dry_run, allow_plugins)
    lines += [f"{each.name}: {FAULTS[each.kind].what}: {what}" for each, what in repaired.done]
    lines += [f"left alone: {f'{each.name}: ' if each else ''}{what}" for each, what in repaired.left]
    if repaired.to_train:
        trials = ", ".join(f"{cell} #{number}" for cell, number in repaired.to_train)
        lines.append(f"{folder.command('study resume')} trains again: {trials}")
    return repaired, "\n".join(lines or [f"study {name} has nothing to repair"])


def resume_trial(
    name: options.StudyName, trial: Trial, cell: options.InCell = None, lab: options.Lab = None
) -> Answer:
    """Resume a pruned trial, and train it to its end.

    It continues from its snapshot, if that was kept (track.snapshots), and is not pruned again.

    \b
    $ sweeplab trial resume small 3 --cell n_layer=1,n_embd=32
    """
    from sweeplab.sweep import steering

    return answer_of(steering.resume_trial(find_study(lab, name), trial, cell))


def stop_trial(
    name: options.StudyName, trial: Trial, cell: options.InCell = None, lab: options.Lab = None
) -> Answer:
    """Stop a trial at its next evaluation.

    It counts as stopped, with its best value so far. An enqueued trial that has not started is
    withdrawn.

    \b
    $ sweeplab trial stop small 3 --cell n_layer=1,n_embd=32
    """
    from sweeplab.sweep import steering

    return answer_of(steering.stop_trial(find_study(lab, name), trial, cell))


def doctor(
    name: Annotated[
        str | None, argument("[NAME]", "Name of a study, or its file.", autocompletion=options.study_files)
    ] = None,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Check machine, lab and study, and suggest cures.

    Of a study that has not run yet it checks the engine. Exits with 1 if a check is bad: a study would
    not run, or its numbers may be wrong.

    \b
    $ sweeplab doctor small
    """
    from rich.text import Text

    from sweeplab.doctor import examine

    checks, place = [], lab_folder(lab)
    folder = spec = None
    if name and file_of(name).is_file() and not StudyFolder(place, name_in(name)).has_started:
        from sweeplab.study.file.reading import read_study

        spec = read_study(file_of(name))
        folder = StudyFolder(place, spec.name)
    elif name:
        folder = find_study(lab, name_in(name))
    for check in examine(place, folder, spec):
        checks.append(check)
        if not as_json:
            verdict = (f"{check.verdict:4}", {"ok": "green", "warn": "yellow", "bad": "red"}[check.verdict])
            line = Text.assemble(verdict, f"  {check.name:9}  {check.found}  ", (check.looked_at, "dim"))
            console().print(line, soft_wrap=True)
            if check.cure:
                say(f"      → {check.cure}")
    if as_json:
        print_json([asdict(check) for check in checks])
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(1)
