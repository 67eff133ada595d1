"""Quantities in words."""

from __future__ import annotations

from typing import Any


def counted(count: int, noun: str) -> str:
    """Write a number of things: 1 cell, 9 cells."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def workers_in_words(workers: list[dict[str, Any]]) -> str:
    """Say how many workers there are, and what each has."""
    if not workers:
        return "no workers"
    each = counted(workers[0]["threads"], "thread")
    gpus = sorted({worker["gpu"] for worker in workers if worker["gpu"] is not None})
    if gpus:
        each += f", GPU {', '.join(map(str, gpus))}"
    return f"{counted(len(workers), 'worker')} ({each}{' each' if len(workers) > 1 else ''})"


def duration(seconds: float) -> str:
    """Write a length of time as people read it: 45s, 2m05s, 1h07m."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
