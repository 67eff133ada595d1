"""Check a study's storage, the workers that hold its trials, its run folders, and their agreement with MLflow."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.doctor.check import Check, OpenedStudy, named
from sweeplab.doctor.findings import (
    FAULTS,
    IN_FOLDERS,
    IN_MLFLOW,
    Fault,
    Finding,
    end_of,
    folder_findings,
    read_said,
    tracking_findings,
    why_damaged,
)
from sweeplab.errors import BadInput, DamagedFile, TrackingUnavailable
from sweeplab.formatting import without_password
from sweeplab.lab.listing import read_spec
from sweeplab.lab.server import Server
from sweeplab.lab.storage import count_trials
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.sweep.trials.leases import Lease


def storage_check(study: StudyFolder) -> Check:
    """Check the study's description files and its database."""
    is_elsewhere = study.storage_file.exists()
    place = str(study.storage_file if is_elsewhere else study.database)
    try:
        study.check_whole()
        read_spec(study)
    except DamagedFile as error:
        return Check("storage", str(error.file), "bad", error.what, error.cure)
    except BadInput as error:
        found = f"its description cannot be read: {error}"
        return Check("storage", str(study.path), "bad", found, study.cure_of(study.canonical_file))
    try:
        n_trials = sum(each.states.total() for each in count_trials(study).values())
    except BadInput as error:
        cure = Server(study.lab).command("start") if study.is_on_own_server else "start the database"
        return Check("storage", place, "bad", str(error), cure)
    return Check("storage", place, "ok", f"{'answers' if is_elsewhere else 'whole'}; trials: {n_trials}")


def unstarted_checks(lab: Path) -> Iterator[Check]:
    """Yield a check where a study was killed before its description was written."""
    place = lab / "studies"
    if folders := [each for each in sorted(place.glob("*/")) if not StudyFolder(lab, each.name).has_started]:
        found = named("folders of studies that never started", [each.name for each in folders])
        yield Check("storage", str(place), "warn", found, shlex.join(["rm", "-r", *map(str, folders)]))


def version_check(study: OpenedStudy) -> Iterator[Check]:
    """Yield a check where another version of Optuna wrote the database, whose tables this one cannot read."""
    try:
        _ = study.store
    except RuntimeError as error:
        url = without_password(study.folder.storage_url)
        cure = shlex.join(["optuna", "storage", "upgrade", "--storage", url])
        found = str(error).partition(". ")[0]
        yield Check("storage", str(study.folder.database), "bad", found, f"back the file up, then: {cure}")


def worker_checks(study: OpenedStudy) -> Iterator[Check]:
    """Check for trials whose worker is gone or hangs."""
    check = partial(Check, "workers", "who holds which trial")
    with study.store.storage.reading() as connection:
        held_by = study.store.leases.all(connection)
    names: dict[str, list[str]] = {"held": [], "waiting": [], "gone": [], "stuck": []}
    stuck = set()
    for (cell, number), trial in study.trials.items():
        if trial.state.name == "RUNNING":
            lease = held_by.get(trial._trial_id)
            standing = _standing(lease) if lease else "gone"
            names[standing].append(f"{cell} #{number}")
            if lease and standing == "stuck":
                stuck.add(lease.owner.pid)
    if names["stuck"]:
        found = named("trials of workers that exist but hang", names["stuck"])
        yield check("bad", found, _kill(stuck, study))
    if names["gone"] and study.is_running:
        yield check("ok", named("trials wait to be taken over from a worker that is gone", names["gone"]))
    elif names["gone"]:
        yield check("warn", named("trials of workers that are gone", names["gone"]), study.run_again)
    elif not names["stuck"]:
        trained = f"trials being trained: {len(names['held'])}"
        yield check("ok", f"{trained}, waiting to be continued: {len(names['waiting'])}")


def _standing(lease: Lease) -> str:
    """Return the state of a lease's holder: held (it works), waiting (it gave the trial back), gone, or stuck."""
    if lease.owner.is_nobody:
        return "waiting"
    if not lease.is_over:
        return "gone" if lease.owner.is_gone else "held"
    return "stuck" if lease.owner.is_here and not lease.owner.is_gone else "gone"


def _kill(pids: Iterable[int], study: OpenedStudy) -> str:
    """Return the command that kills workers; a running study replaces them, any other is run again."""
    kill = f"kill -9 {' '.join(map(str, sorted(pids)))}"
    return kill if study.is_running else f"{kill} && {study.run_again}"


def run_folder_checks(study: OpenedStudy) -> Iterator[Check]:
    """Check run folders for missing, cut-off and contradicting records; yield one check per kind of fault."""
    # While the study runs, faults with the verdict warn are about to disappear by themselves.
    findings = [
        each
        for each in folder_findings(study)
        if not (study.is_running and FAULTS[each.kind].verdict == "warn")
    ]
    check = partial(Check, "runs", "folders of runs")
    runs = study.folder.path / "runs"
    yield from _checks(study, check, IN_FOLDERS, findings, lambda each: _at(each, runs))
    if not findings:
        n_unfinished = sum(trial.state.name == "RUNNING" for trial in study.trials.values())
        doing = "running" if study.is_running else "waiting to be continued"
        rest = f", of which {doing}: {n_unfinished}" if n_unfinished else ""
        yield check("ok", f"whole: {len(study.runs)}{rest}")


def _at(finding: Finding, runs: Path) -> str:
    return f"{finding.path.relative_to(runs)}{f' ({finding.said})' if finding.said else ''}"


def start_check(study: OpenedStudy) -> Iterator[Check]:
    """Yield a check of the checkpoint from which a study's runs start, if they start from one."""
    if folder := study.spec.init_folder:
        digest, found = study.folder.data.init_digest, why_damaged(folder)
        if not found and digest not in (None, (read_said(folder / "model.json") or {}).get("sha256")):
            found = "its weights are not those that the study started from"
        cure = "put a copy of it back: runs that have not begun will start from it" if found else ""
        yield Check("init_from", str(folder), "bad" if found else "ok", found or "whole", cure)


def agreement_checks(study: OpenedStudy) -> Iterator[Check]:
    """Compare every run whose trial has ended with MLflow's copy."""
    check = partial(Check, "agreement", "run folders compared with MLflow")
    try:
        findings = list(tracking_findings(study))
    except BadInput as error:
        # MLflow gets the study before the first run.
        if study.runs:
            yield check("bad", str(error), study.folder.command("study repair"))
        return
    except TrackingUnavailable as error:
        yield check("bad", str(error), "start the tracking server")
        return
    if study.is_running:
        findings = [each for each in findings if each.kind != "unsent"]  # they are on their way
    yield from _checks(study, check, IN_MLFLOW, findings, lambda each: each.name)
    if not findings:
        yield check("ok", f"runs that agree: {sum(bool(end_of(run)) for run in study.runs.values())}")


def _checks(
    study: OpenedStudy,
    check: Callable[..., Check],
    kinds: Mapping[str, Fault],
    findings: Sequence[Finding],
    name: Callable[[Finding], str],
) -> Iterator[Check]:
    repair = study.folder.command("study repair")
    for key, kind in kinds.items():
        if own := [each for each in findings if each.kind == key]:
            cure = kind.cure.format(repair=repair) if kind.cure else repair
            yield check(kind.verdict, named(kind.found, [*map(name, own)]), cure)
