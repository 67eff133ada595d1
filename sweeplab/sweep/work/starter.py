"""A worker's connection to the process that started it: by pipes, or only by the study's folder and storage."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sweeplab.errors import StorageUnavailable
from sweeplab.lab.events import Event, StudyError, StudyNotice, event_line
from sweeplab.records.folders import StudyFolder
from sweeplab.sweep.engines.base import BEGIN, LEAVE, LEFT
from sweeplab.sweep.engines.copies import REQUEST

if TYPE_CHECKING:
    from sweeplab.sweep.trials.commands import Commands

# What a batch system sends before it ends a job or takes its machine away; SIGHUP comes when the terminal closes.
LEAVING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# How often a worker that waits to begin looks whether a signal asks it to leave.
WAIT_SECONDS = 0.2
# How often a worker without pipes checks that somebody runs the study; after TIMES_LOOKED negative checks it leaves.
LOOK_SECONDS, TIMES_LOOKED = 2.0, 2


def leaving_signals() -> list[signal.Signals]:
    """Return the signals at which this process saves its runs and leaves, without those that nohup made it ignore."""
    return [each for each in LEAVING_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]


class Starter(ABC):
    """The process that started this worker. Once `closed` is set the worker saves its runs and exits."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.was_signaled = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C, and closes our input
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for each in leaving_signals():
            signal.signal(each, self._hear)

    def _hear(self, _number: int, _frame: object) -> None:
        self.was_signaled = True
        self.closed.set()

    @abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event."""

    @abstractmethod
    def follow(self, folder: StudyFolder, commands: Commands) -> None:
        """Set `closed` when the process that started this worker wants it to leave, or is gone."""

    def await_start(self) -> None:  # noqa: B027 - some workers begin at once
        """Wait until the worker may begin, or has to leave."""

    def exit_code(self, commands: Commands) -> int:
        """Return the exit code of a worker that has done its work."""
        return 0


class Pipes(Starter):
    """A process on this machine: it reads events from our output, and holds our input open as long as we may work.

    It writes BEGIN, the answers to our requests, and LEAVE to our input.
    """

    def __init__(self) -> None:
        super().__init__()
        self._may_begin = threading.Event()
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._n_asked = 0
        threading.Thread(target=self._wait, daemon=True).start()
        # Everything else that prints goes to the log: our output is for events alone.
        self._events = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def _wait(self) -> None:
        for line in sys.stdin:
            if line == BEGIN:
                self._may_begin.set()
            elif line == LEAVE:
                self.closed.set()
            else:
                self._answers.put(line)
        self.closed.set()
        self._may_begin.set()
        self._answers.put(None)

    def await_start(self) -> None:
        """Wait until we may begin, or our input is closed, or a signal has come."""
        while not (self.closed.is_set() or self._may_begin.wait(WAIT_SECONDS)):
            pass

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the process that started us, and return the answer; call it from one thread only.

        Raises:
            OSError: the request failed there, or nobody answers.
        """
        self._n_asked += 1
        print(json.dumps({REQUEST: self._n_asked, **request}), file=self._events, flush=True)
        while (line := self._answers.get()) is not None:
            answer: dict[str, Any] = json.loads(line)
            if answer["error"]:
                raise OSError(f"on the lab's disk: {answer['error']}")
            if answer[REQUEST] == self._n_asked:
                return answer
        self._answers.put(None)
        raise BrokenPipeError("the process that started this worker is gone")

    def _hear(self, number: int, frame: object) -> None:
        if self.was_signaled:  # a second signal ends the worker at once
            os._exit(1)
        super()._hear(number, frame)

    def emit(self, event: Event) -> None:
        """Print an event as a line of JSON."""
        try:
            print(event_line(event), file=self._events, flush=True)
        except BrokenPipeError:  # nobody listens any more: save the runs instead of failing them
            self.closed.set()

    def follow(self, folder: StudyFolder, commands: Commands) -> None:
        """Do nothing: the end of our input sets `closed`."""


class Elsewhere(Starter):
    """A process on an unknown other machine; `since` is when it began to run the study.

    It follows our trials in their run folders, and gives its commands through the study's storage. A batch system may
    signal several times before it kills, so only SIGKILL ends the worker at once.
    """

    def __init__(self, since: float) -> None:
        super().__init__()
        self._since = since

    def emit(self, event: Event) -> None:
        """Write notices and errors, which a person should read, into the log."""
        if isinstance(event, StudyNotice | StudyError):
            print(event.message, file=sys.stderr, flush=True)

    def follow(self, folder: StudyFolder, commands: Commands) -> None:
        """Set `closed` when nobody runs the study any more, or another process does."""

        def watch() -> None:
            n_gone = 0
            while n_gone < TIMES_LOOKED:
                n_gone = 0 if self._is_run(folder, commands) else n_gone + 1
                time.sleep(LOOK_SECONDS)
            self.closed.set()

        self._folder = folder
        threading.Thread(target=watch, daemon=True).start()

    def _is_run(self, folder: StudyFolder, commands: Commands) -> bool:
        try:
            return folder.is_run and commands.state.start.given == self._since
        except OSError:  # a disk that is unavailable for a while
            return True

    def exit_code(self, commands: Commands) -> int:
        """Return LEFT if only the machine asked the worker to leave, and the study goes on; else 0."""
        if not self.was_signaled:
            return 0
        with suppress(StorageUnavailable):
            commands.read()
        return LEFT if commands.state.phase == "run" and self._is_run(self._folder, commands) else 0
