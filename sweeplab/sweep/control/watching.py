"""A study followed from another process than the one that runs it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from sweeplab.lab.feed import Event, Feed
from sweeplab.records.folders import StudyFolder
from sweeplab.study.plan import Plan
from sweeplab.sweep.trials.commands import Commands
from sweeplab.sweep.work.supervisor import Progress

LOOK_SECONDS = 0.5


def how_it_stands(folder: StudyFolder, feed: Feed, commands: Commands) -> Progress:
    """Return what is known of a study by now, as its supervisor knows it; what ended before is counted apart."""
    plan = Plan.from_dict(json.loads(folder.plan_file.read_text(encoding="utf-8")))
    progress = Progress(plan, {cell.cell: {"counted": 0, "best": None} for cell in plan.cells})
    start = commands.state.start
    since = start.get("given", 0.0)
    progress.started = time.monotonic() - (time.time() - since)
    progress.elapsed_before = start.get("elapsed_before", 0.0)
    for event in feed.past():
        progress.take_in(event)
    progress.done_before = min(start.get("done_before", 0), progress.counted)
    _obey(progress, commands)
    return progress


def watch_study(folder: StudyFolder, listen: Callable[[Event, Progress], None]) -> str | None:
    """Follow a study until it ends; `listen` hears what happens, and a tick twice a second.

    Return how it ended: complete, interrupted or failed; None where its supervisor was killed, or none runs it.
    """
    feed, commands = Feed(folder), Commands.open(folder.storage_url)
    progress = how_it_stands(folder, feed, commands)
    while folder.is_run:
        listen({"event": "tick"}, progress)
        threading.Event().wait(LOOK_SECONDS)
        if commands.read():
            _obey(progress, commands)
        for event in feed.news():
            progress.take_in(event)
            listen(event, progress)
        _forget_the_resting(progress)
    commands.read()
    return commands.state.status


def _obey(progress: Progress, commands: Commands) -> None:
    progress.state = commands.state.phase
    if commands.state.budget is not None:
        progress.plan = progress.plan.with_budget(commands.state.budget)
    _forget_the_resting(progress)


def _forget_the_resting(progress: Progress) -> None:
    """Show nothing as running that is put away, whatever was heard of it last."""
    if progress.state != "run":
        progress.live.clear()
