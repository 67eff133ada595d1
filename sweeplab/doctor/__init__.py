"""What may keep a study from running, or its numbers from being right, each with its cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeplab.doctor.agreement import agreement
from sweeplab.doctor.check import Check, Patient
from sweeplab.doctor.machine import machine
from sweeplab.doctor.places import lab_checks, tracking_check
from sweeplab.doctor.runs import half_written
from sweeplab.doctor.storage import storage_check, unbegun, version_check, worker_checks
from sweeplab.lab.listing import study_names, tracking_uri_of
from sweeplab.records.folders import StudyFolder

__all__ = ["Check", "examine"]


def examine(lab: Path, study: StudyFolder | None = None) -> Iterator[Check]:
    """Yield the checks of machine and lab, and of one study, as they are done; without one, of every storage."""
    yield from machine()
    yield from lab_checks(lab)
    if study is None:
        yield tracking_check(lab)
        yield from (storage_check(StudyFolder(lab, name)) for name in study_names(lab))
        yield from unbegun(lab)
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
    patient = Patient(study)
    yield from worker_checks(patient)
    yield from half_written(patient)
    if tracking.verdict != "bad":
        yield from agreement(patient)
