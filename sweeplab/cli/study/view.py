"""A running study as a person sees it: a live view on a terminal, plain lines elsewhere, and how it ended.

This module imports Rich and the api; commands import it when they run.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import FrameType
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from sweeplab.api import Study, StudyResult
from sweeplab.cli.printing import print_json, say, workers_in_words
from sweeplab.cli.study.show import print_study
from sweeplab.formatting import duration, several
from sweeplab.lab.listing import show_study, states_in_words
from sweeplab.records.folders import StudyFolder
from sweeplab.study.plan import CellPlan
from sweeplab.sweep.control.watching import watch_study
from sweeplab.sweep.work.supervisor import Event, Progress

EXIT_CODES = {"complete": 0, "failed": 1, "interrupted": 130}
REFRESH_PER_SECOND = 4
# Messages after the first and the second Ctrl-C.
STOPPING = (
    "stopping at the next step; press Ctrl-C again to end at once",
    "ending at once; continuing repeats the last few steps",
)
FINISHING = "updating tracking and writing the report"
# Messages after the commands `pause` and `stop`, while workers still train.
LEAVING = {
    "pause": "pausing: the runs are saved at their next evaluation",
    "stop": "stopping: the runs are saved at their next evaluation",
}
PAUSED = "paused: sweeplab study resume {name} continues it"
QUIET_SECONDS = 30.0
# Below this width the least important columns are left out.
NARROW = 80
# Lines of the view besides its cells, and the one after it.
OTHER_LINES = 11
# A study with more cells ends without a table of them.
MOST_CELLS_SHOWN = 50


class View:
    """Draw what is known of a study, fit for the terminal, whatever its size and the number of cells."""

    def __init__(self, name: str, interrupts: Callable[[], int]) -> None:
        self._name = name
        self._interrupts = interrupts
        self._progress: Progress | None = None
        self._ready: set[int] = set()
        self._exited = 0
        self._spinner = Spinner("dots", style="cyan")

    def heard(self, event: Event, progress: Progress) -> None:
        """Take note of an event; the next drawing shows it."""
        self._progress = progress
        if event["event"] == "ready":
            self._ready.add(event["worker"])
        elif event["event"] == "exited":
            self._ready.discard(event["worker"])
            self._exited += 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self._progress
        if progress is not None:
            width, height = options.max_width, options.size.height
            yield _line(f"[bold]{self._name}[/]  {workers_in_words(progress.plan)}")
            yield Text()
            yield from _cells(progress, width, max(1, height - OTHER_LINES))
            yield Text()
            yield _bar(progress, width)
            yield _line(f"{_states(progress)}{duration(time.monotonic() - progress.started)} so far", "dim")
            if best := _best(progress):
                yield _line(best)
        if asked := self._interrupts():
            yield _line(STOPPING[min(asked, len(STOPPING)) - 1], "yellow")
        elif doing := self._doing():
            self._spinner.update(text=doing)
            yield self._spinner

    def _doing(self) -> str:
        """Say what goes on where no trial shows it."""
        if self._progress is None:
            return f"{self._name}: starting"
        at_work, state = bool(self._progress.live or self._ready), self._progress.state
        if at_work:
            return LEAVING.get(state, "")
        if state == "pause":
            return PAUSED.format(name=self._name)
        if state != "run":
            return FINISHING
        return FINISHING if self._exited else "starting the workers"


class Lines:
    """Print a line for every trial that ends, and a sign of life between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: float | None = None

    def heard(self, event: Event, progress: Progress) -> None:
        """Print what an event has to say."""
        if self._said is None:
            plan = progress.plan
            self._say(
                f"{plan.name}: {trials_done(progress)}, {several(len(plan.cells), 'cell')}, "
                f"{workers_in_words(plan)}"
            )
        elif event["event"] == "ended":
            self._say("  ".join(_ended(event, progress)))
        elif event["event"] == "error":
            self._say(event["message"])
        elif time.monotonic() - self._said > QUIET_SECONDS:
            self._say(
                f"{len(progress.live)} running, {', '.join([trials_done(progress), *how_fast(progress)])}"
            )

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(text, markup=False, soft_wrap=True)


def _ended(event: Event, progress: Progress) -> Iterator[str]:
    yield f"{progress.counted}/{progress.plan.trials}" if progress.plan.trials else str(progress.counted)
    yield f"{event['cell']} trial {event['trial']}"
    yield event["outcome"]
    if event["outcome"] == "failed":
        yield progress.errors[-1]
    elif event["value"] is not None:
        yield f"{progress.plan.metric} {event['value']:.4f}"
    yield ", ".join(how_fast(progress))


def trials_done(progress: Progress) -> str:
    """Say how many trials are done, of how many."""
    total = progress.plan.trials
    text = f"{progress.counted} of {total} trials" if total else f"{progress.counted} trials"
    return f"{text} ({progress.done_before} before)" if progress.done_before else text


def how_fast(progress: Progress) -> Iterator[str]:
    """Say how fast trials come, and how long the rest will take; nothing before there is something to say."""
    seconds = time.monotonic() - progress.started
    plan, new = progress.plan, progress.counted - progress.done_before
    left = []
    if plan.budget["time"] is not None:
        left.append(max(0.0, plan.budget["time"] - progress.elapsed_before - seconds))
    if new:
        per_minute = new / seconds * 60
        yield f"{per_minute:.1f} a minute" if per_minute >= 1 else f"{per_minute * 60:.1f} an hour"
        if plan.trials:
            left.append((plan.trials - progress.counted) * seconds / new)
    if left and min(left) >= 1:
        yield f"about {duration(min(left))} left"


def _line(text: str, style: str = "") -> Text:
    line = Text.from_markup(text, style=style, overflow="ellipsis")
    line.no_wrap = True
    return line


def _bar(progress: Progress, width: int) -> Table:
    row = Table.grid(padding=(0, 1))
    text = _line(", ".join([trials_done(progress), *how_fast(progress)]))
    if total := progress.plan.trials:
        bar = ProgressBar(total=total, completed=progress.counted, width=max(10, min(40, width - 50)))
        row.add_row(bar, text)
    else:
        row.add_row(text)
    return row


def _states(progress: Progress) -> str:
    states = dict(progress.states)
    return "".join(f"{count} {state}, " for state, count in sorted(states.items()))


def _best(progress: Progress) -> str:
    known = [(cell["best"], key) for key, cell in progress.cells.items() if cell["best"] is not None]
    if not known:
        return ""
    value, key = min(known)
    return f"best [green]{value:.4f}[/] in {key}"


def _cells(progress: Progress, width: int, height: int) -> Iterator[Table | Text]:
    """Yield a table of as many cells as fit, those around what runs, and how many are left out."""
    plans, live = progress.plan.cells, list(progress.live.values())
    running = [index for index, plan in enumerate(plans) if any(event["cell"] == plan.cell for event in live)]
    # What runs moves down the grid: the last of it stays near the end of the window.
    start = max(0, min(max(running, default=0) + 3, len(plans)) - height)
    shown = plans[start : start + height]
    if start:
        yield _line(f"  {start} cells above", "dim")
    yield _table(progress, shown, live, width)
    if below := len(plans) - start - len(shown):
        yield _line(f"  {below} cells below", "dim")


def _table(progress: Progress, shown: list[CellPlan], live: list[Event], width: int) -> Table:
    plans = progress.plan.cells
    per_cell = progress.plan.budget["trials_per_cell"]
    wide = width >= NARROW
    table = Table(box=None, header_style="bold", pad_edge=False, width=width)
    # Widths are those of all cells, so that nothing moves when the window does.
    longest = min(max(len("cell"), *(len(plan.cell) for plan in plans)), width // 2)
    columns: list[tuple[str, Literal["left", "right"], int]] = [("cell", "left", longest)]
    if wide:
        columns.append(("params", "right", max(6, max(len(f"{plan.n_params:,}") for plan in plans))))
    columns += [("trials", "right", max(6, 2 * len(str(per_cell)) + 1)), ("best", "right", 7)]
    for heading, justify, columns_wide in columns:
        table.add_column(heading, justify=justify, width=columns_wide, no_wrap=True)
    table.add_column("running", no_wrap=True, ratio=1)
    room = width - sum(columns_wide + 2 for _, _, columns_wide in columns)
    for plan in shown:
        cell = progress.cells[plan.cell]
        best = f"{cell['best']:.4f}" if cell["best"] is not None else "–"
        trials = f"{cell['counted']}/{per_cell}" if per_cell else str(cell["counted"])
        sizes = [f"{plan.n_params:,}"] if wide else []
        running = _running(plan, [event for event in live if event["cell"] == plan.cell], room)
        over = per_cell is not None and cell["counted"] >= per_cell
        table.add_row(plan.cell, *sizes, trials, best, running, style="dim" if over else "")
    return table


def _running(plan: CellPlan, live: list[Event], room: int) -> str:
    """Say which trials of a cell run, where they are, and their latest loss; or only how many, and where."""
    end = f"/{plan.max_iters}" if plan.max_iters else ""
    at, texts = [], []
    for event in sorted(live, key=lambda each: int(each["trial"])):
        text = "starting"
        if event["event"] == "evaluated":
            at.append(event["iteration"])
            text = f"{event['iteration']}{end} {event['val_loss']:.3f}"
        texts.append(f"#{event['trial']} {text}")
    if len(text := "   ".join(texts)) <= room:
        return text
    return f"{len(live)} trials {f'at {min(at)}–{max(at)}{end}' if at else 'starting'}"


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


def say_how_it_stands(folder: StudyFolder, status: str) -> None:
    """Print the cells that were begun, the best run, and the runs by state."""
    shown = show_study(folder)
    shown["cells"] = [cell for cell in shown["cells"] if cell["n_params"] is not None]  # those begun
    if len(shown["cells"]) > MOST_CELLS_SHOWN:
        shown["cells"] = []
    print_study(shown)
    say(f"{folder.name}: {status}; runs: {states_in_words(folder.states(folder.unended)) or 'none'}")


def _say_where_it_is(result: StudyResult) -> None:
    if result.status == "interrupted":
        say(f"continue with: {shlex.join(['sweeplab', *sys.argv[1:]])}")
    if result.report:
        say(f"report: {result.report}")
        say(f"browse: {result.folder.command('ui')}")


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
        say(f"{folder.name} continues; {folder.command('study stop')} stops it")
        return 0
    say_how_it_stands(folder, status or "not run to its end")
    return EXIT_CODES.get(status or "failed", 1)
