"""What leaves a running study: its runs, for tracking, and how it goes, for its owner, whom Apprise notifies.

Runs are sent in a thread of its own: a slow or unreachable server delays nothing else. At the start all runs are
examined, as an earlier process may have left some unsent; from then on those with new events. From `start` to `finish`
only this thread uses the trackers.

The study file names environment variables that hold Apprise's URLs: a URL may contain a secret, and the study file is
recorded.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sweeplab.errors import BadInput, Problem, TrackingUnavailable
from sweeplab.formatting import counts
from sweeplab.lab.events import TrialEvent
from sweeplab.lab.studies import summarize
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import RunFolder
from sweeplab.study.spec import StudySpec
from sweeplab.tracking.tracker import Mirror

# After a slow failure a tracker's other runs wait for the next time: many runs to ship would take minutes.
SEND_SECONDS, SLOW_SECONDS = 5.0, 1.0


class Shipping:
    """Ships a study's runs to its trackers."""

    def __init__(self, folder: StudyFolder, trackers: Sequence[Mirror]) -> None:
        self._folder = folder
        self._trackers = trackers
        self._lock = threading.Lock()
        # Trials of whose runs some tracker may lack something.
        self._open: set[tuple[str, int]] = set()
        self._ending = threading.Event()
        self._is_over = False
        self._slow: list[Mirror] = []
        self._refused: list[str] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="shipping", daemon=True)

    def start(self) -> None:
        """Start shipping."""
        self._thread.start()

    def hear(self, event: TrialEvent) -> None:
        """Record an event of a trial: its runs are shipped within seconds."""
        with self._lock:
            self._open.add(event.place)

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
            self._ship_open([(run.cell, run.trial) for run in self._folder.runs()])
            while not self._ending.wait(SEND_SECONDS):
                self._ship_open()
            # The runs of chosen trials get new ends when all trials have ended.
            self._ship_open([(run.cell, run.trial) for run in self._folder.runs()])
        except Exception as error:
            self._error = error

    def _ship_open(self, more: Sequence[tuple[str, int]] = ()) -> None:
        """Bring every tracker up to date with the runs of trials; those that are not complete there stay open."""
        with self._lock:
            places, self._open = self._open.union(more), set()
        self._refused.clear()
        self._slow.clear()
        for place in places:
            shipped = [self._ship(run) for run in self._folder.runs_of(*place)]
            if not all(shipped):
                with self._lock:
                    self._open.add(place)
        for tracker in self._trackers:
            with suppress(Exception):  # numbers beside a study never end it
                tracker.ship_use()

    def _ship(self, run: RunFolder) -> bool:
        is_whole = not self._is_over
        for tracker in self._trackers if is_whole else ():
            if tracker in self._slow:
                is_whole = False
                continue
            began = time.monotonic()
            try:
                is_whole &= tracker.ship(run.path)
            except TrackingUnavailable as error:
                self._refused.append(str(error))
                if time.monotonic() - began > SLOW_SECONDS:
                    self._slow.append(tracker)
                is_whole = False
        return is_whole


def open_targets(spec: StudySpec) -> dict[str, Any]:
    """Return Apprise's targets by the environment variables that the study file names.

    Raises:
        BadInput: a variable is not set or holds no URL that Apprise knows, or Apprise is not installed.
    """
    if not spec.notify:
        return {}
    try:
        from apprise import Apprise
    except ImportError:
        how = "pip install 'sweeplab[notify]'"
        raise BadInput(spec.problem(("notify",), "notify needs Apprise", how)) from None
    targets: dict[str, Any] = {}
    problems = list[Problem]()
    for index, variable in enumerate(spec.notify):
        urls = os.environ.get(variable, "")
        what = list[str]()
        target = targets[variable] = Apprise()
        # Apprise imports its plug-ins when it first sees a URL, and they use deprecated parts of Python.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            is_known = target.add(urls)
        if not urls.strip():
            what = [f"{variable} is not set", "one or more Apprise URLs in it"]
        elif not is_known:
            what = [f"{variable} holds no URL that Apprise knows", "such as ntfys://my-topic"]
        if what:
            problems.append(spec.problem(("notify", index), *what))
    if problems:
        raise BadInput(*problems)
    return targets


def notify_end(
    targets: Mapping[str, Any], folder: StudyFolder, status: str, errors: Sequence[str]
) -> list[str]:
    """Notify how a study ended: its runs by state, its best value, and the first error; return what was not sent."""
    if not targets:
        return []  # a summary reads every run's folder
    summary = summarize(folder, status)
    lines = [f"runs: {counts(summary['counts']) or 'none'}"]
    if summary["best_value"] is not None:
        lines.append(
            f"best {summary['metric']} {summary['best_value']:.4f} in {summary['best_run']}"
        )
    if errors:
        lines.append(f"error: {errors[0]}")
    text = "\n".join([*lines, f"show it: {folder.command('show')}"])
    unsent = []
    for variable, target in targets.items():
        if not target.notify(title=f"sweeplab: {folder.name} {status}", body=text):
            # Without its URL.
            unsent.append(f"{variable}: Apprise could not send that the study is {status}")
    return unsent
