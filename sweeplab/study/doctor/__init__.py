"""What may keep a study from running, or its numbers from being right, each with its cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeplab.study.doctor.agreement import agreement
from sweeplab.study.doctor.check import Check, Patient
from sweeplab.study.doctor.machine import machine
from sweeplab.study.doctor.places import lab_checks, tracking_check
from sweeplab.study.doctor.runs import half_written
from sweeplab.study.doctor.storage import stale_leases, storage_check
from sweeplab.study.folder import StudyFolder
from sweeplab.study.listing import tracking_uri_of

__all__ = ["Check", "examine"]


def examine(lab: Path, study: StudyFolder | None = None) -> Iterator[Check]:
    """Yield the checks of machine and lab, and of one of its studies, as they are done."""
    yield from machine()
    yield from lab_checks(lab)
    storage = storage_check(study) if study else None
    can_be_read = study is not None and storage is not None and storage.verdict != "bad"
    tracking = tracking_check(lab, tracking_uri_of(study) if study and can_be_read else None)
    yield tracking
    if storage:
        yield storage
    if not study or not can_be_read:
        return
    patient = Patient(study)
    yield from stale_leases(patient)
    yield from half_written(patient)
    if tracking.verdict != "bad":
        yield from agreement(patient)
