"""Which runs of a study have begun, and when: a forecast is made before all of those at its point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sweeplab.analysis.ledger.sizes import Counting, same_point, sizes_of

if TYPE_CHECKING:
    from sweeplab.records.folders import StudyFolder


@dataclass(frozen=True)
class BegunRun:
    """A run that has begun: its key, its size when it is whole, when it began and how and when it ended, in UTC."""

    key: str
    at: Mapping[str, float]
    began: datetime
    ended: datetime | None
    state: str | None


def begun_runs(folder: StudyFolder, counting: Counting) -> list[BegunRun]:
    """Return the runs of a study, the first to begin first; it may not have been run at all."""
    runs = [(run.description, run.outcome) for run in folder.runs()]
    sizes = sizes_of([said["values"] | said["facts"] for said, _ in runs], counting)
    found = [
        BegunRun(
            key=said["key"],
            at=at,
            began=_utc(said["started"]),
            ended=_utc(said["started"] + outcome["wall_seconds"]) if outcome else None,
            state=outcome["state"] if outcome else None,
        )
        for (said, outcome), at in zip(runs, sizes, strict=True)
    ]
    return sorted(found, key=lambda run: run.began)


def runs_at(runs: Iterable[BegunRun], at: Mapping[str, float]) -> list[BegunRun]:
    """Return the runs at a point."""
    return [run for run in runs if same_point(run.at, at)]


def begun_in_words(runs: Sequence[BegunRun]) -> str:
    """Say what the first to end of some runs has come to, or that the first of them has begun."""
    ended = sorted((run for run in runs if run.ended), key=lambda run: run.ended or run.began)
    first = (ended or runs)[0]
    said = f"its run {first.key} began at {time_in_words(first.began)}"
    return f"{said} and ended ({first.state}) at {time_in_words(first.ended)}" if first.ended else said


def time_in_words(time: datetime) -> str:
    """Write a time as people read it."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
