"""`study run` as a person sees it: a live view on a terminal, plain lines elsewhere, and how it ended."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live

from sweeplab import load_study
from sweeplab.api import StudyResult
from sweeplab.cli.show_study import print_study
from sweeplab.cli.tables import console as make_console
from sweeplab.cli.tables import print_json
from sweeplab.cli.view import STOPPING, Lines, View
from sweeplab.study.folder import lab_folder
from sweeplab.study.listing import show_study, states_in_words

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


def run_with_view(
    file: Path, overrides: Sequence[str], name: str | None, lab: Path | None, as_json: bool
) -> int:
    """Run a study, show how it goes on standard error, print how it ended, and return the exit code."""
    study = load_study(file, lab=lab, name=name, overrides=overrides)
    console = Console(stderr=True, highlight=False)
    # What FORCE_COLOR calls a terminal may be a log.
    live = sys.stderr.isatty() and not console.is_dumb_terminal and not as_json
    # A signal may come in the middle of a print: the view tells of it when next it is drawn.
    with Interrupts(lambda text: None if live else _write(text)) as interrupts:
        view = View(study.spec.name, lambda: interrupts.count)
        shown = Live(view, console=console, refresh_per_second=REFRESH_PER_SECOND, transient=True)
        with shown if live else nullcontext():
            heard = view.heard if live else Lines(console).heard
            result = study.run(heard, lambda: interrupts.count)
        if as_json:
            print_json(_as_json(result))
        else:
            _say_how_it_ended(result)
    for error in result.errors:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
    return EXIT_CODES[result.status]


def _write(text: str) -> None:
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


def _say_how_it_ended(result: StudyResult) -> None:
    console = make_console()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    shown = show_study(result.folder)
    shown["cells"] = [cell for cell in shown["cells"] if cell["n_params"] is not None]  # those begun
    if len(shown["cells"]) > MOST_CELLS_SHOWN:
        shown["cells"] = []
    print_study(shown)
    say(f"{result.folder.name}: {result.status}; runs: {states_in_words(result.folder.states()) or 'none'}")
    if result.status == "interrupted":
        say(f"go on with: {shlex.join(['sweeplab', *sys.argv[1:]])}")
    if result.report:
        say(f"report: {result.report}")
        where = [] if result.folder.lab == lab_folder() else ["--lab", str(result.folder.lab)]
        say(f"browse: {shlex.join(['sweeplab', 'ui', result.folder.name, *where])}")
