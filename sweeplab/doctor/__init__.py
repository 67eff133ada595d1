"""Find whatever may keep a study from running or its numbers from being right, each with its cure."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sweeplab.doctor.findings import (
    FAULTS,
    Check,
    OpenedStudy,
    RunFault,
    Verdict,
    end_of,
    folder_findings,
    named,
    tracking_findings,
)
from sweeplab.errors import BadInput, DamagedFile, TrackingUnavailable
from sweeplab.files import existing, free_bytes, to_delete
from sweeplab.formatting import several, without_password
from sweeplab.lab.listing import read_spec, study_names
from sweeplab.lab.server import Server
from sweeplab.lab.storage import count_trials
from sweeplab.records.folders import NAMES, StudyFolder, is_name
from sweeplab.study.spec import Engine, StudySpec
from sweeplab.sweep.engines.ray import CLOSES, connect, exposure
from sweeplab.sweep.engines.slurm import SlurmEngine, SlurmFailure, ask
from sweeplab.tracking.connection import database_file, tracking_uri
from sweeplab.tracking.environment import device
from sweeplab.tracking.experiment import count_studies
from sweeplab.train.devices import cuda_count
from sweeplab.train.program import COMPILER_CURE, compiler

if TYPE_CHECKING:
    from sweeplab.sweep.trials.sharing import Lease


__all__ = ["Check", "examine", "storage_check"]


BAD_BYTES, WARN_BYTES = 200 * 2**20, 2 * 2**30
# SQLite's write-ahead log needs memory shared by its readers, which no network file system provides.
REMOTE = {
    "nfs",
    "nfs4",
    "cifs",
    "smbfs",
    "smb3",
    "afs",
    "9p",
    "lustre",
    "glusterfs",
    "fuse.sshfs",
}
CONFIGURATION = Path("/etc/slurm/slurm.conf")


def examine(
    lab: Path, folder: StudyFolder | None = None, spec: StudySpec | None = None
) -> Iterator[Check]:
    """Yield checks of the machine, the lab and one study as they are done; without a study, of every storage.

    A study that has not run yet is given with its `spec`.
    """
    yield from _machine_checks()
    yield from _lab_checks(lab)
    if folder is None:
        yield from _slurm_check()
        yield tracking_check(lab, is_of_study=False)
        yield from _server_check(Server(lab))
        yield from (storage_check(StudyFolder(lab, name)) for name in study_names(lab))
        yield from _unstarted_checks(lab)
        return
    storage, opened = list[Check](), OpenedStudy(folder)
    if spec is None:
        storage = [storage_check(folder)]
        if storage[0].verdict == "ok":
            storage += _version_check(opened)
        with suppress(BadInput):  # said of the storage
            spec = opened.spec
    tracking = tracking_check(lab, spec.track.uri if spec else None)
    yield tracking
    yield from storage
    is_stored = all(check.verdict == "ok" for check in storage)
    if spec and spec.engine.type == "slurm":
        yield from _slurm_check(spec.engine)
    if spec and spec.engine.type == "ray":
        yield from _ray_check(spec.engine)
    if not storage or not is_stored:
        return
    yield from _worker_checks(opened)
    yield from _run_folder_checks(opened)
    if tracking.verdict != "bad":
        yield from _agreement_checks(opened)


def storage_check(study: StudyFolder) -> Check:
    """Check the study's description files and its database."""
    place, state = str(study.database), "whole"
    if study.storage_file.exists():  # with the address of a database elsewhere
        place, state = str(study.storage_file), "answers"
    try:
        study.check_whole()
        read_spec(study)
    except DamagedFile as error:
        return Check("storage", str(error.file), "bad", error.what, error.cure)
    except BadInput as error:
        problem = f"its description cannot be read: {error}"
        return Check(
            "storage", str(study.path), "bad", problem, study.cure_of(study.canonical_file)
        )
    try:
        n_trials = sum(each.states.total() for each in count_trials(study).values())
    except BadInput as error:
        cure = "start the database"
        if study.is_on_own_server:
            cure = Server(study.lab).command("start")
        return Check("storage", place, "bad", str(error), cure)
    return Check("storage", place, "ok", f"{state}; trials: {n_trials}")


def _server_check(server: Server) -> Iterator[Check]:
    """Yield whether the lab's own server runs, if it has one."""
    if not server.exists:
        return
    check = partial(Check, "server", f"{server.address}, data in {server.data}")
    try:
        yield check("ok", f"PostgreSQL {server.check()} is up")
    except BadInput as error:
        yield check("warn", f"PostgreSQL does not answer: {error}", server.command("start"))


def _unstarted_checks(lab: Path) -> Iterator[Check]:
    """Yield a check where a study was killed before its description was written."""
    place = lab / "studies"
    check, others, unstarted = (
        partial(Check, "storage", str(place), "warn"),
        list[str](),
        list[str](),
    )
    for path in sorted(place.glob("*/")):
        if not is_name(path.name):
            others.append(path.name)
        elif not StudyFolder(lab, path.name).has_started:
            unstarted.append(path.name)
    if others:
        what = named("folders by names that no study may have, which are left out", others)
        yield check(what, f"a name is {NAMES}")
    if unstarted:
        remove = shlex.join(["rm", "-r", *(str(place / name) for name in unstarted)])
        yield check(named("folders of studies that never started", unstarted), remove)


def _version_check(study: OpenedStudy) -> Iterator[Check]:
    """Yield a check where another version of Optuna wrote the database, whose tables this one cannot read."""
    try:
        _ = study.store
    except RuntimeError as error:
        url = without_password(study.folder.storage_url)
        cure = shlex.join(["optuna", "storage", "upgrade", "--storage", url])
        problem = str(error).partition(". ")[0]
        yield Check(
            "storage",
            str(study.folder.database),
            "bad",
            problem,
            f"back the file up, then: {cure}",
        )


def _worker_checks(study: OpenedStudy) -> Iterator[Check]:
    check = partial(Check, "workers", "who holds which trial")
    with study.store.storage.reading() as connection:
        held_by = study.store.leases.all(connection)
    names: dict[str, list[str]] = {"held": [], "waiting": [], "gone": [], "stuck": []}
    pids, cells = set(), {cell.key: cell for cell in study.store.cells}
    for (cell, number), trial in study.trials.items():
        if trial.state.name == "RUNNING":
            lease = held_by.get(study.store.trial_id(cells[cell], number))
            standing = _standing(lease)
            names[standing].append(f"{cell} #{number}")
            if lease and standing == "stuck":
                pids.add(lease.owner.pid)
    if names["stuck"]:
        kill = f"kill -9 {' '.join(map(str, sorted(pids)))}"
        if not study.is_running:  # a running study replaces them
            kill += f" && {study.run_again}"
        yield check("bad", named("trials of workers that exist but hang", names["stuck"]), kill)
    if names["gone"] and study.is_running:
        yield check(
            "ok",
            named("trials wait to be taken over from a worker that is gone", names["gone"]),
        )
    elif names["gone"]:
        yield check(
            "warn", named("trials of workers that are gone", names["gone"]), study.run_again
        )
    elif not names["stuck"]:
        trained = f"trials being trained: {len(names['held'])}"
        yield check("ok", f"{trained}, waiting to be continued: {len(names['waiting'])}")


def _standing(lease: Lease | None) -> str:
    """Tell whether a trial's worker holds it, has given it back (waiting), is gone, or is stuck."""
    if lease is not None and lease.owner.is_nobody:
        return "waiting"
    if lease is None or lease.owner.is_gone:
        return "gone"
    if not lease.is_over:
        return "held"
    return "stuck" if lease.owner.is_here else "gone"


def _run_folder_checks(study: OpenedStudy) -> Iterator[Check]:
    # While the study runs, faults with the verdict warn are about to disappear by themselves.
    passing = {
        kind for kind, fault in FAULTS.items() if study.is_running and fault.verdict == "warn"
    }
    findings = [finding for finding in folder_findings(study) if finding.kind not in passing]
    check = partial(Check, "runs", "folders of runs")
    yield from _fault_checks(study, check, findings, f"whole: {len(study.runs)}")


def _agreement_checks(study: OpenedStudy) -> Iterator[Check]:
    check = partial(Check, "agreement", "run folders compared with MLflow")
    try:
        findings = list(tracking_findings(study))
    except TrackingUnavailable as error:
        yield check("bad", str(error), "start the tracking server")
        return
    if study.is_running:
        findings = [each for each in findings if each.kind != "unsent"]  # they are on their way
    sent = sum(end_of(run) is not None for run in study.runs.values())
    yield from _fault_checks(study, check, findings, f"runs in MLflow: {sent}")


def _fault_checks(
    study: OpenedStudy, check: Callable[..., Check], findings: Sequence[RunFault], whole: str
) -> Iterator[Check]:
    """Yield a check for each kind of fault; if there is none, one that says what is whole."""
    repair, runs = study.folder.command("doctor", "--repair"), study.folder.path / "runs"
    for kind, fault in FAULTS.items():
        places = [
            f"{each.path.relative_to(runs)}{each.more}"
            for each in findings
            if each.kind == kind
        ]
        if places:
            yield check(
                fault.verdict,
                named(fault.what, places),
                fault.cure.format(repair=repair) or repair,
            )
    if not findings:
        yield check("ok", whole)


# ------------------------------------------------------------------ the machine, the lab, and what answers


def _machine_checks() -> Iterator[Check]:
    """Yield the checks of devices and compiler."""
    machine, n_cuda = device(), cuda_count()
    # The GPUs that the driver names are compared with those that torch can use.
    gpus = [gpu.partition(",")[0] for gpu in machine["gpus"]]
    words = f"{', '.join(gpus) or 'no GPU'}; {machine['cpu']}, {several(machine['n_cores'], 'core')}"
    if len(gpus) > n_cuda and "CUDA_VISIBLE_DEVICES" not in os.environ:
        words += f"; torch sees {n_cuda} of the GPUs"
        yield Check(
            "devices", "GPUs", "warn", words, "install a build of torch for this driver's CUDA"
        )
    else:
        yield Check("devices", "GPUs and processor", "ok", words)
    # Without a compiler every study trains except those with compile: true.
    compiled = ("compiler", "C++ compiler, for compiled steps on a CPU")
    if path := compiler():
        yield Check(*compiled, "ok", path)
    else:
        yield Check(*compiled, "warn", "none", COMPILER_CURE)


def _lab_checks(lab: Path) -> Iterator[Check]:
    """Yield checks of the lab: whether it can be written, its file system, and its free space."""
    place, free = existing(lab), free_bytes(lab)
    system, check = _file_system(place), partial(Check, "lab", str(lab))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        yield check(
            "bad",
            f"cannot be written: {error.strerror}",
            "name another folder by --lab or SWEEPLAB_LAB",
        )
    else:
        if system in REMOTE:
            cure = "move the lab to a local disk: SQLite breaks where several machines write to one file"
            yield check("warn", f"is on {system}", cure)
        else:
            yield check("ok", "can be written" if place == lab else "will be created")
    disk = partial(Check, "disk", str(place))
    if free >= WARN_BYTES:
        yield disk("ok", f"{free / 2**30:.1f} GiB free")
    else:
        verdict: Verdict = "bad" if free < BAD_BYTES else "warn"
        cure = f"{to_delete(lab)}; track: {{checkpoints: none}} needs less"
        yield disk(verdict, f"{free / 2**30:.1f} GiB free", cure)


def _file_system(place: Path) -> str:
    import psutil

    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    resolved = place.resolve()
    return next((mounts[each] for each in (resolved, *resolved.parents) if each in mounts), "")


def tracking_check(lab: Path, uri: str | None = None, is_of_study: bool = True) -> Check:
    """Check that tracking answers, and count its studies; MLflow opens a database only where a study is checked."""
    try:
        uri = tracking_uri(lab, uri)
    except BadInput as error:
        cure = "set MLFLOW_TRACKING_URI or track: {uri: …} to an address that MLflow knows"
        return Check("tracking", "MLFLOW_TRACKING_URI", "bad", str(error), cure)
    looked_at, database = without_password(uri), database_file(uri)
    if database and not database.exists():
        return Check(
            "tracking", looked_at, "ok", "will be created by the first study that is run"
        )
    if database and not is_of_study:
        return Check(
            "tracking", looked_at, "ok", "a database; `doctor NAME` compares a study with it"
        )
    try:
        count = count_studies(lab, uri)
    except TrackingUnavailable as error:
        reason = str(error).removeprefix(f"{looked_at}: ")
        cure = "start the server; training continues without it, and the next run sends the missing numbers"
        if "database schema" in reason:
            cure = f"back the database up, then: mlflow db upgrade {looked_at}"
        elif database:
            away = "move it away and run the studies again: they send everything again"
            cure = f"put a copy of the database back, or {away}"
        return Check("tracking", looked_at, "bad", reason, cure)
    return Check("tracking", looked_at, "ok", f"answers; studies: {count}")


def _slurm_check(engine: Engine | None = None) -> Iterator[Check]:
    """Yield a check of Slurm; nothing where it is not set up and no engine needs it."""
    if not engine and not (os.environ.get("SLURM_CONF") or CONFIGURATION.exists()):
        return
    cure = "ask the cluster's administrator, or use --engine local"
    try:
        if engine:
            SlurmEngine.check(engine)
        states = ask("sinfo", "--noheader", "--format=%D %T").splitlines()
        answer = f"{ask('sbatch', '--version')} answers; nodes: {', '.join(states) or 'none'}"
        yield Check("slurm", "sbatch, sinfo", "ok", answer)
    except (SlurmFailure, BadInput) as error:
        verdict: Verdict = "bad" if engine else "warn"
        yield Check("slurm", "sbatch, sinfo", verdict, str(error), cure)


def _ray_check(engine: Engine) -> Iterator[Check]:
    try:
        ray = connect(engine.address)
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        cores, gpus = (sum(each.get(what, 0) for each in nodes) for what in ("CPU", "GPU"))
        answer = f"{ray.__version__} answers; nodes: {len(nodes)}, offering {cores:g} cores and {gpus:g} GPUs"
        yield Check("ray", engine.address, "ok", answer)
        if is_open := exposure(ray):
            yield Check("ray", "token", "warn", is_open, CLOSES)
    except BadInput as error:
        yield Check(
            "ray", engine.address, "bad", str(error), "correct this, or use --engine local"
        )
