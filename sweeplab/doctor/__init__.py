"""What may keep a study from running, or its numbers from being right, each with its cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeplab.doctor.check import Check, OpenedStudy
from sweeplab.doctor.machine import lab_checks, machine_checks, tracking_check
from sweeplab.doctor.study import (
    agreement_checks,
    run_folder_checks,
    storage_check,
    unstarted_checks,
    version_check,
    worker_checks,
)
from sweeplab.lab.listing import study_names, tracking_uri_of
from sweeplab.records.folders import StudyFolder

__all__ = ["Check", "examine"]


def examine(lab: Path, study: StudyFolder | None = None) -> Iterator[Check]:
    """Yield the checks of machine and lab, and of one study, as they are done; without one, of every storage."""
    yield from machine_checks()
    yield from lab_checks(lab)
    if study is None:
        yield tracking_check(lab)
        yield from (storage_check(StudyFolder(lab, name)) for name in study_names(lab))
        yield from unstarted_checks(lab)
        return
    storage = [storage_check(study)]
    if storage[0].verdict == "ok":
        storage += version_check(study)
    can_be_read = all(each.verdict == "ok" for each in storage)
    tracking = tracking_check(lab, tracking_uri_of(study) if can_be_read else None)
    yield tracking
    yield from storage
    if not can_be_read:
        return
    opened = OpenedStudy(study)
    yield from worker_checks(opened)
    yield from run_folder_checks(opened)
    if tracking.verdict != "bad":
        yield from agreement_checks(opened)
