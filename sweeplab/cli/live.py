"""`study run` as a person sees it: a live view on a terminal, plain lines elsewhere, and how it ended."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live

from sweeplab.api import Study, StudyResult
from sweeplab.cli.show_study import print_study
from sweeplab.cli.tables import console as make_console
from sweeplab.cli.tables import print_json
from sweeplab.cli.view import STOPPING, Lines, View
from sweeplab.lab.listing import show_study, states_in_words
from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.control.watching import watch_study

EXIT_CODES = {"complete": 0, "failed": 1, "interrupted": 130}
REFRESH_PER_SECOND = 4
# With more cells than this the last word is not a table of them.
MOST_CELLS_SHOWN = 50


class Interrupts:
    """Count Ctrl-C and SIGTERM while entered; only the third raises KeyboardInterrupt."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.count = 0
        self._say = say

    def __enter__(self) -> Interrupts:
        self._before = {each: signal.signal(each, self._heard) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > len(STOPPING):
            raise KeyboardInterrupt
        self._say(STOPPING[self.count - 1])


def is_live(console: Console) -> bool:
    """Say whether a view can be drawn again and again: what FORCE_COLOR calls a terminal may be a log."""
    return sys.stderr.isatty() and not console.is_dumb_terminal and not console.quiet


def run_with_view(study: Study, as_json: bool, quiet: bool = False) -> int:
    """Run a study, show how it goes on standard error, print how it ended, and return the exit code.

    A program that reads JSON is shown lines, and with `quiet` nothing is said but what goes wrong.
    """
    console = Console(stderr=True, highlight=False, quiet=quiet)
    live = is_live(console) and not as_json
    # A signal may come in the middle of a print: the view tells of it when next it is drawn.
    with Interrupts(lambda text: None if live or quiet else write_line(text)) as interrupts:
        view = View(study.spec.name, lambda: interrupts.count)
        shown = Live(view, console=console, refresh_per_second=REFRESH_PER_SECOND, transient=True)
        with shown if live else nullcontext():
            heard = view.heard if live else Lines(console).heard
            result = study.run(heard, lambda: interrupts.count)
        if as_json:
            print_json(_as_json(result))
        elif not quiet:
            say_how_it_stands(result.folder, result.status)
            _say_where_it_is(result)
    for error in result.errors:
        Console(stderr=True, highlight=False).print(
            f"error: {error}", style="red", markup=False, soft_wrap=True
        )
    return EXIT_CODES[result.status]


def write_line(text: str) -> None:
    """Print a line on standard error, also from where a signal is handled."""
    os.write(sys.stderr.fileno(), f"{text}\n".encode())


def _as_json(result: StudyResult) -> dict[str, Any]:
    return {
        "study": result.folder.name,
        "status": result.status,
        "runs": result.folder.states(),
        "best": result.best if result.report else {},
        "report": str(result.report) if result.report else None,
        "errors": result.errors,
    }


def _say(text: str) -> None:
    make_console().print(text, markup=False, soft_wrap=True)


def say_how_it_stands(folder: StudyFolder, status: str) -> None:
    """Print the cells that were begun, the best run, and the runs by state."""
    shown = show_study(folder)
    shown["cells"] = [cell for cell in shown["cells"] if cell["n_params"] is not None]  # those begun
    if len(shown["cells"]) > MOST_CELLS_SHOWN:
        shown["cells"] = []
    print_study(shown)
    _say(f"{folder.name}: {status}; runs: {states_in_words(folder.states(folder.unfinished)) or 'none'}")


def _say_where_it_is(result: StudyResult) -> None:
    if result.status == "interrupted":
        _say(f"go on with: {shlex.join(['sweeplab', *sys.argv[1:]])}")
    if result.report:
        _say(f"report: {result.report}")
        _say(f"browse: {result.folder.command('ui')}")


def watch_with_view(folder: StudyFolder) -> int:
    """Show a study that another process runs until it ends, and return the exit code of its run."""
    console = Console(stderr=True, highlight=False)
    live = is_live(console)
    view = View(folder.name, lambda: 0)
    shown = Live(view, console=console, refresh_per_second=REFRESH_PER_SECOND, transient=True)
    try:
        with shown if live else nullcontext():
            status = watch_study(folder, view.heard if live else Lines(console).heard)
    except KeyboardInterrupt:
        _say(f"{folder.name} goes on; {folder.command('study stop')} ends it")
        return 0
    say_how_it_stands(folder, status or "not run to its end")
    return EXIT_CODES.get(status or "failed", 1)
