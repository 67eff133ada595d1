"""Find whatever may keep a study from running or its numbers from being right, each with its cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sweeplab.doctor import machine, study
from sweeplab.doctor.findings import Check, OpenedStudy
from sweeplab.errors import BadInput
from sweeplab.lab.listing import study_names
from sweeplab.records.folders import StudyFolder
from sweeplab.study.spec import StudySpec
from sweeplab.tracking.connection import files_elsewhere

__all__ = ["Check", "examine"]


def examine(lab: Path, folder: StudyFolder | None = None, spec: StudySpec | None = None) -> Iterator[Check]:
    """Yield checks of the machine, the lab and one study as they are done; without a study, of every storage.

    A study that has not run yet is given with its `spec`.
    """
    yield from machine.machine_checks()
    yield from machine.lab_checks(lab)
    elsewhere = files_elsewhere(lab)
    if folder is None:
        yield from machine.slurm_check()
        yield machine.tracking_check(lab)
        yield from machine.moved_check(lab, elsewhere)
        yield from (study.storage_check(StudyFolder(lab, name)) for name in study_names(lab))
        yield from study.unstarted_checks(lab)
        return
    storage, opened = list[Check](), OpenedStudy(folder)
    if spec is None:
        storage = [study.storage_check(folder)]
        if storage[0].verdict == "ok":
            storage += study.version_check(opened)
        with suppress(BadInput):  # said of the storage
            spec = opened.spec
    tracking = machine.tracking_check(lab, spec.track.uri if spec else None)
    yield tracking
    yield from machine.moved_check(lab, elsewhere)
    yield from storage
    is_stored = all(check.verdict == "ok" for check in storage)
    if spec and spec.engine.type != "local":
        yield from machine.engine_checks(folder, spec, is_stored)
    if not storage or not is_stored:
        return
    yield from study.worker_checks(opened)
    yield from study.start_check(opened)
    yield from study.run_folder_checks(opened)
    if tracking.verdict != "bad":
        yield from study.agreement_checks(opened)
