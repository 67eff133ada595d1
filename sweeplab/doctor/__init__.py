"""Find whatever may keep a study from running or its numbers from being right, each with its cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeplab.doctor import machine, study
from sweeplab.doctor.check import Check, OpenedStudy
from sweeplab.lab.listing import study_names, tracking_uri_of
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking.connection import files_elsewhere

__all__ = ["Check", "examine"]


def examine(lab: Path, folder: StudyFolder | None = None) -> Iterator[Check]:
    """Yield checks of the machine, the lab and one study as they are done; without a study, of every storage."""
    yield from machine.machine_checks()
    yield from machine.lab_checks(lab)
    elsewhere = files_elsewhere(lab)
    if folder is None:
        from sweeplab.doctor import engines

        yield from engines.slurm_check()
        yield machine.tracking_check(lab)
        yield from machine.moved_check(lab, elsewhere)
        yield from (study.storage_check(StudyFolder(lab, name)) for name in study_names(lab))
        yield from study.unstarted_checks(lab)
        return
    storage, opened = [study.storage_check(folder)], OpenedStudy(folder)
    if storage[0].verdict == "ok":
        storage += study.version_check(opened)
    can_be_read = all(each.verdict == "ok" for each in storage)
    tracking = machine.tracking_check(lab, tracking_uri_of(folder) if can_be_read else None)
    yield tracking
    yield from machine.moved_check(lab, elsewhere)
    yield from storage
    if not can_be_read:
        return
    if (engine := opened.spec.engine).type != "local":
        from sweeplab.doctor import engines  # slow to import

        yield from (engines.slurm_check if engine.type == "slurm" else engines.ray_check)(engine)
        yield from engines.shared_checks(lab, engine)
    yield from study.worker_checks(opened)
    yield from study.start_check(opened)
    yield from study.run_folder_checks(opened)
    if tracking.verdict != "bad":
        yield from study.agreement_checks(opened)
