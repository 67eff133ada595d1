"""Check software and devices, disk and lab, whether tracking, Slurm and Ray answer, and what their nodes see."""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeplab.doctor.findings import Check, Verdict, named
from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.files import existing, free_bytes, to_delete
from sweeplab.formatting import several, without_password
from sweeplab.lab import tables
from sweeplab.lab.server import EVERYWHERE, Server
from sweeplab.lab.storage import storage_address
from sweeplab.processes import VARIABLE, switched_off
from sweeplab.records.folders import StudyFolder
from sweeplab.study.spec import Engine, StudySpec
from sweeplab.sweep.engines.ray import CLOSES, connect, exposure, run_on_nodes
from sweeplab.sweep.engines.slurm import SlurmEngine, SlurmFailure, ask, place_options
from sweeplab.tracking.connection import database_file, tracking_uri
from sweeplab.tracking.environment import device
from sweeplab.tracking.experiment import count_studies
from sweeplab.train.devices import cuda_count
from sweeplab.train.private import why_no_kernel, why_no_programs
from sweeplab.train.program import COMPILER_CURE, compiler

BAD_BYTES, WARN_BYTES = 200 * 2**20, 2 * 2**30
# SQLite's write-ahead log needs memory shared by its readers, which no network file system provides.
REMOTE = {"nfs", "nfs4", "cifs", "smbfs", "smb3", "afs", "9p", "lustre", "glusterfs", "fuse.sshfs"}


def machine_checks() -> Iterator[Check]:
    """Yield the checks of devices, compiler and libraries."""
    machine = device()
    yield device_check(machine, cuda_count())
    # Without a compiler every study trains except those with compile: true.
    compiled = ("compiler", "C++ compiler, for compiled steps on a CPU")
    if path := compiler():
        yield Check(*compiled, "ok", path)
    else:
        yield Check(*compiled, "warn", "none", COMPILER_CURE)
    yield _libraries_check()


def device_check(machine: Mapping[str, Any], n_cuda: int) -> Check:
    """Compare the GPUs that the driver names with those that torch can use."""
    gpus = [gpu["name"] for gpu in machine["gpus"]]
    words = f"{', '.join(gpus) or 'no GPU'}; {machine['cpu']}, {several(machine['n_cores'], 'core')}"
    if len(gpus) > n_cuda and "CUDA_VISIBLE_DEVICES" not in os.environ:
        words += f"; torch sees {n_cuda} of the GPUs"
        return Check("devices", "GPUs", "warn", words, "install a build of torch for this driver's CUDA")
    return Check("devices", "GPUs and processor", "ok", words)


def _libraries_check() -> Check:
    ways = {
        "Optuna's tables": tables.why_public(),
        "steps compiled ahead": why_no_programs(),
        "Adam": why_no_kernel(),
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
    place = next(each for each in (lab, *lab.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        cure = "name another folder by --lab or SWEEPLAB_LAB"
        yield Check("lab", str(lab), "bad", f"cannot be written: {error.strerror}", cure)
        if free_bytes(lab) < BAD_BYTES:
            yield disk_check(lab, free_bytes(lab))
        return
    system = _file_system(place)
    if system in REMOTE:
        cure = "move the lab to a local disk: SQLite breaks where several machines write to one file"
        yield Check("lab", str(lab), "warn", f"is on {system}", cure)
    else:
        what = "can be written" if place == lab else "will be created"
        yield Check("lab", str(lab), "ok", what)
    yield disk_check(lab, free_bytes(lab))


def disk_check(lab: Path, free: int) -> Check:
    """Check the free space of a lab's disk."""
    place, text = str(existing(lab)), f"{free / 2**30:.1f} GiB free"
    if free >= WARN_BYTES:
        return Check("disk", place, "ok", text)
    verdict: Verdict = "bad" if free < BAD_BYTES else "warn"
    return Check("disk", place, verdict, text, f"{to_delete(lab)}; track: {{checkpoints: none}} needs less")


def _file_system(place: Path) -> str:
    import psutil

    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    resolved = place.resolve()
    return next((mounts[each] for each in (resolved, *resolved.parents) if each in mounts), "")


def tracking_check(lab: Path, uri: str | None = None) -> Check:
    """Check that tracking answers, and count its studies."""
    try:
        uri = tracking_uri(lab, uri)
    except BadInput as error:
        cure = "set MLFLOW_TRACKING_URI or track: {uri: …} to an address that MLflow knows"
        return Check("tracking", "MLFLOW_TRACKING_URI", "bad", str(error), cure)
    looked_at, database = without_password(uri), database_file(uri)
    if database and not database.exists():
        return Check("tracking", looked_at, "ok", "will be created by the first study that is run")
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


# How long to wait for a free node to check from: a queue may have none for hours.
WAIT_SECONDS = 30
MOST_LOOKED_FROM = 8
CONFIGURATION = Path("/etc/slurm/slurm.conf")
# bash opens connections without further programs; 127 is the code where it is missing.
REACH = "timeout 5 bash -c 'exec 3<>/dev/tcp/$0/$1' {} {} >/dev/null 2>&1; echo $?"
NO_BASH = "127"
SHARED = "give a lab on a disk that all nodes share: --lab, SWEEPLAB_LAB"


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


def _run_on_free_nodes(engine: Engine, script: str) -> list[str]:
    if engine.type == "ray":
        return run_on_nodes(engine.address, script, WAIT_SECONDS)
    words = ("sinfo", "--noheader", "--states=idle,mixed", "--format=%D", *place_options(engine))
    count = max(1, min(MOST_LOOKED_FROM, sum(map(int, ask(*words).split()))))
    where = (f"--nodes={count}", f"--ntasks={count}", f"--immediate={WAIT_SECONDS}", "--chdir=/")
    return ask("srun", *where, *place_options(engine), "sh", "-c", script).splitlines()


def engine_checks(folder: StudyFolder, spec: StudySpec, is_stored: bool) -> Iterator[Check]:
    """Check the engine of a study, and what its nodes need; without `is_stored` its storage does not answer here."""
    checks = [*{"slurm": slurm_check, "ray": _ray_check}[spec.engine.type](spec.engine)]
    yield from checks
    if any(each.verdict == "bad" for each in checks):
        return
    storage = None
    with suppress(BadInput):  # said of the storage
        storage = storage_address(folder)
    yield from node_checks(folder.lab, spec.engine, storage if is_stored else None)


def node_checks(lab: Path, engine: Engine, storage: tuple[str, int] | None) -> Iterator[Check]:
    """Check from the nodes that they see a file of the lab, and reach the storage's server, if it has one.

    Of Slurm's nodes also that they see the file's lock, which is held here; Ray's workers are told by pipes.
    """
    at = next(place for place in (lab, *lab.parents) if place.exists())
    if not os.access(at, os.W_OK):  # said of the lab
        return
    with tempfile.NamedTemporaryFile(dir=at, prefix=".seen-") as file:
        name = Path(file.name).name  # without spaces, as the lab's path may have
        file.write(f"{name}\n".encode())
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        seen = shlex.quote(file.name)
        look = [
            f"cat {seen} 2>/dev/null || echo -",
            f"flock -n -s {seen} true 2>/dev/null && echo free || echo held",
        ]
        if storage:
            look.append(REACH.format(shlex.quote(storage[0]), storage[1]))
        script = f"echo $(hostname) ${{SLURMD_NODENAME:-$(hostname)}} $({'; '.join(look)})"
        try:
            rows = [row.split() for row in _run_on_free_nodes(engine, script)]
        except (SlurmFailure, BadInput) as error:
            failure = f"could not check whether nodes see the lab: {error}"
            yield Check("disk", str(lab), "warn", failure, "run doctor again when a node is free")
            return
    blind = [row[1] for row in rows if row[2] != name]
    has_locks = engine.type == "slurm"
    unlocked = [row[1] for row in rows if has_locks and row[2] == name and row[3] != "held"]
    if blind:
        yield Check("disk", str(lab), "bad", named("nodes that do not see the lab", blind), SHARED)
    elif unlocked:
        cure = "mount it with locks (Lustre: flock; NFS: version 4): without them workers see no supervisor and stop"
        yield Check("disk", str(lab), "bad", named("nodes that do not see its locks", unlocked), cure)
    else:
        what = "seen, with its locks," if has_locks else "seen"
        yield Check("disk", str(lab), "ok", f"shared: {what} from {several(len(rows), 'node')}")
    if not storage:
        return
    host, port = storage
    away = [row[1] for row in rows if row[4] not in ("0", NO_BASH)]
    if not away:
        nodes = several(sum(row[4] == "0" for row in rows), "node")
        yield Check("ports", f"{host}:{port}", "ok", f"the storage is reached from {nodes}")
        return
    server = Server(lab)
    again = f"{server.command('stop')}, then {server.command('start')} --host {EVERYWHERE[0]}"
    cure = f"open port {port} of {host} in the firewalls between; the lab's own server listens beyond this machine by: "
    far = named("nodes that do not reach the storage", away)
    yield Check("ports", f"{host}:{port}", "bad", far, f"{cure}{again}")
