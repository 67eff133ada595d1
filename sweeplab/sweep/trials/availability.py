"""Retry while a study's storage does not answer, until it does or has been unavailable for too long.

The storage is the database of the trials and the folder of the files: either may be unavailable for a while, or full.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from sweeplab.errors import StorageUnavailable
from sweeplab.formatting import duration
from sweeplab.lab.storage import reason_of

T = TypeVar("T")
# How long workers and supervisors wait for a restarting or locked database, or for a full disk.
OUTAGE_SECONDS = 600.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
FAILURES = (OperationalError, InterfaceError)
DATABASE = "database"


@dataclass
class Availability:
    """Tracks whether a study's storage answers: its `database`, and the files of its folder, by kind.

    `limit` is how many seconds it may be unavailable, 0 where a person waits for the answer. `say` gets messages for
    the user; once `stopping` returns True nothing is retried.
    """

    name: str
    limit: float = 0.0
    say: Callable[[str], None] = lambda message: None
    stopping: Callable[[], bool] = lambda: False
    _lost_since: float | None = None
    _lost: set[str] = field(default_factory=set)

    def retry(self, call: Callable[[], T], of: str = DATABASE) -> T:
        """Make a call until the storage answers it.

        Raises:
            StorageUnavailable: it has not answered within the limit.
        """
        wait = _FIRST_WAIT
        while True:
            try:
                result = call()
            except (*FAILURES, OSError) as error:
                self.note_failure(error, of)
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                self.note_answer(of)
                return result

    def note_failure(self, error: Exception, of: str = DATABASE) -> None:
        """Record that the storage did not answer.

        Raises:
            StorageUnavailable: it has not answered for longer than the limit, or `stopping` returns True.
        """
        now = time.monotonic()
        why = (isinstance(error, OSError) and error.strerror) or reason_of(error)
        if "disk is full" in why:  # SQLite's words for it
            why = os.strerror(errno.ENOSPC)
        reason = f"the storage of study {self.name} does not answer: {why}"
        self._lost.add(of)
        if self._lost_since is None:
            self._lost_since = now
            if self.limit:
                self.say(f"{reason}; training continues, and sweeplab retries for {duration(self.limit)}")
        if now - self._lost_since >= self.limit or self.stopping():
            raise StorageUnavailable(reason) from error

    def note_answer(self, of: str = DATABASE) -> None:
        """Record that a part of the storage answered; it is available again once no other part is lost."""
        self._lost.discard(of)
        if self._lost_since is not None and not self._lost:
            lost, self._lost_since = time.monotonic() - self._lost_since, None
            self.say(f"the storage of study {self.name} answers again, after {duration(lost)}")
