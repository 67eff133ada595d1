"""Check Python, packages, devices and threads; disk and lab; and whether tracking answers."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from platform import python_version
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sweeplab.doctor.findings import Check
from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import several, without_password
from sweeplab.lab.disk import existing, free_bytes, to_delete
from sweeplab.libraries import VARIABLE, switched_off
from sweeplab.tracking.connection import database_file, files_elsewhere, tracking_uri
from sweeplab.tracking.environment import device
from sweeplab.tracking.experiment import count_studies
from sweeplab.train.devices import CGROUP, cuda_count
from sweeplab.train.private import why_no_kernel, why_no_programs
from sweeplab.train.program import COMPILER_CURE, compiler

BAD_BYTES, WARN_BYTES = 200 * 2**20, 2 * 2**30
# SQLite's write-ahead log needs memory shared by its readers, which no network file system provides.
REMOTE = {"nfs", "nfs4", "cifs", "smbfs", "smb3", "afs", "9p", "lustre", "glusterfs", "fuse.sshfs"}


def machine_checks() -> Iterator[Check]:
    """Yield the checks of installed software, devices and load."""
    python, packages = own_metadata()
    yield python_check(python)
    yield from package_checks(packages)
    machine = device()
    yield device_check(machine, cuda_count())
    yield thread_check(machine["n_cores"], cpu_quota(), os.getloadavg()[0])
    yield compiler_check(compiler())
    yield libraries_check()


def own_metadata() -> tuple[str, list[str]]:
    """Return the Python and the packages that sweeplab requires, from its metadata or its source tree."""
    try:
        needed = [each for each in requires("sweeplab") or () if "extra ==" not in each]
        return metadata("sweeplab")["Requires-Python"], needed
    except PackageNotFoundError:
        source = Path(__file__).parents[2] / "pyproject.toml"
        project = tomllib.loads(source.read_text(encoding="utf-8"))["project"]
        return project["requires-python"], project["dependencies"]


def python_check(needed: str, version: str = "") -> Check:
    """Compare this Python's version with the required one."""
    version = version or python_version()
    if SpecifierSet(needed).contains(version, prereleases=True):
        return Check("python", f"version {needed}", "ok", version)
    cure = f"install sweeplab in an environment with Python {needed}"
    return Check("python", f"version {needed}", "bad", version, cure)


def package_checks(needed: Sequence[str]) -> Iterator[Check]:
    """Compare every installed package with its allowed versions; correct ones share one check."""
    good = []
    here = [each for each in map(Requirement, needed) if not each.marker or each.marker.evaluate()]
    for requirement in here:
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = "not installed"
        else:
            if requirement.specifier.contains(installed, prereleases=True):
                good.append(requirement.name)
                continue
        cure = f"pip install '{requirement.name}{requirement.specifier}'"
        yield Check(requirement.name, f"version {requirement.specifier}", "bad", installed, cure)
    yield Check("packages", "allowed versions", "ok", f"correct: {len(good)} of {len(here)}")


def device_check(machine: Mapping[str, Any], n_cuda: int) -> Check:
    """Compare the GPUs that the driver names with those that torch can use."""
    gpus = [gpu["name"] for gpu in machine["gpus"]]
    words = f"{', '.join(gpus) or 'no GPU'}; {machine['cpu']}, {several(machine['n_cores'], 'core')}"
    if len(gpus) > n_cuda and "CUDA_VISIBLE_DEVICES" not in os.environ:
        words += f"; torch sees {n_cuda} of the GPUs"
        return Check("devices", "GPUs", "warn", words, "install a build of torch for this driver's CUDA")
    return Check("devices", "GPUs and processor", "ok", words)


def cpu_quota(path: Path = CGROUP / "cpu.max") -> float | None:
    """Return how many cores' time a container may use, or None if there is no limit."""
    try:
        quota, period = path.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no container, or "max"
        return None


def thread_check(n_cores: int, quota: float | None, load: float) -> Check:
    """Compare the cores that workers use with the container's limit and the load."""
    words = f"{several(n_cores, 'core')}, load {load:.1f}"
    if quota is not None and quota < n_cores - 0.5:
        words += f", limited to {quota:g} by the container"
        cure = f"set engine: {{workers: {max(1, int(quota))}}}, or raise the container's limit"
    elif load > 1.5 * n_cores:
        cure = "wait for the other programs, or use fewer workers"
    else:
        return Check("threads", "cores, quota, load", "ok", words)
    return Check("threads", "cores, quota, load", "warn", words, cure)


def compiler_check(path: str | None) -> Check:
    """Check for the compiler of compiled steps; without one every study trains except those with compile: true."""
    looked_at = "C++ compiler, for compiled steps on a CPU"
    if path:
        return Check("compiler", looked_at, "ok", path)
    return Check("compiler", looked_at, "warn", "none", COMPILER_CURE)


def libraries_check() -> Check:
    """Check whether the fast ways of Optuna and torch are taken, which use private parts of theirs."""
    from sweeplab.sweep.trials.public import why_public  # Optuna with it

    ways = {
        "Optuna's tables": why_public(),
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
    system = file_system(place)
    if system in REMOTE:
        cure = "move the lab to a local disk: SQLite breaks where several machines write to one file"
        yield Check("lab", str(lab), "warn", f"is on {system}", cure)
    else:
        state = {lab: "can be written"}.get(place, "will be created")
        yield Check("lab", str(lab), "ok", state)
    yield disk_check(lab, free_bytes(lab))


def disk_check(lab: Path, free: int) -> Check:
    """Check the free space of a lab's disk."""
    place = str(existing(lab))
    text = f"{free / 2**30:.1f} GiB free"
    if free >= WARN_BYTES:
        return Check("disk", place, "ok", text)
    cure = f"{to_delete(lab)}; track: {{checkpoints: none}} needs less"
    return Check("disk", place, "bad" if free < BAD_BYTES else "warn", text, cure)


def file_system(place: Path) -> str:
    """Return the type of a folder's file system."""
    import psutil

    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    resolved = place.resolve()
    return next((mounts[each] for each in (resolved, *resolved.parents) if each in mounts), "")


def moved_check(lab: Path, before: Sequence[str]) -> Iterator[Check]:
    """Yield whether MLflow finds the files of a moved lab; `before` are the folders where it has looked so far."""
    if not before:
        return
    was = f"the lab was moved or copied: MLflow looked for its files in {', '.join(before)}"
    if files_elsewhere(lab):
        cure = f"make {lab}/mlflow.db writable: the next command that opens it corrects this"
        yield Check("moved", f"{lab}/artifacts", "warn", was, cure)
    else:
        yield Check("moved", f"{lab}/artifacts", "ok", f"{was}, and now uses this one")


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
