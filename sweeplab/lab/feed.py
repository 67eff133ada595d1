"""What happens to a study, read from its runs' folders: the events that its workers tell their own supervisor.

So it can be followed from any process, and whoever trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeplab.lab.events import RunEvaluated, TrialClaimed, TrialEnded, TrialEvent
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurveReader, RunFolder


@dataclass
class _Live:
    """A run that has not been seen to end, and how far its curve has been read."""

    folder: RunFolder
    curve: CurveReader
    is_new: bool = True

    @property
    def place(self) -> tuple[str, int]:
        return self.folder.cell, self.folder.trial

    def evaluated(self) -> RunEvaluated | None:
        """Return the run's latest evaluation, if there is one that has not been read."""
        cell, trial = self.place
        for point in reversed(self.curve.new_points()):
            if point.val_loss is not None:
                return RunEvaluated(
                    cell=cell,
                    trial=trial,
                    seed=self.folder.seed,
                    iteration=point.iteration,
                    val_loss=point.val_loss,
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

    def past(self) -> Iterator[TrialEvent]:
        """Yield all that has happened so far."""
        yield from self.news()
        yield from self.news()  # a run's end is looked for once it has been found

    def news(self) -> Iterator[TrialEvent]:
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
                cell, trial = run.place
                yield TrialEnded(
                    cell=cell,
                    trial=trial,
                    ending=end.ending,
                    ended=end.ended,
                    stop_reason=end.stop_reason,
                )

    def _begun(self) -> Iterator[TrialEvent]:
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
                started = folder.start_file.stat().st_mtime
                yield TrialClaimed(cell=folder.cell, trial=folder.trial, started=started)
