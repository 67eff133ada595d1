"""Tell a study's owner that it ended, failed or does nothing, by whatever Apprise can reach.

The study file names environment variables, and these hold Apprise's URLs: a URL may have a secret in it, and a
study file is recorded.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from apprise import Apprise

    from sweeplab.study.spec import StudySpec

# A study of which nothing was heard for so long is idle: far longer than an evaluation should take.
IDLE_SECONDS = 1800.0


class Notifier:
    """Tells whoever the study file names; what could not be told is kept in `errors`, without its URL.

    Raises:
        BadInput: a variable is not set or holds no URL of Apprise's, or Apprise is not installed.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._folder_name = spec.name
        self._targets = _targets(spec)
        self._heard = time.monotonic()
        self._is_told = False
        self.errors: list[str] = []

    def heard(self) -> None:
        """Take note that something happened."""
        self._heard, self._is_told = time.monotonic(), False

    def look(self, wanted: str) -> None:
        """Tell once when nothing has happened for long; `wanted` is what is asked of the study."""
        quiet = time.monotonic() - self._heard
        if quiet > IDLE_SECONDS and not self._is_told:
            self._is_told = True
            why = "" if wanted == "run" else f"; {wanted} was asked for"
            self._tell("idle", f"nothing was heard of it for {round(quiet / 60)} minutes{why}")

    def ended(self, folder: StudyFolder, status: str, summary: Mapping[str, Any], errors: list[str]) -> None:
        """Tell how the study ended: its runs by state, its best value, and what went wrong first."""
        counts = ", ".join(f"{count} {state}" for state, count in summary["counts"].items())
        lines = [f"runs: {counts or 'none'}"]
        if summary["best_val_loss"] is not None:
            lines.append(f"best {summary['best_val_loss']:.4f} in {summary['best_run']}")
        lines += [f"error: {errors[0]}"] if errors else []
        lines += [f"and {len(errors) - 1} more"] if len(errors) > 1 else []
        lines.append(f"look at it: {folder.command('study show')}")
        self._tell(status, "\n".join(lines))

    def _tell(self, what: str, text: str) -> None:
        for variable, target in self._targets.items():
            if not target.notify(title=f"sweeplab: {self._folder_name} {what}", body=text):
                self.errors.append(f"{variable}: Apprise could not tell that the study is {what}")


def _targets(spec: StudySpec) -> dict[str, Apprise]:
    if not spec.notify:
        return {}
    try:
        from apprise import Apprise
    except ImportError:
        raise BadInput(
            spec.problem(("notify",), "notify needs Apprise", "pip install 'sweeplab[notify]'")
        ) from None
    targets, problems = {}, list[Problem]()
    for index, variable in enumerate(spec.notify):
        place, target, urls = ("notify", index), Apprise(), os.environ.get(variable, "")
        if not urls.strip():
            problems.append(
                spec.problem(place, f"{variable} is not set", "one or more URLs of Apprise's in it")
            )
        elif not _add(target, urls):
            problems.append(
                spec.problem(place, f"{variable} holds what is no URL to Apprise", "such as ntfys://my-topic")
            )
        targets[variable] = target
    if problems:
        raise BadInput(*problems)
    return targets


def _add(target: Apprise, urls: str) -> bool:
    with warnings.catch_warnings():
        # Apprise's plug-ins, which it imports when it first sees a URL, use what Python is about to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(target.add(urls))
