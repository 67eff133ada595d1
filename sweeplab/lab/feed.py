"""What happens to a study, read from its runs' folders: the events that its workers tell their own supervisor.

So it can be followed from any process, and whoever trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurveReader, RunFolder, run_key

Event = dict[str, Any]


@dataclass
class _Live:
    """A run that has not been seen to end, and how far its curve has been read."""

    folder: RunFolder
    curve: CurveReader
    is_new: bool = True

    @property
    def place(self) -> tuple[str, int]:
        return self.folder.cell, self.folder.trial

    def named(self, event: str, **more: Any) -> Event:
        return {"event": event, "cell": self.folder.cell, "trial": self.folder.trial, **more}

    def evaluated(self) -> Event | None:
        """Return the run's latest evaluation, if there is one that has not been read."""
        for point in reversed(self.curve.new_points()):
            if point.val_loss is not None:
                key = run_key(*self.place, self.folder.seed)
                return self.named("evaluated", run=key, iteration=point.iteration, val_loss=point.val_loss)
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
            if (event := run.evaluated()) and run.place not in self._ended:
                yield event
            if run.is_new or (end := run.folder.read_end()) is None:
                continue
            self._live.remove(run)
            if run.place not in self._ended:
                self._ended.add(run.place)
                yield run.named("ended", **asdict(end.ending), ended=end.ended, stop_reason=end.stop_reason)

    def _begun(self) -> Iterator[Event]:
        for cell in sorted(self._runs.glob("*")):
            changed = cell.stat().st_mtime_ns
            if self._seen.get(cell) == changed:
                continue
            found = [path for path in sorted(cell.iterdir()) if path not in self._known]
            whole = [path for path in found if RunFolder(path).has_started]
            if whole == found:  # else one is just being made
                self._seen[cell] = changed
            for path in whole:
                self._known.add(path)
                folder = RunFolder(path)
                run = _Live(folder, CurveReader(folder))
                self._live.append(run)
                yield run.named("claimed", started=folder.start_file.stat().st_mtime)
