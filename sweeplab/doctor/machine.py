"""Check software and devices, disk and lab, and whether tracking, Slurm and Ray answer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from sweeplab.doctor.findings import Check, Verdict
from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.files import existing, free_bytes, to_delete
from sweeplab.formatting import several, without_password
from sweeplab.lab import tables
from sweeplab.processes import VARIABLE, switched_off
from sweeplab.study.spec import Engine
from sweeplab.sweep.engines.ray import CLOSES, connect, exposure
from sweeplab.sweep.engines.slurm import SlurmEngine, SlurmFailure, ask
from sweeplab.tracking.connection import database_file, tracking_uri
from sweeplab.tracking.environment import device
from sweeplab.tracking.experiment import count_studies
from sweeplab.train.devices import cuda_count
from sweeplab.train.private import why_no_programs
from sweeplab.train.program import COMPILER_CURE, compiler

BAD_BYTES, WARN_BYTES = 200 * 2**20, 2 * 2**30
SQLITE = b"SQLite format 3\0"  # its files begin so
# SQLite's write-ahead log needs memory shared by its readers, which no network file system provides.
REMOTE = {"nfs", "nfs4", "cifs", "smbfs", "smb3", "afs", "9p", "lustre", "glusterfs", "fuse.sshfs"}


def machine_checks() -> Iterator[Check]:
    """Yield the checks of devices, compiler and libraries."""
    machine, n_cuda = device(), cuda_count()
    # The GPUs that the driver names are compared with those that torch can use.
    gpus = [gpu["name"] for gpu in machine["gpus"]]
    words = f"{', '.join(gpus) or 'no GPU'}; {machine['cpu']}, {several(machine['n_cores'], 'core')}"
    if len(gpus) > n_cuda and "CUDA_VISIBLE_DEVICES" not in os.environ:
        words += f"; torch sees {n_cuda} of the GPUs"
        yield Check("devices", "GPUs", "warn", words, "install a build of torch for this driver's CUDA")
    else:
        yield Check("devices", "GPUs and processor", "ok", words)
    # Without a compiler every study trains except those with compile: true.
    compiled = ("compiler", "C++ compiler, for compiled steps on a CPU")
    if path := compiler():
        yield Check(*compiled, "ok", path)
    else:
        yield Check(*compiled, "warn", "none", COMPILER_CURE)
    yield _libraries_check()


def _libraries_check() -> Check:
    ways = {
        "Optuna's tables": tables.why_public(),
        "steps compiled ahead": why_no_programs(),
    }
    slower = [f"{way}: {why}" for way, why in ways.items() if why]
    looked_at = "fast ways of Optuna and torch"
    if not slower:
        return Check("libraries", looked_at, "ok", f"taken: {', '.join(ways)}")
    cure = "use the versions of these libraries that sweeplab knows"
    if switched_off():
        cure = f"unset {VARIABLE}"
    return Check("libraries", looked_at, "warn", f"public ways, slower; {'; '.join(slower)}", cure)


def lab_checks(lab: Path) -> Iterator[Check]:
    """Yield checks of the lab: whether it can be written, its file system, and its free space."""
    place, free = existing(lab), free_bytes(lab)
    system, check = _file_system(place), partial(Check, "lab", str(lab))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        yield check(
            "bad", f"cannot be written: {error.strerror}", "name another folder by --lab or SWEEPLAB_LAB"
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
        return Check("tracking", looked_at, "ok", "will be created by the first study that is run")
    if database and not is_of_study:
        with suppress(OSError), database.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
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


CONFIGURATION = Path("/etc/slurm/slurm.conf")


def slurm_check(engine: Engine | None = None) -> Iterator[Check]:
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
        yield Check("ray", engine.address, "bad", str(error), "correct this, or use --engine local")


def engine_checks(engine: Engine) -> Iterator[Check]:
    """Check the engine of a study."""
    yield from {"slurm": slurm_check, "ray": _ray_check}[engine.type](engine)
