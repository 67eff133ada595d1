"""`study run` as a person sees it: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeplab import load_study
from sweeplab.api import StudyResult
from sweeplab.study.listing import tracking_uri_of
from sweeplab.study.supervisor import Progress
from sweeplab.tracking.connection import tracking_uri

EXIT_CODES = {"complete": 0, "failed": 1, "interrupted": 130}
LINE_SECONDS = 15.0


class Interrupts:
    """Count Ctrl-C and SIGTERM instead of dying of them."""

    def __init__(self, say: Any) -> None:
        self.count = 0
        self._say = say
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._heard)

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._say("stopping at the next step; once more ends the workers at once" if self.count == 1 else "ending")


def run_with_view(file: Path, overrides: list[str], name: str | None, lab: Path | None, as_json: bool) -> int:
    """Run a study, show how it goes on standard error, and return the exit code."""
    console = Console(stderr=True)
    study = load_study(file, lab=lab, name=name, overrides=overrides)
    interrupts = Interrupts(lambda text: console.print(text, style="yellow"))
    if console.is_terminal and not as_json:
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            result = study.run(
                lambda event, progress: live.update(_view(progress)) if event["event"] == "tick" else None,
                lambda: interrupts.count,
            )
    else:
        result = study.run(_Lines(console).heard, lambda: interrupts.count)
    for error in result.errors:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
    _say_how_it_ended(console, result, file)
    if as_json:
        report = str(result.report) if result.report else None
        best = {key: _plain(value) for key, value in result.best.items()} if result.report else None
        print(json.dumps({"status": result.status, "study": result.folder.name, "report": report, "best": best}))
    return EXIT_CODES[result.status]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _say_how_it_ended(console: Console, result: StudyResult, file: Path) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    states = ", ".join(f"{count} {state}" for state, count in sorted(result.folder.states().items()))
    say(f"{result.folder.name}: {result.status} ({states})")
    if result.status == "interrupted":
        say(f"go on with: sweeplab study run {file}")
    if result.report:
        say(f"report: {result.report}")
        uri = tracking_uri(result.folder.lab, tracking_uri_of(result.folder))
        say(f"browse: mlflow ui --backend-store-uri {uri}")


class _Lines:
    """One line for every trial that ends, and a sign of life between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = time.monotonic()

    def heard(self, event: dict[str, Any], progress: Progress) -> None:
        if event["event"] == "ended":
            value = event["value"]
            loss = f"val_loss {value:.4f}" if value is not None else ""
            self._say(f"{event['cell']} trial {event['trial']}: {event['outcome']} {loss}  [{_rate(progress)}]")
        elif event["event"] == "tick" and time.monotonic() - self._said > LINE_SECONDS:
            self._say(f"{len(progress.live)} trials running  [{_rate(progress)}]")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _rate(progress: Progress) -> str:
    """Say how many trials are done, how fast they come and how long the rest will take."""
    done, total = progress.counted, progress.plan.trials
    seconds = time.monotonic() - progress.started
    text = f"{done}/{total} trials" if total else f"{done} trials"
    new = done - progress.done_before
    if new:
        text += f", {new / seconds * 60:.1f} a minute"
        if total and done < total:
            text += f", {_duration((total - done) * seconds / new)} left"
    return text


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def _view(progress: Progress) -> Group:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, justify in (("cell", "left"), ("params", "right"), ("trials", "right"), ("best", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("running")
    per_cell = None if progress.plan.trials is None else progress.plan.trials // len(progress.plan.cells)
    for plan in progress.plan.cells:
        cell = progress.cells[plan.cell]
        live = [event for (key, _), event in sorted(progress.live.items()) if key == plan.cell]
        running = "  ".join(f"#{event['trial']} {_at(event)}" for event in live)
        best = f"{cell['best']:.4f}" if cell["best"] is not None else "–"
        trials = f"{cell['counted']}/{per_cell}" if per_cell else str(cell["counted"])
        table.add_row(plan.cell, f"{plan.n_params:,}", trials, best, running)
    workers = f"{len(progress.plan.workers)} workers on {progress.plan.device}"
    elapsed = _duration(time.monotonic() - progress.started)
    return Group(table, Text(f"{workers}  {_rate(progress)}  {elapsed}", style="dim"))


def _at(event: dict[str, Any]) -> str:
    return f"it {event['iteration']} {event['val_loss']:.3f}" if event["event"] == "evaluated" else "starting"


