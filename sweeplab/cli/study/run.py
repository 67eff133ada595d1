"""`sweeplab study run`, `watch`, `logs` and `work`: the commands that last as long as a study runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.options import (
    AllowPlugins,
    AsJson,
    Lab,
    Name,
    Overrides,
    Quiet,
    StudyFile,
    StudyName,
    flag,
    study_folder,
)
from sweeplab.cli.study.plan import plan

if TYPE_CHECKING:
    from sweeplab.sweep.control.following import LogLine


def run(
    file: StudyFile,
    override: Overrides = None,
    name: Name = None,
    allow_plugins: AllowPlugins = False,
    lab: Lab = None,
    dry_run: Annotated[bool, flag("Only show the plan.", "--dry-run")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a study to the end of its budget, or continue it.

    Ctrl-C saves the runs; the same command continues them. When the budget is used up, it adds nothing.

    \b
    $ sweeplab study run studies/small.yaml
    $ sweeplab study run studies/small.yaml --name quick -o max_iters=100
    """
    if dry_run:
        plan(file, override, name, allow_plugins, lab, as_json)
        return
    from sweeplab import load_study
    from sweeplab.cli.study.view import run_with_view

    study = load_study(file, lab=lab, name=name, overrides=override or (), allow_plugins=allow_plugins)
    raise typer.Exit(run_with_view(study, as_json, quiet))


def watch(name: StudyName, lab: Lab = None) -> None:
    """Show a running study as `study run` does, until it ends.

    Ctrl-C leaves the study running. The exit code is that of the study's run.

    \b
    $ sweeplab study watch small
    """
    from sweeplab.cli.study.view import watch_with_view

    raise typer.Exit(watch_with_view(study_folder(lab, name)))


def logs(
    name: StudyName,
    follow: Annotated[bool, flag("Continue until the study ends.", "--follow", "-f")] = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Print a study's events and the output of its workers.

    Trials that started and ended, commands given to the study, and what the workers printed.

    \b
    $ sweeplab study logs small --follow
    """
    import json

    from sweeplab.sweep.control.following import log_lines

    try:
        for line in log_lines(study_folder(lab, name), follow):
            typer.echo(json.dumps(line) if as_json else _log_line(line))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _log_line(line: LogLine) -> str:
    at = line["time"]
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else " " * 19
    return f"{clock}  {line['source']}: {line['text']}"


def work(
    name: StudyName,
    force: Annotated[bool, flag("Work although code or data differ.", "--force")] = False,
    allow_plugins: AllowPlugins = False,
    quiet: Quiet = False,
    lab: Lab = None,
) -> None:
    """Start one more worker on a running study, in the foreground.

    It trains on this machine until the study's run ends; Ctrl-C saves its runs. It writes to the
    study's own lab, and the process that runs the study sends its results to tracking.

    \b
    $ sweeplab study work small
    """
    from sweeplab.cli.study.view import Interrupts, write_line
    from sweeplab.lab.events import Event, TrialClaimed, TrialEnded, TrialRequeued, WorkerReady
    from sweeplab.lab.listing import read_spec
    from sweeplab.sweep.control.following import join_study

    folder = study_folder(lab, name)
    metric = read_spec(folder).objective.metric

    def report(event: Event) -> None:
        match event:
            case _ if quiet:
                return
            case WorkerReady():
                write_line(f"{name}: one more worker is ready")
            case TrialClaimed():
                write_line(f"{event.cell} trial {event.trial}  started")
            case TrialRequeued():
                write_line(f"{event.cell} trial {event.trial}  saved")
            case TrialEnded():
                value = event.ending.value
                loss = f"  {metric} {value:.4f}" if value is not None else ""
                write_line(f"{event.cell} trial {event.trial}  {event.ending.outcome}{loss}")

    with Interrupts(lambda text: None if quiet else write_line(text)) as interrupts:
        failures = join_study(folder, force, report, lambda: interrupts.count, allow_plugins)
    for failure in failures:
        write_line(f"error: {failure}")
    raise typer.Exit(1 if failures else 130 if interrupts.count else 0)
