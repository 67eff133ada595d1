"""What a user sees of a running study: a live view on a terminal, plain lines elsewhere, and how it ended.

This module imports Rich and the api, so commands import it only when they run.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from sweeplab.analysis.differences import confirmed_cells
from sweeplab.api import Study
from sweeplab.cli.printing import (
    console,
    open_streams,
    outlive_readers,
    print_json,
    say,
    workers_in_words,
    write_line,
)
from sweeplab.cli.study.show import print_confirmed, print_failures
from sweeplab.errors import EXIT_FAILED, EXIT_INTERRUPTED
from sweeplab.formatting import counts, duration, on_one_line, out_of, several
from sweeplab.lab import events
from sweeplab.lab.listing import StudyState, loss_unit_of, study_state
from sweeplab.lab.showing import places_in_words, show_study
from sweeplab.records.folders import StudyFolder
from sweeplab.report.headline import read_headline
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.progress import StudyProgress, ended_in_words, time_left, watch_study
from sweeplab.sweep.worker import leaving_signals

Result = TypeVar("Result")
EXIT_CODES = {"complete": 0, "failed": EXIT_FAILED, "interrupted": EXIT_INTERRUPTED}
# Messages after the first and the second Ctrl-C.
STOPPING = (
    "stopping: each running trial's snapshot is written at its next step; Ctrl-C again ends at once",
    "ending at once, without snapshots; continuing repeats the last few steps",
)
# Messages after the commands `pause` and `stop`, while workers still train.
LEAVING = {
    "pause": "pausing: the runs are saved at their next evaluation",
    "stop": "stopping: the runs are saved at their next evaluation",
}
QUIET_SECONDS = 30.0


class View:
    """Draw a running study to fit the terminal, whatever its size and the number of trials that train."""

    def __init__(self, name: str, interrupts: Callable[[], int]) -> None:
        self._name, self._interrupts = name, interrupts
        self._progress: StudyProgress | None = None
        self._notice, self._has_ended = "", False
        self._spinner = Spinner("dots", style="cyan")

    def update(self, event: events.Event, progress: StudyProgress) -> None:
        """Take note of an event; the next drawing shows it."""
        self._progress = progress
        if isinstance(event, events.StudyNotice):
            self._notice = event.message
        elif isinstance(event, events.TrialEnded):
            self._has_ended = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress, doing = self._progress, f"{self._name}: starting"
        if progress is not None:
            doing = (
                LEAVING.get(progress.phase, "") if progress.live else self._at_rest(progress)
            )
            yield _line(self._name, "bold")
            words = workers_in_words(progress.plan), places_in_words(progress.places)
            yield _line(", ".join(filter(None, words)), "dim")
            yield Text()
            lines_beside = 13  # those above and below the trials, and what an interrupt says
            yield from _trials(
                progress, options.max_width, max(1, options.size.height - lines_beside)
            )
            yield from _totals(progress, options.max_width)
        if self._notice:
            yield _line(self._notice, "yellow")
        if self._interrupts():
            yield Text(STOPPING[min(self._interrupts(), len(STOPPING)) - 1], style="yellow")
        elif doing:
            self._spinner.update(text=Text(on_one_line(doing)))
            yield self._spinner

    def _at_rest(self, progress: StudyProgress) -> str:
        if progress.phase == "pause":
            return f"paused: sweeplab resume {self._name} continues it"
        if progress.phase == "run" and not self._has_ended:
            return "starting the workers"
        return "updating tracking and writing the report"


class Lines:
    """Print a line for every trial that ends and, after a long silence, how far the study is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: float | None = None
        self._state, self._places = StudyState.RUNNING, ""

    def update(self, event: events.Event, progress: StudyProgress) -> None:
        """Print what an event changes."""
        name = progress.plan.name
        if self._said is None:
            if isinstance(event, events.Tick) and not progress.places:
                return  # tracking is not open yet, and if it does not answer one line says so
            cells = several(len(progress.plan.cells), "cell")
            self._say(
                f"{name}: {_trials_done(progress)}, {cells}, {workers_in_words(progress.plan)}"
            )
        if self._state != progress.state:
            self._state = progress.state
            self._say(f"{name}: {progress.state}")
        places = places_in_words(progress.places)
        if places not in ("", self._places):
            self._say(places)
        self._places = places
        if isinstance(event, events.TrialEnded):
            self._say(ended_in_words(event, progress))
        elif isinstance(event, events.StudyNotice):
            self._say(event.message)
        elif self._said and time.monotonic() - self._said > QUIET_SECONDS:
            so_far = ", ".join([_trials_done(progress), *time_left(progress)])
            self._say(f"{len(progress.live)} running, {so_far}")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(text, soft_wrap=True)


def _trials_done(progress: StudyProgress) -> str:
    text = several(progress.plan.trials or progress.counted, "trial")
    return f"{progress.counted} of {text}" if progress.plan.trials else text


def _line(text: str, style: str = "") -> Text:
    return Text(on_one_line(text), style, no_wrap=True, overflow="ellipsis")


def _trials(progress: StudyProgress, width: int, most: int) -> Iterator[Table | Text]:
    """Yield one row for each trial that trains, and how many more there are than fit."""
    if not progress.live:
        return
    most_iters = {plan.cell: plan.max_iters for plan in progress.plan.cells}
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("cell", no_wrap=True, overflow="ellipsis", max_width=max(10, width - 45))
    for heading in ("trial", "iteration", "val_loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    trials = sorted(progress.live.values(), key=lambda event: event.place)
    for event in trials[:most]:
        iteration, loss = "starting", ""
        if isinstance(event, events.RunEvaluated):
            iteration, loss = (
                out_of(event.iteration, most_iters[event.cell]),
                f"{event.val_loss:.3f}",
            )
        table.add_row(on_one_line(event.cell), f"#{event.trial}", iteration, loss)
    yield table
    if len(trials) > most:
        yield _line(f"{len(trials) - most} more trials train", "dim")
    yield Text()


def _totals(progress: StudyProgress, width: int) -> Iterator[ProgressBar | Text]:
    if progress.plan.trials:
        yield ProgressBar(
            total=progress.plan.trials, completed=progress.counted, width=min(40, width)
        )
    yield _line(_trials_done(progress))
    yield _line(
        ", ".join([*time_left(progress), f"{duration(round(progress.seconds))} so far"])
    )
    yield _line(
        counts(dict(sorted(progress.states.items()))) or "no trial has ended yet", "dim"
    )


@contextmanager
def counted_interrupts(say: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """Count Ctrl-C and `leaving_signals`, and yield how many came; only the third raises KeyboardInterrupt."""
    count = 0
    terminals = [terminal for terminal in (1, 2) if os.isatty(terminal)]

    def hear(number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if number == signal.SIGHUP:  # printing to the closed terminal would raise an error
            for terminal in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
        if count > len(STOPPING):
            raise KeyboardInterrupt
        say(STOPPING[count - 1])

    with ExitStack() as stack:
        for number in (signal.SIGINT, *leaving_signals()):
            stack.callback(signal.signal, number, signal.signal(number, hear))
        yield lambda: count


def _is_live(screen: Console) -> bool:
    """Return whether a view can be redrawn; under FORCE_COLOR Rich takes a log for a terminal, too."""
    return sys.stderr.isatty() and not screen.is_dumb_terminal and not screen.quiet


@contextmanager
def _following(
    name: str, screen: Console, live: bool, interrupts: Callable[[], int] = lambda: 0
) -> Iterator[Callable[[events.Event, StudyProgress], None]]:
    if not live:
        yield Lines(screen).update
        return
    view = View(name, interrupts)
    with Live(view, console=screen, refresh_per_second=4, transient=True):
        # Also in what others print, in which Rich looks for colors while it draws.
        open_streams()
        yield view.update


@contextmanager
def _interrupts(
    as_json: bool, quiet: bool
) -> Iterator[tuple[Callable[[str], Any], Callable[[], int]]]:
    """Yield how to follow a study by its name, and how often Ctrl-C came meanwhile."""
    screen = console(stderr=True, quiet=quiet)
    live = _is_live(screen) and not as_json
    # A signal may interrupt a print, so a view shows its message at the next drawing.
    with counted_interrupts(
        lambda text: None if live or quiet else write_line(text)
    ) as interrupts:
        yield lambda name: _following(name, screen, live, interrupts), interrupts


def run_with_view(study: Study, as_json: bool, quiet: bool = False) -> int:
    """Run a study, and return the exit code.

    Its progress is shown on standard error, then how it ended is printed.

    With `as_json` the progress is lines; with `quiet` only errors are printed.
    """
    outlive_readers(study.folder.log)
    with _interrupts(as_json, quiet) as (follow, interrupts):
        with ExitStack() as shown:
            update = shown.enter_context(follow(study.spec.name))

            def end(folder: StudyFolder, status: str) -> None:
                shown.close()
                if not (as_json or quiet):
                    _say_how_it_ended(folder)

            result = study.run(update, interrupts, on_end=end)
        if as_json:
            answer = {
                "study": result.folder.name,
                "status": result.status,
                "runs": result.folder.states(),
            }
            answer["headline"] = read_headline(result.folder).as_dict()
            ended: dict[str, Any] = {"best": {}, "report": None}
            if result.report:
                ended = {
                    "best": result.best and result.best.as_dict(),
                    "report": str(result.report),
                }
            print_json({**answer, **ended, "errors": result.errors})
        elif not quiet and result.report:
            say(f"open   {result.folder.command('ui')}     {result.report}")
    for error in result.errors:
        console(stderr=True).print(f"error: {error}", style="red", soft_wrap=True)
    code = EXIT_CODES[result.status]
    if study_state(result.folder) is StudyState.DIVERGED:
        code = EXIT_FAILED
    return code


def followed(
    lab: Path,
    do: Callable[[Callable[[StudySpec], str]], Result],
    again: str,
    as_json: bool,
    quiet: bool,
) -> Result:
    """Return what `do` returns, and show the progress of each study that it runs by the function that it is given.

    Raises:
        typer.Exit: a study did not come to its end; the command `again` continues.
    """
    # Imported here because it imports torch, for which `run` need not wait.
    from sweeplab.sweep.confirming import Interrupted

    outlive_readers()
    with _interrupts(as_json, quiet) as (follow, interrupts):

        def run(spec: StudySpec) -> str:
            with follow(spec.name) as update:
                return Study(spec, lab).run(update, interrupts).status

        try:
            return do(run)
        except Interrupted as error:
            say(f"{error}; {again} continues")
            raise typer.Exit(EXIT_CODES[error.status]) from None


def confirm_with_view(study: Study, top: int, seeds: int, as_json: bool, quiet: bool) -> int:
    """Confirm a study, show the progress of what it trains, print what was confirmed, and return the exit code."""
    # Imported here because it imports torch, for which `run` need not wait.
    from sweeplab.sweep.confirming import confirm

    folder = study.folder
    confirmed = followed(
        folder.lab,
        lambda run: confirm(folder, study.spec, top, seeds, run),
        folder.command("confirm"),
        as_json,
        quiet,
    )
    cells = confirmed_cells(confirmed)
    if as_json:
        print_json({"study": folder.name, "cells": cells})
    elif not quiet:
        print_confirmed(folder.name, cells, loss_unit_of(folder))
    return 0


def watch_with_view(folder: StudyFolder) -> int:
    """Show a study that another process runs until it ends, and return the exit code of its run."""
    screen = console(stderr=True)
    try:
        with _following(folder.name, screen, _is_live(screen)) as update:
            status = watch_study(folder, update)
    except KeyboardInterrupt:
        say(f"{folder.name} continues; {folder.command('stop')} stops it")
        return 0
    _say_how_it_ended(folder)
    return EXIT_CODES.get(status or "failed", EXIT_FAILED)


def _say_how_it_ended(folder: StudyFolder) -> None:
    say(str(read_headline(folder)))
    print_failures(show_study(folder))
