"""What is done while a database does not answer: it is asked again, until it does or the wait was too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from sweeplab.errors import StorageUnavailable
from sweeplab.lab.storage import reason_of

T = TypeVar("T")
# How long workers and supervisors wait for a database that is restarted, locked, or full.
OUTAGE_SECONDS = 600.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
FAILURES = (OperationalError, InterfaceError)


@dataclass
class Availability:
    """Whether a study's database answers.

    `limit` is how many seconds it may be lost, 0 where a person waits for the answer. `say` gets what the user should
    know, and no call is made again once `stopping` says so.
    """

    name: str
    limit: float = 0.0
    say: Callable[[str], None] = lambda message: None
    stopping: Callable[[], bool] = lambda: False
    _lost_since: float | None = None

    def retry(self, call: Callable[[], T]) -> T:
        """Make a call until the database answers it.

        Raises:
            StorageUnavailable: it has not answered within the limit.
        """
        wait = _FIRST_WAIT
        while True:
            try:
                result = call()
            except FAILURES as error:
                self.note_failure(error)
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                self.note_answer()
                return result

    def note_failure(self, error: Exception) -> None:
        """Take note that the database did not answer.

        Raises:
            StorageUnavailable: for longer than the limit, or all is to stop.
        """
        now = time.monotonic()
        reason = f"the storage of study {self.name} does not answer: {reason_of(error)}"
        if self._lost_since is None:
            self._lost_since = now
            if self.limit:
                self.say(
                    f"{reason}; training goes on, and it is asked again for {self.limit / 60:.0f} minutes"
                )
        if now - self._lost_since >= self.limit or self.stopping():
            raise StorageUnavailable(reason) from error

    def note_answer(self) -> None:
        """Take note that the database answered."""
        if self._lost_since is not None:
            lost, self._lost_since = time.monotonic() - self._lost_since, None
            self.say(f"the storage of study {self.name} answers again, after {lost:.0f} s")
