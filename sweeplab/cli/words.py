"""Quantities in words."""

from __future__ import annotations

from sweeplab.study.plan import Plan


def counted(count: int, noun: str) -> str:
    """Write a number of things: 1 cell, 9 cells."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def workers_in_words(plan: Plan) -> str:
    """Say how many workers a study gets, what each has, and where they run."""
    workers = plan.workers
    each = counted(workers[0].threads, "thread") + (" each" if len(workers) > 1 else "")
    gpus = sorted({worker.gpu for worker in workers if worker.gpu is not None})
    where = f"GPU {', '.join(map(str, gpus))}" if gpus else plan.device
    return f"{counted(len(workers), 'worker')} ({each}) on {where}, {plan.dtype}"


def duration(seconds: float) -> str:
    """Write a length of time as people read it: 45s, 2m05s, 1h07m."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
