"""What happened to a study, in the order in which it did, and what its workers wrote to their logs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeplab.lab.feed import Feed
from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.control.watching import LOOK_SECONDS
from sweeplab.sweep.trials.commands import Command, Commands

Line = dict[str, Any]
WANTED = {"run": "resume", "pause": "pause", "stop": "stop", "closing": "no more to do, or interrupted"}


def log_lines(folder: StudyFolder, follow: bool = False) -> Iterator[Line]:
    """Yield lines as `time` (seconds since 1970, None where it is not known), `source` and `text`.

    With `follow` go on until nobody runs the study.
    """
    log = _Log(folder)
    yield from log.news(is_first=True)
    while follow:
        is_last = not folder.is_run
        threading.Event().wait(LOOK_SECONDS)
        yield from log.news()
        if is_last:
            return


class _Log:
    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._feed = Feed(folder)
        self._commands = Commands.open(folder.storage_url, read=False)
        self._offsets: dict[Path, int] = {}
        self._begun: set[tuple[str, int]] = set()

    def news(self, is_first: bool = False) -> Iterator[Line]:
        """Yield the lines since the last time: those whose time is known in its order, then the workers'."""
        known = [_line(command.given, "study", _in_words(command)) for command in self._commands.read()]
        events = self._feed.past() if is_first else self._feed.news()
        known += [line for event in events if (line := self._of_trial(event))]
        yield from sorted(known, key=lambda line: line["time"])
        for file in sorted(self._folder.path.glob("worker-*.log")):
            yield from self._written(file)

    def _of_trial(self, event: dict[str, Any]) -> Line | None:
        cell, number = event.get("cell", ""), event.get("trial", 0)
        named = f"{cell} trial {number}"
        if event["event"] == "claimed" and (cell, number) not in self._begun:
            self._begun.add((cell, number))
            return _line(event["started"], "trial", f"{named} began")
        if event["event"] != "ended":
            return None
        value = event["value"]
        loss = "" if value is None else f", val_loss {value:.4f}"
        why = event.get("stop_reason") or ""
        error = f": {event['error'].strip().splitlines()[-1]}" if event["error"] else ""
        return _line(event["ended"], "trial", f"{named} {event['outcome']}{loss} ({why}){error}")

    def _written(self, file: Path) -> Iterator[Line]:
        with file.open("rb") as opened:
            opened.seek(self._offsets.get(file, 0))
            text = opened.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[file] = self._offsets.get(file, 0) + len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            yield _line(None, file.stem, line)


def _line(time: float | None, source: str, text: str) -> Line:
    return {"time": time, "source": source, "text": text}


def _in_words(command: Command) -> str:
    """Say in words what a command asks for."""
    value = command.value
    match command.kind:
        case "start":
            return f"started on {value['host']}, process {value['pid']}"
        case "ended":
            return f"ended: {value}"
        case "wanted":
            return WANTED[value]
        case "budget":
            given = ", ".join(f"{name} {each:g}" for name, each in value.items() if each is not None)
            return f"extend: {given}"
        case "stop trial" | "withdraw":
            return f"{command.kind} {value['trial']} of {value['cell']}"
    return f"{command.kind}: {json.dumps(value)}"
