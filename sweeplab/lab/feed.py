"""What happens to a study, read from its runs' folders: the events that its workers tell their own supervisor.

So it can be followed from any process, and whoever trains.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.records.folders import RunFolder, StudyFolder, run_key

Event = dict[str, Any]


@dataclass
class _Live:
    """A run that has not been seen to end, and how far its curve has been read."""

    folder: RunFolder
    cell: str
    trial: int
    offset: int = 0
    is_new: bool = True

    def named(self, event: str, **more: Any) -> Event:
        return {"event": event, "cell": self.cell, "trial": self.trial, **more}

    def evaluated(self) -> Event | None:
        """Return the run's latest evaluation, if there is one that has not been read."""
        try:
            with (self.folder.path / "points.jsonl").open("rb") as file:
                file.seek(self.offset)
                text = file.read()
        except FileNotFoundError:
            return None
        self.offset += text.rfind(b"\n") + 1
        for line in reversed(text[: text.rfind(b"\n") + 1].splitlines()):
            try:
                point = json.loads(line)
            except ValueError:  # cut off by a kill
                continue
            if point.get("val_loss") is not None:
                seed = int(self.folder.path.name.rpartition("-")[2])
                run = run_key(self.cell, self.trial, seed)
                return self.named(
                    "evaluated", run=run, iteration=point["iteration"], val_loss=point["val_loss"]
                )
        return None


class Feed:
    """The events of a study from its beginning on; each call of `news` yields what is new.

    The trials of a cell are looked for again only when something was added to the cell's folder.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._runs = folder.path / "runs"
        self._seen: dict[Path, int] = {}  # a cell's folder and when something was last added to it
        self._known: set[Path] = set()
        self._live: list[_Live] = []
        self._ended: set[tuple[str, int]] = set()

    def past(self) -> Iterator[Event]:
        """Yield all that has happened so far."""
        yield from self.news()
        yield from self.news()  # an end is told no earlier than the look after the one that found the run

    def news(self) -> Iterator[Event]:
        """Yield what has happened since the last time."""
        for run in self._live:
            run.is_new = False
        yield from self._begun()
        for run in list(self._live):
            if (event := run.evaluated()) and (run.cell, run.trial) not in self._ended:
                yield event
            if run.is_new or (outcome := run.folder.outcome) is None:
                continue
            self._live.remove(run)
            if (run.cell, run.trial) not in self._ended:
                self._ended.add((run.cell, run.trial))
                reason = outcome.get("stop_reason")
                yield run.named("ended", **outcome["ending"], ended=outcome["ended"], stop_reason=reason)

    def _begun(self) -> Iterator[Event]:
        for cell in sorted(self._runs.glob("*")):
            changed = cell.stat().st_mtime_ns
            if self._seen.get(cell) == changed:
                continue
            found = [path for path in sorted(cell.iterdir()) if path not in self._known]
            whole = [path for path in found if (path / "run.json").exists()]
            if whole == found:  # else one is just being made
                self._seen[cell] = changed
            for path in whole:
                self._known.add(path)
                run = _Live(RunFolder(path), cell.name, int(path.name.rpartition("-")[0]))
                self._live.append(run)
                yield run.named("claimed", started=(path / "run.json").stat().st_mtime)
