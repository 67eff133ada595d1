"""Python, packages, devices and threads."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from platform import python_version
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import sweeplab
from sweeplab.doctor.check import Check
from sweeplab.tracking.environment import device
from sweeplab.train.devices import cuda_count

CGROUP = Path("/sys/fs/cgroup/cpu.max")


def machine() -> Iterator[Check]:
    """Yield the checks of what is installed and of what computes."""
    python, packages = own_metadata()
    yield python_check(python)
    yield from package_checks(packages)
    found = device()
    yield device_check(found, cuda_count())
    yield thread_check(found["n_cores"], cpu_quota(), os.getloadavg()[0])


def own_metadata() -> tuple[str, list[str]]:
    """Return which Python and which packages sweeplab says it needs: as installed, or in its source tree."""
    try:
        return metadata("sweeplab")["Requires-Python"], _without_extras(requires("sweeplab") or ())
    except PackageNotFoundError:
        source = Path(sweeplab.__file__).parents[1] / "pyproject.toml"
        project = tomllib.loads(source.read_text(encoding="utf-8"))["project"]
        return project["requires-python"], project["dependencies"]


def _without_extras(requirements: Sequence[str]) -> list[str]:
    return [each for each in requirements if "extra ==" not in each]


def python_check(needed: str, found: str = "") -> Check:
    """Compare this Python with the one that is needed."""
    found = found or python_version()
    good = SpecifierSet(needed).contains(found, prereleases=True)
    cure = "" if good else f"install sweeplab in an environment with Python {needed}"
    return Check("python", f"version {needed}", "ok" if good else "bad", found, cure)


def package_checks(needed: Sequence[str], version_of: Callable[[str], str] = version) -> Iterator[Check]:
    """Compare every installed package with its floor and ceiling; those in order share one check."""
    good = []
    here = [each for each in map(Requirement, needed) if not each.marker or each.marker.evaluate()]
    for requirement in here:
        try:
            found = version_of(requirement.name)
        except PackageNotFoundError:
            found = "not installed"
        else:
            if requirement.specifier.contains(found, prereleases=True):
                good.append(requirement.name)
                continue
        cure = f"pip install '{requirement.name}{requirement.specifier}'"
        yield Check(requirement.name, f"version {requirement.specifier}", "bad", found, cure)
    yield Check("packages", "floors and ceilings", "ok", f"as they should be: {len(good)} of {len(here)}")


def device_check(found: Mapping[str, Any], n_cuda: int) -> Check:
    """Compare the GPUs that the driver names with those that torch can use."""
    gpus = [gpu["name"] for gpu in found["gpus"]]
    words = f"{', '.join(gpus) or 'no GPU'}; {found['cpu']}, {found['n_cores']} cores"
    if len(gpus) > n_cuda and "CUDA_VISIBLE_DEVICES" not in os.environ:
        words += f"; torch sees {n_cuda} of the GPUs"
        return Check("devices", "GPUs", "warn", words, "install a build of torch for this driver's CUDA")
    return Check("devices", "GPUs and processor", "ok", words)


def cpu_quota(path: Path = CGROUP) -> float | None:
    """Return how many cores' time a container may take, or None where that is all of them."""
    try:
        quota, period = path.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no container, or "max"
        return None


def thread_check(n_cores: int, quota: float | None, load: float) -> Check:
    """Compare the cores that workers are given with the time that they can have."""
    looked_at, words = "cores, quota, load", f"{n_cores} cores, load {load:.1f}"
    if quota is not None and quota < n_cores - 0.5:
        cure = f"set engine: {{workers: {max(1, int(quota))}}}, or raise the container's limit"
        words += f", of which a limit leaves {quota:g}"
        return Check("threads", looked_at, "warn", words, cure)
    if load > 1.5 * n_cores:
        return Check(
            "threads", looked_at, "warn", words, "wait for the other programs, or give fewer workers"
        )
    return Check("threads", looked_at, "ok", words)
