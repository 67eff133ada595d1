"""Send runs to tracking in a thread of its own: a slow or unreachable server delays nothing else.

At the start all runs are examined, as an earlier process may have left some unsent; from then on those with new events.
From `start` to `finish` only this thread uses the trackers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sweeplab.errors import TrackingUnavailable
from sweeplab.lab.events import TrialEnded, TrialEvent, TrialRequeued
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder
from sweeplab.tracking.tracker import Mirror

SEND_SECONDS = 5.0


class Shipping:
    """Ships a study's runs to its trackers; `seeds` has the seeds of each cell."""

    def __init__(
        self, folder: StudyFolder, trackers: Sequence[Mirror], seeds: Mapping[str, Sequence[int]]
    ) -> None:
        self._folder, self._trackers, self._seeds = folder, trackers, seeds
        self._lock = threading.Lock()
        # The last event of each trial since its runs were last shipped.
        self._happened: dict[tuple[str, int], TrialEvent] = {}
        self._left: dict[RunFolder, None] = {}  # runs whose end some tracker lacks
        self._ending, self._is_over = threading.Event(), False
        self._refused: list[str] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="shipping", daemon=True)

    def start(self) -> None:
        """Start shipping."""
        self._thread.start()

    def hear(self, event: TrialEvent) -> None:
        """Record an event of a trial: its runs are shipped within seconds."""
        with self._lock:
            self._happened[event.place] = event

    def check(self) -> None:
        """Raise the error that has ended the thread, if any, such as a damaged record."""
        if self._error:
            raise self._error

    def finish(self) -> list[str]:
        """Ship everything that is left, and return why trackers refused some of it: the next run tries again."""
        self._end()
        self.check()
        return self._refused

    def stop(self) -> None:
        """Finish shipping the current run, and leave the rest to the next process that runs the study."""
        self._is_over = True
        self._end()

    def _end(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            for run in self._folder.runs():
                self._ship(run)
            while not self._ending.wait(SEND_SECONDS):
                self._ship_what_changed()
            for tracker in self._trackers:
                tracker.end_pause()
            self._ship_what_changed()
            self._refused.clear()
            for run in [*self._left]:
                self._ship(run)
        except Exception as error:
            self._error = error

    def _ship_what_changed(self) -> None:
        with self._lock:
            happened, self._happened = self._happened, {}
        again = {}
        self._refused.clear()
        for place, event in happened.items():
            for run in self._runs_of(*place):
                if self._ship(run):
                    continue
                if isinstance(event, TrialRequeued):
                    self._set_waiting(run)
                # The event comes with the first end among a trial's runs: the others may still lack theirs.
                if self._refused or isinstance(event, TrialEnded):
                    again[place] = event
        with self._lock:
            self._happened = again | self._happened

    def _runs_of(self, cell: str, trial: int) -> list[RunFolder]:
        runs = [self._folder.run(cell, trial, seed) for seed in self._seeds.get(cell, ())]
        started = [run for run in runs if run.has_started]
        # In a cell that is no longer in the grid, and of a trial on other seeds, the folder tells.
        return started or [*self._folder.runs_of(cell, trial)]

    def _ship(self, run: RunFolder) -> bool:
        """Bring every tracker up to date with a run; return whether all of them have the complete run."""
        if self._is_over:
            return False
        is_whole = True
        for tracker in self._trackers:
            try:
                is_whole &= tracker.ship(run.path)
            except TrackingUnavailable as error:
                self._refused.append(str(error))
                is_whole = False
        if is_whole:
            self._left.pop(run, None)
        else:
            self._left[run] = None
        return is_whole

    def _set_waiting(self, run: RunFolder) -> None:
        for tracker in self._trackers:
            with suppress(TrackingUnavailable):
                tracker.wait(run.path)
